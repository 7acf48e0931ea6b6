"""What a job takes of the kernel that submitted it: a rank runs as that process would run it.

It is written down in the job's folder, for whoever starts the job, and may hold what is secret there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbtorchjob.machine import processes
from nbtorchjob.machine.folders import working

# Of the kernel, and wrong for a rank.
_KERNEL_ONLY = ("JPY_", "IPYKERNEL_", "COLAB_")


def of_this_process(secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return interpreter, environment, paths and limits of this process, as plain data.

    ``secrets`` are laid over the environment: variables whose values are in no record.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(_KERNEL_ONLY)}
    if "inline" in env.get("MPLBACKEND", ""):
        del env["MPLBACKEND"]  # draws into the notebook that a rank doesn't have
    return {
        "python": sys.executable,
        "env": {**env, **secrets},
        "cwd": str(working()),
        "path": [entry for entry in sys.path if entry],
        "umask": _umask(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": processes.of_this_process(),
    }


def _umask() -> int:
    # The one way to read it without setting it, which other threads would notice.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)
