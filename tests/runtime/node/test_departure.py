"""Nodes that are told to end: real agents and ranks, and what becomes of the ranks' checkpoints."""

import os
import signal
import sys
import time

import cloudpickle
import pytest

from nbtorchjob import Leaving, checkpoint_dir, leaving
from nbtorchjob.runtime.node.departure import Departure
from nbtorchjob.runtime.rendezvous.alone import Alone
from tests.backends.kubernetes.nodes import Node, kill, pack
from tests.backends.kubernetes.stage import until
from tests.ports import free_port

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def start(folder):
    """Yield a function that starts two nodes that save to ``folder / "store"``; end them afterwards."""
    started = []

    def nodes(fn, *args):
        checkpoints, port = f"file://{folder}/store", free_port()
        job = pack(folder, fn, *args, nodes=2, checkpoints=checkpoints)
        for index in range(2):
            env = {
                "NBTORCHJOB_NODE": str(index),
                "NBTORCHJOB_CHECKPOINTS": checkpoints,
                "NBTORCHJOB_STOP_WITHIN": "1000",
                "PET_LOCAL_ADDR": f"127.0.0.{index + 1}",
                "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}",
            }
            started.append(Node(job, **env))
        return started

    yield nodes
    for node in started:
        node.end()


@pytest.mark.torch
def test_nodes_that_are_killed_as_they_send_leave_the_last_whole_checkpoint(folder, start):
    def save():
        rank = os.environ["RANK"]
        print("ready", flush=True)
        while not leaving():
            time.sleep(0.01)
        (checkpoint_dir() / f"part-{rank}").write_text("second")
        print("saved", flush=True)
        if rank == "1":
            time.sleep(1000)
        raise Leaving

    store = folder / "store"
    store.mkdir()
    for rank in range(2):
        (store / f"part-{rank}").write_text("first")
    nodes = start(save)
    for rank, node in enumerate(nodes):
        node.until(lambda node, rank=rank: b"ready" in node.log(rank))
    kill(nodes[1].process.pid, signal.SIGTERM)
    nodes[1].until(lambda node: b"saved" in node.log(1))
    until(lambda: [path.read_text() for path in store.glob("part-0?*")] == ["second"])
    for node in nodes:
        node.end()

    assert [(store / f"part-{rank}").read_text() for rank in range(2)] == ["first", "first"]


class Ring(Alone):
    """The peers of a node: whether they have sent what was saved there, and what one of them has decided."""

    def __init__(self, others_sent, decided):
        self.others_sent, self.decided = others_sent, decided

    def want_leave(self, seconds, *, joins=False):
        self.leaves = seconds

    def say(self, word, value, *, everywhere=False):
        return ["1", "1"] if self.others_sent else None

    def decide(self, word, value):
        return self.decided or value


@pytest.mark.parametrize(
    ("others_sent", "decided", "counts"), [(True, "", True), (False, "", False), (True, "0", False)]
)
def test_what_is_sent_counts_once_all_have_sent_in_time(folder, monkeypatch, others_sent, decided, counts):
    monkeypatch.setenv("NBTORCHJOB_STOP_WITHIN", "0.01")
    departure = Departure(str(folder), 0, 0, 1, Ring(others_sent, decided))
    departure.begin()
    departure.look(lambda: None)

    assert departure.all_have_sent() is counts
