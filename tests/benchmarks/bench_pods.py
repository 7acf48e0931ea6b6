"""The cost of following the logs of many pods: descriptors of each, memory and CPU.

The server is scripted, in a process of its own, and speaks HTTP/2 as an API server does, or HTTP/1.1 alone.
"""

import asyncio
import multiprocessing
import os
import resource
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import datetime, timedelta, timezone
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import yaml

from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.cache import JobCache, Pod
from nbtorchjob.backends.kubernetes.podlog import Life, follow
from nbtorchjob.machine import processes
from nbtorchjob.runtime.store import frames
from nbtorchjob.state import JobInfo
from tests.backends.kubernetes.multiplexed import MultiplexedServer
from tests.backends.kubernetes.scripted import HANG, Server, Stream, kubeconfig
from tests.benchmarks.measure import Row, own_state, show

PODS = (8, 65, 256, 1000)
LINES, BURSTS = 2000, 10


def log(pod: int) -> list[bytes]:
    """Return a pod's log in pieces: ``LINES`` lines, stamped over ``BURSTS`` seconds."""
    begun = datetime(2026, 11, 27, tzinfo=timezone.utc)
    pieces = []
    for burst in range(BURSTS):
        text = b"".join(b"rank %d prints line %d\n" % (pod, line) for line in range(LINES // BURSTS))
        stamps = (begun + timedelta(seconds=burst, microseconds=line) for line in range(LINES // BURSTS))
        lines = frames.log(pod, 1, burst * len(text), text).splitlines(keepends=True)
        pieces.append(
            b"".join(
                stamp.strftime("%Y-%m-%dT%H:%M:%S.%fZ ").encode() + line
                for stamp, line in zip(stamps, lines, strict=True)
            )
        )
    return pieces


def serve(pipe: Connection, folder: Path, shares: bool) -> None:
    async def work() -> None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(folder / "ca.crt", folder / "key.pem")
        async with MultiplexedServer(tls) if shares else Server(tls) as server:
            for pod in range(max(PODS)):
                server.on(f"/api/v1/namespaces/ns/pods/p-{pod}/log", Stream(log(pod), HANG))
            pipe.send(server.url)
            await asyncio.to_thread(pipe.recv)

    asyncio.run(work())


@asynccontextmanager
async def client(url: str, folder: Path) -> AsyncIterator[Client]:
    os.environ["KUBECONFIG"] = kubeconfig(folder / "kubeconfig", url, token="t")
    content = yaml.safe_load((folder / "kubeconfig").read_text())
    content["clusters"][0]["cluster"]["certificate-authority"] = str(folder / "ca.crt")
    (folder / "kubeconfig").write_text(yaml.safe_dump(content))
    connection = Client()
    try:
        yield connection
    finally:
        await connection.close()


async def followed(url: str, folder: Path, pods: int) -> tuple[float, float, float]:
    """Follow so many logs to their current end; return the descriptors, resident MB and CPU seconds."""
    cache = JobCache(folder / f"cache-{pods}-{time.time_ns()}")
    cache.claim(JobInfo("job"))
    left = [LINES] * pods
    done = asyncio.Event()

    async def lives() -> Life:
        return Life()

    async def one(pod: int) -> None:
        async with aclosing(follow(connection, "ns", f"p-{pod}", "main", ended=lives)) as batches:
            async for lines in batches:
                cache.add(Pod(pod, f"uid-{pod}"), lines)
                left[pod] -= len(lines)
                if not any(left):
                    done.set()

    async with client(url, folder) as connection:
        before, memory, began = descriptors(), resident(), time.process_time()
        tasks = [asyncio.ensure_future(one(pod)) for pod in range(pods)]
        await asyncio.wait([asyncio.ensure_future(done.wait()), *tasks], return_when=asyncio.FIRST_COMPLETED)
        usage = descriptors() - before, resident() - memory, time.process_time() - began
        for task in tasks:
            task.cancel()
        failed = [
            exc for exc in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(exc, Exception)
        ]
    assert not failed, failed[0]
    return usage


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def measured(folder: Path, shares: bool, pods: tuple[int, ...]) -> list[tuple[float, float, float]]:
    parent_end, child_end = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(child_end, folder, shares))
    process.start()
    try:
        url: Any = parent_end.recv()
        return [asyncio.run(followed(url, folder, many)) for many in pods]
    finally:
        parent_end.send(None)
        process.join()


def main() -> None:
    processes.raise_open_files()
    with own_state() as folder:
        about = ["-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"]
        key, authority = str(folder / "key.pem"), str(folder / "ca.crt")
        arguments = ["req", "-x509", "-nodes", "-newkey", "rsa:2048", "-keyout", key, "-out", authority]
        subprocess.run(["openssl", *arguments, *about], check=True, capture_output=True)
        shared, http1 = measured(folder, True, PODS), measured(folder, False, PODS)
        rows, costs = [], []
        for pods, (files, memory, cpu), (plain, _, plain_cpu) in zip(PODS, shared, http1, strict=True):
            rows.append(Row(f"{pods} pods", files / pods, 1.0, 0.1 if pods > 64 else None, ""))
            rows.append(Row(f"{pods} pods, HTTP/1.1 alone", plain / pods, 1.0, None, ""))
            costs.append(f"{pods} pods: CPU {cpu:.2f} s (HTTP/1.1 {plain_cpu:.2f}), {memory:.0f} MB more")
        show(f"Logs followed, {LINES:,} lines a pod: descriptors of a pod", "one a pod", rows, *costs)


if __name__ == "__main__":
    main()
