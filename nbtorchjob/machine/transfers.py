"""What this process is writing to a store now, so that it can be shown while a user waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Transfer:
    """An upload of ``total`` bytes, of which ``done`` are written; ``name`` is for people."""

    name: str
    total: int
    done: int = 0


_under_way: list[Transfer] = []


@contextmanager
def transfer(name: str, total: int) -> Iterator[Transfer]:
    """Yield a transfer that is under way within the block; the caller updates ``done``."""
    current = Transfer(name, total)
    _under_way.append(current)
    try:
        yield current
    finally:
        _under_way.remove(current)


def newest() -> Transfer | None:
    """Return the transfer under way that began last."""
    return _under_way[-1] if _under_way else None
