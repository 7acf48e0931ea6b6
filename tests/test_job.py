"""The handle on a job, with a fake backend that streams the facts of a test."""

import asyncio
import concurrent.futures
import pickle
import queue
import threading
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest

from nbtorchjob import JobCancelledError, JobEndedError, JobFailedError, JobNotFoundError, ResultError
from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.job import Job
from nbtorchjob.machine import loop
from nbtorchjob.payload.results import FetchedValue
from nbtorchjob.runtime.facts.errors import Error, Frame
from nbtorchjob.runtime.facts.samples import RUNS, STOPPED, RankSample
from nbtorchjob.runtime.objects import wire
from nbtorchjob.state import JobInfo, JobState, Phase, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines
from tests.backends.full import Logs, Questions
from tests.patience import LIMIT

KEY = b"k" * 32
STARTED = (ev.NodeStarted(1.0, 0, "here", 1), ev.WorkersStarted(2.0, 0, 0, 0, (0, 1), 2))
ENDED = (ev.NodeExited(8.0, 0, 0), ev.Closed(9.0))
FAILED = (
    *STARTED,
    ev.RankFailed(3.0, 0, 1, 0, 0, Error("ValueError", "no", (Frame("<cell>", 2, "f"),), time=3.0)),
    ev.NodeExited(8.0, 0, 1),
    ev.Closed(9.0),
)
CANCELLED = (*STARTED, ev.CancelRequested(3.0), ev.NodeExited(8.0, 0, None, 15), ev.Closed(9.0))


class Scripted(Logs, Questions):
    login = ""

    def __init__(self, folder):
        self.coming: asyncio.Queue[ev.Event | Exception] = asyncio.Queue()
        self.folder = folder
        self.asked: list[str] = []
        self.known: tuple[ev.Event, ...] = ()  # known before anything follows the job
        self.written = ""  # on every rank
        self.answers: list[NodeAnswer] = []
        self.record = JobInfo("")  # of the job with that name

    def tell(self, *facts):
        for fact in facts:
            loop.start(self.coming.put(fact)).result(LIMIT)

    async def follow(self, name, *, since=None):
        fact = None
        while not isinstance(fact, ev.Closed):
            fact = await self.coming.get()
            if isinstance(fact, Exception):
                raise fact
            yield fact

    def snapshot(self, name):
        return reduce(apply, self.known, JobState(self.info(name)))

    def info(self, name):
        return replace(self.record, name=name)

    def value(self, rank, value):
        path = self.folder / f"{rank}.value"
        size = wire.write_value(str(path), value, lambda value, _: pickle.dumps(value), KEY)
        return ev.ValueReady(4.0, rank, 0, str(path), size)

    def fetch(self, name, value):
        self.asked.append("fetch")
        return FetchedValue(self.folder / f"{value.rank}.value", KEY)

    def ours(self, name):
        return True

    def log(self, name, rank):
        whole = (self.written or f"{name} {rank}\nzwei €\ndrei\n").encode()
        return (whole[at : at + 1] for at in range(len(whole)))

    def ask(self, name, question, nodes=None, timeout=10.0):
        if not self.answers:
            raise JobEndedError(f"{name} has ended")
        self.asked.append(f"{name} {question['question']} {timeout}")
        yield from self.answers

    def cancel(self, name, gently=False, early=""):
        self.asked.append(f"cancel {name}")

    def delete(self, name):
        self.asked.append(f"delete {name}")


@pytest.fixture
def backend(folder):
    backend = Scripted(folder)
    yield backend
    backend.tell(ev.Closed(9.0))  # no follower outlives its test


def handle(backend, **info):
    backend.record = JobInfo(name="swift-otter", **info)
    return Job(backend, backend.record)


def until(job, condition):
    event = threading.Event()
    job.subscribe(lambda state: event.set() if condition(state) else None)
    assert condition(job.state) or event.wait(LIMIT)


def test_a_value_comes_home_once(backend):
    job = handle(backend)
    backend.tell(*STARTED, backend.value(0, {"loss": 0.5}), *ENDED)

    value = job.result(LIMIT)

    assert value == {"loss": 0.5}
    assert job.result() is value
    assert backend.asked == ["fetch"]


