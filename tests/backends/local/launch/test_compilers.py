"""Compilers' caches in a shared temporary folder: no file of another user there runs as this user."""

import getpass
import os
import pickle
import stat
import sys
import tempfile

import cloudpickle
import pytest

import nbtorchjob
from nbtorchjob import Elastic, JobSpec
from nbtorchjob.backends.local.launch import pool
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

KEY = "f" + "a" * 51  # as of a compiled graph
WARM_OR_FRESH = pytest.mark.parametrize(
    "spec",
    [JobSpec(Elastic()), JobSpec(Elastic(), env={"TORCH_SHOW_CPP_STACKTRACES": "1"})],
    ids=["warm", "fresh"],
)


@pytest.fixture
def shared(folder, monkeypatch):
    """Set a shared temporary folder; return the folder that torch takes in it by default."""
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder / f"torchinductor_{getpass.getuser()}"


class Planted:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def look_up():
    """Look for a compiled graph as ``torch.compile`` does; return the folders of all caches."""
    from torch._inductor import codecache
    from torch._inductor.runtime import cache_dir_utils

    for candidate in codecache.FxGraphCache.iterate_over_candidates(True, None, KEY):
        assert candidate
    places = {codecache._HEADER_DIR, cache_dir_utils.cache_dir(), cache_dir_utils.default_cache_dir()}
    return sorted({*places, cache_dir_utils.triton_cache_dir(0)})


def plant(shared, folder):
    """Put a pickle where torch's own code looks for a graph of that key, in a folder that is open to all."""
    entry = shared / "fxgraph" / KEY[1:3] / KEY
    entry.mkdir(parents=True)
    (entry / "graph").write_bytes(pickle.dumps(Planted(str(folder / "mark"))))
    shared.chmod(0o777)


def nobody_elses(path):
    """Return whether nobody else could have written there: the path or its parent is closed to others."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return any(closed(os.stat(folder)) for folder in (path, os.path.dirname(path)))


def closed(status):
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077


@WARM_OR_FRESH
def test_nothing_is_unpickled_or_kept_where_somebody_else_can_write(shared, tmp_path, spec):
    pytest.importorskip("torch._inductor.runtime.cache_dir_utils", reason="elsewhere in torch 2.4")
    pool.import_all()
    plant(shared, tmp_path)

    kept = nbtorchjob.submit(look_up, spec=spec).result(LIMIT)

    assert not (tmp_path / "mark").exists()
    assert [path for path in kept if not nobody_elses(path)] == []


def folders():
    """Return this rank's folders for compiled code and for temporary files, once it has an optimizer."""
    import torch

    torch.optim.SGD(torch.nn.Linear(1, 1).parameters()).zero_grad()
    return os.environ["TORCHINDUCTOR_CACHE_DIR"], tempfile.gettempdir()


def test_a_job_goes_round_what_takes_the_place_of_its_folder_and_says_so(shared, folder):
    shared.write_bytes(b"")

    job = nbtorchjob.submit(folders)

    assert [path for path in job.result(LIMIT) if not nobody_elses(path)] == []
    assert [f"{shared} must be" in notice.text for notice in job.state.notices] == [True]


def test_jobs_of_a_kernel_that_made_an_optimizer_do_not_take_its_folder_along(shared, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(shared / "triton" / "0"))

    compiled, temporary = nbtorchjob.submit(folders).result(LIMIT)

    assert not compiled.startswith(str(shared))
    assert temporary == str(shared.parent)


def test_a_folder_that_the_user_names_is_taken(shared, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))
    spec = JobSpec(Elastic(), env={"TRITON_CACHE_DIR": str(shared / "triton")})

    compiled, triton = nbtorchjob.submit(variables, spec=spec).result(LIMIT)

    assert (compiled, triton) == (str(tmp_path / "mine"), str(shared / "triton"))


def variables():
    """Return the variables that set the compilers' folders."""
    return os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"]
