"""One follower of a job, and its listeners, which join at any point."""

import asyncio
import subprocess
import sys

import pytest

from nbtorchjob.backends.turns import Feed
from nbtorchjob.machine import loop
from nbtorchjob.state import JobInfo, JobState, Phase
from nbtorchjob.state.facts import events as ev
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

INFO = JobInfo("lab")


class Scripted:
    """A backend with one job, which yields the facts that a test supplies."""

    def __init__(self):
        self.facts: asyncio.Queue[ev.Event | Exception] = asyncio.Queue()
        self.followed = 0

    def tell(self, *facts):
        for fact in facts:
            loop.start(self.facts.put(fact)).result(LIMIT)

    async def follow(self, name, *, since=None, turn=None):
        self.followed += 1
        fact = None
        while not isinstance(fact, ev.Closed):
            fact = await self.facts.get()
            if isinstance(fact, Exception):
                raise fact
            yield fact

    def snapshot(self, name):
        return JobState(INFO)


def heard(listener):
    async def all_of_it():
        return [event async for event in listener.events()]

    return loop.start(all_of_it())


@pytest.fixture
def backend():
    return Scripted()


def begun(backend):
    """Return a feed that has received the start of the job's node."""
    feed = Feed(backend, INFO)
    backend.tell(ev.NodeStarted(1.0, 0, "here", 1))
    until(lambda: feed.state.nodes)
    return feed


def test_who_begins_to_listen_hears_what_comes_then_and_needs_no_follower_of_their_own(backend):
    feed = begun(backend)
    listeners = [feed.listen(), feed.listen()]
    assert all(listener.take() for listener in listeners)
    first = heard(listeners[0])
    facts = [ev.Notice(2.0, "new"), ev.CancelRequested(3.0), ev.Closed(4.0)]
    backend.tell(*facts)

    assert first.result(LIMIT) == heard(listeners[1]).result(LIMIT) == facts
    assert (feed.over, feed.state.phase, backend.followed) == (True, Phase.CANCELLED, 1)
    assert heard(feed.listen()).result(LIMIT) == []


def test_what_following_raises_is_raised_by_all_who_listen(backend):
    feed = begun(backend)
    listener = feed.listen()
    backend.tell(ConnectionError("gone"))

    with pytest.raises(ConnectionError, match="gone"):
        heard(listener).result(LIMIT)
    assert isinstance(feed.error, ConnectionError)


def test_one_who_takes_nothing_is_let_go_and_one_who_does_hears_all(backend):
    feed = begun(backend)
    idle, busy = feed.listen(), feed.listen()
    busy.take()
    facts = [*(ev.Notice(float(n), str(n)) for n in range(5000)), ev.Closed(5000.0)]
    future = heard(busy)
    for fact in facts:
        loop.start(backend.facts.put(fact))

    assert future.result(LIMIT) == facts
    assert not idle.take()
    assert not busy.take()


FORKED = """
import os, threading
from nbtorchjob.backends.turns import TurnBackend
from nbtorchjob.state import JobInfo, JobState

class Inner:
    def snapshot(self, name):
        return JobState(INFO)

    async def follow(self, name, *, since=None):
        follows.set()
        return
        yield

INFO, follows = JobInfo("lab", backend="kubernetes", cluster={"context": "a"}), threading.Event()
backend = TurnBackend(Inner())
backend.lab(INFO)
follows.wait()
follows.clear()
child = os.fork()
backend.lab(INFO)
if child:
    os.waitpid(child, 0)
    print(follows.is_set())
else:
    print(follows.wait(LIMIT))
"""


def test_a_fork_follows_a_lab_by_itself():
    argv = [sys.executable, "-W", "ignore", "-c", FORKED.replace("LIMIT", str(LIMIT))]
    forked = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert (forked.stdout.split(), forked.stderr) == (["True", "False"], "")
