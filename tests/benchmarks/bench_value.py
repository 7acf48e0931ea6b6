"""How long 256 MB of floats take from a rank's ``return`` to the caller.

The rank reads the clock as the last thing before it returns; the caller reads the same machine's clock
when it has the tensor, or when it has read something of every page as well. The yardstick is one copy
of as much memory into pages that this process never used before.

The floor, on 2 cores (Linux 6.18, ext4): writing them to the job's folder takes 1.4 to 1.8 copies, all of it
the copy into the page cache; the caller copies nothing, as it maps the file. Shared memory isn't faster:
the same write to /dev/shm takes 3 to 4.5 copies, and by a mapping 5 to 8, as it has no huge pages
(``shmem_enabled`` is ``never`` unless somebody sets it), and a lasting record would then have to be copied
to the disk. Pieces of 2 or 32 MiB, a file with its length set before, or a source in huge pages change
nothing (0.96 to 1.05 of the time). The rest is the job's end, for which ``result`` waits (see
``bench_launch``), half a copy or more. The rank's own memory no longer counts: it lies in huge pages; with
``THP_MEM_ALLOC_ENABLE=0`` the kernel frees 65,536 small pages instead, which takes 1 copy more.

Also how long as many floats take to two ranks, until both have read something of every page. The time of the
same call with a single float is the launch's, and is subtracted; the yardstick is one pickle to a file.
"""

import multiprocessing
import pickle
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.multiprocessing

import nbtorchjob
from nbtorchjob import Elastic, JobSpec
from tests.benchmarks.measure import Row, in_turn, medians, own_state, show, spread

ROUNDS = 7
FLOATS = 1 << 26  # 256 MiB of float32
PAGE = 1024  # floats in a page of 4 KiB
GOAL, INTO_GOAL = 2.0, 1.0


def made(floats: int) -> tuple[float, torch.Tensor]:
    tensor = torch.ones(floats)
    return time.time(), tensor


def memcpy() -> float:
    """Return the time of the fastest of four copies: memory that a virtual machine hasn't used for a while
    takes its host several times longer at the first touch, which would flatter everything compared with it.
    """
    source = np.ones(FLOATS, np.float32)
    return min(copied(source) for _ in range(4))


def copied(source: np.ndarray) -> float:
    started = time.perf_counter()
    target = np.empty_like(source)
    np.copyto(target, source)
    return time.perf_counter() - started


def took(value: tuple[float, torch.Tensor], *, touched: bool) -> float:
    returned, tensor = value
    if touched:
        assert tensor[::PAGE].sum().item() == FLOATS / PAGE
    duration = time.time() - returned
    assert tensor.numel() == FLOATS
    assert tensor[-1].item() == 1.0
    return duration


def job(*, touched: bool) -> float:
    running = nbtorchjob.submit(made, FLOATS)
    duration = took(running.result(120), touched=touched)
    running.delete()
    return duration


def read(tensor: torch.Tensor) -> float:
    assert tensor[::PAGE].sum().item() == -(-tensor.numel() // PAGE)
    return time.time()


def into_ranks(floats: int) -> float:
    """Return the seconds until both ranks have read a tensor that the caller sent."""
    tensor, started = torch.ones(floats), time.time()
    running = nbtorchjob.submit(read, tensor, spec=JobSpec(Elastic(nproc_per_node=2), all_ranks=True))
    duration = max(running.results(120)) - started
    running.delete()
    return duration


def pickled() -> float:
    array = np.ones(FLOATS, np.float32)
    with tempfile.TemporaryFile() as file:
        started = time.perf_counter()
        pickle.dump(array, file, protocol=5)
        return time.perf_counter() - started


def serve(connection: Connection) -> None:
    """Answer each request with a fresh tensor, as itself or as an array, until it is None."""
    while (request := connection.recv()) is not None:
        returned, tensor = made(FLOATS)
        # A tensor goes through shared memory here (torch.multiprocessing), an array through the pipe.
        connection.send((returned, tensor if request == "tensor" else tensor.numpy()))


def piped(connection: Connection, kind: str) -> float:
    connection.send(kind)
    returned, value = connection.recv()
    return took((returned, torch.as_tensor(value)), touched=True)


def main() -> None:
    # "spawn": a fork of this process, which has used torch's threads, could hang.
    context = multiprocessing.get_context("spawn")
    parent_end, child_end = context.Pipe()
    other = context.Process(target=serve, args=(child_end,))
    other.start()
    subjects: dict[str, Callable[[], float]] = {
        "fresh memcpy": memcpy,
        "job.result()": lambda: job(touched=False),
        "job.result(), every page read": lambda: job(touched=True),
        "torch.multiprocessing, every page read": lambda: piped(parent_end, "tensor"),
        "multiprocessing pipe, every page read": lambda: piped(parent_end, "array"),
    }
    try:
        with own_state():
            job(touched=True)  # to start the pool, which bench_launch.py measures
            report(in_turn(subjects, ROUNDS))
            names = {
                "a pickle to a file": pickled,
                "data": lambda: into_ranks(FLOATS),
                "nothing": lambda: into_ranks(1),
            }
            report_into(in_turn(names, ROUNDS))
    finally:
        parent_end.send(None)
        other.join()


def report(taken: dict[str, list[float]]) -> None:
    times = medians(taken)
    base = times["fresh memcpy"]
    goals = {"job.result()": GOAL, "job.result(), every page read": GOAL}
    rows = [
        Row(name, value, base, goals.get(name), peer="multiprocessing" in name)
        for name, value in times.items()
    ]
    show("Value: 256 MiB of float32 from a rank's return to the caller", "memcpy", rows, spread(taken))


def report_into(taken: dict[str, list[float]]) -> None:
    times = medians(taken)
    base = times["a pickle to a file"]
    rows = [
        Row("a pickle to a file", base, base),
        Row("submit to read, all of it", times["data"], base),
        Row("submit to read, without the launch", times["data"] - times["nothing"], base, INTO_GOAL),
    ]
    show("Value: 256 MiB of float32 into two ranks, every page read", "pickle", rows, spread(taken))


if __name__ == "__main__":
    main()
