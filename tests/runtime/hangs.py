"""Jobs that hang, each in its own way, on real gloo ranks: the cases for samples and diagnoses.

A case is a function that every rank runs; its docstring names the rank to blame. The file can be a cell.
"""

import ctypes
import importlib
import os
import queue
import signal
import threading
import time

import torch
import torch.distributed as dist

LONG = 600  # seconds: the ranks are ended before that


def begin(calls=3):
    """Meet the other ranks and make some calls; return this rank."""
    dist.init_process_group("gloo")
    for _ in range(calls):
        dist.all_reduce(torch.ones(256))
    return dist.get_rank()


def skipped_collective():
    """Rank 1 skips the first of three collectives."""
    rank = begin()
    if rank != 1:
        dist.all_reduce(torch.ones(8))
    dist.barrier()
    dist.all_reduce(torch.ones(4))


def other_order():
    """Rank 2 broadcasts and then reduces; the others reduce and then broadcast."""
    rank = begin()
    first, second = torch.ones(8), torch.ones(16)
    if rank == 2:
        dist.broadcast(second, 0)
        dist.all_reduce(first)
    else:
        dist.all_reduce(first)
        dist.broadcast(second, 0)
    dist.barrier()


def other_shape():
    """Rank 2 of 4 reduces twice as much as the others, and gloo (2.13) has no part of another size to send.

    With more elements, or another type, it would have one: it ends a rank that gets too big a part.
    """
    rank = begin()
    dist.all_reduce(torch.ones(8 if rank == 2 else 4))
    dist.barrier()


def sleep():
    """Rank 1 sleeps."""
    if begin() == 1:
        time.sleep(LONG)
    dist.all_reduce(torch.ones(8))


def lock():
    """Rank 1 waits for a lock that it holds."""
    held = threading.Lock()
    if begin() == 1:
        held.acquire(blocking=False)
        held.acquire()
    dist.all_reduce(torch.ones(8))


def full_queue():
    """Rank 0 puts more into a queue than fits."""
    waiting: queue.Queue[int] = queue.Queue(maxsize=1)
    if begin() == 0:
        waiting.put(1)
        waiting.put(2)
    dist.barrier()


class Stuck(torch.utils.data.Dataset):  # type: ignore[misc]
    """A dataset with an item that never comes, on one rank."""

    def __init__(self, rank):
        self._rank = str(rank)

    def __len__(self):
        return 8

    def __getitem__(self, number):
        if number == 5 and os.environ["RANK"] == self._rank:
            time.sleep(LONG)
        return torch.ones(4) * number


def stuck_worker():
    """Rank 1 waits for its DataLoader's worker."""
    begin()
    for batch in torch.utils.data.DataLoader(Stuck(1), batch_size=2, num_workers=1):
        dist.all_reduce(batch)


def stopped():
    """Rank 1 is stopped."""
    if begin() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(8))


def lock_of_python_held():
    """Rank 1 sleeps in C without releasing the GIL."""
    if begin() == 1:
        ctypes.PyDLL(None).sleep(LONG)
    dist.all_reduce(torch.ones(8))


def busy_in_c():
    """Rank 1 computes in C without releasing the GIL."""
    if begin() == 1:
        pow(3, 10**9)
    dist.all_reduce(torch.ones(8))


def subgroup():
    """Rank 1 doesn't come to a collective of ranks 0 and 1; rank 2 waits for both."""
    rank = begin()
    pair = dist.new_group([0, 1], group_desc="pair")
    if rank == 0:
        dist.all_reduce(torch.ones(8), group=pair)
    elif rank == 1:
        time.sleep(LONG)
    dist.barrier()


def store_wait():
    """Rank 2 waits for a key of the store that nobody sets."""
    if begin() == 2:
        dist.distributed_c10d._get_default_store().get("never")
    dist.all_reduce(torch.ones(8))


def read_of_a_pipe():
    """Rank 0 waits for input."""
    if begin() == 0:
        reading, _ = os.pipe()
        os.read(reading, 1)
    dist.broadcast(torch.ones(8), 0)


def crossed_groups():
    """Rank 0 reduces in the first of two groups, rank 1 in the second; each waits for the other."""
    rank = begin()
    first, second = dist.new_group([0, 1], group_desc="first"), dist.new_group([0, 1], group_desc="second")
    if rank == 0:
        dist.all_reduce(torch.ones(8), group=first)
        dist.all_reduce(torch.ones(8), group=second)
    elif rank == 1:
        dist.all_reduce(torch.ones(8), group=second)
        dist.all_reduce(torch.ones(8), group=first)
    dist.barrier()


def returned_early():
    """Rank 1 returns before the others have met it."""
    if os.environ["RANK"] == "1":
        return
    begin()


def swallowed_exception():
    """Rank 2 fails before a collective, goes on, and is one collective behind."""
    rank = begin()
    for step in range(4):
        try:
            if rank == 2 and step == 1:
                raise ValueError("a bad batch")
            dist.all_reduce(torch.ones(8))
        except ValueError:
            continue
    while rank == 2:
        time.sleep(0.5)
    dist.barrier()


