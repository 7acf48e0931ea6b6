"""How long to wait before the next try (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

# A notebook that has seeded `random` must find its own numbers there.
_random = Random()


def delays(first: float, cap: float) -> Iterator[float]:
    """Yield seconds without end: ``first``, doubling up to ``cap``.

    Each is cut by up to a half at random, so that the clients of a server that was away don't all come
    back in the same moment.
    """
    while True:
        yield first * _random.uniform(0.5, 1)
        first = min(first * 2, cap)
