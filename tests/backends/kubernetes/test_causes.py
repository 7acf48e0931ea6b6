"""Every kind reports a failure's cause and budget alike, whatever owns the retries (``causes.py``).

Causes that operators can't tell apart run on one kind only; ``tests/state/test_failure.py`` tests that each
cause is recognized from its signs.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.runtime.facts import exits
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import US, Budget, Phase
from nbtorchjob.state.failure import Cause
from tests.backends.kubernetes.causes import APART, ROWS, TIMES
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.stage import Stage, until
from tests.patience import LIMIT

OURS = Retry(retries=1, preemptions=1, backoff=0)
# Budgets that operators keep themselves; PyTorchJob's does so only for elastic jobs.
BY_OPERATOR = {"volcano": Retry(1, preemptions=0, backoff=0), "indexedjob": Retry(1, backoff=0)}
# Without budgets a job is tried once, except for retries that its operator makes by itself.
PLAIN = dict.fromkeys(KINDS)
BY_ITSELF = {
    "pytorchjob": (0, 0),
    "trainjob": (0, math.inf),
    "volcano": (0, 0),
    "indexedjob": (0, math.inf),
}

causes = pytest.mark.parametrize("row", APART, ids=lambda row: row.name)


class Story(NamedTuple):
    """Facts about a job that has ended."""

    phase: Phase
    cause: Cause | None
    attempts: tuple[Any, ...]  # number, cause, budget, hosts
    used: tuple[Any, ...]  # of each budget
    missing: tuple[str, ...]  # expected words that the failure's text lacks


@pytest.fixture(scope="module")
def cluster(crds):
    """Yield a cluster with a kubelet that restarts containers soon: no cause depends on that delay."""
    with Emulator(restart_s=0.5) as emulator:
        yield emulator


@pytest.fixture
def stages(cluster, tmp_path, monkeypatch):
    """Yield a stage for each kind."""
    by_kind = {}
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        by_kind[kind] = Stage(cluster, tmp_path / kind, monkeypatch)
    yield by_kind
    for stage in by_kind.values():
        stage.close()


def play(stages, row, retries, who):
    """Play a row's cause on a job of each kind, all at once; return each kind's ``Story``."""
    kinds = [kind for kind in retries if (who, kind) not in row.apart]
    jobs = {kind: submit(stages[kind], row, kind, retries[kind]) for kind in kinds}
    with ThreadPoolExecutor(len(kinds)) as pool:
        stories = pool.map(lambda kind: follow(stages[kind], row, jobs[kind]), kinds)
        return dict(zip(kinds, stories, strict=True))


def submit(stage, row, kind, retry):
    again = exits.RECOVERABLE_ERROR if retry and retry.retries else exits.USER_ERROR
    part = f"from tests.backends.kubernetes.parts.causes import *\n{row.part}"
    acting = stage.acting(part, AGAIN=str(again), TIMES=str(TIMES))
    patch = stage.patch([row.command]) if row.command else acting
    return stage.submit(kind=kind, retry=retry, pod_patch=patch, **row.asked)


def follow(stage, row, job):
    stage.follow(job)
    struck: set[str] = set()
    while row.strike and not job.done():
        pod = until(lambda: job.done() or to_strike(stage, row, job, struck))
        if pod is not True:
            row.strike(stage, pod["metadata"]["name"])
            struck.add(life(pod))
    assert job.wait(LIMIT)
    return story(row, job.state)


def to_strike(stage, row, job, struck):
    """Return a pod that wasn't struck before and is to be struck: pending or hanging, as the row needs."""
    fresh = [
        pod
        for pod in stage.pods()
        if life(pod) not in struck and not pod["metadata"].get("deletionTimestamp")
    ]
    if "node_selector" in row.asked:
        return next((pod for pod in fresh if pod["status"].get("phase") == "Pending"), None)
    running = [pod for pod in fresh if pod["status"].get("phase") == "Running"]
    return next((pod for pod in running if hangs(job, *life(pod))), None)


