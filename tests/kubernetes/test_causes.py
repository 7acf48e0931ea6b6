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


def play(stages, row, retries):
    """Have a cause end a job on each stage; give what is known of it then, by kind."""
    jobs = {kind: submit(stages[kind], row, kind, retry) for kind, retry in retries.items()}
    with ThreadPoolExecutor(len(jobs)) as pool:
        found = pool.map(lambda kind: follow(stages[kind], row, jobs[kind]), jobs)
        return dict(zip(jobs, found, strict=True))


def submit(stage, row, kind, retry):
    asked = {"kind": kind, "retry": retry, **row.asked}
    if row.command:
        return stage.submit(pod_patch=stage.patch([row.command]), **asked)
    again = exits.RECOVERABLE_ERROR if retry and retry.retries else exits.USER_ERROR
    return stage.submit(ACTS.format(again=again, times=TIMES) + row.part, **asked)


def follow(stage, row, job):
    for turn in range(TIMES if row.strike else 0):
        until(lambda turn=turn: job.done() or (begun(stage, turn) and job.state.round >= turn and alive(stage)))
        if not job.done():
            row.strike(stage, alive(stage)[0])
    assert job.wait(60)
    return story(job.state)


def begun(stage, turn):
    return (stage.signs / f"turn-{turn}").exists()


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
    found = play(stages, row, dict.fromkeys(KINDS, OURS))

    assert {kind: told._replace(told="") for kind, told in found.items()} == dict.fromkeys(
        KINDS, expected(row, 1, 1)
    )
    for told in found.values():
        assert row.line in told.told and row.hint in told.told
