"""This machine's compute devices, counted as ``torchrun`` does, but without torch."""

from __future__ import annotations

import os
import re

VISIBLE = "CUDA_VISIBLE_DEVICES"


def cores() -> int:
    """Return how many CPU cores there are."""
    return os.cpu_count() or 1


def gpus() -> int:
    """Return how many NVIDIA GPUs this process may use."""
    return len(names())


def names(visible: str | None = None) -> tuple[str, ...]:
    """Return the names of the NVIDIA GPUs that ``visible``, or else this process's environment, leaves.

    A container has device files only for its own.
    """
    visible = os.environ.get(VISIBLE) if visible is None else visible
    if visible is not None:
        return tuple(name.strip() for name in visible.partition("-1")[0].split(",") if name.strip())
    number = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in os.listdir("/dev"))
    return tuple(map(str, range(number)))
