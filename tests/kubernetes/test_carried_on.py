"""Kernels killed at each step of a retry: whoever comes next carries on; nothing is doubled or lost."""

import pytest

from nbtorchjob.policies import Retry
from nbtorchjob.state import US, Budget, Phase
from tests.kubernetes.mortal import Kernel, elsewhere, made
from tests.kubernetes.stage import until

KINDS = ["pytorchjob", "trainjob", "volcano", "indexedjob"]
PLURALS = {"pytorchjob": "pytorchjobs", "trainjob": "trainjobs", "volcano": "jobs", "indexedjob": "jobs"}
AGAIN = "begin()\nif ATTEMPT == 1: fail(recoverable=True)\nvalue(ATTEMPT)"
WAITS = "begin()\nif ATTEMPT == 1: wait('go'); fail(recoverable=True)\nvalue(ATTEMPT)"
OURS = Retry(retries=2, preemptions=2, backoff=0)

STEPS = [
    *((kind, ("before", "create", "")) for kind in KINDS),
    *((kind, ("after", "create", PLURALS[kind])) for kind in KINDS),
    ("indexedjob", ("after", "create", "services")),
    ("trainjob", ("before", "patch", "trainjobs")),
    ("trainjob", ("after", "patch", "trainjobs")),
]


@pytest.fixture
def attach(stage, monkeypatch, tmp_path):
    """Give what attaches to a job on another machine."""
    return lambda job: elsewhere(stage, job, monkeypatch, tmp_path)


def check(stage, job, kind, attempts=2):
    """Check that the job was tried so often, with nothing doubled, and that nothing is left of it."""
    assert job.result(60) == attempts
    assert job.info.keeper == US
    failed = [(number, Budget.FAILURES) for number in range(1, attempts)]
    assert [(each.number, each.budget) for each in job.state.attempts] == [*failed, (attempts, None)]
    assert [spent.used for spent in job.state.budgets] == [attempts - 1, 0]
    assert job.state.phase is Phase.SUCCEEDED
    jobs, services = made(stage)
    assert jobs == [job.name, *(f"{job.name}-a{number}" for number in range(2, attempts + 1))]
    assert services == (jobs if kind == "indexedjob" else [])
    job.delete()
    until(lambda: not stage.left())


@pytest.mark.parametrize(("kind", "step"), STEPS, ids=str)
def test_a_kernel_killed_at_a_step_of_a_retry_is_succeeded_by_another(stage, attach, kind, step):
    job = stage.submit(AGAIN, kind=kind, retry=OURS)
    with Kernel(job, step) as kernel:
        kernel.dies()

    check(stage, attach(job), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_that_ends_with_nobody_there_is_followed_by_the_next(stage, attach, kind):
    job = stage.submit(WAITS, kind=kind, retry=OURS)
    with Kernel(job) as kernel:
        kernel.follows(stage)
        until(lambda: (stage.signs / "life-0-0").exists())
        kernel.kill()
    stage.sign("go")

    check(stage, attach(job), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_killed_while_an_attempt_starts_is_succeeded_by_another(stage, attach, kind):
    job = stage.submit(AGAIN, kind=kind, retry=OURS)
    stage.cluster.hold(f"^{job.name}-a2")
    with Kernel(job) as kernel:
        until(lambda: any(pod["metadata"]["name"].startswith(f"{job.name}-a2") for pod in stage.pods()))
        kernel.kill()
    later = attach(job)
    until(lambda: later.state.phase is Phase.PENDING and len(later.state.attempts) == 2)
    stage.cluster.release(f"^{job.name}-a2")

    check(stage, later, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_of_kernels_that_follow_at_once_those_that_live_go_on(stage, attach, kind):
    part = "begin()\nif ATTEMPT < 3: fail(recoverable=True)\nvalue(ATTEMPT)"
    job = stage.submit(part, kind=kind, retry=OURS)
    first, second = ("before", "create", ""), ("after", "create", PLURALS[kind])
    with Kernel(job, first) as one, Kernel(job, second) as other:
        one.dies()
        other.dies()
    with Kernel(job), Kernel(job):
        check(stage, attach(job), kind, attempts=3)
