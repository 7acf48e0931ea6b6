"""The one fact about a job's usage that matters, and how memory rose before an end."""

from functools import reduce

import pytest

from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.runtime.facts.samples import RUNS, GpuUse, RankSample, RankUse, Thread
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.text import facts, usage

GB = 1_000_000_000
CLUSTER = {"backend": "kubernetes", "cluster": {"kind": "job", "namespace": "ml"}}


def used(time, memory, *, node=0, seq=None, limit=8.0, **more):
    seq = int(time) // 10 if seq is None else seq
    return ev.Used(time, node, 0, seq, more.pop("cores", 2.0), int(memory * GB), int(limit * GB), **more)


def job(*events, nodes=2, **info):
    begun = [
        fact
        for node in range(nodes)
        for fact in (
            ev.NodeStarted(0.0, node, f"host-{node}"),
            ev.WorkersStarted(1.0, node, 0, 0, (node,), nodes),
        )
    ]
    state = JobState(JobInfo("swift-otter", created=0.0, nodes=(nodes, nodes), **{**CLUSTER, **info}))
    return reduce(apply, [*begun, *events], state)


def rising(first, last, node=1):
    return [used(10.0 * n, first + (last - first) * n / 6, node=node) for n in range(7)]


def test_memory_that_is_nearly_full_is_told():
    assert usage.matters(job(*rising(3, 7.2))) == "memory 7.2 of 8 GB on node 1, and rising"
    assert usage.matters(job(*rising(7.4, 7.4))) == "memory 7.4 of 8 GB on node 1"
    assert usage.matters(job(*rising(7.4, 7.4, node=0), nodes=1)) == "memory 7.4 of 8 GB"
    local_job = job(*rising(7.4, 7.4), backend="local", cluster=None)
    assert usage.matters(local_job) == "memory 7.4 of 8 GB on this machine"


@pytest.mark.parametrize("events", [rising(6, 6), rising(0.1, 2), []])
def test_where_there_is_room_nothing_is_told(events):
    assert usage.matters(job(*events)) == ""


def test_memory_that_will_be_full_soon_is_told_before_it_is():
    assert usage.matters(job(*rising(3, 5))) == "memory 5.0 of 8 GB on node 1, and rising"


def test_memory_that_has_stopped_rising_is_not_told():
    loads = [used(5.0, 1, seq=0), used(10.0, 5.4, seq=1)]
    full = [used(5.0, 1, seq=0), used(10.0, 7.4, seq=1)]

    def constant(level):
        return [used(10.0 * n, level) for n in range(2, 9)]

    assert usage.matters(job(*loads)) == "memory 5.4 of 8 GB on node 0, and rising"
    assert usage.matters(job(*loads, *constant(5.4))) == ""
    assert usage.matters(job(*full, *constant(7.4))) == "memory 7.4 of 8 GB on node 0"
    # Of a long job, fewer than one measurement a minute is kept.
    seldom = [used(100.0 * n, level) for n, level in enumerate([3, 4, 5])]
    assert usage.matters(job(*seldom)) == "memory 5.0 of 8 GB on node 0, and rising"


def test_of_a_job_that_has_ended_and_of_a_former_round_nothing_matters():
    assert usage.matters(job(*rising(7.4, 7.4), ev.Closed(70.0))) == ""
    assert usage.matters(job(*rising(7.4, 7.4), ev.WorkersStarted(80.0, 1, 1, 1, (1,), 1))) == ""


def test_shared_memory_that_is_full_is_told():
    state = job(used(10.0, 1, shm=63_000_000, shm_limit=64_000_000))

    assert usage.matters(state) == "/dev/shm 63 of 64 MB on node 0"


def gpus(time, busy, memory=GB):
    return used(time, 1, gpus=(GpuUse(0, busy, time, memory, 80 * GB),))


def test_gpus_that_are_idle_are_told():
    assert usage.matters(job(*(gpus(t, 0.38 * t) for t in range(0, 200, 10)))) == (
        "GPUs idle 62 % of the time"
    )
    assert usage.matters(job(*(gpus(t, 0.9 * t) for t in range(0, 200, 10)))) == ""
    assert usage.matters(job(gpus(0, 0), gpus(20, 0))) == ""  # too soon to tell
    assert usage.matters(job(*(gpus(t, 0.0, memory=1) for t in range(0, 200, 10)))) == ""  # an unused GPU