def test_as_completed_takes_a_jobs_future(backend):
    job = handle(backend)
    with pytest.raises(TypeError, match=r"pass job\.future\(\)"):
        concurrent.futures.wait([job])
    future = job.future()
    backend.tell(*STARTED, backend.value(0, 3), *ENDED)

    assert [ended.result() for ended in concurrent.futures.as_completed([future], LIMIT)] == [3]
    assert job.state.name == "swift-otter"


def test_a_jobs_future_fails_as_the_job_does(backend):
    future = handle(backend).future()
    backend.tell(*FAILED)

    assert isinstance(future.exception(LIMIT), ValueError)
    assert not future.cancel()


def test_who_asks_for_that_is_called_with_the_job_once_it_has_ended(backend, caplog):
    job, called = handle(backend), queue.SimpleQueue[Job[Any]]()

    def fails(_):
        raise ValueError("mine")

    job.add_done_callback(fails)
    job.add_done_callback(called.put)
    backend.tell(*STARTED)
    until(job, lambda state: state.phase is Phase.RUNNING)
    assert called.empty()
    backend.tell(*ENDED)
    assert called.get(timeout=LIMIT) is job
    job.wait(LIMIT)
    job.add_done_callback(called.put)

    assert called.get_nowait() is job
    assert "a callback of swift-otter raised" in caplog.text


def test_waiting_has_a_limit_and_the_job_goes_on(backend):
    job = handle(backend)
    backend.tell(*STARTED)
    until(job, lambda state: state.phase is Phase.RUNNING)

    assert not job.done()
    assert not job.wait(0)
    with pytest.raises(TimeoutError, match="swift-otter is still running after 0"):
        job.result(0)
    with pytest.raises(TimeoutError):
        job.exception(0)

    backend.tell(backend.value(0, 1), *ENDED)
    assert job.wait(LIMIT)
    assert job.done()
    assert job.result(0) == 1


def test_a_failed_job_raises_with_the_first_failing_ranks_error(backend):
    job = handle(backend)
    backend.tell(*FAILED)

    with pytest.raises(JobFailedError, match="rank 1: ValueError: no"):
        job.result(LIMIT)
    with pytest.raises(JobFailedError):
        job.results(LIMIT)
    error = job.exception()
    assert isinstance(error, JobFailedError)
    assert error.error.message == "no"
    assert pickle.loads(pickle.dumps(error)).error == error.error


def test_a_cancelled_job_raises_an_error_of_its_own(backend):
    job = handle(backend)
    backend.tell(*CANCELLED)

    with pytest.raises(JobCancelledError, match="cancelled"):
        job.result(LIMIT)


def test_the_error_of_a_deleted_job_says_so(backend):
    job = handle(backend)
    backend.tell(*STARTED, ev.Removed(3.0), ev.Closed(9.0))

    with pytest.raises(JobCancelledError, match="swift-otter deleted"):
        job.result(LIMIT)


def test_a_job_that_succeeded_has_no_exception(backend):
    job = handle(backend)
    backend.tell(*STARTED, *ENDED)

    assert job.exception(LIMIT) is None


def test_a_job_that_left_no_value_says_so(backend):
    job = handle(backend)
    backend.tell(*STARTED, *ENDED)

    with pytest.raises(ResultError, match="rank 0 returned no value"):
        job.result(LIMIT)


def test_every_ranks_value_comes_in_the_order_of_ranks(backend):
    job = handle(backend, all_ranks=True)
    backend.tell(*STARTED, backend.value(1, "b"), backend.value(0, "a"), *ENDED)

    assert job.results(LIMIT) == ["a", "b"]
    assert job.result() == "a"


def test_results_need_a_job_that_kept_them(backend):
    job = handle(backend)
    backend.tell(*STARTED, backend.value(0, 1), *ENDED)

    with pytest.raises(ResultError, match="--all-ranks"):
        job.results(LIMIT)


