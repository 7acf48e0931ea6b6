"""Processes that a cell starts with "spawn" and "forkserver": they find the cell's functions and classes."""

import re

import pytest

from nbtorchjob import JobFailedError, JobSpec, capture, submission
from tests.patience import LIMIT
from tests.ports import free_port

pytestmark = pytest.mark.torch


def notebook(**values):
    return {"__name__": "__main__", **values}


def run(text, namespace=None, spec=None, **options):
    call = capture.from_cell(text, namespace or notebook(), **options)
    return submission.submit(call, JobSpec.of(spec))


# Built like distributed/ddp-tutorial-series/multigpu.py in pytorch/examples.
MULTIGPU = """
import os
import torch
import torch.multiprocessing as mp
from torch.distributed import init_process_group, destroy_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

class Pairs(Dataset):
    def __init__(self, size):
        self.data = [(torch.rand(4), torch.rand(1)) for _ in range(size)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]

def ddp_setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    init_process_group(backend="gloo", rank=rank, world_size=world_size)

class Trainer:
    def __init__(self, model, train_data, optimizer, gpu_id, save_every):
        self.gpu_id, self.save_every = gpu_id, save_every
        self.train_data, self.optimizer = train_data, optimizer
        self.model = DDP(model)

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self.train_data.sampler.set_epoch(epoch)
            for source, targets in self.train_data:
                self.optimizer.zero_grad()
                torch.nn.functional.mse_loss(self.model(source), targets).backward()
                self.optimizer.step()
            if self.gpu_id == 0 and epoch % self.save_every == 0:
                torch.save(self.model.module.state_dict(), "checkpoint.pt")

def prepare_dataloader(dataset, batch_size):
    sampler = DistributedSampler(dataset)
    return DataLoader(dataset, batch_size=batch_size, shuffle=False, sampler=sampler)

def main(rank, world_size, save_every, total_epochs, batch_size):
    ddp_setup(rank, world_size)
    model = torch.nn.Linear(4, 1)
    data = prepare_dataloader(Pairs(16), batch_size)
    trainer = Trainer(model, data, torch.optim.SGD(model.parameters(), lr=1e-3), rank, save_every)
    trainer.train(total_epochs)
    destroy_process_group()
    os._exit(0)  # torch may abort as the process lets go of the model (2.13; in plain processes, too)

if __name__ == "__main__":
    import argparse
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", default=32, type=int)
    args = parser.parse_args()
    mp.spawn(main, args=(2, args.save_every, args.total_epochs, args.batch_size), nprocs=2)
sorted(torch.load("checkpoint.pt"))
"""

# Built like distributed/rpc/rnn in pytorch/examples, but in one file.
RNN = """
import os
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch import nn, optim
from torch.distributed.optim import DistributedOptimizer

def _parameter_rrefs(module):
    return [rpc.RRef(parameter) for parameter in module.parameters()]

class EmbeddingTable(nn.Module):
    def __init__(self, ntoken, ninp):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)

    def forward(self, tokens):
        return self.encoder(tokens)

class Decoder(nn.Module):
    def __init__(self, ntoken, nhid):
        super().__init__()
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(self, output):
        return self.decoder(output)

class RNNModel(nn.Module):
    def __init__(self, ps, ntoken, ninp, nhid):
        super().__init__()
        self.table = rpc.remote(ps, EmbeddingTable, args=(ntoken, ninp))
        self.rnn = nn.LSTM(ninp, nhid)
        self.decoder = rpc.remote(ps, Decoder, args=(ntoken, nhid))

    def forward(self, tokens):
        embedded = self.table.rpc_sync().forward(tokens)
        output, _ = self.rnn(embedded)
        return self.decoder.rpc_sync().forward(output)

    def parameter_rrefs(self):
        ps = self.table.owner()
        found = [rref for part in (self.table, self.decoder)
                 for rref in rpc.rpc_sync(ps, _remote_rrefs, args=(part,))]
        return [*found, *_parameter_rrefs(self.rnn)]

def _remote_rrefs(rref):
    return _parameter_rrefs(rref.local_value())

def _run_trainer():
    model = RNNModel("ps", 10, 4, 4)
    opt = DistributedOptimizer(optim.SGD, model.parameter_rrefs(), lr=0.05)
    for _ in range(2):
        with dist_autograd.context() as context_id:
            output = model(torch.zeros(3, 2, dtype=torch.long))
            dist_autograd.backward(context_id, [output.sum()])
            opt.step(context_id)
    open("trained", "w").write(str(tuple(output.shape)))

def run_worker(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4)
    name = "trainer" if rank == 1 else "ps"
    rpc.init_rpc(name, rank=rank, world_size=world_size, rpc_backend_options=options)
    if rank == 1:
        _run_trainer()
    rpc.shutdown()

if __name__ == "__main__":
    world_size = 2
    mp.spawn(run_worker, args=(world_size,), nprocs=world_size, join=True)
open("trained").read()
"""


def test_a_script_that_spawns_its_own_ranks_runs_in_a_cell():
    job = run(MULTIGPU, notebook(port=free_port()), argv=["3", "1", "--batch_size", "4"])

    assert job.result(LIMIT) == ["bias", "weight"]


