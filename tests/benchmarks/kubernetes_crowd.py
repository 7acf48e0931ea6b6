"""The cost of many jobs to the kernel: open watches, and memory for a list of all jobs."""

import asyncio
import copy
import gc
import time
import tracemalloc
from dataclasses import dataclass, replace

from nbtorchjob import api
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import PODS, Target
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.state import JobState
from tests.benchmarks.kubernetes_cluster import NAMESPACE, Apart, on_loop, spec, submit

MB = 1_000_000
AT_ONCE = 16  # requests


def watches(cluster: Apart, jobs: int) -> int:
    """Follow so many jobs with waiting pods; return how many watches the server then has open."""
    handles = [submit(f"{number}", spec("indexedjob")) for number in range(jobs)]
    for job in handles:
        while job.state == JobState(job.info):
            time.sleep(0.01)
    count = 0
    while count != (count := cluster.open_watches()) or not count:
        time.sleep(0.5)
    for job in handles:
        job.delete()
    for job in handles:
        job.wait()
    return count


@dataclass(frozen=True)
class Listed:
    """The cost of a list of jobs: seconds, and MB at its peak, as the kernel keeps it, as it was sent."""

    seconds: float
    peak: float
    kept: float
    sent: float


def listed(cluster: Apart, jobs: int) -> Listed:
    """List so many jobs, each with a pod that waits."""
    pattern = submit("0", spec("indexedjob"))
    on_loop(lambda cluster_session: copies(cluster_session, pattern.name, jobs - 1))
    started = time.perf_counter()
    api.jobs()
    took = time.perf_counter() - started
    gc.collect()
    tracemalloc.start()
    try:
        listing = api.jobs()
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(listing) == jobs, f"{len(listing)} jobs are listed"
    return Listed(took, peak / MB, kept / MB, on_loop(lambda _: _sent(cluster)) / MB)


async def copies(here: Session, name: str, count: int) -> None:
    """Make more jobs like the one of that name; they have no payload, as nothing will read it."""
    kind = KINDS["indexedjob"]
    pattern = await here.client.get(Target(kind.api, NAMESPACE, name))
    todo = iter(range(count))

    async def make() -> None:
        for number in todo:
            await here.client.create(kind.api, NAMESPACE, _renamed(pattern, f"copy-{number}"))

    await asyncio.gather(*(make() for _ in range(AT_ONCE)))
    while True:
        if len((await here.client.list(PODS, NAMESPACE)).items) > count:
            return
        await asyncio.sleep(0.5)


def _renamed(pattern: Object, name: str) -> Object:
    job = copy.deepcopy(pattern)
    info = labelling.info(pattern)
    assert info is not None
    notes, labels = (
        labelling.info_annotations(replace(info, name=name)),
        labelling.labels(replace(info, name=name)),
    )
    user = {labelling.USER: pattern["metadata"]["labels"][labelling.USER]}
    job["metadata"] = {"name": name, "labels": {**labels, **user}, "annotations": notes}
    del job["status"], job["spec"]["selector"]
    job["spec"]["template"]["metadata"]["labels"] = {**labels, **user}
    return job


async def _sent(cluster: Apart) -> int:
    """Count the bytes of both lists, of jobs and of pods, as plain HTTP gets them."""
    paths = (f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", f"/api/v1/namespaces/{NAMESPACE}/pods")
    async with cluster.plainly() as http:
        size = 0
        for path in paths:
            async with http.get(path) as answer:
                size += len(await answer.read())
        return size
