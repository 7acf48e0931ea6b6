"""Kernels killed at each step of a retry: the next kernel continues; nothing is doubled or lost."""

import random
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob.backends import backend
from nbtorchjob.machine import loop
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import US, Budget, JobInfo, JobState, Phase, apply, failure
from nbtorchjob.state.facts import events as ev
from tests.backends.kubernetes.mortal import Kernel, elsewhere, made
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

AGAIN = "begin()\nif ATTEMPT == 1: fail(recoverable=True)\nvalue(ATTEMPT)"
WAITS = "begin()\nif ATTEMPT == 1: wait('go'); fail(recoverable=True)\nvalue(ATTEMPT)"
OURS = Retry(retries=2, preemptions=2, backoff=0)

# The objects of an attempt are the same for every kind, except an Indexed Job's Service; a failed TrainJob is
# suspended first.
STEPS = [
    ("pytorchjob", ("before", "create", "")),
    ("volcano", ("after", "create", "jobs")),
    ("indexedjob", ("after", "create", "services")),
    ("trainjob", ("before", "patch", "trainjobs")),
    ("trainjob", ("after", "patch", "trainjobs")),
]


@pytest.fixture
def attach(stage, monkeypatch, tmp_path):
    """Return a function that attaches to a job from another machine."""
    return lambda job: elsewhere(stage, job, monkeypatch, tmp_path)


def check(stage, job, kind, attempts=2):
    """Check that the job had so many attempts, with nothing doubled, and that its deletion leaves nothing."""
    assert job.result(LIMIT) == attempts
    assert job.info.retry_owner == US
    failed = [(number, Budget.FAILURES) for number in range(1, attempts)]
    assert [(attempt.number, attempt.budget) for attempt in job.state.attempts] == [*failed, (attempts, None)]
    assert [spent.used for spent in job.state.budgets] == [attempts - 1, 0]
    assert job.state.phase is Phase.SUCCEEDED
    jobs, services = made(stage)
    assert jobs == [job.name, *(f"{job.name}-a{number}" for number in range(2, attempts + 1))]
    # Each name ends in its run, so that no other run of the same name shares the Service.
    assert sorted(name.rpartition("-")[0] for name in services) == (jobs if kind == "indexedjob" else [])
    job.delete()
    until(lambda: not stage.left())


@pytest.mark.parametrize(("kind", "step"), STEPS, ids=str)
def test_a_kernel_killed_at_a_step_of_a_retry_is_succeeded_by_another(stage, attach, kind, step):
    job = stage.submit(AGAIN, kind=kind, retry=OURS)
    with Kernel(stage, job, step) as kernel:
        kernel.dies()

    check(stage, attach(job), kind)


# Their operators remove the pods of an ended attempt, or restart them.
@pytest.mark.parametrize("kind", ["trainjob", "volcano"])
def test_an_attempt_that_ends_with_nobody_there_is_followed_by_the_next(stage, attach, kind):
    job = stage.submit(WAITS, kind=kind, retry=OURS)
    with Kernel(stage, job) as kernel:
        kernel.follows()
        until(lambda: (stage.signs / "life-0-0").exists())
        kernel.kill()
    stage.sign("go")

    check(stage, attach(job), kind)


def test_a_kernel_killed_while_an_attempt_starts_is_succeeded_by_another(stage, attach):
    job = stage.submit(AGAIN, kind="pytorchjob", retry=OURS)
    stage.cluster.hold(f"^{job.name}-a2")
    with Kernel(stage, job) as kernel:
        until(lambda: any(pod["metadata"]["name"].startswith(f"{job.name}-a2") for pod in stage.pods()))
        kernel.kill()
    later = attach(job)
    until(lambda: later.state.phase is Phase.PENDING and len(later.state.attempts) == 2)
    stage.cluster.release(f"^{job.name}-a2")

    check(stage, later, "pytorchjob")


def test_of_kernels_that_follow_at_once_those_that_live_go_on(stage, attach):
    part = "begin()\nif ATTEMPT < 3: fail(recoverable=True)\nvalue(ATTEMPT)"
    job = stage.submit(part, retry=OURS)
    first, second = ("before", "create", ""), ("after", "create", "jobs")
    with Kernel(stage, job, first) as kernel, Kernel(stage, job, second) as other:
        kernel.dies()
        other.dies()
    with Kernel(stage, job), Kernel(stage, job):
        check(stage, attach(job), "indexedjob", attempts=3)


async def heard(job):
    return [event async for event in backend("kubernetes").follow(job.info.address)]


# A TrainJob's container restarts in place; ``test_recordings`` shuffles the facts of all kinds.
@pytest.mark.parametrize("kind", ["trainjob", "indexedjob"])
def test_the_facts_of_a_retried_job_say_the_same_in_any_order(stage, kind):
    job = stage.submit(AGAIN, kind=kind, retry=OURS)
    facts = loop.start(heard(job)).result(LIMIT)
    expected = reduce(apply, facts, JobState(job.info))

    @settings(max_examples=30, deadline=None)
    @given(st.integers(0), st.lists(st.sampled_from(facts), max_size=5))
    def check(seed, again):
        shuffled = random.Random(seed).sample(facts, len(facts))
        state = reduce(apply, [*shuffled, *again], JobState(job.info))
        assert state == expected
        assert (state.attempts, state.budgets) == (expected.attempts, expected.budgets)

    assert (expected.phase, len(expected.attempts)) == (Phase.SUCCEEDED, 2)
    check()


@pytest.mark.parametrize("first", [0, 1])
def test_a_pod_of_the_same_second_as_the_one_before_it_isnt_taken_for_it(first):
    # The times of the API are whole seconds, those of a pod aren't.
    pods: list[ev.Event] = [
        ev.Waiting(1.0, "waiting for a host", 0, "b", attempt=1),
        ev.NodeStarted(1.0, 0, "host", pod="b", attempt=1),
        ev.WorkersStarted(1.5, 0, 0, 0, (0,), 1, pod="b"),
        ev.NodeExited(1.0, 0, 200, pod="b"),
        ev.Verdict(1.0, False, attempt=1),
        ev.Waiting(1.0, "waiting for a host", 0, "a", attempt=2),
    ]
    state = JobState(JobInfo("job", retry_owner=US))
    for event in pods[first:] + pods[:first]:
        state = apply(state, event)

    assert state.phase is Phase.PENDING
    assert state.nodes[0].life.pod == "a"
    last_state = apply(state, ev.NodeGone(1.0, 0, "a"))
    assert last_state.nodes[0].life.pod == "a"


def test_what_ended_an_attempt_explains_what_its_operator_says_after_that():
    state = reduce(
        apply,
        [ev.Verdict(2.0, False, failure.DEADLINE_EXCEEDED), ev.Verdict(3.0, False, "Aborted")],
        JobState(JobInfo("job")),
    )

    assert state.operator_verdict is not None
    assert state.operator_verdict.reason == failure.DEADLINE_EXCEEDED
