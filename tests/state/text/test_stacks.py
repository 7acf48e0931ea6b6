"""Ranks at one place are told of once, with the user's own lines marked and libraries' frames folded."""

from functools import reduce

from nbtorchjob.runtime.errors import Frame
from nbtorchjob.runtime.samples import RUNS, STOPPED, Collective, Group, RankSample, Thread
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state import events as ev
from nbtorchjob.state.text.stacks import Stacks

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
    known = ev.WorkersStarted(1.0, 0, 0, 0, (0, 1, 2), 3), ev.Sampled(140.0, 0, 0, "asked", samples)
    return Stacks(reduce(apply, [*known, *facts], JobState(info)), **more)


def test_tells_of_ranks_at_one_place_together():
    found = stacks(rank(0, 5, *INSIDE), rank(1, 9, *LOADS, seq=3, name="<module>"), rank(2, 5, *INSIDE))

    text = str(found)

    assert found.diagnosis.ranks == (1,)
    assert text.split("\n") == (
        [
            found.diagnosis.text,
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


def test_says_what_nodes_did_not_tell_and_that_it_is_old():
    found = stacks(rank(0, 5), RankSample(1, STOPPED), trouble={1: "doesn't answer since 12 s"}, asked=False)

    assert "This is its last sample, of " in str(found)
    assert "node 1: doesn't answer since 12 s" in str(found)
    assert "rank 1, stopped, by a signal or a debugger:" in str(found)
    assert str(Stacks(JobState(JobInfo("job")))) == "Nothing is known of what its ranks do."


def test_is_html_and_data_as_well():
    found = stacks(rank(0, 5, *INSIDE), RankSample(1, STOPPED, note="<b>"))

    assert "<b>  &gt; Cell In[3], line 5" in found._repr_html_()
    assert found.to_json()["diagnosis"]["ranks"] == [1]
    assert [each["rank"] for each in found.to_json()["samples"]] == [0, 1]
    assert "&lt;b&gt;" in found._repr_html_()
