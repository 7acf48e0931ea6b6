"""Profiles of real ranks on this machine; the test plants the cause of each wait."""

import gzip
import json
import os
import sys
import time
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import nbtorchjob
from nbtorchjob import Elastic
from tests.backends.local.real import seen
from tests.runtime.sampled import needs_records

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SLOW_S = 0.05
LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def train():
    """Train without end: rank 1 waits for its data, and rank 0 for rank 1."""

    class Slow:
        def __len__(self):
            return 10**6

        def __getitem__(self, index):
            time.sleep(SLOW_S * int(os.environ["RANK"]))
            return torch.ones(8)

    data: Any = Slow()
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    for x in DataLoader(data):
        nbtorchjob.report(step=1)
        model(x).sum().backward()


@pytest.mark.torch
@needs_records
def test_it_tells_who_waits_for_data_and_who_for_other_ranks(folder):
    job = nbtorchjob.submit(train, spec=Elastic(nproc_per_node=2))
    seen(job, lambda state: len(state.series) == 2)

    # In this order: a rank that has just written a profile keeps the other one waiting.
    loads, waits = (job.profile(0.5, rank, folder) for rank in (1, 0))

    assert waits.spent.parts["ranks"] > waits.spent.parts["data"], str(waits)
    assert loads.spent.parts["data"] > loads.spent.parts["ranks"], str(loads)
    names = {
        event["name"]
        for run in (waits, loads)
        for event in json.loads(gzip.decompress(run.path.read_bytes()))["traceEvents"]
    }
    assert {"aten::addmm", "gloo:all_reduce", LOADING, "DistributedDataParallel.forward"} <= names
    assert job.logs(0) == job.logs(1) == ""
    # By itself the job may never end: when a frame drops the last reference to a gloo group, the group holds
    # the GIL and waits for its threads, one of which may need the GIL to release a tensor (torch 2.13).
    job.cancel()
