"""Which jobs have changed since a page last asked; the answer goes only to callers with our permission."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from nbtorchjob.frontends.server.updates.changes import Changes
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.ui.record import Record

_MOST_REMOVED = 4096


class News(FrozenDataclass):
    """Records, ids of removed jobs, the ``mark`` for the next request; ``whole``: there are no other jobs."""

    jobs: Sequence[Record]
    removed: Sequence[str]
    whole: bool
    mark: str


class History:
    """Numbers changes, and remembers each job's newest."""

    def __init__(self) -> None:
        self._born = secrets.token_hex(4)  # a mark of another server's means nothing here
        self._number = 0
        self._changed: dict[str, int] = {}
        self._removed: dict[str, int] = {}  # the oldest first
        self._forgotten = 0  # up to here it isn't known what was removed

    def add(self, changes: Changes) -> None:
        """Record what a look found."""
        self._number += 1
        for job in changes.changed:
            self._removed.pop(job["id"], None)
            self._changed[job["id"]] = self._number
        for id_ in changes.removed:
            self._changed.pop(id_, None)
            self._removed.pop(id_, None)
            self._removed[id_] = self._number
        while len(self._removed) > _MOST_REMOVED:
            self._forgotten = self._removed.pop(next(iter(self._removed)))

    def since(self, known: str, found: Sequence[Record]) -> News:
        """Return what in ``found``, all jobs as they are, is new to a page with the mark ``known``."""
        mark = f"{self._born}.{self._number}"
        born, _, number = known.partition(".")
        seen = int(number) if born == self._born and number.isdecimal() and len(number) < 16 else -1
        if not self._forgotten <= seen <= self._number:
            return News(found, (), whole=True, mark=mark)
        jobs = [job for job in found if self._changed.get(job["id"], self._number) > seen]
        return News(jobs, [id_ for id_, at in self._removed.items() if at > seen], whole=False, mark=mark)
