"""Records of a process's groups: those that it is in, and those that it has left."""

import json
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nbtorchjob.runtime.look import recorder
from tests.patience import LIMIT
from tests.runtime.sampled import needs_records


@pytest.fixture
def world():
    """Yield a function that makes the default group, of this process alone."""

    def begin():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()


def told():
    """Return each group's ranks, its backend, what the code calls it, and its calls."""
    return {
        group.name: (group.ranks, group.backend, group.label, [(call.op, call.done) for call in group.calls])
        for group in recorder.groups()
    }


def settled():
    """Wait until gloo's threads have noted that all calls are over: a call returns a moment before that."""
    until = time.monotonic() + LIMIT
    while any(not call.done for group in recorder.groups() for call in group.calls) or any(
        called != done for called, done in recorder.counts().values()
    ):
        assert time.monotonic() < until


@needs_records
def test_a_process_without_groups_tells_of_those_that_it_has_left(world):
    world()
    pair = dist.new_group([0])
    dist.barrier()
    dist.broadcast(torch.ones(1), 0, group=pair)
    name = pair.group_name
    dist.destroy_process_group()

    groups = told()
    assert groups["0"] == ((), "gloo", "default_pg", [("barrier", True)])
    assert groups[name] == ((), "gloo", "", [("broadcast", True)])


@needs_records
def test_a_collective_that_was_over_before_the_first_look_is_none_of_those_seen(world):
    world()
    dist.broadcast(torch.ones(1), 0)
    settled()
    gloos = recorder.GloosCalls()
    gloos.look(time.time_ns())
    dist.all_reduce(torch.ones(1))
    settled()
    gloos.look(time.time_ns())

    assert [name for name, *_ in gloos.seen()] == ["gloo:all_reduce"]


@needs_records
def test_a_new_group_has_no_call_of_one_that_had_its_name(world):
    world()
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    world()
    assert told()["0"] == ((0,), "gloo", "default_pg", [])

    dist.barrier()
    settled()
    assert told()["0"] == ((0,), "gloo", "default_pg", [("barrier", True)])


def entry(name, number, *, done=True, peer=False, since=1.0):
    """Return the record of a call in the default group, as NCCL makes it."""
    return {
        "pg_id": 99,  # a number that gloo hasn't assigned
        "process_group": ["0", "default_pg"],
        "profiling_name": f"nccl:{name}",
        "collective_seq_id": 0 if peer else number,
        "p2p_seq_id": number if peer else 0,
        "is_p2p": peer,
        "time_created_ns": int(since * 1e9),
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
        "state": "completed" if done else "scheduled",
        "retired": done,
        "timeout_ms": 600_000,
    }


@pytest.fixture
def nccls(monkeypatch):
    """Return NCCL's records, which tests fill: a machine without its devices makes none."""
    records: list[dict[str, Any]] = []
    dump = lambda entries, stacks: json.dumps({"entries": records if entries else []}).encode()  # noqa: E731
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", dump, raising=False)
    return records


def test_a_send_of_nccls_is_told_of_a_group_without_collectives(world, nccls):
    world()
    nccls += [entry("send 0->0", 1, peer=True), entry("recv 0<-0", 2, peer=True)]
    calls = [call for group in recorder.groups() for call in group.calls]
    assert [(call.op, call.seq, call.p2p, call.peer) for call in calls] == [
        ("send", 1, True, 0),
        ("recv", 2, True, 0),
    ]


def test_a_call_of_a_group_that_was_destroyed_is_not_pending(world, nccls):
    world()
    dist.barrier()
    nccls += [entry("all_reduce", 1, done=False)]
    assert [call.op for call in recorder.open_calls()] == ["all_reduce"]

    dist.destroy_process_group()
    assert recorder.open_calls() == []


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize(
    ("names", "peer"),
    [(("send 0->0", "recv 0<-0"), True), (("all_gather", "all_gather"), False)],
    ids=["batch_isend_irecv", "collectives"],
)
def test_calls_that_nccl_made_as_one_end_with_that(names, peer, done, world, nccls):
    world()
    dist.barrier()
    for number in (1, 2):
        # torch leaves these calls pending; only the call that stands for all of them ever completes.
        nccls += [entry(name, number, done=False, peer=peer) for name in names]
        nccls += [entry("coalesced", number, done=done or number == 1, peer=peer)]

    ops = [name.partition(" ")[0] for name in names]
    (group,) = recorder.groups()
    assert [(call.op, call.seq, call.done) for call in group.calls] == [
        *((op, 1, True) for op in ops),
        *((op, 2, done) for op in ops),
    ]
    assert [call.op for call in recorder.open_calls()] == ([] if done else ops)
