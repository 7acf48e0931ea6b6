"""Tab completion after ``%torchjob`` and ``%%torchjob``."""

import pytest
from IPython.core.completer import CompletionContext

from nbtorchjob.commands import completion
from nbtorchjob.machine import folders
from nbtorchjob.spec import options
from tests.backends.local.acted import Acted


@pytest.fixture(autouse=True)
def jobs(tmp_path, monkeypatch):
    """Create three jobs in a state folder of the test's own."""
    monkeypatch.setenv(folders.STATE, str(tmp_path / "state"))
    for name in ("train-2222", "eval-3333", "train-4444"):
        Acted(name)


@pytest.fixture(autouse=True)
def folders_here(jobs, tmp_path, monkeypatch):
    """Change to a folder that contains folders and a file."""
    for name in ("here/runs/a", "here/runs/b", "here/there", "here/.hidden"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "here" / "file").touch()
    monkeypatch.chdir(tmp_path / "here")


def offered(text):
    lines = text.split("\n")
    context = CompletionContext(
        token=text.rpartition(" ")[2],
        full_text=text,
        cursor_position=len(lines[-1]),
        cursor_line=len(lines) - 1,
        limit=None,
    )
    matches = completion.matcher(context)
    texts = [completion.text for completion in matches["completions"]]
    assert matches["suppress"] == bool(texts)
    return texts


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("%%torchjob --nn", ["--nnodes"]),
        ("%%torchjob --nnodes 2 --npr", ["--nproc-per-node"]),
        ("%%torchjob --start-method f", ["fork", "forkserver"]),
        ("%%torchjob --backend ", ["local", "kubernetes"]),
        ("%%torchjob --ship ", ["file", "runs/", "there/"]),
        ("%%torchjob --ship runs/a --ship f", ["file"]),
        ("%torchjob run --ship runs/", ["runs/a/", "runs/b/"]),
        ("%%torchjob -o x", []),
        ("%%torchjob ", []),
        ("%torchjob l", ["list", "lock", "logs"]),
        ("%torchjob run --nn", ["--nnodes"]),
        ("%torchjob run --start-method s", ["spawn"]),
        ("%torchjob attach ", ["train-4444", "eval-3333", "train-2222"]),
        ("  %torchjob cancel train-2222 ev", ["eval-3333"]),
        ("x = 1\n%torchjob status e", ["eval-3333"]),
        ("%torchjob describe e", ["eval-3333"]),
        ("%torchjob list ", []),
        ("%torchjob artifacts e", ["eval-3333"]),
        ("%torchjob artifacts --attempt 2 e", ["eval-3333"]),
        ("%torchjob artifacts eval-3333 ", ["runs/", "there/"]),
        ("%torchjob artifacts eval-3333 runs/", ["runs/a/", "runs/b/"]),
        ("%torchjob export eval-3333 t", ["there/"]),
        ("%torchjob export eval-3333 nowhere/t", []),
        ("%torchjob get eval-3333 f", []),
        ("%torchjob get eval-3333 model.pt r", ["runs/"]),
        ("%torchjob swap eval-3333 f", ["file"]),
        ("%torchjob swap --within 5 eval-3333 ", ["file", "runs/", "there/"]),
        ("%torchjob profile eval-3333 --folder r", ["runs/"]),
        ("%torchjob profile --folder runs/ e", ["eval-3333"]),
        ("%torchjob logs eval-3333 --rank ", []),
        ("%torchjob logs --zip f", ["file"]),
        ("%torchjob logs eval-3333 ", []),
        ("%torchjob set eval-3333 ", []),
        ("%torchjob diff eval-3333 train-2", ["train-2222"]),
        ("%torchjob pool e", ["eval-3333"]),
        ("%torchjob pool warm --backend ", ["local", "kubernetes"]),
        ("%torchjob pool warm --ship f", ["file"]),
        ("%torchjob pool --nnodes 2 e", ["eval-3333"]),
        ("%%torchjobs --nn", []),
        ("torchjob --nn", []),
        ("%%torchjob --nnodes 2\nloss --nn", []),
        ("%%torchjob", []),
    ],
)
def test_what_fits_is_offered(text, texts):
    assert offered(text) == texts


def test_every_flag_is_offered():
    assert set(offered("%%torchjob --")) == {flag for flag in options.flags() if flag.startswith("--")}


def test_a_line_of_the_notebook_is_completed_if_it_is_the_magics():
    assert completion.of_line("%torchjob status ev") == ["eval-3333"]
    assert "--nnodes" in completion.of_line("%%torchjob --nn")
    assert completion.of_line("print(ev") == []