def test_processes_that_a_cell_spawns_may_call_each_other():
    assert run(RNN, notebook(port=free_port())).result(LIMIT) == "(3, 2, 10)"


LOADED = """
from collections import namedtuple
import torch

Pair = namedtuple("Pair", "x y")
if torch.cuda.is_available():
    kind = "cuda"
else:
    kind = "cpu"
ran = open("ran", "a").write("once")

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return len(sizes)

    def __getitem__(self, index):
        return Pair(index, scaled(index**2))

def together(batch):
    return Pair(*(torch.tensor(part) for part in zip(*batch)))

found = []
for method in ("spawn", "forkserver"):
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=3, num_workers=1, multiprocessing_context=method, collate_fn=together
    )
    for batch in loader:
        assert type(batch) is Pair
        found.append(batch.y.tolist())
found, open("ran").read(), "__file__" in globals()
"""


def test_workers_of_a_loader_find_the_cells_classes_and_the_notebooks_functions():
    space = notebook()
    exec("scale = 10\nsizes = [1, 2, 3]\ndef scaled(x):\n    return x * scale", space)

    assert run(LOADED, space).result(LIMIT) == ([[0, 10, 40]] * 2, "once", False)


MISSED = """
import torch
import torch.multiprocessing as mp

factor = int("3")

def work(index):
    print(factor * index)

def show(index, data):
    print(data)

if torch.get_num_threads():
    total = sum(range(4))
    class Hidden: ...

%s
"""


@pytest.mark.parametrize(
    ("start", "name"),
    [
        ("mp.spawn(work, nprocs=1)", "'factor' is set by code of the cell"),
        ("mp.spawn(show, (Hidden(),), nprocs=1)", "'Hidden' is set by code of the cell"),
    ],
)
def test_what_such_a_process_can_not_find_is_named(start, name):
    with pytest.raises(JobFailedError) as caught:
        run(MISSED % start).result(LIMIT)

    assert name in str(caught.value)


KILLED = """
import os, signal, torch
from torch.utils.data import DataLoader

class Greedy(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(2)

for batch in DataLoader(Greedy(), num_workers=1):
    pass
"""


def test_a_loaders_worker_that_was_killed_is_named_with_its_signal():
    job = run(KILLED)
    with pytest.raises(JobFailedError) as failed:
        job.result(LIMIT)

    assert "DataLoader worker 0 was ended by SIGKILL, most likely as memory ran out" in str(failed.value)


# Like the kernel, which closes a process's files before the process ends, and long before on a busy machine.
ENDS_LATE = """
import os, signal, time, torch
from torch.utils.data import DataLoader

def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)

class Greedy(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 2:
            wait_for("sent")
            os.closerange(3, 1000)
            open("closed", "w").close()
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(2)

batches = iter(DataLoader(Greedy(), num_workers=1))
next(batches)
batches._data_queue._reader.poll(None)
open("sent", "w").close()
wait_for("closed")
next(batches)
"""


def test_a_loaders_worker_is_named_that_ends_a_while_after_its_connections():
    with pytest.raises(JobFailedError) as failed:
        run(ENDS_LATE).result(LIMIT)

    # Which error depends on how far the rank had come when the worker's connections closed.
    assert re.search("EOFError|ConnectionRefusedError", str(failed.value))
    assert "DataLoader worker 0 was ended by SIGKILL" in str(failed.value)


# torch's SIGCHLD handler raises wherever the main thread is: here after the cell has already failed.
LATE = """
import os
from torch.utils.data import DataLoader

class Fails(Exception):
    @property
    def __notes__(self):
        batches._workers[0].kill()
        os.waitid(os.P_PID, batches._workers[0].pid, os.WEXITED | os.WNOWAIT)
        return ["the worker ended as this was read"]

batches = iter(DataLoader(range(8), num_workers=1))
next(batches)
raise Fails
"""


def test_a_loaders_worker_that_ends_while_a_failure_is_described_does_not_hide_it():
    with pytest.raises(JobFailedError) as failed:
        run(LATE).result(LIMIT)

    assert "Fails" in str(failed.value)
    assert "the worker ended as this was read" in str(failed.value)


CLOSED = """
import torch
from torch.utils.data import DataLoader

class Table(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getstate__(self):
        return {"path": "rows.db"}

    def __setstate__(self, state):
        raise KeyError(state["path"])

for batch in DataLoader(Table(), num_workers=1, multiprocessing_context="spawn"):
    pass
"""


def test_a_loaders_worker_that_can_not_unpickle_is_named_with_the_cure():
    with pytest.raises(JobFailedError) as failed:
        run(CLOSED).result(LIMIT)

    match = re.search(r"That process said: (.+), at line (\d+) of <torchjob cell", str(failed.value))
    assert match is not None, failed.value
    line = CLOSED.splitlines().index('        raise KeyError(state["path"])') + 2  # below %%torchjob
    assert match.groups() == ("KeyError: 'rows.db'", str(line))
    assert "DataLoader worker 0 exited with code 1 as it couldn't unpickle" in str(failed.value)
