"""What this process is writing to a store now, told to whoever shows that it is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Transfer:
    """Something of ``total`` bytes, of which ``done`` are on their way; ``name`` is for people."""

    name: str
    total: int
    done: int = 0


_under_way: list[Transfer] = []


@contextmanager
def transfer(name: str, total: int) -> Iterator[Transfer]:
    """Yield a transfer that is under way within; whoever does it counts what is done."""
    current = Transfer(name, total)
    _under_way.append(current)
    try:
        yield current
    finally:
        _under_way.remove(current)


def newest() -> Transfer | None:
    """Return the one that began last of those that are under way."""
    return _under_way[-1] if _under_way else None