def test_subscribers_see_each_new_state_until_they_leave(backend):
    job, phases, stayed = handle(backend), [], []
    leave = job.subscribe(lambda state: phases.append(state.phase))
    job.subscribe(lambda state: stayed.append(state.phase))
    backend.tell(STARTED[0])
    until(job, lambda state: state.phase is Phase.PENDING)
    leave()
    leave()
    backend.tell(STARTED[1], *ENDED)
    job.wait(LIMIT)

    assert phases == [Phase.PENDING]
    assert stayed == [Phase.PENDING, Phase.RUNNING, Phase.RUNNING, Phase.SUCCEEDED]


def test_handles_on_one_job_follow_it_together(backend):
    first, second = handle(backend, created=1.0), handle(backend, created=1.0)
    backend.tell(*STARTED)  # each fact comes once, to all followers
    until(first, lambda state: state.phase is Phase.RUNNING)

    until(second, lambda state: state.phase is Phase.RUNNING)  # without a new fact
    backend.tell(*ENDED)
    assert (first.wait(LIMIT), second.wait(LIMIT)) == (True, True)
    assert first.state == second.state


def test_a_handle_made_after_the_end_follows_anew(backend):
    first = handle(backend, created=1.0)
    backend.tell(*STARTED, *ENDED)
    assert first.wait(LIMIT)

    again = handle(backend, created=1.0)
    assert not again.done()
    backend.tell(*FAILED)
    assert again.wait(LIMIT)
    assert (first.state.phase, again.state.phase) == (Phase.SUCCEEDED, Phase.FAILED)


def test_the_first_state_that_is_asked_for_has_what_is_known_already(backend):
    backend.known = FAILED
    job: Job[None] = Job(backend, JobInfo("train"))

    assert job.state.phase is Phase.FAILED
    backend.tell(*FAILED)
    job.wait(LIMIT)
    assert job.state.failure == backend.snapshot("train").failure


@pytest.mark.parametrize("before", [(), STARTED], ids=["nothing", "something"])
def test_facts_that_come_while_a_state_is_looked_up_are_not_lost(backend, monkeypatch, before):
    def snapshot(name):
        state = lookup(name)
        backend.tell(*FAILED[len(before) : -1])
        until(first, lambda state: state.errors)
        return state

    first, second = handle(backend, created=1.0), handle(backend, created=1.0)
    first.wait(0)  # starts to follow the job
    backend.tell(*before)
    lookup = backend.snapshot
    monkeypatch.setattr(backend, "snapshot", snapshot)
    second.state  # noqa: B018

    backend.tell(FAILED[-1])
    assert first.wait(LIMIT)
    backend.known = FAILED
    assert first.state.failure == lookup("swift-otter").failure is not None
    assert second.state == first.state


def test_a_state_once_given_does_not_change(backend):
    job = handle(backend)
    before = job.state
    backend.tell(*STARTED, *ENDED)
    job.wait(LIMIT)

    assert (before.phase, job.state.phase) == (Phase.SUBMITTED, Phase.SUCCEEDED)


def test_a_job_can_be_awaited(backend):
    async def value():
        return await job

    job = handle(backend)
    backend.tell(*STARTED, backend.value(0, 7), *ENDED)

    assert asyncio.run(value()) == 7


def test_awaiting_a_failed_job_raises(backend):
    async def value():
        return await job

    job = handle(backend)
    backend.tell(*FAILED)

    with pytest.raises(JobFailedError):
        asyncio.run(value())


def test_giving_up_an_await_leaves_the_job_followed(backend):
    async def impatient():
        await asyncio.wait_for(_awaited(job), 0.001)

    job = handle(backend)
    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
        asyncio.run(impatient())
    backend.tell(*STARTED, backend.value(0, 7), *ENDED)

    assert job.result(LIMIT) == 7


async def _awaited(job):
    return await job


def test_a_broken_stream_is_told_and_not_taken_for_an_end(backend):
    async def value():
        return await job

    job = handle(backend)
    backend.tell(*STARTED, ConnectionError("the folder went away"))

    for ask in (job.wait, job.result, job.exception, job.results, lambda: asyncio.run(value())):
        with pytest.raises(ConnectionError, match="went away"):
            ask()


