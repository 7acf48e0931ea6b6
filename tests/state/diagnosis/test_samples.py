"""Samples of ranks that really hung (torch 2.13, gloo): the diagnosis has the planted rank and line."""

import json
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.diagnosis import diagnose
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines
from nbtorchjob.state.text.hang import describe

HERE = Path(__file__).parent / "samples"
CASES = [
    (
        "skipped_collective",
        (1,),
        "rank 1 entered barrier, but ranks 0, 2 all_reduce float32[8]",
        "dist.barrier()",
    ),
    ("full_queue", (0,), "rank 0 never entered barrier #4", "waiting.put(2)"),
    ("crossed_groups", (0, 1), "ranks 0-1 wait for each other", "group=first"),
    ("stuck_worker", (1,), "it waits for its DataLoader in Cell In[1], line 116", "DataLoader("),
    ("lock_of_python_held", (1,), "rank 1 is held by something in C in Cell In[1], line 116", ""),
    ("store_wait", (2,), "it waits for a store in Cell In[1], line 141", '.get("never")'),
    (
        "other_root",
        (0, 1),
        "rank 0 entered broadcast from rank 0 in the default group, but rank 1 broadcast from rank 1",
        "dist.broadcast(torch.ones(1 << 12), src=best)",
    ),
    (
        "other_group",
        (1,),
        "rank 1 entered all_reduce in group model (ranks 0-2), but ranks 0, 2 all_reduce in group data",
        "group=model if",
    ),
    (
        "missing_receiver",
        (0, 1),
        "ranks 0-1 wait for each other: rank 0 waits in send to rank 1 (hangs.py",
        "dist.send(",
    ),
    (
        "other_tag",
        (0, 1),
        "rank 0 waits in send to rank 1 with tag 3 (",
        "tag=3",
    ),
    ("ring", (0, 1, 2), "ranks 0-2 wait for each other: rank 0 waits in recv from rank 2", "dist.recv("),
    ("pipeline", (1,), "); rank 1 sleeps in hangs.py, line ", "time.sleep(LONG)"),
    ("monitored_barrier", (1,), "rank 1 never entered monitored_barrier", "time.sleep(LONG)"),
]


CASES += [
    (
        "one_step_more",
        (1,),
        "rank 1 made 8 calls in the default group, and ranks 0, 2 made 7 before returning; the last is "
        "all_reduce float32[8], hangs.py, line",
        "dist.all_reduce(torch.ones(8))",
    ),
    (
        "too_big",
        (2,),
        "rank 2 entered all_reduce float32[4000], but ranks 0-1 all_reduce float32[8]; hangs.py, line",
        "dist.all_reduce(torch.ones(4000",
    ),
    (
        "objects_for_tensors",
        (1,),
        "rank 1 entered all_gather_object (all_gather int64[1]), but ranks 0, 2 all_gather float32[100]; "
        "hangs.py, line",
        "dist.all_gather_object(",
    ),
    (
        "backward_pass",
        (1,),
        "rank 1 never entered DDP's all_reduce #11 of the default group, which ranks 0, 2 have waited in",
        "time.sleep(LONG)",
    ),
    (
        "straggler",
        (1,),
        "rank 1 is slow: it entered the last 3 calls 2.0 s after the others; ranks 0, 2 have waited for it",
        "time.sleep(2.0 if step < 3 else 5.0)",
    ),
]


def of_samples(name: str, without_calls: bool = False) -> Any:
    facts: list[Any] = [factlines.from_json(fact) for fact in json.loads((HERE / f"{name}.json").read_text())]
    if without_calls:
        facts = [replace(fact, samples=tuple(map(forgotten, fact.samples))) for fact in facts]
    world = 1 + max(sample.rank for fact in facts for sample in fact.samples)
    started = ev.WorkersStarted(1.0, 0, 0, facts[0].round, tuple(range(world)), world)
    state = JobState(JobInfo("job", sources={"/tmp/ipykernel_1/1.py": ("Cell In[1]", "")}))
    return diagnose(reduce(apply, [started, *facts], state))


def forgotten(sample: Any) -> Any:
    return replace(sample, groups=tuple(replace(group, calls=()) for group in sample.groups))


@pytest.mark.parametrize(("name", "ranks", "text", "code"), CASES)
def test_real_hangs(name, ranks, text, code):
    diagnosis = of_samples(name)

    assert (diagnosis.ranks, diagnosis.sure) == (ranks, True)
    assert text in describe(diagnosis)
    assert code in diagnosis.frame.line
    assert diagnosis.slow is (name == "straggler")


@pytest.mark.parametrize(
    ("name", "ranks", "text"),
    [
        ("skipped_collective", (1,), "as the same call rank 1 entered barrier, but ranks 0, 2 all_reduce"),
        (
            "full_queue",
            (0,),
            "in barrier, which rank 0 never entered; it waits for a queue in Cell In[1], line",
        ),
        ("stuck_worker", (1,), "it waits for its DataLoader in Cell In[1], line 116"),
        ("lock_of_python_held", (1,), "rank 1 is held by something in C in Cell In[1], line 116"),
        ("store_wait", (2,), "it waits for a store in Cell In[1], line 141"),
    ],
)
def test_real_hangs_are_told_by_stacks_alone_where_torch_records_no_calls(name, ranks, text):
    diagnosis = of_samples(name, without_calls=True)

    assert (diagnosis.ranks, diagnosis.sure) == (ranks, True)
    assert text in describe(diagnosis)


def test_several_groups_leave_it_open_where_torch_records_no_calls():
    diagnosis = of_samples("crossed_groups", without_calls=True)
    assert diagnosis is None or not diagnosis.sure
