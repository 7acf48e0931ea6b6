"""One look at the jobs of a scope, and the changes found. It blocks, and is done in a lane."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import field

from nbtorchjob.backends import backend
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.state import JobState
from nbtorchjob.ui.record import Record, record

_log = logging.getLogger(__name__)


class BackendScope(FrozenDataclass):
    """A backend, and one of its ``scopes``: where jobs are listed together."""

    backend: str
    name: str

    @property
    def lane(self) -> str:
        """The lane of looks at it: they take no room from what is done to one job."""
        return f"{self.backend}:{self.name} (all jobs)"

    def __str__(self) -> str:
        return self.name or "this machine"


class Changes(FrozenDataclass):
    """What a look found that the one before didn't: records, and ids of jobs that are gone."""

    changed: Sequence[Record] = ()
    removed: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)


class Look(FrozenDataclass):
    """What was seen: records by id, and ids of jobs without a readable record."""

    records: Mapping[str, Record] = field(default_factory=dict)
    ended: Mapping[int, tuple[JobState, Record]] = field(default_factory=dict)
    left_out: Set[str] = frozenset()

    def again(self, scope: BackendScope, roots: Sequence[str]) -> tuple[Look, Changes]:
        """Look once more; raises what the backend does."""
        now, records, ended, left_out = time.time(), {}, {}, set()
        for state in backend(scope.backend).jobs(scope=scope.name):
            # This machine returns the same state of an ended job each time, and there may be thousands.
            known = self.ended.get(id(state))
            try:
                found = record(state, now, roots) if known is None else known[1]
            except Exception:  # a record may hold anything: one job mustn't hide the others
                left_out.add(state.info.id)
                if state.info.id not in self.left_out:
                    _log.exception("%s isn't listed", state.info.id)
                continue
            records[found["id"]] = found
            if found["terminal"]:
                ended[id(state)] = known or (state, found)
        changed = [each for each in records.values() if not _same(self.records.get(each["id"]), each)]
        gone = [each for each in self.records if each not in records]
        return Look(records, ended, left_out), Changes(changed, gone)


def _same(known: Record | None, found: Record) -> bool:
    """Whether only the clock's numbers changed, which pages count themselves."""
    return known is found or (known is not None and _lasting(known) == _lasting(found))


def _lasting(found: Record) -> Record:
    progress = found["progress"]
    return {**found, "elapsed": None, "progress": progress and {**progress, "left": None}}
