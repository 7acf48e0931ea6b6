"""Recordings of a real Kueue (0.19) with jobs of three kinds lead to the conclusions that a person drew."""

from functools import cache

import pytest

from nbtorchjob.backends.kubernetes.control.selection import Troubles
from nbtorchjob.state import OPERATOR, Phase, apply, conclusive
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.failure import Cause
from nbtorchjob.state.text import facts
from tests.backends.kubernetes.recordings import LATER, ROOT, Recording
from tests.state.test_attempts import fold, info

RECORDED = ROOT.with_name("recordings-2")
pytestmark = pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recordings at {RECORDED}")

PREEMPTED = "preempted by a job of higher priority in its queue"
RECLAIMED = "preempted: its queue had borrowed quota that its owner took back"
DRAINED = "its queue was closed and emptied"
NOT_READY = "its pods weren't all ready in time"
# How each ended, its attempts (P: it drew on the budget for preemptions), and messages on the way.
CONCLUDED = {
    "admitted-at-once": (Phase.SUCCEEDED, None, ".", ["queued in team"]),
    "queued-quota": (
        Phase.SUCCEEDED,
        None,
        ".",
        ["queued in team; needs 200m cpu; 200m more cpu must be free in its queue's quota"],
    ),
    "no-localqueue": (
        Phase.SUCCEEDED,
        None,
        ".",
        ["there is no queue team in its namespace. Choose another --queue (doctor lists them)"],
    ),
    "inactive-clusterqueue": (
        Phase.SUCCEEDED,
        None,
        ".",
        ["its queue is closed (ClusterQueue", "Ask an administrator"],
    ),
    "preempted": (Phase.SUCCEEDED, None, "P.", [PREEMPTED, "200m more cpu must be free"]),
    "reclaimed": (Phase.SUCCEEDED, None, "P.", [RECLAIMED]),
    "drained": (
        Phase.SUCCEEDED,
        None,
        "P.",
        [f"{DRAINED}. It is admitted again when an administrator opens"],
    ),
    "drained-briefly": (Phase.SUCCEEDED, None, "P.", [DRAINED]),
    # A job that somebody deactivates has lost nothing.
    "deactivated": (
        Phase.SUCCEEDED,
        None,
        ".",
        ["suspended; it was deactivated in its queue. Resume it to have it admitted again"],
    ),
    "suspend-and-deactivate": (Phase.SUCCEEDED, None, ".", ["it was deactivated in its queue"]),
    "suspend-then-deactivate": (Phase.SUCCEEDED, None, ".", ["it was deactivated in its queue"]),
    "suspend-queued": (Phase.SUCCEEDED, None, ".", ["200m more cpu must be free"]),
    "max-execution-time": (
        Phase.FAILED,
        "ran longer than its maximum execution time in its queue",
        ".",
        ["queued in team"],
    ),
    "pods-not-ready": (
        Phase.FAILED,
        f"its queue gave up on it: too often, {NOT_READY}",
        "P.",
        [f"{NOT_READY}, and its queue took its quota back. It is tried again later"],
    ),
    "deadline-admitted": (Phase.FAILED, "ran longer than its deadline", ".", ["queued in team"]),
    "delete-queued": (Phase.CANCELLED, "was deleted", "", ["200m more cpu must be free"]),
}
# Jobs that never ran: they are queued to the end of the recording.
QUEUED = {
    "never-fits": "it can never be admitted: it needs 600m cpu, and its queue has 200m in all. Ask for less",
    "queued-to-absent-queue": "there is no queue absent in its namespace",
    "clusterqueue-without-flavor": "its queue is closed (ClusterQueue",
    "localqueue-without-clusterqueue": "its queue belongs to a ClusterQueue kueue-localqueue-without",
}


@cache
def recorded(name):
    """Return a scenario's recordings, one for each kind of job."""
    return [Recording(path) for path in sorted(RECORDED.glob(f"*/kueue-{name}"))]


def story(recording, changes):
    """Return how a job with a budget for preemptions ended, and what each of its attempts was."""
    troubles = Troubles(recording.kind, "")
    events = [fact for change in changes for fact in recording.facts(change, troubles)]
    about = info(OPERATOR, nodes=(2, 2), preemptions=9)
    state = fold(about, *events, ev.Closed(LATER + 1e6))
    letters = "".join("P" if attempt.budget else "." for attempt in state.attempts)
    assert state.budgets[1].used == letters.count("P")
    return state.phase, state.failure and state.failure.reason.line, letters


@pytest.mark.parametrize("name", CONCLUDED)
def test_what_became_of_it(name):
    phase, line, letters, _ = CONCLUDED[name]

    for recording in recorded(name):
        for changes in (recording.changes, *(recording.in_another_order(seed) for seed in range(3))):
            outcome = story(recording, changes)
            assert outcome[:2] == (phase, line), recording.path
            assert outcome[2] == letters or not letters, recording.path
        assert conclusive(recording.state()), recording.path


@pytest.mark.parametrize("name", CONCLUDED)
def test_what_was_said_while_it_waited(name):
    for recording in recorded(name):
        lines = recording.told()
        for words in CONCLUDED[name][3]:
            assert any(words in line for line in lines), (recording.path, lines)


@pytest.mark.parametrize("name", QUEUED)
def test_what_never_runs_is_queued_and_says_why(name):
    for recording in recorded(name):
        state = recording.state()

        assert (facts.phase(state), state.phase, conclusive(state)) == ("QUEUED", Phase.PENDING, False)
        assert QUEUED[name] in facts.waiting(state)[0]


def test_what_its_queue_does_is_nobodys_suspension():
    for recording in [
        recording for name in ("preempted", "drained", "queued-quota") for recording in recorded(name)
    ]:
        phases = {facts.phase(state) for state in recording.read(recording.changes)}

        assert "QUEUED" in phases, recording.path
        assert "SUSPENDED" not in phases, recording.path


# attempt() can't count readmissions by Kueue: only the Workload counts them, and pods have no token.
def test_pods_that_a_queue_admits_again_learn_nothing_that_those_before_them_did_not():
    for recording in [recording for name in ("preempted", "drained") for recording in recorded(name)]:
        pods = [change["object"] for change in recording.changes if change["resource"] == "pods"]
        learned: dict[int, dict[str, object]] = {}
        for pod in filter(recording.is_ours, pods):
            meta, env = pod["metadata"], [container.get("env") for container in pod["spec"]["containers"]]
            lives = learned.setdefault(recording.kind.node(pod), {})
            lives[meta["uid"]] = (meta["labels"], meta["annotations"], env)

        assert learned, recording.path
        for lives in learned.values():
            first, *others = lives.values()
            assert others, recording.path
            assert all(other == first for other in others), recording.path


def test_what_was_deactivated_is_suspended():
    for recording in recorded("deactivated"):
        assert "SUSPENDED" in {facts.phase(state) for state in recording.read(recording.changes)}


def test_what_its_queue_gave_up_is_told_like_a_deadline():
    for recording in [
        recording for name in ("max-execution-time", "pods-not-ready") for recording in recorded(name)
    ]:
        failure = apply(recording.state(), ev.Closed(LATER + 1e6)).failure

        assert failure is not None
        assert failure.reason.cause is Cause.DEADLINE
        assert failure.reason.hint
