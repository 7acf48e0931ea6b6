"""What this process is doing to submit a job, so that it can be shown while a user waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Activity:
    """An activity in words, such as ``building fruit``; ``done`` of ``total`` bytes, 0 if it has none."""

    text: str
    total: int = 0
    done: int = 0


_under_way: list[Activity] = []


@contextmanager
def activity(text: str, total: int = 0) -> Iterator[Activity]:
    """Yield an activity that is under way within the block; the caller updates ``done``."""
    current = Activity(text, total)
    _under_way.append(current)
    try:
        yield current
    finally:
        _under_way.remove(current)


def newest() -> Activity | None:
    """Return the activity under way that began last."""
    return _under_way[-1] if _under_way else None
