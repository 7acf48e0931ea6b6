"""The process groups of a rank's code, with real ranks of one node or two."""

import os
import sys
import time
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from nbtorchjob import Elastic, JobSpec, PyTorch, Worker, submit
from tests.patience import LIMIT

# As in a notebook, whose functions no node can import.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

ONE_NODE, TWO_NODES, ANY = Elastic(nproc_per_node=2), PyTorch(worker=Worker(replicas=1)), Elastic("1:2")


def results(fn, *args, launch):
    return submit(fn, *args, spec=JobSpec(launch, all_ranks=True)).results(LIMIT)


def met():
    """Meet the others; give the store that they share, and whether somebody had been there."""
    dist.init_process_group("gloo")
    store = distributed_c10d._get_default_store()
    known = store.check(["been here"])
    dist.barrier()
    store.set("been here", "yes")
    dist.barrier()
    return store, known


def meet_again_and_again():
    sums = []
    for _ in range(3):
        _, known = met()
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.destroy_process_group()
        sums.append((known, total.item()))
    return sums


@pytest.mark.parametrize("launch", [ONE_NODE, TWO_NODES], ids=["one node", "two nodes"])
def test_a_function_may_init_its_process_group_more_than_once(launch):
    assert results(meet_again_and_again, launch=launch) == [[(False, 2.0)] * 3] * 2


def meet_after_a_restart():
    _, known = met()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ConnectionError("once")
    return known


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_that_were_restarted_meet_in_an_empty_store(nodes):
    launch = Elastic(nodes, nproc_per_node=2 // nodes, max_restarts=1)
    assert results(meet_after_a_restart, launch=launch) == [False, False]


def outlast_rank_0(folder):
    store, _ = met()
    mark = Path(folder) / "rank-0"
    if dist.get_rank() == 0:
        mark.write_text(str(os.getpid()))
        dist.barrier()
        return "left"
    dist.barrier()
    while runs(int(mark.read_text())):
        time.sleep(0.01)
    store.set("word", "stayed")
    return store.get("word").decode()


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("launch", [TWO_NODES, ANY], ids=["fixed", "elastic"])
def test_where_the_ranks_meet_is_there_when_rank_0_has_left(launch, tmp_path):
    assert results(outlast_rank_0, str(tmp_path), launch=launch) == ["left", "stayed"]
