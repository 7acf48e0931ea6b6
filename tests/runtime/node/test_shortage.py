"""A node reports what its machine refuses it, how much it may have, and what to do."""

import errno
import os
import shutil
import subprocess
import sys
from functools import reduce
from pathlib import Path

import cloudpickle
import pytest
from torch.distributed import DistNetworkError

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.errors import from_exception
from nbtorchjob.runtime.node import shortage
from nbtorchjob.runtime.node.meter import Roots
from nbtorchjob.runtime.rendezvous.groups import ITSELF
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.attempts import Budget, budget
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines
from nbtorchjob.state.failure import Cause, of_agent_error
from nbtorchjob.state.text import facts
from tests.backends.kubernetes.nodes import Node, pack

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

OTHER_USER = 61_234  # root may start any number of processes


def rank():
    return os.environ["RANK"]


@pytest.fixture
def ended(folder):
    """Yield a function that runs a node of a few ranks by a command; it returns the exit code and node."""
    nodes = []

    def run(*command, nproc=2, **env):
        if not shutil.which(command[0]):
            pytest.skip(f"there is no {command[0]} here")
        node = Node(pack(folder, rank, nproc=nproc), command=[*command, sys.executable], **env)
        nodes.append(node)
        return node.wait(), node

    yield run
    for node in nodes:
        node.end()


def permitted(*command):
    """Skip the test if this machine doesn't permit a command."""
    if not shutil.which(command[0]) or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip(f"{command[0]} isn't permitted here")


def told(node, code):
    """Return the text of a job's failure, and its budget, from the facts of its only node."""
    (fact,) = node.facts("NodeFailed")
    ending = [factlines.from_json(fact), ev.NodeExited(fact["time"], 0, code=code), ev.Closed(fact["time"])]
    state = reduce(apply, ending, JobState(JobInfo("job")))
    assert state.failure is not None
    assert state.failure.error is not None
    reads = (
        facts.heading(state.failure, state),
        *state.failure.error.notes,
        facts.cause(state.failure, state),
    )
    return "\n".join(reads), budget(state.failure)


@pytest.mark.torch
def test_too_many_open_files_are_told_with_their_limit(ended):
    code, node = ended("prlimit", "--nofile=30:30")

    text, paid = told(node, code)
    assert (code, paid) == (exits.CONFIG_ERROR, None)
    assert "a process may have only 30 files open there: OSError: [Errno 24] Too many open files" in text
    assert "30 (RLIMIT_NOFILE, hard limit 30)" in text
    assert "ulimit -n" in text


