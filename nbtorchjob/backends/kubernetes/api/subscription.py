"""Changes of objects on their way to one subscriber."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from nbtorchjob.backends.kubernetes.api.slim import Object

Wants = Callable[[Object], bool]

_DELETION = ("deletionTimestamp", "deletionGracePeriodSeconds")
_MOST = 256  # states that wait, before an object's newest takes the place of the one before it
ADDED, MODIFIED, DELETED, SYNCED = "ADDED", "MODIFIED", "DELETED", "SYNCED"


class Change(NamedTuple):
    """What became of an object; SYNCED, with an empty one: all that existed at first has been told."""

    type: str
    object: Object


class Subscription:
    """What one subscriber hasn't taken yet: of each object the newest state, so that it can't grow.

    With ``every`` it is every state, up to a bound: a job object tells only the newest turn of its phase.
    """

    def __init__(self, wants: Wants, *, every: bool = False) -> None:
        self._wants = wants
        self._every = every
        self._waiting: dict[str, Change] = {}
        self._error: Exception | None = None
        self._ready = asyncio.Event()

    def put(self, change: Change) -> None:
        """Take in a change that the subscriber may want."""
        if change.type != SYNCED and not self._wants(change.object):
            return
        key = uid(change.object)
        if self._every and change.object and len(self._waiting) < _MOST:
            key += "@" + change.object["metadata"]["resourceVersion"]
        older = self._waiting.pop(key, None)
        if older is not None:
            unheard = older.type == ADDED and change.type == MODIFIED
            found = _deleted_as(older.object, change.object)
            change = Change(ADDED if unheard else change.type, found)
        self._waiting[key] = change
        self._ready.set()

    def fail(self, error: Exception) -> None:
        """Let the subscriber know, after all that waits, that nothing more will come."""
        self._error = error
        self._ready.set()

    async def take(self) -> list[Change]:
        """Wait for changes and return all there are; raises what ``fail`` was given."""
        await self._ready.wait()
        if not self._waiting and self._error:
            raise self._error
        changes = list(self._waiting.values())
        self._waiting.clear()
        if not self._error:
            self._ready.clear()
        return changes


def _deleted_as(older: Object, newer: Object) -> Object:
    """Return the newer state of an object, with the first word of when it is to be deleted.

    What removes a pod once it has ended dates the deletion anew (Kubernetes 1.36): then it would seem to have
    ended by itself, and to be deleted because of that.
    """
    first = {name: value for name, value in older["metadata"].items() if name in _DELETION} if older else {}
    return {**newer, "metadata": {**newer["metadata"], **first}} if first else newer


def uid(found: Object) -> str:
    """Return what tells an object from others of its name, earlier and later ones too."""
    own: str = found["metadata"]["uid"] if found else ""
    return own
