"""News among the nodes of a job: all who wait hear of it at once, and ask for nothing meanwhile.

torch's store answers whoever waits for a key as soon as that is set. So a node that has said something sets
the next of the keys ``news/0``, ``news/1``, … as well, each set once; ``news`` names one that is set.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

_LATEST = "news"
_FOR_EVER = timedelta(days=365)


def announce(store: Any) -> None:
    """Wake all nodes that wait for news; raises ``RuntimeError`` where the store is gone."""
    mine, number = os.urandom(8).hex(), _latest(store)
    while store.compare_set(_key(number), "", mine) != mine.encode():
        number += 1
    store.set(_LATEST, str(number))


class News:
    """What a node hears by a connection to the store of its own, on which nothing else is said meanwhile."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._next = _latest(store)

    def wait(self) -> None:
        """Wait for news, however many came at once; raises ``RuntimeError`` where the store is gone."""
        # torch warns of a wait that is over without an answer, so there is none in a job's time.
        self._store.wait([_key(self._next)], _FOR_EVER)
        self._next = max(self._next, _latest(self._store)) + 1


def _latest(store: Any) -> int:
    return int(store.get(_LATEST)) if store.check([_LATEST]) else 0


def _key(number: int) -> str:
    return "%s/%d" % (_LATEST, number)
