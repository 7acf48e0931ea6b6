"""The cost of 200 handles on one running job, beside one: CPU seconds in ten seconds, and descriptors.

Two ranks report and print ten times a second meanwhile.
"""

import os
import time
from typing import Any

import nbtorchjob
from nbtorchjob import Elastic, Job, JobSpec
from nbtorchjob.state import Phase
from tests.benchmarks.measure import Row, own_state, show

HANDLES = 200
SECONDS = 10.0


def work(seconds: float) -> None:
    import time

    from nbtorchjob import report

    until = time.monotonic() + seconds
    step = 0
    while time.monotonic() < until:
        step += 1
        report(step=step)
        print(step)
        time.sleep(0.1)


def taken(name: str, many: int) -> tuple[float, int]:
    """Return the CPU seconds of so many handles on a job, and the descriptors that are open for them."""
    handles: list[Job[Any]] = [nbtorchjob.attach(name) for _ in range(many)]
    before = len(os.listdir("/proc/self/fd"))
    phases = {handle.state.phase for handle in handles}
    assert phases == {Phase.RUNNING}, phases
    time.sleep(1.0)
    descriptors, began = len(os.listdir("/proc/self/fd")) - before, time.process_time()
    time.sleep(SECONDS)
    return time.process_time() - began, descriptors


def main() -> None:
    with own_state():
        costs = []
        for many in (1, HANDLES):
            job = nbtorchjob.submit(work, 4 * SECONDS, spec=JobSpec(Elastic(nproc_per_node=2)))
            while (
                next(state for state in nbtorchjob.jobs() if state.name == job.name).phase
                is not Phase.RUNNING
            ):
                time.sleep(0.1)
            costs.append(taken(job.name, many))
            job.cancel()
            del job
    (one_s, few), (many_s, more) = costs
    show(
        f"Handles: {HANDLES} on one running job, {SECONDS:.0f} s",
        "one handle",
        [
            Row("CPU", many_s, one_s, 1.5),
            Row("descriptors", float(more), max(1.0, few), 1, ""),
        ],
    )


if __name__ == "__main__":
    main()
