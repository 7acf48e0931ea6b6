"""Samples of jobs that hang, each in one of the ways of ``hangs.py``.

``python -m tests.runtime.sampled FOLDER NAME…`` runs them one after the other, and writes each one's samples
to ``FOLDER/NAME.json``.
"""

import json
import os
import signal
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

import cloudpickle
import pytest

from nbtorchjob import Elastic, JobSpec, submit
from nbtorchjob.runtime import torch_versions
from nbtorchjob.state.facts import factlines
from tests.benchmarks.measure import own_state
from tests.patience import LIMIT
from tests.runtime import hangs

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(hangs)


_HERE = torch_versions.release(torch_versions.installed())
needs_records = pytest.mark.skipif(
    _HERE is not None and not torch_versions.GLOO_CALLS.expected(_HERE),
    reason="this torch records nothing of gloo's operations",
)


def sampled(case, *, nodes=1, nproc=3, hang_after=3.0):
    """Run a case until each node has reported a sample by itself; return the samples by node."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nproc_per_node=")  # the ranks only wait
        job = submit(case, spec=JobSpec(Elastic(nodes, nproc_per_node=nproc), hang_after=hang_after))
    try:
        until = time.monotonic() + LIMIT
        while len(job.state.samples) < nodes or is_early(job.state.samples):
            assert time.monotonic() < until, job.state
            assert not job.done(), b"".join(job.read_log())
            time.sleep(0.05)
        return job.state.samples
    finally:
        job.cancel()
        for rank in [rank for node in job.state.samples.values() for rank in node.samples]:
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGKILL)  # a stopped rank would use up its grace period
        job.wait(LIMIT)
        job.delete()


def is_early(samples):
    """Return whether a rank was still starting, or didn't run on a busy machine: the next sample has it."""
    ranks = [rank for node in samples.values() for rank in node.samples]
    return any(rank.state == "begins" or "hasn't answered" in rank.note for rank in ranks)


def write(folder, names, **launch):
    """Write the samples of each case to a file of its name."""
    for name in names:
        began = time.monotonic()
        records = [
            factlines.to_json(sample) for _, sample in sorted(sampled(hangs.ALL[name], **launch).items())
        ]
        (folder / f"{name}.json").write_text(json.dumps(records, indent=1))
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    with own_state():
        write(Path(sys.argv[1]), sys.argv[2:])