def trains(time, *, since, gpu=0):
    """Return the use of a GPU that has been busy, with data in its memory, since ``since``."""
    memory = GB if time >= since else 1
    return GpuUse(gpu, max(0.0, time - since), time, memory, 80 * GB)


def test_a_gpu_counts_from_when_there_is_something_in_its_memory():
    later = [used(t, 1, gpus=(trains(t, since=1200),)) for t in range(0, 1280, 10)]
    assert usage.matters(job(*later)) == ""
    assert {percent for _, percent in at_work(job(*later))} == {100.0}
    one_more = [
        used(t, 1, gpus=(trains(t, since=0), trains(t, since=1200, gpu=1))) for t in range(0, 1280, 10)
    ]
    assert usage.matters(job(*one_more)) == ""
    assert {percent for _, percent in at_work(job(*one_more))} == {100.0}


def at_work(state):
    return dict(usage.courses(state))["GPUs at work, in %"]["node 0"]


LOADER = Frame("/env/site-packages/torch/utils/data/dataloader.py", 9, "_next_data")
REDUCES = Frame("/env/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")
MEETS = Frame("/env/site-packages/torch/distributed/distributed_c10d.py", 9, "init_process_group")
COMPUTES = Frame("/env/site-packages/torch/nn/functional.py", 9, "linear")


@pytest.mark.parametrize(
    ("below", "time", "why"),
    [
        ([LOADER, COMPUTES], 185.0, ": rank 0 waits for data"),
        ([LOADER, LOADER], 185.0, ": ranks 0-1 wait for data"),
        ([REDUCES, LOADER], 185.0, ": rank 1 waits for data"),  # rank 0 waits for rank 1
        ([REDUCES, COMPUTES], 185.0, ": rank 0 waits in all_reduce"),
        ([REDUCES, REDUCES], 185.0, ": ranks 0-1 wait in all_reduce"),
        ([MEETS, COMPUTES], 185.0, ": rank 0 waits in init_process_group"),
        ([COMPUTES, COMPUTES], 185.0, ""),
        ([LOADER, LOADER], 100.0, ""),  # the sample is old
        ([], 185.0, ""),
    ],
)
def test_why_gpus_are_idle_is_told_where_somebody_looked(below, time, why):
    idle = [gpus(t, 0.38 * t) for t in range(0, 200, 10)]
    cell = Frame("<cell>", 3, "<module>", "train()")
    ranks = tuple(RankSample(n, RUNS, 1, (Thread("main", (cell, frame)),)) for n, frame in enumerate(below))

    text = usage.matters(job(*idle, ev.Sampled(time, 0, 0, "asked", ranks)))

    assert text == f"GPUs idle 62 % of the time{why}"


def crowd(time, running, node=0, worked=0):
    uses = tuple(RankUse(rank, time, GB, 20, running, worked) for rank in (0, 1))
    return used(time, 1, node=node, uses=uses)


def test_more_threads_than_cores_are_told():
    events = [crowd(10.0 * n, 8) for n in range(3)]

    assert usage.matters(job(*events)) == "CPU: 2 ranks × 8 threads on 2 cores"
    assert usage.matters(job(*events[:2])) == ""
    waiting = [crowd(10.0 * n, 5, worked=8) for n in range(3)]  # at each moment some wait for others
    assert usage.matters(job(*waiting)) == "CPU: 2 ranks × 8 threads on 2 cores"
    turns = [crowd(10.0 * n, 1, worked=8) for n in range(3)]
    assert usage.matters(job(*turns)) == ""
    assert usage.matters(job(*(crowd(10.0 * n, 1) for n in range(9)))) == ""
    shared = [crowd(10.0 * n, 1, node) for n in range(3) for node in (0, 1)]
    assert usage.matters(job(*shared)) == ""
    local_job = job(*shared, backend="local", cluster=None)
    assert usage.matters(local_job) == "CPU: 4 ranks × 1 thread on 2 cores"


def killed(*events, time=61.0, reason="OOMKilled"):
    state = job(*events, ev.NodeExited(time, 1, 137, 9, reason=reason, text="8Gi"), ev.Closed(62.0))
    assert state.failure is not None
    return facts.cause(state.failure, state)


