"""Ranks at one place are shown once, with the user's own lines marked and libraries' frames folded."""

from dataclasses import replace
from functools import reduce
from pathlib import Path

from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.runtime.facts.samples import RUNS, STOPPED, Collective, Group, RankSample, Thread
from nbtorchjob.runtime.look.profiler import MEMORY_EVENTS
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.spent import Operation, TimeSpent
from nbtorchjob.state.text.stacks import MemoryProfile, Profile, Stacks, TensorMemory

CELL = "/tmp/ipykernel_1/1.py"
SITE = "/usr/lib/python3.11/site-packages/torch/"
INSIDE = (
    Frame(SITE + "distributed/c10d_logger.py", 83, "wrapper"),
    Frame(SITE + "distributed/distributed_c10d.py", 9, "all_reduce"),
)
LOADS = (Frame(SITE + "utils/data/dataloader.py", 700, "__next__"),)


def rank(number, line, *below, seq=4, name="step"):
    sizes, dtypes = ((8,),), ("float32",)
    call = Collective(seq, "all_reduce", 100.0 + number, seq < 4, sizes, dtypes)
    frames = (Frame(CELL, line, name, "f(x)"), *below)
    thread = Thread("main", frames)
    return RankSample(number, RUNS, 7, (thread,), (Group("0", (0, 1, 2), (call,)),))


def stacks(*samples, facts=(), **more):
    info = JobInfo("job", sources={CELL: ("Cell In[3]", "")})
    events = ev.WorkersStarted(1.0, 0, 0, 0, (0, 1, 2), 3), ev.Sampled(140.0, 0, 0, "asked", samples)
    return Stacks(reduce(apply, [*events, *facts], JobState(info)), **more)


def test_tells_of_ranks_at_one_place_together():
    dump = stacks(rank(0, 5, *INSIDE), rank(1, 9, *LOADS, seq=3, name="<module>"), rank(2, 5, *INSIDE))

    text = str(dump)

    assert dump.diagnosis.ranks == (1,)
    assert text.split("\n") == (
        [
            dump.cause,
            "",
            "ranks 0, 2:",
            "  waits in all_reduce #4 of the default group, float32[8], for 40 s",
            "  > Cell In[3], line 5: f(x)  (in step)",
            "    2 frames of libraries, the last torch/distributed/distributed_c10d.py:9, in all_reduce",
            "",
            "rank 1:",
            "  last completed all_reduce #3 of the default group, float32[8]",
            "  > Cell In[3], line 9: f(x)",
            "    utils/data/dataloader.py:700, in __next__",
        ]
    )


def test_of_a_group_that_was_left_no_ranks_are_told():
    left = Group("3", (), (Collective(1, "broadcast", 100.0, True),))

    assert "last completed broadcast #1 of group 3\n" in str(stacks(replace(rank(0, 5), groups=(left,))))


def test_says_what_nodes_did_not_tell_and_that_it_is_old():
    dump = stacks(rank(0, 5), RankSample(1, STOPPED), trouble={1: "hasn't answered for 12 s"}, asked=False)

    assert "This is its last sample, of " in str(dump)
    assert "node 1: hasn't answered for 12 s" in str(dump)
    assert "rank 1, stopped, by a signal or a debugger:" in str(dump)
    assert str(Stacks(JobState(JobInfo("job")))) == "What its ranks are doing is not known."


def test_says_that_the_job_had_ended_before_anything_was_seen():
    ended = apply(JobState(JobInfo("job")), ev.Closed(9.0))

    assert str(Stacks(ended)) == "The job has ended, and what its ranks did was not recorded."


def test_is_html_and_data_as_well():
    dump = stacks(rank(0, 5, *INSIDE), RankSample(1, STOPPED, note="<b>"))

    assert "<b>  &gt; Cell In[3], line 5" in dump._repr_html_()
    assert dump.to_json()["diagnosis"]["ranks"] == [1]
    assert [sample["rank"] for sample in dump.to_json()["samples"]] == [0, 1]
    assert "&lt;b&gt;" in dump._repr_html_()


PARTS = {"data": 1.4, "ranks": 0.2, "accelerator": 0.0, "compute": 0.3, "python": 0.1, "idle": 0.0}
LINES = (("Cell In[3], line 2: for x in <loader>:", 1.4), ("Cell In[3], line 3: step(x)", 0.6))
OPERATIONS = (Operation("aten::mm", 40, 0.2, "Cell In[3], line 3: step(x)"), Operation("aten::add", 1, 0.02))


def profile(parts=PARTS, seconds=2.0, busy=None):
    return Profile(1, Path("job.trace.json.gz"), TimeSpent(seconds, 2.0, parts, LINES, OPERATIONS, busy))


def test_what_was_waited_for_comes_first():
    assert profile().lines == [
        "rank 1, 2 s: waiting 70 % for data, 10 % for other ranks",
        "   70 %  waiting for data",
        "   10 %  collectives, which wait for other ranks",
        "   15 %  compute: torch's other operations",
        "    5 %  Python",
        "    0 %  idle: it sleeps, or waits for something else",
        "",
        "its lines:",
        "   70 %  Cell In[3], line 2: for x in <loader>:",
        "   30 %  Cell In[3], line 3: step(x)",
        "",
        "torch's operations, without what each calls:",
        "   10 %  aten::mm, 40 calls  mostly in Cell In[3], line 3: step(x)",
        "    1 %  aten::add, 1 call",
        "",
        "trace: job.trace.json.gz (ui.perfetto.dev opens it)",
    ]
    assert "in &lt;loader&gt;" in profile()._repr_html_()
    assert profile().to_json()["parts"]["data"] == 1.4


def test_an_accelerator_is_told_of_where_there_is_one():
    text = str(profile({**PARTS, "accelerator": 0.4, "data": 1.0}, busy=0.5))

    assert "waiting 50 % for data, 10 % for other ranks, 20 % for the accelerator\n" in text
    assert "   20 %  waiting for the accelerator\n" in text
    assert "its accelerator was busy for 25 %\n" in text


def test_a_trace_that_was_cut_and_no_waiting():
    text = str(profile(dict.fromkeys(PARTS, 0.0), seconds=0.172))

    assert text.startswith("rank 1, 0.17 s of 2.0 s, as a trace has no room for more: hardly any waiting\n")


def test_what_memory_holds():
    usage = (TensorMemory(0, 3 << 30, 1 << 30),)

    assert MemoryProfile(0, Path("job.memory.pickle"), 3.0, 7, usage).lines == [
        "rank 0, 3.0 s: 7 events of its allocator",
        "  device 0: tensors use 1.1 GB of 3.2 GB that torch has reserved",
        "snapshot: job.memory.pickle (pytorch.org/memory_viz opens it)",
    ]
    newest = MemoryProfile(0, Path("job"), 3.0, MEMORY_EVENTS, usage).lines[0]
    assert newest == "rank 0, 3.0 s: the newest 20000 events of its allocator"
