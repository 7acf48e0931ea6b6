"""Every cause through every kind: the same is known of it, whoever keeps the budgets (``causes.py``)."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from nbtorchjob.policies import Retry
from nbtorchjob.runtime import exits
from nbtorchjob.state import Budget, Phase
from tests.kubernetes.causes import ACTS, ROWS, TIMES
from tests.kubernetes.stage import Stage, until

KINDS = ("pytorchjob", "trainjob", "volcano", "indexedjob")
OURS = Retry(retries=1, preemptions=1, backoff=0)


class Story(NamedTuple):
    """What is known of a job that has ended."""

    phase: Phase
    attempts: tuple  # number, cause, budget
    used: tuple  # of each budget
    hosts: tuple  # of each attempt
    told: str


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


def each(stages, play):
    """Play on all stages at once; give what came of it, by kind."""
    with ThreadPoolExecutor(len(stages)) as pool:
        return dict(zip(stages, pool.map(play, stages), strict=True))


def play(stage, row, kind, retry):
    again = exits.RECOVERABLE_ERROR if retry and retry.retries else exits.USER_ERROR
    part = ACTS.format(again=again, times=TIMES) + row.part
    asked = {"kind": kind, "retry": retry, **row.asked}
    if row.command:
        job = stage.submit(pod_patch=stage.patch([row.command]), **asked)
    else:
        job = stage.submit(part, **asked)
    if row.strike:
        for life in range(TIMES):
            strike(stage, job, row, life)
    assert job.wait(60)
    return story(job.state)


def strike(stage, job, row, life):
    until(lambda: job.done() or (job.state.round >= life and alive(stage)))
    if not job.done():
        row.strike(stage, alive(stage)[0])


def alive(stage):
    pods = [pod for pod in stage.pods() if pod["status"].get("phase") == "Running"]
    return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def story(state):
    attempts = tuple((a.number, a.failure and a.failure.reason.cause, a.budget) for a in state.attempts)
    reason = next((a.failure.reason for a in state.attempts if a.failure), None)
    return Story(
        state.phase,
        attempts,
        tuple(spent.used for spent in state.budgets),
        tuple(a.hosts for a in state.attempts),
        f"{reason.line} | {reason.hint}" if reason else "",
    )


def expected(row, failures, preemptions):
    """Give what must be known of a job whose budgets are such."""
    limit = {None: 0, Budget.FAILURES: failures, Budget.PREEMPTIONS: preemptions}[row.budget]
    failed = limit < TIMES
    ends = [(row.cause, row.budget)] * (limit + 1 if failed else TIMES)
    ends += [] if failed else [(None, None)]
    used = tuple(min(limit, TIMES) if row.budget is kind else 0 for kind in Budget)
    return Story(
        Phase.FAILED if failed else Phase.SUCCEEDED,
        tuple((number, *end) for number, end in enumerate(ends, 1)),
        used,
        tuple(row.hosts if number < TIMES else ("localhost",) for number in range(len(ends))),
        "",
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_with_budgets_of_ours_a_cause_is_the_same_on_every_kind(stages, row):
    found = each(stages, lambda kind: play(stages[kind], row, kind, OURS))

    assert {kind: told._replace(told="") for kind, told in found.items()} == dict.fromkeys(
        KINDS, expected(row, 1, 1)
    )
    for told in found.values():
        assert row.line in told.told and row.hint in told.told