def test_an_end_for_memory_says_how_it_rose_before():
    assert "Memory had risen from 2.1 GB to 7.9 of 8 GB in 1 min 00 s, 1.0 s before." in killed(
        *rising(2.1, 7.9)
    )
    assert "Memory was at 7.9 of 8 GB, 1.0 s before." in killed(*rising(7.9, 7.9))
    assert "Memory had risen" in killed(*rising(2.1, 7.9), reason="")  # SIGKILL, without a reason
    assert "Memory " not in killed(*rising(1, 3), reason="")
    assert "Memory " not in killed()


def test_each_node_is_a_row_with_a_strip():
    gpu = (GpuUse(0, 1.0, 2.0, 30 * GB, 80 * GB),)
    last = used(70.0, 4, node=1, uses=(RankUse(1, 90.0, GB, 9, 1),), gpus=gpu, shm_limit=GB)
    first = used(0.0, 0, node=1, uses=(RankUse(1, 20.0, GB, 9, 1),))

    head, row = usage.rows(job(first, used(10.0, 8, node=1), last))

    assert head == usage.HEAD
    assert row[:4] == ("1", "4.0 of 8 GB", "8.0 GB", "▁█▅")
    assert row[4:] == ("1.0 of 2 cores", "9 in 1 rank", "0 B of 1 GB", "30 of 80 GB")
    assert usage.rows(job()) == []


def test_what_a_node_is_is_told_and_which_nodes_are_others():
    epyc = [used(9.0, 1, model="EPYC 9654"), used(9.0, 1, node=1, model="EPYC 9654")]
    assert usage.notes(job(*epyc)) == ["2 cores of EPYC 9654, 8.0 GB"]
    gpu = GpuUse(0, 0.0, 1.0, 1, 80 * GB, "H100")
    assert usage.notes(job(*epyc, used(9.0, 1, node=2, gpus=(gpu,)), nodes=3)) == [
        "nodes 0-1: 2 cores of EPYC 9654, 8.0 GB",
        "node 2: 2 cores, 8.0 GB, 1 \N{MULTIPLICATION SIGN} H100 of 80 GB",
    ]


def test_a_strip_shows_the_highest_of_what_it_stands_for():
    strip = usage.bars([0.0] * 99 + [1.0])

    assert len(strip) <= 24
    assert strip.strip("▁") == "█"


def busy(time, cpu, gpu, node=0):
    uses = (RankUse(node, cpu, GB, 9, 1),)
    return used(time, 2 + time / 30, node=node, uses=uses, gpus=(GpuUse(0, gpu, time, GB, 80 * GB),))


def test_a_course_has_a_curve_for_each_node():
    courses = dict(usage.courses(job(busy(0.0, 0, 0, 1), busy(60.0, 90.0, 15.0, 1), used(0.0, 1))))

    assert courses == {  # node 0 has a single point
        "Memory in GB": {"node 1": [(0.0, 2.0), (1.0, 4.0)]},
    }
    later = job(*(busy(60.0 * n, 90.0 * n, 15.0 * n, 1) for n in range(3)))
    assert dict(usage.courses(later))["CPU cores at work"] == {"node 1": [(1.0, 1.5), (2.0, 1.5)]}
    assert dict(usage.courses(later))["GPUs at work, in %"] == {"node 1": [(1.0, 25.0), (2.0, 25.0)]}


def test_of_a_running_job_each_of_the_first_nodes_has_strips():
    events = [busy(60.0 * n, 90.0 * n, 15.0 * n, node) for n in range(3) for node in (0, 1)]

    assert [node for node, _ in usage.strips(job(*events), 1)] == [0]
    [_, (node, strips)] = usage.strips(job(*events), 9)
    assert node == 1
    assert [tuple(strip) for strip in strips] == [
        ("CPU", "1.5 of 2 cores", [0.75, 0.75]),
        ("memory", "6.0 of 8 GB", [0.25, 0.5, 0.75]),
        ("GPU", "25 % busy", [0.25, 0.25]),
    ]
    assert [*usage.strips(job(*events, ev.Closed(200.0)), 9)] == []
    assert [*usage.strips(job(), 9)] == []


def test_where_a_rank_had_ended_its_cpu_time_is_no_step_back():
    events = [busy(0.0, 0, 0), busy(60.0, 90.0, 0), busy(120.0, 10.0, 0), busy(180.0, 100.0, 0)]
    [(_, (cpu, *_))] = usage.strips(job(*events), 1)

    assert cpu.parts == [0.75, 0.75]
