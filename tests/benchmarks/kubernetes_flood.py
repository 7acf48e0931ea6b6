"""How fast the logs of many pods arrive while their connections break, and whether they arrive whole.

A line of 80 bytes costs 0.3 microseconds of CPU on a quiet machine, in batches of some 3000: 0.18 for the one
regular expression that matches it and the objects that this makes, 0.05 for its offset as a number and 0.03
for the end of its text, without which a missing line would go unseen; 0.015 for its cached copy, and 0.02
for the record of it in case the connection breaks. HTTP, events and the loop cost by the batch.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtorchjob.backends import backend
from nbtorchjob.job import Job
from nbtorchjob.machine import loop
from nbtorchjob.runtime.store import frames
from nbtorchjob.state import JobState, apply
from nbtorchjob.state.facts.events import LogChunk
from tests.benchmarks.kubernetes_cluster import NAMESPACE, Apart, chunks, forget, running, spec, submit

PODS, LINES, CUTS = 8, 100_000, 3
MB = 1_000_000

# A fake node: it writes prepared frames, and exits once the file "end" exists. Its 10,000 lines a second
# matter: sinceTime is cut to whole seconds, so after a cut the lines of up to two seconds are sent again.
NODE = """
import os, sys, time
folder = sys.argv[1]
lines = open(folder + "/frames-" + os.environ["JOB_COMPLETION_INDEX"], "rb").readlines()
for start in range(0, len(lines), 1000):
    os.write(1, b"".join(lines[start:start + 1000]))
    time.sleep(0.1)
while not os.path.exists(folder + "/end"):
    time.sleep(0.1)
"""


@dataclass(frozen=True)
class Flood:
    """A job with pods that have written all their lines and still run."""

    cluster: Apart
    job: Job[Any]
    folder: Path
    pods: list[str]  # by rank
    texts: list[bytes]  # what each rank printed
    cuts: list[int] = field(default_factory=list)  # that broke a connection, each time the job was followed

    def plainly(self) -> float:
        """Read everything over plain HTTP, all pods at once; return the seconds."""
        started = time.perf_counter()
        loop.start(self._sizes(timestamps="true")).result()
        return time.perf_counter() - started

    async def _sizes(self, **query: str) -> int:
        async with self.cluster.plainly() as http:

            async def size(pod: str) -> int:
                return sum([len(chunk) async for chunk in chunks(http, pod, **query)])

            return sum(await asyncio.gather(*map(size, self.pods)))

    def wait(self, size: int) -> None:
        """Wait until the server has so many bytes of logs."""
        while loop.start(self._sizes()).result() < size:
            time.sleep(1)

    def followed(self, cuts: int) -> float:
        """Follow the job as the kernel of a user does who has nothing of it yet; return the seconds.

        Breaks each pod's connection ``cuts`` times. Raises AssertionError for a byte lost or doubled.
        """
        forget(self.folder)
        started = time.perf_counter()
        pieces = loop.start(self._follow(cuts)).result()
        took = time.perf_counter() - started
        assert [b"".join(parts) for parts in pieces] == self.texts, "what came isn't what was written"
        return took

    async def _follow(self, cuts: int) -> list[list[bytes]]:
        pieces: list[list[bytes]] = [[] for _ in self.pods]
        sizes, broken = [0] * len(self.pods), [0] * len(self.pods)
        state = JobState(self.job.info)
        following = backend("kubernetes").follow(f"{NAMESPACE}/{self.job.name}")
        async with aclosing(following) as events:
            async for event in events:
                state = apply(state, event)
                if not isinstance(event, LogChunk):
                    continue
                rank = event.rank
                assert event.offset == sizes[rank], "lines are lost or doubled"
                pieces[rank].append(event.data)
                sizes[rank] += len(event.data)
                due = sizes[rank] * (cuts + 1) // len(self.texts[rank])
                # There is no connection to cut while the client recovers from the last cut.
                if broken[rank] < min(due, cuts):
                    broken[rank] += await asyncio.to_thread(self.cluster.cut, f"/pods/{self.pods[rank]}/log")
                if sizes == [len(text) for text in self.texts]:
                    break
        self.cuts.append(sum(broken))
        return pieces


@contextmanager
def flood(cluster: Apart, folder: Path) -> Iterator[Flood]:
    """Start the pods, and wait until the server has all of their logs."""
    texts = [
        b"".join(b"rank %d prints line %d of many\n" % (rank, line) for line in range(LINES))
        for rank in range(PODS)
    ]
    size = 0
    for rank, text in enumerate(texts):
        size += (folder / f"frames-{rank}").write_bytes(frames.log(rank, 1, 0, text))
    command = ["python", "-c", NODE, str(folder)]
    patch = json.dumps({"spec": {"containers": [{"command": command}]}})
    job = submit("None", spec("indexedjob", PODS, pod_patch=patch))
    try:
        pods = loop.start(running(job.name, PODS)).result()
        stream = Flood(cluster, job, folder, pods, texts)
        stream.wait(size)
        yield stream
    finally:
        (folder / "end").touch()
        job.delete()
