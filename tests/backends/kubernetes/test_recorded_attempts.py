"""The attempts in a recorded history, whatever started them, and the budget that each one's end drew on.

Every row is what real controllers did (Kubernetes 1.36, training-operator 1.9, trainer 2.3, Volcano 1.15).
A letter is an attempt: F if a failure ended it, P if a preemption did, and a dot if no budget paid for
its end, because it ended well or nothing may follow it.
"""

from functools import cache

import pytest

from nbtorchjob.backends.kubernetes.control.selection import Troubles
from nbtorchjob.state import OPERATOR, Budget, Phase
from nbtorchjob.state.facts import events as ev
from tests.backends.kubernetes.recordings import ROOT, Recording
from tests.state.test_attempts import fold, info

ROOTS = (ROOT, ROOT.with_name("recordings-2"))
pytestmark = pytest.mark.skipif(
    not all(root.is_dir() for root in ROOTS), reason=f"no recordings at {ROOT}, or none of the second part"
)
LETTERS = {Budget.FAILURES: "F", Budget.PREEMPTIONS: "P", None: "."}

SUCCEEDED = [
    # A node is taken away, and the job's operator, whichever it is, gives it another pod.
    (
        "P.",
        """
        job-evict-exit143 job-evict-podfailurepolicy-ignore job-nodegone-podfailurepolicy-ignore
        job-preempt-podfailurepolicy-ignore job-taint-podfailurepolicy-ignore
        trainjob-delete-default trainjob-evict-default trainjob-preempt-default trainjob-taint-default
        vcjob-delete-no-policy vcjob-delete-restartjob vcjob-delete-restarttask vcjob-evict-no-policy
        vcjob-evict-restartjob vcjob-evict-restarttask vcjob-nodegone-restartjob vcjob-preempt-restartjob
        vcjob-taint-restartjob
        ptj-delete-exitcode ptj-delete-onfailure ptj-evict-exitcode ptj-evict-onfailure ptj-nodegone-exitcode
        ptj-preempt-exitcode ptj-preempt-onfailure ptj-taint-onfailure
    """,
    ),
    # Our suspensions end no attempt, and no budget counts them.
    (
        ".",
        """
        job-created-suspended job-suspend-resume trainjob-created-suspended trainjob-suspend-resume
        vcjob-abort-resume ptj-created-suspended ptj-suspend-resume-clean
    """,
    ),
    # An elastic job goes on without a node that it lost for good, with another in its place, or with fewer.
    (
        ".",
        """
        job-elastic-best job-elastic-best-nothing-lost job-elastic-lost-index-spare
        job-elastic-lost-index-two-spares-both-succeed job-elastic-spare-nothing-lost
        job-elastic-lost-index-scaled-down job-elastic-lost-index-scaled-up ptj-elastic-staggered
    """,
    ),
    # The restart of a node is an attempt; restarts of both nodes at once are one attempt.
    (
        "F.",
        """
        job-elastic-both-lost-at-once job-elastic-both-succeed-one-restarted
        job-elastic-lost-index-backofflimit job-elastic-lost-index-ignore-137
        job-elastic-lost-index-perindex-6 job-restart-while-old-peer-ends
    """,
    ),
    ("FFFFFFF.", "ptj-exitcode-exit137-backoff1"),
    ("FFFFFF.", "ptj-exitcode-exit143-backoff1"),
]
FAILED = [
    # Nothing is tried again after a node was taken away, or failed in a way that allows a retry.
    (
        "P",
        """
        job-delete-backoff0 job-delete-podfailurepolicy-ignore job-evict-backoff0 job-preempt-backoff0
        job-taint-backoff0 trainjob-delete-never-backoff0 trainjob-evict-never-backoff0
        trainjob-nodelost-never-backoff0 ptj-delete-elastic-exit0 ptj-delete-never ptj-evict-elastic-exit0
        ptj-evict-never ptj-nodegone-never ptj-nodelost-never ptj-preempt-never ptj-taint-never
    """,
    ),
    (
        "F",
        """
        job-oom job-oom-child job-retries-both-pods-fail-1 trainjob-oom vcjob-oom ptj-never-exit137-backoff1
        ptj-oom-never job-elastic-index-0-lost
    """,
    ),
    # Code that fails by itself draws on no budget.
    (
        ".",
        """
        job-evicted-emptydir job-exit1-backoff0 job-failindex job-podfailurepolicy-failjob
        job-termination-message-big trainjob-exit1-backoff0-never trainjob-podfailurepolicy
        vcjob-exit1-abortjob vcjob-exit1-no-policy vcjob-exit1-restartjob-maxretry1 vcjob-exit1-terminatejob
        vcjob-exitcode-policy ptj-evicted-emptydir ptj-exitcode-exit1-backoff1 ptj-exitcode-exit1-ttl
        ptj-exitcode-exit3-backoff1 ptj-never-exit1-backoff1
    """,
    ),
    # Two nodes that fail together, or one because of the other, in either order, are one attempt each time.
    (
        "FF",
        """
        job-retries-both-pods-fail-3 job-retries-perindex-both-pods-fail
        job-retries-200-then-201-1 job-retries-201-then-200-1
        job-retries-perindex-200-then-201 job-retries-perindex-201-then-200
        job-elastic-lost-index-perindex-1 ptj-oom-onfailure ptj-exitcode-exit143-backoff0
    """,
    ),
    ("FFFF", "job-retries-200-then-201 job-retries-201-then-200"),
]
ROWS = [
    (name, phase, letters)
    for phase, rows in ((Phase.SUCCEEDED, SUCCEEDED), (Phase.FAILED, FAILED))
    for letters, names in rows
    for name in names.split()
]


@cache
def folders():
    """Return the folder of each history, by name."""
    return {path.name: path for root in ROOTS for path in root.glob("*/*-*")}


def story(recording, changes):
    """Return how a job ended, and a letter for each of its attempts."""
    troubles = Troubles(recording.kind, "")
    events = [fact for change in changes for fact in recording.facts(change, troubles)]
    nodes = (1, 2) if "elastic" in recording.path.name else (2, 2)
    state = fold(info(OPERATOR, nodes=nodes, retries=9), *events, ev.Closed(2.1e9))
    letters = "".join(LETTERS[attempt.budget] for attempt in state.attempts)
    assert [letters.count(letter) for letter in "FP"] == [spent.used for spent in state.budgets]
    return state.phase, letters


@pytest.mark.parametrize(("name", "phase", "letters"), ROWS, ids=[row[0] for row in ROWS])
def test_what_its_attempts_were(name, phase, letters):
    recording = Recording(folders()[name])

    assert story(recording, recording.changes) == (phase, letters)
    assert story(recording, recording.in_another_order(0)) == (phase, letters)


# If several nodes fail, the one that failed by itself is to blame.
@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("job-retries-200-then-201", 0),
        ("job-retries-201-then-200", 1),
        ("job-retries-perindex-200-then-201", 0),
        ("job-retries-perindex-201-then-200", 1),
    ],
)
def test_a_node_that_only_noticed_is_not_to_blame(name, node):
    recording = Recording(folders()[name])
    troubles = Troubles(recording.kind, "")
    events = [fact for change in recording.changes for fact in recording.facts(change, troubles)]
    state = fold(info(OPERATOR, retries=9), *events, ev.Closed(2.1e9))

    assert [attempt.failure.node for attempt in state.attempts] == [node] * len(state.attempts)
