"""The warm pool: started once, shared, replaced when it dies, and reported when it can't be started."""

import importlib
import os
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import pytest
import torch

import nbtorchjob
from nbtorchjob import Elastic, JobFailedError, JobSpec, SubmitError
from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.launch import pool
from nbtorchjob.machine import folders, processes
from nbtorchjob.payload import program
from nbtorchjob.runtime.facts import death
from nbtorchjob.runtime.rank import worker
from nbtorchjob.state import Phase
from nbtorchjob.state.failure import Cause
from tests.backends.kubernetes.stage import until
from tests.backends.local.real import seen
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch


@pytest.fixture
def apart(folder, monkeypatch):
    """Yield a state folder of the test's own; its pools end with the test."""
    state = folder / 'it\'s a "folder"'
    monkeypatch.setenv(folders.STATE, str(state))
    yield state
    for pid in pools(folder):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def pools(folder):
    """Return the pools that this process started and that serve a state folder in ``folder``."""
    pids = []
    for pid in death.children():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"pool.main(" in line and os.fsencode(folder) in line:
            pids.append(pid)
    return pids


def pid_of_pool():
    return pool.process().pid


def ended(pid):
    """Wait for the end of a pool that this process started."""
    return os.waitpid(pid, 0)[0] == pid


def waits(stop):
    while not Path(stop).exists():
        time.sleep(0.01)
    return "went on"


def test_notebooks_that_start_at_once_share_one_pool(apart, folder):
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: pool.warm_up(), range(4)))

    assert len(pools(folder)) == 1
    assert pool.process().alive()


def test_a_pool_that_is_killed_is_replaced_and_its_jobs_go_on(apart, folder):
    first = nbtorchjob.submit(waits, str(folder / "stop"))
    seen(first, lambda state: state.phase is Phase.RUNNING)
    (pid,) = pools(folder)
    os.kill(pid, signal.SIGKILL)
    assert ended(pid)

    assert nbtorchjob.submit(len, "four").result(LIMIT) == 4
    assert not first.done()
    (folder / "stop").touch()
    assert first.result(LIMIT) == "went on"


def test_a_pool_ends_when_it_is_told_to(apart):
    pool.warm_up()
    pid = pid_of_pool()
    pool.stop()

    assert ended(pid)
    assert not os.path.exists(directory.socket_path())
    pool.stop()


def test_a_pool_that_nobody_needs_ends_by_itself(apart, monkeypatch):
    monkeypatch.setenv(pool.IDLE, "0.01")
    pool.warm_up()

    assert ended(pid_of_pool())
    assert not os.path.exists(directory.socket_path())


def test_an_idle_pool_imports_what_the_first_optimizer_of_a_rank_needs():
    pool.import_all()

    def imported():
        before = set(sys.modules)
        weight = torch.nn.Parameter(torch.zeros(1))
        torch.optim.AdamW([weight])
        return len(set(sys.modules) - before)

    assert nbtorchjob.submit(imported).result(LIMIT) < 10  # of 820 (torch 2.13)


def test_what_a_payload_brings_serves_and_the_pools_only_where_it_is_the_same(monkeypatch):
    def origin():
        return [
            importlib.import_module(name).__file__
            for name in ("nbtorchjob.runtime.rank.worker", "cloudpickle")
        ]

    assert nbtorchjob.submit(origin).result(LIMIT) == [worker.__file__, cloudpickle.__file__]

    changed = [(name, source + b"# changed") for name, source in program.modules()]
    monkeypatch.setattr(program, "modules", lambda: changed)
    program.archive.cache_clear()
    try:
        paths = nbtorchjob.submit(origin).result(LIMIT)
    finally:
        program.archive.cache_clear()
    assert ["job.pyz" in path for path in paths] == [True, True]


