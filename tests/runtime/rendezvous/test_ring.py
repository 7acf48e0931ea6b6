"""When nodes send heartbeats and look at each other's, by a simulated clock."""

import random
import threading

import pytest

from nbtorchjob.runtime.rendezvous.ring import LOOK_S, News, Ring, announce
from tests.patience import LIMIT
from tests.runtime.rendezvous.gang import connect

pytestmark = pytest.mark.torch


class Store:
    """A store that counts its nodes' calls."""

    def __init__(self):
        self.calls = 0
        self._values: dict[str, bytes] = {}

    def set(self, key, value):
        self.calls += 1
        self._values[key] = value.encode()

    def check(self, keys):
        self.calls += 1
        return all(key in self._values for key in keys)

    def get(self, key):
        self.calls += 1
        return self._values[key]


class Node:
    """A node that has a slightly wrong clock and acts slightly late."""

    def __init__(self, ring, seed):
        self.ring = ring
        self.at = 0.0
        self.silent_at = None
        self._random = random.Random(seed)
        self._wrong = self._random.uniform(0.999, 1.001)

    def act(self, store):
        self.ring.beat(store)
        if self.ring.is_silent(store) and self.silent_at is None:
            self.silent_at = self.at
        pause = self.ring.pause
        self.ring.pass_time(pause)
        self.at += pause * self._wrong + self._random.uniform(0, 0.02)


def run(nodes, store, until):
    while (node := min(nodes, key=lambda node: node.at)).at < until:
        node.act(store)


@pytest.mark.parametrize("silence", [3.0, 15.0, 60.0])
def test_nodes_ask_seldom_and_still_notice_in_time_that_one_is_silent(silence):
    store = Store()
    nodes = [Node(Ring(1, range(16), number, silence), number) for number in range(16)]
    run(nodes, store, 10.0)
    before = store.calls
    run(nodes, store, 610.0)
    if silence >= 15:
        assert (store.calls - before) / 600 / 16 < 0.6
    assert not any(node.silent_at for node in nodes)

    died = max(node.at for node in nodes)
    run(nodes[1:], store, died + silence + 3)
    silent = {node.ring.node: node.silent_at for node in nodes if node.silent_at is not None}
    assert silent.keys() == {15}
    assert silent[15] - died <= silence + 3 * LOOK_S


def test_news_wake_all_who_wait_however_many_there_were_before(store):
    for _ in range(3):
        announce(connect(store))
    listeners: list[int] = []

    def listen(number):
        news = News(connect(store))
        news.wait()  # a latecomer gets the newest
        ready.wait(LIMIT)
        news.wait()
        listeners.append(number)

    ready = threading.Barrier(3)
    threads = [threading.Thread(target=listen, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    ready.wait(LIMIT)
    announce(connect(store))
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(listeners) == [0, 1]


def test_news_that_came_together_wake_once(store):
    news, woken = News(connect(store)), threading.Semaphore(0)

    def listen():
        for _ in range(2):
            news.wait()
            woken.release()

    for _ in range(5):
        announce(connect(store))
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert woken.acquire(timeout=LIMIT)
    assert not woken.acquire(timeout=0.2)
    announce(connect(store))
    assert woken.acquire(timeout=LIMIT)
    thread.join(LIMIT)


def test_of_many_who_say_the_same_word_one_wakes_the_others(store):
    nodes = [connect(store) for _ in range(8)]
    threads = [threading.Thread(target=announce, args=(node, "end")) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    # The numbers of news start with 0.
    assert nodes[0].check(["news/0"])
    assert not nodes[0].check(["news/1"])

    announce(nodes[0], "1/lost")
    assert nodes[0].check(["news/1"])