def test_a_time_out_within_the_stream_is_not_taken_for_not_yet(backend):
    job = handle(backend)
    backend.tell(TimeoutError("the disk sleeps"))
    with pytest.raises(TimeoutError, match="the disk sleeps"):
        job.wait(LIMIT)


def test_cancel_and_delete_are_done_by_the_backend(backend):
    job = handle(backend)
    job.cancel()
    job.delete()

    assert backend.asked == ["cancel swift-otter", "delete swift-otter"]


def test_a_handle_on_a_deleted_job_leaves_a_later_job_of_its_name_alone(backend, folder):
    old = handle(backend, created=1.0)
    handle(backend, created=2.0)

    old.cancel()
    old.delete()
    assert backend.asked == []
    for act in (
        *(old.logs, old.files, old.stacks, old.release, old.suspend, old.resume, old.start, old.retry),
        *(lambda: old.sync(folder), lambda: old.forward(6006), lambda: old.export(folder)),
    ):
        with pytest.raises(JobNotFoundError, match="swift-otter was deleted; another job has its name"):
            act()
    assert not old.trusted


def test_a_handle_on_a_deleted_job_says_so_and_not_how_a_later_job_of_its_name_is(backend):
    old = handle(backend, created=1.0)
    handle(backend, created=2.0)
    backend.known = STARTED

    assert (old.state.phase, old.state.deleted) == (Phase.CANCELLED, True)
    with pytest.raises(JobCancelledError, match="swift-otter deleted"):
        old.result(LIMIT)


def test_the_value_of_a_deleted_job_is_not_that_of_a_later_job_of_its_name(backend):
    old = handle(backend, created=1.0)
    backend.tell(*STARTED, backend.value(0, "the later job's"), *ENDED)
    old.wait(LIMIT)
    handle(backend, created=2.0)

    with pytest.raises(JobNotFoundError, match="swift-otter was deleted"):
        old.result()


@pytest.mark.parametrize(
    ("tail", "text"),
    [
        (None, "swift-otter 1\nzwei €\ndrei\n"),
        (2, "zwei €\ndrei\n"),
        (9, "swift-otter 1\nzwei €\ndrei\n"),
        (0, ""),
    ],
)
def test_logs_come_whole_or_as_a_tail(backend, tail, text):
    assert handle(backend).logs(1, tail) == text


def test_a_progress_bar_is_one_line_of_a_tail(backend):
    backend.written = "one\n 0%\r50%\r100%\n"

    assert handle(backend).logs(tail=1) == " 0%\r50%\r100%\n"


def test_a_negative_tail_is_refused(backend):
    with pytest.raises(ValueError, match="tail"):
        handle(backend).logs(tail=-1)


def test_the_repr_names_the_job_and_its_phase(backend):
    assert repr(handle(backend)) == "<Job swift-otter submitted on local>"


def test_asks_its_nodes_what_their_ranks_do(backend):
    job: Job[Any] = Job(backend, JobInfo("job"))
    backend.known = STARTED
    sample = factlines.to_json(ev.Sampled(5.0, 0, 0, "asked", (RankSample(0, RUNS), RankSample(1, STOPPED))))
    backend.answers = [NodeAnswer(0, (sample, {"event": "Sampled"})), NodeAnswer(1, (), "doesn't answer")]

    stacks = job.stacks(timeout=3.0)

    assert backend.asked == ["job sample 3.0"]
    assert stacks.asked
    assert stacks.trouble == {1: "doesn't answer"}
    assert [sample.state for sample in stacks.samples.values()] == [RUNS, STOPPED]
    assert stacks.diagnosis is not None
    assert stacks.diagnosis.ranks == (1,)


def test_shows_the_last_sample_of_a_job_that_has_ended(backend):
    job: Job[Any] = Job(backend, JobInfo("job"))
    backend.known = (*STARTED, ev.Sampled(5.0, 0, 0, "quiet", (RankSample(1, STOPPED),)), *ENDED)

    stacks = job.stacks()

    assert not stacks.asked
    assert "The job has ended; this is its last sample" in str(stacks)
    assert "rank 1 was stopped" in str(stacks)