def hangs(job, uid, restarts):
    """Return whether a pod's newest run hangs; the third doesn't."""
    workers = [worker for node in job.state.nodes.values() for worker in node.workers]
    rounds = [worker.round for worker in workers if worker.pod == uid]
    # Of attempts that we number, a job has at most two.
    return len(rounds) > restarts and (rounds[-1] < TIMES or job.info.retry_owner == US)


def life(pod):
    """Return a key that identifies one run of a pod."""
    containers = pod["status"].get("containerStatuses") or [{"restartCount": 0}]
    return pod["metadata"]["uid"], containers[0]["restartCount"]


def story(row, state):
    ends = [(a.number, a.failure and a.failure.reason.cause, a.budget, a.hosts) for a in state.attempts]
    failure = state.failure or state.attempts[0].failure
    text = f"{failure.reason.line} | {failure.reason.hint}"
    missing = tuple(words for words in (row.line, row.hint) if words not in text)
    cause = state.failure and state.failure.reason.cause
    return Story(state.phase, cause, tuple(ends), tuple(spent.used for spent in state.budgets), missing)


def expected(row, again, retry=None):
    """Return the ``Story`` expected of a job that is tried again at most ``again`` times."""
    failed = again < TIMES
    ends = [(row.cause, row.budget, row.hosts)] * int(min(again + 1, TIMES))
    drawn = {budget: len(ends) if row.budget is budget else 0 for budget in Budget}
    limits = {Budget.FAILURES: retry.retries, Budget.PREEMPTIONS: retry.most_preemptions} if retry else {}
    # The last failure draws on no budget if the budget allowed no further attempt.
    used = tuple(drawn[budget] - (drawn[budget] > limit) for budget, limit in limits.items())
    ends += [] if failed else [(None, None, ("localhost",))]
    attempts = tuple((number, *end) for number, end in enumerate(ends, 1))
    phase, cause = (Phase.FAILED, row.cause) if failed else (Phase.SUCCEEDED, None)
    return Story(phase, cause, attempts, used, ())


def allowed(row, failures, preemptions):
    """Return how often these budgets allow another attempt after the row's cause."""
    return {None: 0, Budget.FAILURES: failures, Budget.PREEMPTIONS: preemptions}[row.budget]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_cause_and_its_budget_are_the_same_on_every_kind(stages, row):
    kinds = KINDS if row in APART else [[*KINDS][ROWS.index(row) % len(KINDS)]]
    stories = play(stages, row, dict.fromkeys(kinds, OURS), "ours")

    assert stories == {kind: expected(row, allowed(row, 1, 1), OURS) for kind in kinds}


@causes
def test_operators_that_keep_the_budgets_spend_them_likewise(stages, row):
    stories = play(stages, row, BY_OPERATOR, "operator")

    for kind, retry in BY_OPERATOR.items():
        limit = row.again.get(("operator", kind), allowed(row, retry.retries, retry.most_preemptions))
        assert stories.pop(kind, None) in (None, expected(row, limit, retry)), kind


@causes
def test_without_budgets_a_job_is_tried_as_often_as_its_operator_does_by_itself(stages, row):
    for kind, outcome in play(stages, row, PLAIN, "plain").items():
        expectation = expected(row, row.again.get(("plain", kind), allowed(row, *BY_ITSELF[kind])))
        if kind == "trainjob":  # a TrainJob restarts a container in place, before anybody can stop it
            outcome, expectation = (cause._replace(attempts=()) for cause in (outcome, expectation))
        assert outcome == expectation, kind


@pytest.mark.parametrize(
    ("row", "where"), [(row, where) for row in ROWS for where in row.apart], ids=lambda value: str(value)[:60]
)
def test_what_is_not_compared(row, where):
    pytest.skip(f"{row.name}, {' '.join(where)}: {row.apart[where]}")
