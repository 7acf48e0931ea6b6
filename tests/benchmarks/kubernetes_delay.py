"""How soon a line that a rank prints arrives in the notebook's kernel."""

import asyncio
import time

from nbtorchjob.backends import backend
from nbtorchjob.machine import loop
from nbtorchjob.state.facts.events import LogChunk
from tests.benchmarks.kubernetes_cluster import Apart, chunks, running, spec, submit

CELL = """
import time
for _ in range(500):
    print("written", time.time(), flush=True)
    time.sleep(0.01)
"""


def delays(cluster: Apart) -> dict[str, list[float]]:
    """Return the seconds from each line's writing to its arrival: as an event, and over plain HTTP.

    Both read the same lines at the same time, on the machine that wrote its clock into the lines.
    """
    job = submit(CELL, spec("indexedjob"))

    async def both() -> dict[str, list[float]]:
        plain = asyncio.create_task(_plainly(cluster, job.name))
        return {"event": await _as_events(job.name), "plain": await plain}

    try:
        return loop.start(both()).result()
    finally:
        job.delete()


async def _as_events(job: str) -> list[float]:
    ages: list[float] = []
    async for event in backend("kubernetes").follow(job):
        if isinstance(event, LogChunk):
            ages += _ages(event.data)
    return ages


async def _plainly(cluster: Apart, job: str) -> list[float]:
    ages: list[float] = []
    (pod,) = await running(job, 1)
    async with cluster.plainly() as http:
        async for chunk in chunks(http, pod, follow="true"):
            ages += _ages(chunk)
    return ages


def _ages(data: bytes) -> list[float]:
    now = time.time()
    lines = [line for line in data.splitlines() if b"written" in line]
    return [now - float(line.split()[-1]) for line in lines]
