"""A cluster to measure against: the tests' emulator in a process of its own, so that it has its own GIL."""

import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from nbtorchjob import capture, submission
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import PODS
from nbtorchjob.backends.kubernetes.session import Session, session
from nbtorchjob.job import Job
from nbtorchjob.machine import folders, loop
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from tests.backends.kubernetes.cluster import Emulator

T = TypeVar("T")

NAMESPACE = "default"
# Room for many pods at once: the emulator's node counts requests as a real one does.
SMALL = {"image": "localhost/torch:1", "namespace": NAMESPACE, "cpu": "10m", "memory": "10Mi"}


class Apart:
    """An emulator in another process; ``KUBECONFIG`` leads there once it has started."""

    def __enter__(self) -> "Apart":
        # "spawn": this process has threads, and a fork of it could hang.
        context = multiprocessing.get_context("spawn")
        self._ours, child_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_end,))
        self._process.start()
        child_end.close()  # or recv would hang, not raise, if the process ended
        self.kubeconfig = Path(self._ours.recv())
        os.environ["KUBECONFIG"] = str(self.kubeconfig)
        return self

    def __exit__(self, *_: object) -> None:
        on_loop(lambda cluster_session: cluster_session.client.close())
        self._ours.send(None)
        self._process.join()

    def cut(self, path: str) -> int:
        """Break the streams with a matching path; return their number."""
        return int(self._ask("cut", path))

    def hold(self, pods: str) -> None:
        """Keep pods with a matching name from being scheduled."""
        self._ask("hold", pods)

    def open_watches(self) -> int:
        """Count the watches that the server has open."""
        return len(self._ask("open_watches"))

    def _ask(self, name: str, *args: str) -> Any:
        self._ours.send((name, *args))
        return self._ours.recv()

    def plainly(self) -> aiohttp.ClientSession:
        """Return a session of plain HTTP with the server."""
        config = json.loads(self.kubeconfig.read_text())
        token = config["users"][0]["user"]["token"]
        return aiohttp.ClientSession(
            config["clusters"][0]["cluster"]["server"],
            headers={"Authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=None),
        )


def _serve(pipe: Connection) -> None:
    with Emulator() as cluster:
        pipe.send(str(cluster.kubeconfig))
        while (request := pipe.recv()) is not None:
            name, *args = request
            attribute = getattr(cluster, name)
            pipe.send(attribute(*args) if callable(attribute) else attribute)


async def chunks(http: aiohttp.ClientSession, pod: str, **query: str) -> AsyncIterator[bytes]:
    """Yield a pod's log as it arrives over plain HTTP."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/log"
    async with http.get(path, params=query) as answer:
        async for chunk in answer.content.iter_any():
            yield chunk


async def running(job: str, count: int) -> list[str]:
    """Wait until so many pods of a job run; return their names, by node."""
    client = (await session(None)).client
    while True:
        pods = (await client.list(PODS, NAMESPACE, labels=labelling.of(job))).items
        names = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"]
        if len(names) == count:
            # The pods of an Indexed Job have the name JOB-INDEX-RANDOM.
            return sorted(names)
        await asyncio.sleep(0.05)


def on_loop(work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
    """Run ``work`` with the session of the current cluster on nbtorchjob's own loop."""

    async def run() -> T:
        return await work(await session(None))

    return loop.start(run()).result()


def requests() -> int:
    """Count the requests that were sent to the current cluster so far."""

    async def sent(cluster_session: Session) -> int:
        return cluster_session.client.requests

    return on_loop(sent)


def spec(kind: str, nodes: int = 1, **settings: Any) -> JobSpec:
    cluster = Cluster(kind=kind, **{**SMALL, **settings})
    return JobSpec(Elastic(nnodes=nodes), "kubernetes", cluster=cluster)


def submit(cell: str, wanted: JobSpec) -> Job[Any]:
    return submission.submit(capture.from_cell(cell, {}), wanted)


def forget(folder: Path) -> None:
    """Set an empty state folder, as a user on a new machine has."""
    os.environ[folders.STATE] = str(folder / f"state-{time.monotonic_ns()}")
