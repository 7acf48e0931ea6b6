"""The process that forks a pool's ranks: it outlives them, however and whenever they end."""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from nbtorchjob import JobSpec, capture
from nbtorchjob.payload import archive
from nbtorchjob.runtime.api.points import Page
from nbtorchjob.runtime.lab.turns import SOCKET
from tests.backends.kubernetes.nodes import KEY
from tests.patience import LIMIT

pytestmark = pytest.mark.torch

ROUND = 7
PROGRAM = """
import os, signal, sys
from nbtorchjob.runtime.pool import zygote
home, key = sys.argv[1], bytes.fromhex(sys.argv[2])
{first}
zygote.stand("", os.path.join(home, "round-1"), key, 1, "127.0.0.1:1", 1, lambda rank: None)
"""
A_SIGNAL_IN_THE_FORK = "os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))"
# The rank is gone before the zygote looks, so the zygote finds the rank both returned and ended.
A_RANK_THAT_IS_FASTER = """
signal.pause = lambda: os.kill(os.getpid(), signal.SIGKILL)
begin = zygote._Zygote._begin
def begin_and_wait(self, order):
    begin(self, order)
    os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
zygote._Zygote._begin = begin_and_wait
"""


@pytest.fixture
def spoken(tmp_path):
    """Yield a function that starts a zygote and talks to it as its node does."""
    started: list[subprocess.Popen[bytes]] = []
    opened = ExitStack()

    def start(first, *, orders=("run", "clear-7")):
        """Return the zygote's records of a job, and then of clearing up after it."""
        (tmp_path / f"round-{ROUND}").mkdir()
        (tmp_path / "round-1").mkdir()
        Page.create(str(tmp_path / f"round-{ROUND}"), 1)
        with open(tmp_path / "job", "wb") as file:
            archive.write(file, capture.from_cell("1", {}), JobSpec(pool="warm"), KEY)
        listener = opened.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(tmp_path / SOCKET))
        listener.listen()
        env = {"RANK": "0", "LOCAL_RANK": "0", "NBTORCHJOB_NODE": "0", "NBTORCHJOB_FOLDER": str(tmp_path)}
        command = [sys.executable, "-c", PROGRAM.format(first=first), str(tmp_path), KEY.hex()]
        started.append(subprocess.Popen(command, env={**os.environ, **env}))
        listener.settimeout(LIMIT)
        node, _ = listener.accept()
        node.settimeout(LIMIT)
        records: list[dict[str, Any]] = []
        with node, node.makefile("rw") as lines:
            job = {"round": ROUND, "id": "a", "attempt": 1, "place": {}, "path": str(tmp_path / "job")}
            for order in (job if name == "run" else {"round": name} for name in orders):
                lines.write(json.dumps(order) + "\n")
                lines.flush()
                while not records or records[-1]["done"] != order["round"]:
                    records.append(json.loads(lines.readline()))
        return records

    with opened:
        yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_rank_that_is_ended_in_the_fork_is_a_failure_of_its_job_alone(spoken):
    *_, ended, cleared = spoken(A_SIGNAL_IN_THE_FORK)

    assert (ended["failed"], ended["code"]) == (True, -15)
    assert cleared["done"] == "clear-7"


def test_a_rank_that_ends_as_soon_as_it_has_returned_has_returned(spoken):
    *_, ended, cleared = spoken(A_RANK_THAT_IS_FASTER)

    assert (ended["done"], ended["failed"], ended.get("code")) == (ROUND, False, None)
    assert cleared["done"] == "clear-7"


def test_what_a_job_left_is_cleared_and_sent_even_if_it_failed_before_it_had_ranks(spoken):
    records = spoken("", orders=("clear-6", "send-6", "run", "clear-7"))

    assert [record["done"] for record in records[1:3]] == ["clear-6", "send-6"]
    assert (records[-2]["done"], records[-2]["failed"]) == (ROUND, False)
