"""Job ids in URLs, and the lanes in which blocking work runs."""

import asyncio
import gc
import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.errors import MalformedError, NoAnswerError, SpecError
from nbtorchjob.frontends.server.handlers import JobId, Lanes, number
from nbtorchjob.state import JobInfo

LABELS = st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
CONTEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=256)


@given(name=LABELS)
def test_a_job_of_this_machine_is_called_by_its_name(name):
    job_id = JobId.parse(f"local:{name}")

    assert job_id == JobId("local", name)
    assert str(job_id) == JobInfo(name).id
    assert job_id.lane == "local"


@given(context=CONTEXTS, namespace=LABELS, name=LABELS)
def test_a_job_of_a_cluster_is_called_by_where_it_is(context, namespace, name):
    cluster = {"context": context, "namespace": namespace, "kind": "pytorchjob"}
    job = JobInfo(name, "kubernetes", cluster=cluster)
    job_id = JobId.parse(job.id)

    assert job_id == JobId("kubernetes", job.address)
    assert str(job_id) == job.id
    assert job_id.lane == (f"kubernetes:{context}" if context else "kubernetes")


def test_a_context_may_have_slashes_and_colons():
    job_id = JobId.parse("kubernetes:arn:aws:eks:eu-1:12:cluster/ml/team/train-2222")

    assert job_id.lane == "kubernetes:arn:aws:eks:eu-1:12:cluster/ml"


@pytest.mark.parametrize(
    "text",
    [
        *("", "train", "local", "local:", "local:..", "local:../x", "local:a/b", "local:/etc/passwd"),
        *("local:A", "local:a b", "local:a\n", "local:-a", "local:a-", f"local:{'a' * 64}", "slurm:a"),
        *("kubernetes:a", "kubernetes:/a", "kubernetes:ml/", "kubernetes:ml/..", "kubernetes:../a"),
        *("kubernetes:c\x00/ml/a", "kubernetes:c\n/ml/a", f"kubernetes:{'c' * 257}/ml/a", "KUBERNETES:ml/a"),
    ],
)
def test_what_is_no_id_is_refused_in_one_line(text):
    with pytest.raises(MalformedError, match="must be local:NAME or kubernetes:") as caught:
        JobId.parse(text)

    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["", "-1", "1.5", "0x1", "one", "\u0661", " 1", "9" * 16])
def test_a_number_counts_something(text):
    assert number("rank", "0012") == 12
    with pytest.raises(MalformedError, match="rank: got"):
        number("rank", text)


LONG = 30.0


@pytest.fixture
def gate():
    """Yield an event on which blocking work waits; set it afterwards."""
    gate = threading.Event()
    yield gate
    gate.set()


class Hanging:
    """Work that blocks until the gate opens, and counts how many of its calls run at once."""

    def __init__(self, gate):
        self.gate = gate
        self.begun = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.now = self.most = 0

    def __call__(self):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.begun.release()
        assert self.gate.wait(LONG)
        with self.lock:
            self.now -= 1
        return "late"

    async def started(self):
        """Wait until the work has begun once more."""
        assert await asyncio.to_thread(self.begun.acquire, timeout=LONG)


async def test_work_gives_its_value_and_raises_what_it_raises():
    lanes = Lanes(LONG, 1)

    def fail():
        raise SpecError("resume", "a", "a job on Kubernetes")

    assert await lanes.run("local", lambda: threading.current_thread() is threading.main_thread()) is False
    with pytest.raises(SpecError, match="resume"):
        await lanes.run("local", fail)
    assert await lanes.run("local", lambda: 3) == 3


async def test_work_of_a_name_is_under_way_once_though_nobody_waits_for_it_any_more(gate):
    lanes, hanging = Lanes(1.0, 1), Hanging(gate)
    begun = itertools.count(1)
    with pytest.raises(NoAnswerError):
        await lanes.run("local", hanging, "retry a")
    again = asyncio.create_task(lanes.run("local", hanging, "retry a"))
    beside = [asyncio.create_task(lanes.run("local", lambda: next(begun), "retry b")) for _ in range(2)]
    await asyncio.sleep(0)

    gate.set()
    assert await again == "late"
    assert await asyncio.gather(*beside) == [1, 1]
    assert await lanes.run("local", lambda: "anew", "retry a") == "anew"


async def test_work_that_has_no_thread_fails_and_leaves_its_room(monkeypatch):
    lanes, start = Lanes(LONG, 1), threading.Thread.start

    def fail(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        await lanes.run("local", lambda: 3, "retry a")
    monkeypatch.setattr(threading.Thread, "start", start)
    assert await lanes.run("local", lambda: 4, "retry a") == 4


async def test_a_lane_that_hangs_holds_up_no_other(gate):
    lanes, hanging = Lanes(LONG, 1), Hanging(gate)
    slow = asyncio.create_task(lanes.run("kubernetes:far", hanging))
    await hanging.started()

    assert await lanes.run("local", lambda: 1) == 1
    assert not slow.done()
    gate.set()
    assert await slow == "late"


async def test_who_asks_too_long_is_told_and_its_room_stays_taken_until_it_ends(gate):
    lanes, hanging, calls = Lanes(0.05, 1), Hanging(gate), []
    with pytest.raises(NoAnswerError, match=r"kubernetes:far didn't answer within 0\.05 s"):
        await lanes.run("kubernetes:far", hanging)
    with pytest.raises(NoAnswerError):
        await lanes.run("kubernetes:far", lambda: calls.append("never begun"))
    gate.set()

    async def again():
        while True:
            try:
                return await lanes.run("kubernetes:far", lambda: "room")
            except NoAnswerError:
                continue

    assert await asyncio.wait_for(again(), LONG) == "room"
    assert calls == []


async def test_so_many_run_at_once(gate):
    lanes, hanging = Lanes(LONG, 2), Hanging(gate)
    tasks = [asyncio.create_task(lanes.run("local", hanging)) for _ in range(5)]
    await hanging.started()
    await hanging.started()
    gate.set()

    assert await asyncio.gather(*tasks) == ["late"] * 5
    assert hanging.most == 2


async def test_a_lane_that_nobody_uses_takes_no_room():
    def semaphores():
        gc.collect()
        return sum(type(obj) is asyncio.Semaphore for obj in gc.get_objects())

    lanes, before = Lanes(LONG, 1), semaphores()
    for index in range(20):
        await lanes.run(f"kubernetes:{index}", lambda: 1)
    await asyncio.sleep(0)
    assert semaphores() <= before + 1


def test_work_that_outlives_the_event_loop_disturbs_nobody(gate):
    hanging, lanes = Hanging(gate), Lanes(LONG, 1)
    before = set(threading.enumerate())

    async def leave():
        asyncio.get_running_loop().create_task(lanes.run("local", hanging))
        await hanging.started()

    asyncio.run(leave())
    gate.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(LONG)
        assert not thread.is_alive()
