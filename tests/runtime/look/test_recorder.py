"""What is told of a process's groups: those that it is in, and what it has left."""

import pytest
import torch
import torch.distributed as dist

from nbtorchjob.runtime.look import recorder
from tests.runtime.sampled import needs_records


@pytest.fixture
def world():
    """Return a function that makes the default group, of this process alone."""

    def begin():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()


def told():
    """Return what is told of each group: its ranks, its backend, what the code calls it, and its calls."""
    return {
        group.name: (group.ranks, group.backend, group.label, [(call.op, call.done) for call in group.calls])
        for group in recorder.groups()
    }


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
