"""Every cause through every kind: the same is known of it, whoever keeps the budgets (``causes.py``)."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from nbtorchjob.failure import Cause
from nbtorchjob.policies import Retry
from nbtorchjob.runtime import exits
from nbtorchjob.state import Budget, Phase
from tests.kubernetes.causes import ACTS, ROWS, TIMES
from tests.kubernetes.stage import PRELUDE, Stage, until

KINDS = ("pytorchjob", "trainjob", "volcano", "indexedjob")
OURS = dict.fromkeys(KINDS, Retry(retries=1, preemptions=1, backoff=0))
# With these budgets an operator keeps them; that of PyTorchJob only where the job is elastic.
KEPT = {"volcano": Retry(1, preemptions=0, backoff=0), "indexedjob": Retry(1, backoff=0)}
# Without any a job is tried once, but for what its operator tries again by itself.
PLAIN = dict.fromkeys(KINDS)
BY_ITSELF = {
    "pytorchjob": (0, 0),
    "trainjob": (math.inf, math.inf),
    "volcano": (0, 0),
    "indexedjob": (0, math.inf),
}

causes = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


class Story(NamedTuple):
    """What is known of a job that has ended."""

    phase: Phase
    cause: Cause | None
    attempts: tuple  # number, cause, budget, hosts
    used: tuple  # of each budget
    told: bool  # all that must be told of its first failure


@pytest.fixture
def stages(cluster, tmp_path, monkeypatch):
    """Give a stage for each kind."""
    found = {}
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        found[kind] = Stage(cluster, tmp_path / kind, monkeypatch)
    yield found
    for stage in found.values():
        stage.close()


def play(stages, row, retries, who):
    """Have a cause end a job of each kind, all beside each other; give what is known of it then."""
    kinds = [kind for kind in retries if (who, kind) not in row.apart]
    jobs = {kind: submit(stages[kind], row, kind, retries[kind]) for kind in kinds}
    with ThreadPoolExecutor(len(kinds)) as pool:
        found = pool.map(lambda kind: follow(stages[kind], row, jobs[kind]), kinds)
        return dict(zip(kinds, found, strict=True))


def submit(stage, row, kind, retry):
    asked = {"kind": kind, "retry": retry, **row.asked}
    again = exits.RECOVERABLE_ERROR if retry and retry.retries else exits.USER_ERROR
    part = PRELUDE.format(signs=str(stage.signs)) + ACTS.format(again=again, times=TIMES) + row.part
    command = [row.command] if row.command else ["python", "-c", part]
    # A container that is told to end before it can hear it needn't be waited for.
    return stage.submit(pod_patch=stage.patch(command, terminationGracePeriodSeconds=1), **asked)


def follow(stage, row, job):
    struck = set()
    while row.strike and len(struck) < TIMES and not job.done():
        pod = until(lambda: job.done() or to_strike(stage, row, job, struck))
        if pod is not True:
            row.strike(stage, pod["metadata"]["name"])
            struck.add(life(pod))
    assert job.wait(60)
    return story(row, job.state)


def to_strike(stage, row, job, struck):
    """Give a pod that does what it is to be struck in, and wasn't struck before."""
    for pod in stage.pods():
        phase, uid = pod["status"].get("phase"), pod["metadata"]["uid"]
        fresh = "deletionTimestamp" not in pod["metadata"] and life(pod) not in struck
        hangs = any(each.pod == uid for node in job.state.nodes.values() for each in node.workers)
        if fresh and (phase == "Pending" if "node_selector" in row.asked else phase == "Running" and hangs):
            return pod
    return None


def life(pod):
    containers = pod["status"].get("containerStatuses") or [{}]
    return pod["metadata"]["uid"], containers[0].get("restartCount")


def story(row, state):
    ends = [(a.number, a.failure and a.failure.reason.cause, a.budget, a.hosts) for a in state.attempts]
    failure = state.failure or state.attempts[0].failure
    told = row.line in failure.reason.line and row.hint in failure.reason.hint
    cause = state.failure and state.failure.reason.cause
    return Story(state.phase, cause, tuple(ends), tuple(spent.used for spent in state.budgets), told)


def expected(row, limit, *, counted):
    """Give what must be known of a job that is tried again so often at most."""
    failed = limit < TIMES
    ends = [(row.cause, row.budget, row.hosts)] * int(min(limit + 1, TIMES))
    ends += [] if failed else [(None, None, ("localhost",))]
    used = tuple(min(limit, TIMES) if row.budget is kind else 0 for kind in Budget)
    return Story(
        Phase.FAILED if failed else Phase.SUCCEEDED,
        row.cause if failed else None,
        tuple((number, *end) for number, end in enumerate(ends, 1)),
        used if counted else (),
        True,
    )


def allowed(row, failures, preemptions):
    """Give how often such budgets let a cause be tried again."""
    return {None: 0, Budget.FAILURES: failures, Budget.PREEMPTIONS: preemptions}[row.budget]


@causes
def test_a_cause_and_its_budget_are_the_same_on_every_kind(stages, row):
    found = play(stages, row, OURS, "ours")

    assert found == dict.fromkeys(KINDS, expected(row, allowed(row, 1, 1), counted=True))


@causes
def test_operators_that_keep_the_budgets_spend_them_likewise(stages, row):
    found = play(stages, row, KEPT, "kept")

    for kind, retry in KEPT.items():
        limit = row.again.get(("kept", kind), allowed(row, retry.retries, retry.most_preemptions))
        assert found.pop(kind, None) in (None, expected(row, limit, counted=True)), kind


@causes
def test_without_budgets_a_job_is_tried_as_often_as_its_operator_does_by_itself(stages, row):
    for kind, told in play(stages, row, PLAIN, "plain").items():
        wanted = expected(row, allowed(row, *BY_ITSELF[kind]), counted=False)
        if kind == "trainjob":  # it starts a container again in place, before anybody can stop it
            told, wanted = (each._replace(attempts=()) for each in (told, wanted))
        assert told == wanted, kind


@pytest.mark.parametrize(
    ("row", "where"), [(row, where) for row in ROWS for where in row.apart], ids=lambda each: str(each)[:60]
)
def test_what_is_not_compared(row, where):
    pytest.skip(f"{row.name}, {' '.join(where)}: {row.apart[where]}")
