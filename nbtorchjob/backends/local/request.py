"""What the pool is asked: to start a job as this process would run it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nbtorchjob.backends.local.record import Folder
from nbtorchjob.spec import JobSpec

# Of the kernel, and wrong for a rank.
_KERNEL_ONLY = ("JPY_", "IPYKERNEL_", "COLAB_")


def request(job: Folder, spec: JobSpec) -> dict[str, object]:
    """Give what the job in that folder needs of this process: environment, paths, limits."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_KERNEL_ONLY)}
    if "inline" in env.get("MPLBACKEND", ""):
        del env["MPLBACKEND"]  # draws into the notebook that a rank doesn't have
    return {
        "folder": str(job.path),
        "env": {**env, **spec.env},
        "cwd": os.getcwd(),
        "path": [entry for entry in sys.path if entry],
        "umask": _umask(),
        "cpus": sorted(os.sched_getaffinity(0)),
    }


def _umask() -> int:
    # The one way to read it without setting it, which other threads would notice.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)
