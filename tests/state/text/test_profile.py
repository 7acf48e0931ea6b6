"""Where a rank's time went, as people read it."""

from pathlib import Path

from nbtorchjob.runtime.profiler import MEMORY_EVENTS
from nbtorchjob.state.spent import Operation, Spent
from nbtorchjob.state.text.profile import Held, MemoryProfile, Profile

PARTS = {"data": 1.4, "ranks": 0.2, "accelerator": 0.0, "compute": 0.3, "python": 0.1, "idle": 0.0}
LINES = (("Cell In[3], line 2: for x in <loader>:", 1.4), ("Cell In[3], line 3: step(x)", 0.6))
OPERATIONS = (Operation("aten::mm", 40, 0.2, "Cell In[3], line 3: step(x)"), Operation("aten::add", 1, 0.02))


def profile(parts=PARTS, seconds=2.0, busy=None):
    return Profile(1, Path("job.trace.json.gz"), Spent(seconds, 2.0, parts, LINES, OPERATIONS, busy))


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
    held = (Held(0, 3 << 30, 1 << 30),)

    assert MemoryProfile(0, Path("job.memory.pickle"), 3.0, 7, held).lines == [
        "rank 0, 3.0 s: 7 events of its allocator",
        "  device 0: tensors use 1.1 GB of 3.2 GB that torch has reserved",
        "snapshot: job.memory.pickle (pytorch.org/memory_viz opens it)",
    ]
    newest = MemoryProfile(0, Path("job"), 3.0, MEMORY_EVENTS, held).lines[0]
    assert newest == "rank 0, 3.0 s: the newest 20000 events of its allocator"
