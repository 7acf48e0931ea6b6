"""The numbers that a node shares with its ranks: all ranks leave at one call, which none has passed."""

import multiprocessing
import os
import time

import pytest

from nbtorchjob.runtime.api import points
from nbtorchjob.runtime.api.points import LEAVE, LEAVING, Page
from nbtorchjob.runtime.node.departure import Departure
from nbtorchjob.runtime.rendezvous.alone import Alone
from tests.patience import LIMIT

fork = multiprocessing.get_context("fork")


def call_until_told(folder, rank, pauses, answers):
    """Step as a rank until told to leave; put the number of that call into ``answers``."""
    points.begin(folder, rank)
    calls = 1
    while not points.leaving():
        calls += 1
        time.sleep(pauses[calls % len(pauses)])
    answers.put((rank, calls, points.first_call(), points.left()))


class Ring(Alone):
    """The peers of one node, with words that all nodes share."""

    def __init__(self, said, nodes):
        self.said, self.nodes = said, nodes

    def say(self, word, value, *, everywhere=False):
        self.said.setdefault(word, {})[self] = value
        return list(self.said[word].values()) if len(self.said[word]) == self.nodes else None


@pytest.mark.parametrize("nodes", [1, 3])
def test_all_ranks_are_told_at_one_call_that_none_has_passed(folder, monkeypatch, nodes):
    monkeypatch.setenv("NBTORCHJOB_STOP_WITHIN", "1000")
    answers, departures, ranks = fork.SimpleQueue(), [], []
    words: dict[str, dict[Ring, str]] = {}
    for node in range(nodes):
        (folder / str(node)).mkdir()
        departures.append(Departure(str(folder / str(node)), node, 0, 2, Ring(words, nodes)))
        # Some nodes are faster than others, and some ranks pause at times.
        for at in range(2):
            pauses = [0.0001 * (node + 1), 0.0, 0.003 * at]
            ranks.append(
                fork.Process(target=call_until_told, args=(str(folder / str(node)), at, pauses, answers))
            )
    for rank in ranks:
        rank.start()
    until = time.monotonic() + LIMIT
    while not all(departure.may_begin for departure in departures):
        assert time.monotonic() < until
    departures[0].begin()
    departures[0].look(lambda: None)
    for other in departures[1:]:
        other._peers.want_leave(900.0)
        other.look(lambda: None)
    for departure in departures:
        departure.look(lambda: None)
    replies = [answers.get() for _ in ranks]
    for rank in ranks:
        rank.join()

    assert len({calls for _, calls, _, _ in replies}) == 1
    assert {call for _, _, call, _ in replies} == {replies[0][1]}
    assert all(0 < left <= 900 for *_, left in replies)


class Other(Alone):
    """Peers with ranks that ask whether to leave, or that leave already."""

    def __init__(self, *, asks=False, leaves=None):
        self.asks, self.leaves = asks, leaves


@pytest.mark.parametrize(
    ("peers", "may"), [(Alone(), False), (Other(asks=True), True), (Other(leaves=9.0), True)]
)
def test_where_nobody_asks_there_is_nothing_to_wait_for(folder, peers, may):
    departure = Departure(str(folder), 0, 0, 2, peers)

    assert departure.may_begin is may


def test_a_process_that_a_rank_starts_is_none(folder):
    Page.create(str(folder), 1)
    answers = fork.SimpleQueue()

    def rank():
        points.begin(str(folder), 0)
        points.leaving()
        child = fork.Process(target=lambda: answers.put(points.leaving()))
        child.start()
        child.join()
        answers.put(Page(str(folder)).most(LEAVING))

    process = fork.Process(target=rank)
    process.start()
    process.join()

    assert (answers.get(), answers.get()) == (False, 1)


def test_in_a_notebook_nobody_leaves():
    assert os.environ.get("RANK") is None
    assert points.leaving() is False
    assert points.first_call() == 0


def test_what_is_left_is_true_to_the_end(folder):
    page = Page.create(str(folder), 1)
    page.tell(page.bind(LEAVE, LEAVING), -5.0)
    answers = fork.SimpleQueue()
    process = fork.Process(target=call_until_told, args=(str(folder), 0, [0], answers))
    process.start()
    *_, left = answers.get()
    process.join()

    assert left > 0