def endless_loop():
    """Rank 1 computes in Python forever."""
    if begin() == 1:
        while True:
            sum(range(1000))
    dist.all_reduce(torch.ones(8))


def missing_sender():
    """Rank 1 doesn't send what rank 0 waits for, and no sample can show that."""
    rank = begin()
    if rank == 0:
        dist.recv(torch.ones(8), 1)
    dist.barrier()


def awaited_sender():
    """Rank 1 doesn't send what rank 0 waits for through the result of ``irecv``."""
    rank = begin()
    if rank == 0:
        coming = dist.irecv(torch.ones(8), 1)
        coming.wait()
    dist.barrier()


def monitored_barrier():
    """Rank 1 doesn't enter a barrier that isn't recorded."""
    if begin() != 1:
        dist.monitored_barrier()
    time.sleep(LONG)


def other_root():
    """Rank 1 broadcasts from itself, and the others from rank 0: ranks 0 and 1 both send."""
    rank = begin()
    best = 1 if rank == 1 else 0
    dist.broadcast(torch.ones(1 << 12), src=best)
    dist.barrier()


def other_group():
    """Rank 1 uses the other one of two groups with the same ranks."""
    rank = begin()
    everybody = [*range(dist.get_world_size())]
    data, model = (dist.new_group(everybody, group_desc=name) for name in ("data", "model"))
    dist.all_reduce(torch.ones(8), group=model if rank == 1 else data)
    dist.barrier()


def missing_receiver():
    """Rank 1 doesn't receive what rank 0 sends, and waits for rank 0 with the others."""
    if begin() == 0:
        dist.send(torch.ones(1 << 20), 1)
    dist.barrier()


def other_tag():
    """Rank 1 receives with a tag other than that of rank 0's send."""
    rank = begin()
    if rank == 0:
        dist.send(torch.ones(1 << 20), 1, tag=3)
    elif rank == 1:
        dist.recv(torch.ones(1 << 20), 0, tag=4)
    dist.barrier()


def ring():
    """All ranks receive before any sends."""
    rank, world = begin(), dist.get_world_size()
    tensor = torch.ones(8)
    dist.recv(tensor, (rank - 1) % world)
    dist.send(tensor, (rank + 1) % world)


def pipeline():
    """Rank 1, a stage between others, sleeps: rank 0 sends to it, rank 2 receives from it."""
    rank, last = begin(), dist.get_world_size() - 1
    batch = torch.ones(1 << 16)
    for step in range(4):
        if rank > 0:
            dist.recv(batch, rank - 1)
        if rank == 1 and step == 2:
            time.sleep(LONG)
        if rank < last:
            dist.send(batch, rank + 1)


def one_step_more():
    """Rank 1 has one batch more than the others, which have returned by then and leave their group slowly."""
    batches = 5 if begin() == 1 else 4
    for _ in range(batches):
        dist.all_reduce(torch.ones(8))
    leave = dist.destroy_process_group

    def leave_slowly():
        leave()
        time.sleep(LONG)

    dist.destroy_process_group = leave_slowly


def one_step_more_in_the_group():
    """Rank 1 has one batch more than the others, which have left the group by then, and work on their own."""
    batches = 5 if begin() == 1 else 4
    for _ in range(batches):
        dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()
    time.sleep(LONG)


def too_big():
    """Rank 2 reduces more than the others, and gloo ends a rank that gets a part of it."""
    dist.all_reduce(torch.ones(4000 if begin() == 2 else 8))


def objects_for_tensors():
    """Rank 1 gathers objects, the others tensors."""
    rank, world = begin(), dist.get_world_size()
    if rank == 1:
        dist.all_gather_object([None] * world, {"loss": 1.0})
    else:
        dist.all_gather([torch.ones(100) for _ in range(world)], torch.ones(100))


def backward_pass():
    """Rank 1 sleeps between steps, and the others' DDP buckets wait for its gradients."""
    importlib.import_module("torch._dynamo")  # otherwise DDP imports it, which takes seconds
    rank = begin()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(4):
        if rank == 1 and step == 2:
            time.sleep(LONG)
        model(torch.ones(2, 4)).sum().backward()


def straggler():
    """Rank 1 is slow, at first by less than what counts as a hang."""
    rank = begin()
    for step in range(5):
        if rank == 1:
            time.sleep(2.0 if step < 3 else 5.0)
        dist.all_reduce(torch.ones(8))


def all_compute():
    """No rank is to blame: all sleep, and wait for nothing."""
    begin()
    time.sleep(LONG)


ALL = {
    case.__name__: case
    for case in (
        skipped_collective, other_order, other_shape, sleep, lock, full_queue, stuck_worker, stopped,
        lock_of_python_held, busy_in_c, subgroup, store_wait, read_of_a_pipe, crossed_groups, returned_early,
        swallowed_exception, endless_loop, missing_sender, awaited_sender, monitored_barrier,
        other_root, other_group, missing_receiver, other_tag, ring, pipeline, all_compute,
        one_step_more, one_step_more_in_the_group, too_big, objects_for_tensors, backward_pass, straggler,
    )
}  # fmt: skip
