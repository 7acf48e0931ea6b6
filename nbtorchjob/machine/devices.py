"""This machine's compute devices, counted as ``torchrun`` does, but without torch."""

from __future__ import annotations

import os
import re


def cores() -> int:
    """Return how many CPU cores there are."""
    return os.cpu_count() or 1


def gpus() -> int:
    """Return how many NVIDIA GPUs this process may use; a container has device files only for its own."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.partition("-1")[0].split(",") if name.strip()])
    return sum(re.fullmatch(r"nvidia\d+", name) is not None for name in os.listdir("/dev"))
