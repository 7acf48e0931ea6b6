"""How long a job may run, and how long and where it is kept.

How far a job is, and for how long it has been silent, in words.
"""

from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest

from nbtorchjob.spec.policies import RunPolicy
from nbtorchjob.state import JobInfo, JobState, apply, turns
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.progress import PERCENT, REPORT, Progress
from nbtorchjob.state.text import facts, lifetime
from nbtorchjob.state.text import lifetime as words
from tests.ui.card.retried import CLUSTER, begun, job

WHO = "the operator"


pytestmark = pytest.mark.usefixtures("greenwich")


def test_ranks_that_an_interrupt_does_not_reach_are_named_with_the_way_to_see_them():
    begun_cell: list[ev.Event] = [
        ev.NodeStarted(1.0, 0, "here", 1),
        ev.WorkersStarted(2.0, 0, 0, 0, (0, 1), 2),
    ]
    cell = reduce(apply, [*begun_cell, ev.CancelRequested(3.0)], JobState(JobInfo("lab#2")))
    pools = reduce(apply, begun_cell, JobState(JobInfo("pool#2", spec={"lab": False})))

    assert lifetime.after_cancel(cell) == (
        "its ranks were interrupted, and %torchjob stacks lab#2 shows where they are"
    )
    assert [lifetime.after_cancel(state) for state in (pools, job(*begun(1, 1000.0)))] == ["", ""]


def test_a_deadline_has_a_time_and_a_distance():
    state = job(*begun(1, 1000.0))

    assert lifetime.deadline(state, 1030.0) == "ends at 00:26:40, in 9 min 30 s"
    assert lifetime.deadline(state, 1700.0) == "its deadline passed at 00:26:40, 1 min 40 s ago"
    assert lifetime.deadline(job(ev.Closed(1005.0)), 1030.0) == ""
    assert lifetime.deadline(job(policy=None), 1030.0) == ""


def test_what_holds_a_job_back_has_a_time_to_end_it():
    wait = ev.Waiting(1005.0, "the quota is used up", reason="FailedCreate", since=1005.0)

    assert lifetime.patience(job(wait, start_within_s=600), 1030.0) == (
        "fails at 00:26:45 unless it is running by then"
    )
    assert lifetime.patience(job(start_within_s=600), 1030.0) == ""
    assert lifetime.patience(job(wait), 1030.0) == ""


def test_a_deadline_counts_from_the_last_resume():
    paused = job(*begun(1, 1000.0), ev.Suspended(1100.0, True))
    resumed = job(*begun(1, 1000.0), ev.Suspended(1100.0, True), ev.Suspended(1200.0, False))

    assert lifetime.deadline(paused, 1150.0) == "once it is resumed, it may run for 10 min 00 s"
    assert lifetime.deadline(resumed, 1230.0) == "ends at 00:30:00, in 9 min 30 s"


def test_a_deadline_counts_from_the_turn_that_a_job_waits_for():
    waits = ev.Waiting(1001.0, "behind 1 job")
    of_group = job(ev.Suspended(1000.0, True, ev.AWAITED), backend="kubernetes", cluster=CLUSTER)

    for waiting in (job(waits), of_group):
        assert lifetime.deadline(waiting, 1700.0) == "once its turn has come, it may run for 10 min 00 s"
    of_user = job(ev.Suspended(1000.0, True, ev.HELD), backend="kubernetes", cluster=CLUSTER)
    assert lifetime.deadline(of_user, 1700.0) == "once it is resumed, it may run for 10 min 00 s"
    begins = job(waits, ev.Suspended(1700.0, False))
    assert lifetime.deadline(begins, 1705.0) == "ends at 00:38:20, in 9 min 55 s"
    assert lifetime.deadline(job(waits, *begun(1, 1002.0)), 1030.0) == "ends at 00:26:40, in 9 min 30 s"
    pending = job(waits, backend="kubernetes", cluster=CLUSTER)
    assert lifetime.deadline(pending, 1030.0) == "ends at 00:26:40, in 9 min 30 s"


def test_a_deadline_counts_for_each_attempt_of_a_pools_job():
    pool = JobInfo("pool", lab=0.0, spec={"fresh": True})

    state = JobState(turns.of(pool, key="1", created=1000.0, deadline_s=600))
    assert lifetime.deadline(state, 1700.0) == "each attempt may run for 10 min 00 s"


def test_who_removes_a_job_and_when():
    ended = job(*begun(1, 1000.0), ev.Closed(1010.0))
    removed_job = job(*begun(1, 1000.0), ev.Removed(1010.0), backend="kubernetes", cluster=CLUSTER)

    assert lifetime.removal(job(), WHO, 1005.0) == "removed 1 min 00 s after it ends, the operator"
    assert lifetime.removal(ended, WHO, 1030.0) == "removed in 40 s, the operator"
    assert lifetime.removal(ended, "", 1100.0) == "due for removal since 00:17:50"
    assert lifetime.removal(removed_job, WHO, 1100.0) == "removed from its cluster at 00:16:50"