def test_a_pool_that_does_not_start_is_told_and_leaves_no_job(apart, folder, monkeypatch):
    python = folder / "python"
    python.write_text("#!/bin/sh\necho 'first words'\necho 'no luck today' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))  # starts the pool

    with pytest.raises(SubmitError, match="pool didn't start: no luck today"):
        nbtorchjob.submit(len, "four")
    assert list((apart / "jobs").iterdir()) == []


def test_a_pool_that_ends_before_it_started_the_job_is_told(apart, monkeypatch):
    monkeypatch.setenv(pool.IDLE, "soon")
    job = nbtorchjob.submit(len, "four")

    with pytest.raises(JobFailedError, match="the pool ended before it started the job: ValueError"):
        job.result(LIMIT)
    assert job.state.failure is not None
    assert job.state.failure.reason.cause is Cause.INFRA


def test_a_long_path_and_a_short_one_to_the_state_folder_may_have_a_pool_each(apart, folder, monkeypatch):
    deep = apart / ("d" * 100)
    monkeypatch.setenv(folders.STATE, str(deep))
    assert nbtorchjob.submit(len, "four").result(LIMIT) == 4
    (folder / "short").symlink_to(deep)
    monkeypatch.setenv(folders.STATE, str(folder / "short"))
    assert nbtorchjob.submit(len, "four").result(LIMIT) == 4
    pid = pid_of_pool()
    pool.stop()
    assert ended(pid)
    monkeypatch.setenv(folders.STATE, str(deep))

    assert nbtorchjob.submit(len, "four").result(LIMIT) == 4
    assert pool.process().alive()  # otherwise a job that hasn't begun yet would count as lost


def test_a_long_path_to_the_state_folder_is_no_obstacle(apart, monkeypatch):
    deep = apart / ("d" * 100) / ("e" * 100)
    monkeypatch.setenv(folders.STATE, str(deep))
    pool.warm_up()
    pid = pid_of_pool()

    assert pool.process().alive()
    assert len(os.fsencode(directory.socket_path())) > 107
    os.kill(pid, signal.SIGKILL)
    assert ended(pid)


@pytest.mark.parametrize("request_", [b"", b"\n", b"no json\n", b'{"folder": ', b"\xff\xfe\n", b"{}\n"])
def test_a_request_that_makes_no_sense_harms_nobody(request_):
    assert nbtorchjob.submit(len, "four").result(LIMIT) == 4
    pid = pid_of_pool()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(directory.socket_path()))
        connection.sendall(request_)

    assert nbtorchjob.submit(len, "four").result(LIMIT) == 4
    assert pid_of_pool() == pid


def test_a_job_leaves_no_semaphore_behind(apart):
    assert nbtorchjob.submit(len, "four", spec=Elastic(nproc_per_node=2)).result(LIMIT) == 4
    pid = pid_of_pool()
    tracker = tracker_of(pid)
    pool.stop()
    assert ended(pid)
    until(lambda: not tracker.alive())

    assert "leaked" not in (directory.pool_dir() / "log").read_text()


def tracker_of(pid):
    """Return the process that unlinks and reports what a pool's jobs left behind when the pool ends."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    trackers = [n for n in children if b"resource_tracker" in Path(f"/proc/{n}/cmdline").read_bytes()]
    return processes.Process.of(int(trackers[0]))


def test_what_torch_reads_at_import_takes_a_fresh_interpreter_whose_end_harms_no_job(folder, monkeypatch):
    # A library that aborts when its interpreter ends: a cold start takes too long for a test of its own.
    (folder / "sitecustomize.py").write_text(
        "import atexit, os, sys\nif sys.orig_argv[-1].endswith('.pyz'):\n    atexit.register(os.abort)\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    pool.warm_up()
    monkeypatch.setenv("TORCH_SHOW_CPP_STACKTRACES", "1")
    spec = JobSpec(Elastic(), env={"TORCHDYNAMO_DISABLE": "1"})

    assert nbtorchjob.submit(seen_of, *READ_AT_IMPORT, spec=spec).result(LIMIT) == (["1", "1"], False)


READ_AT_IMPORT = ("TORCH_SHOW_CPP_STACKTRACES", "TORCHDYNAMO_DISABLE")


def seen_of(*variables):
    """Return the variables as a rank has them, and whether it was forked from the pool."""
    return [os.environ[name] for name in variables], "pool.main" in sys.orig_argv[-1]


@pytest.mark.parametrize("variable", ["KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"])
def test_what_libraries_set_in_a_kernel_costs_no_warm_start(monkeypatch, variable):
    pool.warm_up()  # without the variable
    monkeypatch.setenv(variable, "1")

    assert nbtorchjob.submit(seen_of, variable).result(LIMIT) == (["1"], True)


def test_only_the_user_can_reach_the_pool():
    pool.warm_up()

    for path in (directory.socket_path(), directory.pool_dir(), directory.jobs_dir()):
        assert os.stat(path).st_mode & 0o077 == 0
