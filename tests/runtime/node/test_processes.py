"""An agent that torch keeps waiting for dead ranks."""

import os
import signal
import subprocess
import sys
import threading
import time

import cloudpickle
import pytest

from nbtorchjob import Elastic, JobSpec, Retry, RunPolicy, capture
from nbtorchjob.payload import archive
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.node.processes import Watchdog, alive
from tests.backends.kubernetes.nodes import KEY, Node
from tests.patience import LIMIT
from tests.programs import program

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.torch
@pytest.mark.parametrize(
    ("retry", "policy", "code"),
    [
        (None, None, exits.USER_ERROR),
        (Retry(retries=1), None, exits.RECOVERABLE_ERROR),
        (None, RunPolicy(backoff_limit=1), exits.RECOVERABLE_ERROR),
    ],
    ids=["no retries", "ours", "the operator's"],
)
def test_a_node_ends_though_torch_never_notices_that_its_ranks_are_dead(retry, policy, code, folder):
    with open(folder / "job.pyz", "wb") as file:
        spec = JobSpec(Elastic(nproc_per_node=2, run_policy=policy), retry=retry)
        archive.write(file, capture.from_function(time.sleep, (1000,)), spec, KEY)
    (folder / "key").write_bytes(KEY)
    node = Node(folder / "job.pyz", command=program("stuck"))
    assert node.wait() == code
    (failed,) = node.facts("NodeFailed")
    assert failed["code"] == code
    assert "hasn't noticed" in failed["error"]["message"]
    assert [exited["signal"] for exited in node.facts("RankExited")] == [signal.SIGKILL] * 2
    left = node.left_behind()
    node.end()
    assert left == []


def test_a_call_that_comes_back_in_time_is_left_alone(monkeypatch):
    monkeypatch.setattr(
        "nbtorchjob.runtime.node.processes.LIMIT_S", 1.0
    )  # instead of the ten seconds for a real torch
    stuck, seconds = threading.Event(), threading.Semaphore(0)
    watchdog = Watchdog(stuck.set, seconds.release)
    child = subprocess.Popen(["true"])
    child.wait()
    assert not alive(child.pid)
    for _ in range(4):  # separate calls, none longer than a second
        with watchdog.over([child.pid]):
            seconds.acquire()
    assert not stuck.is_set()
    with watchdog.over([child.pid]):
        assert stuck.wait(LIMIT)


def test_a_running_process_is_alive_and_a_zombie_is_not():
    assert alive(os.getpid())
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not alive(child.pid)
    child.wait()
