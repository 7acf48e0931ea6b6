"""Cache folders of compilers: torch's default, and those that a node sets."""

import os
import tempfile

import pytest

from nbtorchjob.runtime.start import compilers

NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME", "TMPDIR", "TEMP", "TMP")


@pytest.mark.torch
@pytest.mark.parametrize(
    "env",
    [
        {},
        {"LOGNAME": "ada", "USER": "grace"},
        {"LOGNAME": "", "USERNAME": "a/b:c"},
        {"TMPDIR": "there", "TMP": "missing"},
        {"TMPDIR": "missing", "TEMP": "there"},
    ],
)
def test_torchs_default_is_known(monkeypatch, folder, env):
    runtime = pytest.importorskip("torch._inductor.runtime.cache_dir_utils", reason="elsewhere in torch 2.4")

    (folder / "there").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    assert compilers.default(os.environ) == runtime.default_cache_dir()


@pytest.fixture
def env(folder):
    """Return a node's environment, with a temporary folder of its own."""
    return {"TMPDIR": str(folder), "LOGNAME": "ada"}


def test_a_node_has_compilers_use_its_own_folder(env, folder):
    compilers.lead(env, f"{folder}/own")

    assert env["TORCHINDUCTOR_CACHE_DIR"] == f"{folder}/own/inductor"
    assert env["TRITON_CACHE_DIR"] == f"{folder}/own/triton"
    assert env["TMPDIR"] == str(folder)
    assert (folder / "torchinductor_ada").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_an_image_names_is_taken(env, folder):
    env["TORCHINDUCTOR_CACHE_DIR"] = "/warm"

    compilers.lead(env, f"{folder}/own")

    assert env["TORCHINDUCTOR_CACHE_DIR"] == "/warm"


def open_to_all(path):
    path.mkdir()
    path.chmod(0o777)


def a_file(path):
    path.write_text("")


@pytest.mark.parametrize("take", [open_to_all, a_file])
def test_a_node_goes_round_what_others_can_write_to(env, folder, take):
    take(folder / "torchinductor_ada")

    compilers.lead(env, f"{folder}/own")

    assert env["TMPDIR"] == f"{folder}/own/tmp"


def test_only_what_torch_sets_itself_is_left_out(env, folder):
    own = f"{folder}/torchinductor_ada"
    set_by_torch = {"TORCHINDUCTOR_CACHE_DIR": own, "TRITON_CACHE_DIR": f"{own}/triton/0"}

    assert compilers.chosen({**env, **set_by_torch}) == env
    beside = {**env, "TORCHINDUCTOR_CACHE_DIR": f"{own}_2", "OTHER": own}
    assert compilers.chosen(beside) == beside