@pytest.mark.torch
def test_a_user_who_may_start_no_more_processes_is_told_how_many_there_may_be(ended):
    other = ("setpriv", f"--reuid={OTHER_USER}", "--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    permitted(*other)
    code, node = ended(*other, "prlimit", "--nproc=3:3")

    text, paid = told(node, code)
    assert (code, paid) == (exits.INFRASTRUCTURE_ERROR, Budget.PREEMPTIONS)
    assert "it may start no more processes or threads" in text
    assert "this user may have 3 (RLIMIT_NPROC, hard limit 3)" in text
    assert "ulimit -u" in text


@pytest.fixture
def few_processes():
    """Yield a cgroup, of version 1 or 2, that allows only a few processes."""
    root = Path("/sys/fs/cgroup")
    group = (root / "pids" if (root / "pids").is_dir() else root) / f"nbtorchjob-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "pids.max").write_text("9")
    except OSError as exc:
        pytest.skip(f"making a cgroup of few processes isn't permitted here: {exc}")
    yield group
    group.rmdir()


@pytest.mark.torch
def test_the_process_that_ranks_are_forked_from_tells_why_it_cannot(few_processes, ended):
    enter = f'echo $$ > {few_processes}/cgroup.procs && exec "$@"'
    code, node = ended("sh", "-c", enter, "sh", nproc=8)

    text, paid = told(node, code)
    assert (code, paid) == (exits.INFRASTRUCTURE_ERROR, Budget.PREEMPTIONS)
    assert "it may start no more processes or threads" in text
    assert "of 9 (pids.max)" in text


@pytest.mark.torch
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_read_only_shared_memory_keeps_no_rank_from_running(method, folder):
    enter = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro tmpfs /dev/shm && exec "$@"', "sh")
    permitted(*enter)
    node = Node(pack(folder, rank, nproc=2, start_method=method), command=[*enter, sys.executable])
    code = node.wait()
    value = node.value() if code == exits.OK else node.output()
    node.end()

    assert (code, value) == (exits.OK, "0")


@pytest.mark.torch
def test_a_machine_that_can_not_connect_to_itself_is_told_at_once(ended):
    permitted("unshare", "-n")
    code, node = ended("unshare", "-n")

    text, paid = told(node, code)
    assert (code, paid) == (exits.INFRASTRUCTURE_ERROR, Budget.PREEMPTIONS)
    assert "it can't connect to itself: OSError: [Errno 101] Network is unreachable" in text
    assert "at 127.0.0.1:" in text
    assert "ip link set lo up" in text


def raised(exc, *, behind=None):
    try:
        raise exc from behind
    except type(exc) as error:
        return error


REFUSED = [
    (OSError(errno.EMFILE, "many"), Cause.CONFIG, "files open there"),
    (OSError(errno.ENFILE, "many"), Cause.INFRA, "its machine has reached its limit on open files"),
    (BlockingIOError(errno.EAGAIN, "no"), Cause.INFRA, "no more processes"),
    (RuntimeError("can't start new thread"), Cause.INFRA, "no more processes"),
    (RuntimeError("Resource temporarily unavailable"), Cause.INFRA, "no more processes"),
    (RuntimeError("no socket (errno: 24 - Too many open files)"), Cause.CONFIG, "files open there"),
    (OSError(errno.ENOMEM, "no"), Cause.INFRA, "it has no memory"),
    (MemoryError(), Cause.INFRA, "it has no memory"),
    (OSError(errno.ENOSPC, "full", "/"), Cause.INFRA, "its disk is full"),
    (OSError(errno.EROFS, "no", "/etc/a"), Cause.CONFIG, "it can't write to /etc/a"),
    (OSError(errno.ENETUNREACH, f"no: {ITSELF} at x"), Cause.INFRA, "it can't connect to itself"),
    (DistNetworkError("(errno: 113 - No route to host)"), Cause.INFRA, "the rendezvous failed or a peer"),
    (raised(RuntimeError("a rank"), behind=OSError(errno.ENOMEM, "no")), Cause.INFRA, "it has no memory"),
    (ValueError("something else"), Cause.UNKNOWN, "the node's agent failed"),
]


@pytest.mark.parametrize(("exc", "cause", "line"), REFUSED, ids=lambda value: repr(value)[:40])
def test_what_is_refused_has_a_cause_and_a_code_that_agree(exc, cause, line):
    code = shortage.code_of(exc)
    reason = of_agent_error(code, shortage.explained(from_exception(exc), exc))

    assert reason.cause is cause
    assert line in reason.line
    assert (code in exits.FINAL) == (cause is Cause.CONFIG)
    assert reason.hint or cause is Cause.UNKNOWN


def test_a_full_disk_is_the_one_with_the_least_room_where_the_error_names_no_file(folder, monkeypatch):
    real = os.statvfs
    full = os.statvfs_result((1, 1, 9, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda place: full if place == str(folder) else real(place))
    monkeypatch.setenv("NBTORCHJOB_FOLDER", str(folder))

    # As a write raises it: for a temporary file, Python would look for another folder, as this one is full.
    assert (
        shortage.limit_met(OSError(errno.ENOSPC, "full")) == f"{folder} is full: 0 bytes of 9 bytes are free"
    )


def test_a_limit_that_can_not_be_read_leaves_the_exception_as_it_is(tmp_path):
    exc = raised(OSError(errno.ENFILE, "many"))
    error = from_exception(exc)

    nowhere = Roots(proc=str(tmp_path))
    assert shortage.explained(error, exc, nowhere) == error
