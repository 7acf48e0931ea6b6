"""The process groups of a rank's code, with real ranks on one node or two."""

import importlib
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
from nbtorchjob.runtime import torch_versions
from tests.patience import LIMIT
from tests.ports import free_port

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

ONE_NODE, TWO_NODES, ANY = Elastic(nproc_per_node=2), PyTorch(worker=Worker(replicas=1)), Elastic("1:2")


@pytest.fixture
def port():
    return free_port()


def results(fn, *args, launch):
    return submit(fn, *args, spec=JobSpec(launch, all_ranks=True)).results(LIMIT)


def met():
    """Meet the others; return the store that they share, and whether ranks had used it before."""
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


def linger_on_rank_0(folder):
    """Delay the init of rank 0; return there whether rank 1 finished its own meanwhile."""
    mark, marks = Path(folder) / "rank-1", []
    connect = distributed_c10d._new_process_group_helper

    def slowly(*args, **kwargs):
        group = connect(*args, **kwargs)
        until = time.monotonic() + 0.5
        while time.monotonic() < until and not mark.exists():
            time.sleep(0.01)
        marks.append(mark.exists())
        return group

    if os.environ["RANK"] == "0":
        distributed_c10d._new_process_group_helper = slowly
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        mark.touch()
    return marks


@pytest.mark.parametrize("launch", [ONE_NODE, TWO_NODES], ids=["one node", "two nodes"])
def test_nobody_leaves_the_init_before_all_have_connected(launch, tmp_path):
    assert results(linger_on_rank_0, str(tmp_path), launch=launch) == [[False], []]


def meet_elsewhere(port, url):
    os.environ["MASTER_PORT"] = str(port)
    where = {"init_method": f"tcp://127.0.0.1:{port}", "rank": int(os.environ["RANK"]), "world_size": 2}
    dist.init_process_group("gloo", **(where if url else {}))
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


@pytest.mark.parametrize("url", [False, True], ids=["MASTER_PORT", "tcp://"])
@pytest.mark.parametrize("launch", [ONE_NODE, TWO_NODES], ids=["one node", "two nodes"])
def test_ranks_may_meet_at_a_place_of_their_own(launch, url, port):
    assert results(meet_elsewhere, port, url, launch=launch) == [2.0, 2.0]


def pretend():
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers the backend
    met()
    dist.destroy_process_group()
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=64)
    return dist.get_world_size()


def test_a_group_with_a_store_of_its_own_waits_for_nobody():
    assert results(pretend, launch=ONE_NODE) == [64, 64]


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


def return_first_on_rank_0():
    """On rank 1, wait for an operation that rank 0 has only begun, and then for one that it never begins."""
    met()
    total = torch.ones(1)
    if dist.get_rank() == 0:
        dist.all_reduce(total, async_op=True)
        return None
    dist.all_reduce(total)
    try:
        dist.barrier()
    except RuntimeError:
        return total.item(), "rank 0 has left"
    return total.item(), "rank 0 is there"


@pytest.mark.skipif(
    (torch_versions.release(torch.__version__) or (9, 9)) < (2, 5),
    reason="torch 2.4 may wait for ever as it leaves a group with an unfinished operation",
)
@pytest.mark.parametrize("launch", [ONE_NODE, TWO_NODES], ids=["one node", "two nodes"])
def test_a_rank_that_returns_ends_what_it_has_begun_and_is_not_waited_for(launch):
    assert results(return_first_on_rank_0, launch=launch) == [None, (2.0, "rank 0 has left")]
