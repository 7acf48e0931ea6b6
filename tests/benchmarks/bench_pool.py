"""How long a cell takes on a pool's pods: from sending it to rank 0's first line, and many in a row.

In turn with it, the same cell runs as a job with pods of its own, on the tests' emulator. There a pod starts
with torch imported: a real cluster takes longer, to place a pod, pull its image and import torch.
"""

import time
from dataclasses import replace
from statistics import median
from typing import Any

from nbtorchjob import api, capture, submission
from nbtorchjob.job import Job
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from tests.benchmarks.kubernetes_cluster import SMALL, Apart
from tests.benchmarks.measure import Row, own_state, show

PAIRS = 20
IN_A_ROW = 100
WORST_S, MEDIAN_S = 4.0, 2.0
CELL = """
import torch, torch.distributed as dist
print("first", flush=True)
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
left = sorted(os.listdir(os.path.expanduser("~")) + os.listdir(tempfile.gettempdir())), len(os.environ)
open("here", "w").close()
open(os.path.join(tempfile.gettempdir(), "there"), "w").close()
os.environ["LEFT"] = "1"
total.item(), left
"""


def send(spec: JobSpec) -> Job[Any]:
    import os
    import tempfile

    return submission.submit(capture.from_cell(CELL, {"os": os, "tempfile": tempfile}), spec)


def first_line(spec: JobSpec) -> float:
    """Return how long it took until rank 0 had printed something."""
    began = time.perf_counter()
    job = send(spec)
    while not (0 in job.state.logs or job.state.phase.terminal):
        time.sleep(0.005)
    took = time.perf_counter() - began
    assert job.result(120)[0] == 2.0
    if not job.info.of_lab:
        job.delete()
    return took


def main() -> None:
    small: dict[str, Any] = {**SMALL}
    own = JobSpec(Elastic(nnodes=2), "kubernetes", cluster=replace(Cluster(kind="indexedjob"), **small))
    pool_spec = JobSpec(pool="warm")
    with own_state(), Apart():
        pool = api.pool(own, name="warm")
        first_line(pool_spec)
        timings: dict[str, list[float]] = {"pool": [], "own": []}
        for _ in range(PAIRS):
            timings["pool"].append(first_line(pool_spec))
            timings["own"].append(first_line(own))
        began = time.perf_counter()
        values = [send(pool_spec).result(120) for _ in range(IN_A_ROW)]
        of_one = (time.perf_counter() - began) / IN_A_ROW
        assert len({repr(value) for value in values}) == 1, set(map(repr, values))
        pool.job.delete()
    base = median(timings["own"])
    rows = [
        Row("in a pool, median", median(timings["pool"]), base, 1),
        Row("in a pool, worst", max(timings["pool"]), base),
        Row("with pods of its own, median", base, base),
        Row("in a pool, of 2 s", median(timings["pool"]), MEDIAN_S, 1),
        Row("in a pool, worst, of 4 s", max(timings["pool"]), WORST_S, 1),
        Row(f"each of {IN_A_ROW} in a row, to its value", of_one, base),
    ]
    note = f"{IN_A_ROW} jobs in a row found the same files and variables, each having left some"
    show(f"A cell's first line on 2 nodes, {PAIRS} times", "a job with pods of its own", rows, note)


if __name__ == "__main__":
    main()
