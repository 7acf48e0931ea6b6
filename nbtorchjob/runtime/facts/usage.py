"""What a node uses at one moment, as data: each of its ranks, and each GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RankUse:
    """What one rank uses: seconds of CPU time since it began, bytes, and threads (the kernel's tasks).

    ``running`` are those of them that had something to compute at that moment, ``worked`` those that have had
    since it was told last: threads that share work wait for each other now and then.
    """

    rank: int
    cpu: float
    resident: int
    tasks: int
    running: int
    worked: int = 0


@dataclass(frozen=True)
class GpuUse:
    """What is used of one GPU: bytes, and the seconds in which something ran on it while it was watched."""

    index: int
    busy: float
    watched: float
    memory: int
    limit: int
    model: str = ""