def test_without_a_limit_a_job_stays():
    stored = "kept until %torchjob delete swift-otter or %torchjob gc --yes"
    on_cluster = job(policy=RunPolicy(), backend="kubernetes", cluster=CLUSTER)

    assert lifetime.removal(on_cluster, WHO, 1005.0) == stored
    assert lifetime.removal(job(policy=None), WHO, 1005.0) == f"{stored}, or a week after it ends"


def test_when_a_job_began_and_ended():
    assert lifetime.times(job(ev.Closed(1010.0)), {}, 1030.0) == [
        "submitted at 00:16:40",
        "ended at 00:16:50",
        "removed in 40 s",
    ]


def test_where_values_and_logs_are():
    folder, storage = Path("/home/me/state"), {"storage": "s3://team/\x1bjobs"}
    on_cluster = job(backend="kubernetes", cluster=CLUSTER, spec={"cluster": storage})

    assert lifetime.stored(job(), folder) == [
        "logs and values in /home/me/state/jobs/swift-otter on this machine"
    ]
    assert lifetime.stored(on_cluster, folder) == [
        "logs and values in the cluster while its pods exist; copies in /home/me/state/kubernetes",
        "payload and values in s3://team/ jobs",
    ]


NODES = [ev.NodeStarted(2.0, node, f"host-{node}") for node in (0, 1)]
MET = [ev.NodeMeets(5.0 + node, node) for node in (0, 1)]
WORKERS = [ev.WorkersStarted(7.5, node, 0, 0, (node,), 2) for node in (0, 1)]
TWO = "installing 2 packages (a 1, b 2)"
GIB = 1 << 30
# It began with 90 GiB from the attempt before.
FETCH = ev.Fetching(4.0, 0, "web", done=902 * GIB // 10, size=100 * GIB, began=2.0, had=90 * GIB)
GB = 10**9
HALF = ev.Fetching(12.0, 0, "squad", GB, 2 * GB, began=2.0)  # 10 s for a gigabyte
BEGAN = [ev.RankBegan(8.0 + rank, rank, 0) for rank in (0, 1)]


def startup_job(*known, fewest=2):
    return reduce(apply, known, JobState(JobInfo("job", created=1.0, nodes=(fewest, 2))))


@pytest.mark.parametrize(
    ("known", "doing"),
    [
        ([], "importing torch"),
        (NODES, "importing torch on 2 of 2 nodes"),
        ([*NODES, MET[0]], "importing torch on 1 of 2 nodes"),
        ([*NODES, ev.Installing(3.0, 0)], "choosing packages on 1 of 2 nodes"),
        ([*NODES, *(ev.Installing(3.0, n, ("a 1", "b 2")) for n in (0, 1))], f"{TWO} on 2 of 2 nodes"),
        ([NODES[0], ev.Installing(3.0, 0, tuple("abcd"))], "installing 4 packages (a, b, c and others)"),
        ([*NODES, FETCH], "fetching web: 97 GB of 107 GB, 1 min left on 1 of 2 nodes"),
        ([NODES[0], HALF], "fetching squad: 1.0 GB of 2.0 GB, 10 s left"),
        ([NODES[0], replace(HALF, size=0)], "fetching squad: 1.0 GB"),
        ([NODES[0], replace(HALF, done=0)], "fetching squad: 0 B of 2.0 GB"),
        ([NODES[0], replace(HALF, done=2 * GB)], "fetching squad: 2.0 GB of 2.0 GB"),
        ([NODES[0], replace(HALF, waits=True)], "waiting for another node to fetch squad"),
        (
            [*NODES, HALF, replace(HALF, node=1, done=GB // 2)],  # the slowest node counts
            "fetching squad: 500 MB of 2.0 GB, 30 s left on 2 of 2 nodes",
        ),
        ([NODES[0], HALF, ev.Fetched(13.0, 0, "squad", 2 * GB, 3, "the cache")], "importing torch"),
        ([NODES[0], MET[0]], "meeting: 1 of 2 nodes are there"),
        ([*NODES, *MET], "meeting: 2 of 2 nodes are there"),
        ([*NODES, *MET, *WORKERS, BEGAN[0]], "starting ranks: 1 of 2 run"),
        ([*NODES, *MET, *WORKERS, *BEGAN], ""),
        ([*NODES, *WORKERS], ""),
    ],
)
def test_until_the_call_runs_it_is_said_what_the_nodes_do(known, doing):
    assert lifetime.doing(startup_job(*known)) == doing


def test_each_step_says_how_long_it_took():
    assert lifetime.steps(startup_job(*NODES, *MET, *WORKERS, *BEGAN)) == [
        ("submitting, and waiting for nodes", "1.0 s"),
        ("importing torch", "4.0 s"),
        ("meeting", "1.5 s"),
        ("starting ranks", "1.5 s"),
    ]


def test_the_steps_of_a_job_that_was_tried_again_are_those_of_its_first_attempt():
    installed = ev.Installed(4.0, 0, ("a 1",), "pip", 1.0)
    first = [*NODES, installed, *MET, *WORKERS, *BEGAN]
    again = [
        ev.NodeStarted(3600.0, 0, "host-0", pod="later", attempt=2),
        replace(installed, time=3601.0, packages=()),
        ev.NodeMeets(3602.0, 0),
        ev.WorkersStarted(3603.0, 0, 0, 1, (0,), 2, "later"),
        ev.RankBegan(3604.0, 0, 1),
    ]

    assert lifetime.steps(startup_job(*first, *again[:1])) == [
        ("submitting, and waiting for nodes", "1.0 s"),
        ("installing 1 package with pip", "2.0 s"),
        ("importing torch", "2.0 s"),
        ("meeting", "1.5 s"),
        ("starting ranks", "1.5 s"),
    ]
    assert lifetime.steps(startup_job(NODES[0], MET[0], WORKERS[0], BEGAN[0], *again)) == [
        ("submitting, and waiting for nodes", "1.0 s"),
        ("preparing the nodes, and meeting", "5.5 s"),
    ]


def test_the_first_step_says_how_big_the_payload_is():
    info = JobInfo("job", created=1.0, nodes=(2, 2), began=0.5, packed=1.75, payload=12_000_000)

    assert lifetime.steps(reduce(apply, NODES, JobState(info))) == [
        ("packing 12 MB", "1.2 s"),
        ("submitting, and waiting for nodes", "0.2 s"),
    ]


def test_what_a_node_says_of_its_packages_is_shown_as_text_alone():
    forged = "\ud800\x1b[2J" + "x" * 99
    installs = startup_job(ev.NodeStarted(2.0, 0, "host"), ev.Installing(3.0, 0, (forged,)))
    installed = startup_job(ev.Installed(9.0, 0, ("peft",), forged, 1.0))

    assert lifetime.doing(installs).isprintable()
    assert all(step.isprintable() for step, _ in lifetime.steps(installed))


def test_on_a_cluster_nothing_is_known_before_there_are_nodes():
    cluster = {"context": "", "namespace": "ml", "kind": "indexedjob"}

    assert lifetime.doing(JobState(JobInfo("job", backend="kubernetes", cluster=cluster))) == ""


def test_while_the_others_form_the_next_round_a_node_isnt_said_to_run():
    state = startup_job(*NODES, *WORKERS, ev.NodeExited(9.0, 1, signal=9), fewest=1)

    assert facts.condition(state.nodes[0], state) == "forming the next round"


@pytest.mark.parametrize(
    ("every", "pace", "now", "text"),
    [
        (2.0, 2.0, 4.0, "3 of 9 steps · about 12 s left · 2.0 s per step"),
        (0.5, 0.5, 4.0, "3 of 9 steps · about 3.0 s left · 2.0 steps/s"),
        (2.0, 2.0, 44.0, "3 of 9 steps · no step for 40 s; a step took 2.0 s"),
        (20.0, 0.2, 204.0, "3 of 9 steps · no report for 3 min 20 s; one came every 20 s"),
        (None, None, 500.0, "3 of 9 steps"),
    ],
)
def test_it_is_said_how_far_it_is_and_how_fast_or_since_when_it_stands(every, pace, now, text):
    assert words.describe_progress(Progress("step", 3, 9, pace, every, 4.0, 4.0), now) == text


def test_percents_have_no_rate():
    assert (
        words.describe_progress(Progress(PERCENT, 40, 100, 0.5, None, 4.0, 4.0), 4.0)
        == "40 % · about 30 s left"
    )


def test_without_a_total_what_was_done_is_counted():
    assert words.describe_progress(Progress("epoch", 1, None, None, None, 4.0, 4.0), 5.0) == "1 epoch"
    assert (
        words.describe_progress(Progress("step", 40, None, 0.1, 0.1, 4.0, 4.0), 5.0)
        == "40 steps · 10.0 steps/s"
    )


def test_reports_that_count_nothing_are_told_only_once_they_stop():
    assert words.describe_progress(Progress(REPORT, 3, None, 2.0, 2.0, 4.0, 4.0), 5.0) == ""
    assert (
        words.describe_progress(Progress(REPORT, 3, None, 2.0, 2.0, 4.0, 4.0), 44.0)
        == "no report for 40 s; one came every 2.0 s"
    )
