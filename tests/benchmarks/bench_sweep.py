"""The cost of many runs of a group on a cluster to its API server and to the kernel that waits for them.

Their pods run a script in place of torch, in an emulator with a process of its own: only our cost counts. On
two cores 200 runs take 5 requests each to send (0.06 s; 0.11 s when they went one after another), 2 until
they have reported and 3 until their values have arrived; while nothing happens there are 3 watches and 12
requests a minute in all, for the one host that they share (2,400 when each run asked for itself), and 45 MB
of memory more than before.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from nbtorchjob import capture, submission
from nbtorchjob.runs import Runs
from tests.backends.kubernetes.stage import IMAGE, PLACES, WORDS
from tests.benchmarks.bench_tending import memory
from tests.benchmarks.kubernetes_cluster import Apart, requests, spec
from tests.benchmarks.measure import Row, own_state, show

RUNS = 200
IDLE_S = 10.0
PART = """
begin()
tell("Reported", rank=0, round=LIFE, seq=0, metrics={"loss": 1.0})
wait("go")
value(1)
"""


def acting(signs: str) -> str:
    """Return the pod patch with which pods run the script."""
    env = [{"name": "PLACES", "value": PLACES}, {"name": "SIGNS", "value": signs}]
    container = {"command": ["python", "-c", WORDS + PART], "env": env}
    return json.dumps({"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}})


def sweep(count: int, patch: str, at_once: int | None) -> Runs[int]:
    """Send so many runs."""
    job_spec = replace(spec("indexedjob", image=IMAGE, pod_patch=patch), name=f"sweep{count}")
    points = [{"number": number} for number in range(count)]
    call = capture.from_cell("number", {}, run_values=points[0])
    return submission.send_runs(submission.prepare(call, submission.check(job_spec)), points, at_once=at_once)


def measured(count: int, at_once: int | None) -> list[Row]:
    """Send so many runs and wait for their values; return the rows."""
    with own_state(), Apart() as cluster, tempfile.TemporaryDirectory() as signs:
        sweep(1, acting(signs), None).cancel()  # for the work that is needed only once
        before, baseline, began = requests(), memory(os.getpid()), time.perf_counter()
        runs = sweep(count, acting(signs), at_once)
        sent, sending = requests() - before, time.perf_counter() - began
        looks = runs.looks()
        beginning = time.perf_counter()
        while sum(bool(state.series) for state in next(looks)) < (at_once or count):
            pass
        begun, waited = requests() - before - sent, time.perf_counter() - beginning
        watches = cluster.open_watches()
        idle, busy = requests(), time.process_time()
        until = time.monotonic() + IDLE_S
        while time.monotonic() < until:
            next(looks)
        still, cpu = requests() - idle, (time.process_time() - busy) / IDLE_S
        Path(signs, "go").touch()
        ending = time.perf_counter()
        before = requests()
        assert runs.results(600) == [1] * count
        ended, took = requests() - before, time.perf_counter() - ending
        grown = memory(os.getpid()) - baseline
    return [
        Row("requests to send a run", sent / count, 1, None, ""),
        Row("to send a run", sending / count, 1, None),
        Row("requests a run until all have reported", begun / count, 1, None, ""),
        Row("until all have reported", waited, 1, None),
        Row("watches open then", watches, 1, 3, ""),
        Row("requests a minute while nothing happens", still / IDLE_S * 60, 1, 60, ""),
        Row("cores meanwhile", cpu, 1, None, ""),
        Row("requests a run until its value is here", ended / count, 1, None, ""),
        Row("until all values are here", took, 1, None),
        Row("memory of the kernel, more than before", grown, 1, None, "MB"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_sweep", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--at-once", type=int)
    arguments = parser.parse_args()
    show(f"{arguments.runs} runs on a cluster", "1", measured(arguments.runs, arguments.at_once))


if __name__ == "__main__":
    main()
