"""The cost of a tender on a cluster with many jobs, and the attempts of a job when its tenders are killed.

For the latter, kernels, tenders and a Jupyter server's tender look after one job that fails again and again;
each is killed at random, over and over. The job's pods show an attempt that was made twice, or never.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import Phase
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.mortal import made
from tests.backends.kubernetes.stage import Stage
from tests.benchmarks.kubernetes_cluster import NAMESPACE, Apart, on_loop, spec, submit
from tests.benchmarks.kubernetes_crowd import copies
from tests.benchmarks.measure import Row, own_state, show

JOBS = 2000
IDLE_S = 125.0  # longer than a watch lasts
MB = 1_000_000
KILLS = 50
# A Lease passes from tender to tender within seconds, so that all of them get work to do.
QUICK = """
import sys, time
from nbtorchjob.backends.kubernetes.control import service
service.BEAT_S, service.HOLD_S = 0.2, 1.0
"""
TENDER = f"{QUICK}\nfrom nbtorchjob.frontends.cli import main\nsys.exit(main(sys.argv[1:]))"
SERVER = f"""{QUICK}
from nbtorchjob.frontends.server.app import Tenders
Tenders().begin()
time.sleep(3600)
"""
PART = "begin()\nif ATTEMPT <= {attempts}: time.sleep(0.2); fail(recoverable=True)\nvalue(ATTEMPT)"
LATEST_S = 12.0  # at most, from the start of a process to its kill


def asked(path: str) -> dict[str, float]:
    """Return the tender's health record of the namespace."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        response = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    health: dict[str, float] = json.loads(response.partition(b"\r\n\r\n")[2])["namespaces"].get(NAMESPACE, {})
    return health


def memory(process: int) -> float:
    """Return the MB that a process holds."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024 / MB


def crowd(jobs: int) -> None:
    with own_state(), Apart() as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.hold(".*")
        pattern = submit("0", spec("indexedjob"))
        on_loop(lambda cluster_session: copies(cluster_session, pattern.name, jobs - 1))
        path = f"{folder}/s"
        words = ["tend", "--namespace", NAMESPACE, "--listen", path]
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "nbtorchjob", *words], stderr=subprocess.DEVNULL)
        try:
            while not os.path.exists(path) or asked(path).get("jobs", 0) < jobs:
                time.sleep(0.2)
            took = time.perf_counter() - began
            before = asked(path)["requests"]
            time.sleep(IDLE_S)
            idle, megabytes = (asked(path)["requests"] - before) / IDLE_S * 60, memory(process.pid)
        finally:
            process.terminate()
            process.wait()
    rows = [
        Row("until all are known", took, 1.0, None),
        Row("requests a minute while nothing happens", idle, 1, 12, ""),
        Row("memory", megabytes, 1, 400, "MB"),
    ]
    show(f"Tending {jobs:,} jobs whose pods wait", "1", rows)


class Mortal:
    """A process that is killed at random, and started again, so many times."""

    def __init__(self, kills: int, words: list[str]) -> None:
        self._words, self._left = words, kills
        self._thread = threading.Thread(target=self._live)
        self._thread.start()

    def _live(self) -> None:
        while self._left:
            process = subprocess.Popen(self._words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(random.uniform(0.0, LATEST_S))
            process.kill()
            process.wait()
            self._left -= 1

    def join(self) -> None:
        """Wait until the process has been killed for the last time."""
        self._thread.join()


def deaths(kills: int) -> None:
    attempts = kills
    with (
        own_state(),
        Emulator() as cluster,
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patched,
    ):
        stage = Stage(cluster, Path(folder), patched)
        job = stage.submit(
            PART.format(attempts=attempts),
            name="mortal",
            kind=cluster.kinds[0],
            retry=Retry(retries=attempts, backoff=0),
        )
        tender = [sys.executable, "-c", TENDER, "tend", "--namespace", stage.namespace]
        kernel = [sys.executable, "-m", "nbtorchjob", "attach", "--quiet", job.name]
        server = [sys.executable, "-c", SERVER]
        everybody = [Mortal(kills, words) for words in (tender, tender, kernel, kernel, kernel, server)]
        for process in everybody:
            process.join()
        before = len(made(stage)[0])
        job.wait()
        names, lives = made(stage)[0], len(list(stage.signs.glob("life-*")))
        attempt_names = {job.name, *(f"{job.name}-a{number}" for number in range(2, attempts + 2))}
        assert job.state.phase is Phase.SUCCEEDED, job.state.failure
        assert ({*names}, len(names), lives) == (attempt_names, attempts + 1, attempts + 1), (names, lives)
        assert job.state.budgets[0].used == attempts
    rows = [
        Row("attempts", attempts + 1, 1, None, ""),
        Row("of them made before the last of those was killed", before, 1, None, ""),
        Row("made twice, or never", 0, 1, 0, ""),
    ]
    show(f"Two tenders, three kernels and a server, each killed {kills} times", "1", rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_tending", description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--kills", type=int, default=KILLS)
    arguments = parser.parse_args()
    if arguments.jobs:
        crowd(arguments.jobs)
    if arguments.kills:
        deaths(arguments.kills)


if __name__ == "__main__":
    main()
