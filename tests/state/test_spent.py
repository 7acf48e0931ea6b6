"""Where a rank's time went, by its record and its trace; each case plants one of each."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.state.spent import Operation, common, length, marked, merged, spent, without

MAIN, OTHER, STREAM = 7, 8, 20
CELL, SITE = "/tmp/1.py", "/usr/lib/python3/site-packages/torch/"
SOURCES = {CELL: ("Cell In[3]", "a\nb\nloss.backward()\n")}
STEP, LOADS, MEETS = (
    [Frame(CELL, 3, "<module>")],
    [Frame(CELL, 1, "<module>"), Frame(SITE + "utils/data/dataloader.py", 9, "__next__")],
    [Frame(CELL, 2, "<module>"), Frame(SITE + "distributed/distributed_c10d.py", 9, "all_reduce")],
)


def event(name, start, end, thread=MAIN, category="cpu_op"):
    """Return an event of a trace, with its times in ms."""
    times = {"ts": start * 1e3, "dur": (end - start) * 1e3}
    return {"ph": "X", "cat": category, "name": name, "tid": thread, **times}


def read(*events, stacks=(STEP,), looks=None, used=0.0, devices=False, meets=()):
    """Return where 100 ms went, with a look every 10 ms; ``used`` is the share of CPU time.

    A collective is under way at the looks ``meets``.
    """
    at = looks or [0] * 11
    record = {
        "pid": MAIN,
        "began": 0,
        "ended": 100_000_000,
        "asked": 0.1,
        "looks": [
            [n * 10_000_000, int(n * 1e7 * used), stack, int(n in meets)] for n, stack in enumerate(at)
        ],
        "stacks": [[[frame.filename, frame.lineno, frame.name] for frame in stack] for stack in stacks],
        "devices": devices,
    }
    more = [{"ph": "M", "name": "process_name"}, event("Iteration", 0, 100, category="python_function")]
    return spent(record, {"traceEvents": [*events, *more], "baseTimeNanoseconds": 0}, SOURCES)


def parts(breakdown):
    return {name: round(seconds * 1000) for name, seconds in breakdown.parts.items() if round(seconds * 1000)}


LOADING = event(
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 60, category="user_annotation"
)
SYNC = event("cudaStreamSynchronize", 10, 60, category="cuda_runtime")
CASES: dict[str, tuple[list[Any], dict[str, Any], dict[str, int]]] = {
    "data, as torch marks it": ([LOADING, event("aten::stack", 10, 20)], {}, {"data": 60, "idle": 40}),
    "data, as the stack tells": (
        [],
        {"stacks": (STEP, LOADS), "looks": [0] * 6 + [1] * 5},
        {"data": 50, "idle": 50},
    ),
    "ranks, in a call": (
        [event("c10d::allreduce_", 0, 30), event("aten::mm", 40, 60)],
        {},
        {"ranks": 30, "compute": 20, "idle": 50},
    ),
    "ranks, in a call of a tensor's": (
        [
            event("_c10d_functional::all_reduce", 0, 5),
            event("_c10d_functional::wait_tensor", 5, 40),
            event("_dtensor::shard_dim_alltoall", 40, 60),
            event("c10d_functional::wait_tensor", 60, 70),
        ],
        {},
        {"ranks": 70, "idle": 30},
    ),
    "ranks, in a call of a tensor's that began before": (
        [],
        {"stacks": ([*MEETS, Frame(SITE + "_ops.py", 9, "__call__")],)},
        {"ranks": 100},
    ),
    "ranks, in a call that began before": (
        [],
        {"stacks": (MEETS,)},
        {"ranks": 100},
    ),
    "not ranks, where torch.distributed is imported": (
        [],
        {"stacks": ([STEP[0], Frame("<frozen importlib._bootstrap>", 9, "_load"), MEETS[1]],), "used": 1},
        {"python": 100},
    ),
    "ranks, within a backward pass": (
        [event("AddmmBackward0", 0, 20), event("gloo:all_reduce", 10, 70, OTHER)],
        {"used": 0.5},
        {"compute": 20, "ranks": 50, "python": 15, "idle": 15},
    ),
    "ranks, as looks tell": (
        [event("AddmmBackward0", 0, 20)],
        {"meets": range(2, 8), "used": 0.5},
        {"compute": 20, "ranks": 50, "python": 15, "idle": 15},
    ),
    "the accelerator": (
        [event("aten::item", 5, 65), SYNC, event("sgemm", 0, 50, STREAM, "kernel")],
        {"devices": True},
        {"accelerator": 50, "compute": 10, "idle": 40},
    ),
    "ranks, on the accelerator": (
        [
            SYNC,
            event("sgemm", 0, 20, STREAM, "kernel"),
            event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 15, 60, STREAM + 1, "kernel"),
        ],
        {"devices": True},
        {"ranks": 40, "accelerator": 10, "idle": 50},
    ),
    "Python": ([event("aten::mm", 0, 20)], {"used": 1}, {"compute": 20, "python": 80}),
    "nothing": ([], {}, {"idle": 100}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_moment_of_the_main_thread_is_told_apart(case):
    events, how, expected = CASES[case]

    assert parts(read(*events, **how)) == expected


def test_how_long_the_accelerator_was_busy():
    kernels = [event("sgemm", 0, 50, STREAM, "kernel"), event("Memcpy DtoH", 40, 60, STREAM, "gpu_memcpy")]

    assert read(*kernels, devices=True).busy == pytest.approx(0.06)
    assert read(devices=True).busy == 0
    assert read().busy is None


def test_operations_without_what_they_call_and_where_they_are():
    breakdown = read(
        event("aten::linear", 0, 50),
        event("aten::addmm", 10, 40),
        event("aten::addmm", 60, 70),
        event("aten::add", 0, 5, OTHER),
    )

    assert breakdown.operations == (
        Operation("aten::addmm", 2, 0.04, "Cell In[3], line 3: loss.backward()"),
        Operation("aten::linear", 1, 0.02, "Cell In[3], line 3: loss.backward()"),
        Operation("aten::add", 1, 0.005),
    )
    assert breakdown.lines == (("Cell In[3], line 3: loss.backward()", pytest.approx(0.1)),)


def test_what_began_before_or_ended_after_counts_as_far_as_it_was_seen():
    assert parts(read(event("aten::mm", -50, 20), event("aten::mm", 90, 400))) == {"compute": 30, "idle": 70}


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)).map(lambda span: (span[0], sum(span))))


def moments(spans):
    return {at for start, end in spans for at in range(start, end)}


@given(SPANS, SPANS)
def test_they_are_as_sets_of_moments(some, others):
    spans, other_spans = merged(some), merged(others)

    assert moments(spans) == moments(some)
    assert moments(without(spans, other_spans)) == moments(some) - moments(others)
    assert moments(common(spans, other_spans)) == moments(some) & moments(others)
    assert length(spans) == len(moments(some))


TRACE = {"baseTimeNanoseconds": 1000, "traceEvents": [{"ph": "X", "name": "aten::mm", "tid": 7}]}


def test_ranges_are_the_main_threads_and_collectives_have_rows_of_their_own():
    gloos = [["gloo:all_reduce", 3000, 9000], ["gloo:broadcast", 2000, 4000], ["gloo:barrier", 9000, 9500]]
    trace = marked(TRACE, {"pid": 7, "ranges": [["forward", 2000, 5000]], "collectives": gloos})

    events = [event for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    assert [(event["name"], event["pid"], event["tid"], event["ts"], event["dur"]) for event in events] == [
        ("forward", 7, 7, 1.0, 3.0),
        ("gloo:broadcast", 7, 1, 1.0, 2.0),
        ("gloo:all_reduce", 7, 2, 2.0, 6.0),
        ("gloo:barrier", 7, 1, 8.0, 0.5),
    ]
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert names == {1: "gloo 1", 2: "gloo 2"}
    assert TRACE["traceEvents"] == [trace["traceEvents"][0]]


@pytest.mark.parametrize("record", [{}, {"pid": 7, "ranges": [["forward", 1]], "collectives": []}])
def test_what_no_rank_tells_is_refused(record):
    with pytest.raises((LookupError, ValueError)):
        marked(TRACE, record)
