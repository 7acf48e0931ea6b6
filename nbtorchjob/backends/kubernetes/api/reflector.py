"""One list and one watch per namespace and kind of object, shared by all jobs.

A watch is never trusted to last: servers end it after ``timeoutSeconds``, restart, forget old
resourceVersions (410, by HTTP or inside the stream), and connections die without a word. Whatever
happens, a subscriber gets the newest state of each object it wants, and is told of each that vanished.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, NamedTuple

from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.api.client import Client, delays, parse_change
from nbtorchjob.backends.kubernetes.api.connection import OBJECT_BYTES
from nbtorchjob.backends.kubernetes.objects import workloads
from nbtorchjob.backends.kubernetes.objects.labelling import OURS
from nbtorchjob.backends.kubernetes.objects.reading import EVENTS, KUEUE, POD_GROUPS, Api, Target
from nbtorchjob.errors import (
    AnswerTooLargeError,
    ApiError,
    ClusterError,
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
    UnreachableError,
)
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.text.words import size

Wants = Callable[[Object], bool]

_DELETION = ("deletionTimestamp", "deletionGracePeriodSeconds")
_MOST = 256  # states that wait; beyond that, an object's newest replaces the one before
ADDED, MODIFIED, DELETED, SYNCED = "ADDED", "MODIFIED", "DELETED", "SYNCED"


class Change(NamedTuple):
    """A change of an object; SYNCED, with an empty object, means that all initial ones were passed on."""

    type: str
    object: Object


class Subscription:
    """What one subscriber hasn't taken yet: only the newest state of each object, so that it can't grow.

    With ``every`` it is every state, up to a bound: a job object shows only the latest change of its phase.
    """

    def __init__(self, wants: Wants, *, every: bool = False) -> None:
        self._wants = wants
        self._every = every
        self._waiting: dict[str, Change] = {}
        self._error: Exception | None = None
        self._ready = asyncio.Event()

    def put(self, change: Change) -> None:
        """Add a change, if the subscriber wants its object."""
        if change.type != SYNCED and not self._wants(change.object):
            return
        key = uid(change.object)
        if self._every and change.object and len(self._waiting) < _MOST:
            key += "@" + change.object["metadata"]["resourceVersion"]
        older = self._waiting.pop(key, None)
        if older is not None:
            unheard = older.type == ADDED and change.type == MODIFIED
            # The newer state of an object, with the first time that was set for its deletion
            first = (
                {name: value for name, value in older.object["metadata"].items() if name in _DELETION}
                if older.object
                else {}
            )
            obj = (
                {**change.object, "metadata": {**change.object["metadata"], **first}}
                if first
                else change.object
            )
            change = Change(ADDED if unheard else change.type, obj)
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


def uid(obj: Object) -> str:
    """Return what distinguishes an object from others of its name, earlier and later ones too."""
    own: str = obj["metadata"]["uid"] if obj else ""
    return own


_LONGEST_WAIT = 30.0
# An API server that has just started refuses what it will allow a moment later (its RBAC isn't read yet).
_PATIENCE = 5


class Pace(FrozenDataclass):
    """Seconds that a reflector gives the server."""

    watch: float = 120.0  # until the server is to end a watch
    late: float = 15.0  # beyond that, until its connection counts as dead
    poll: float = 5.0  # between two lists, without permission to watch


PACE = Pace()


class Reflector:
    """The objects of one namespace (None: of all), kept current while they have subscribers."""

    def __init__(self, client: Client, namespace: str | None, pace: Pace = PACE) -> None:
        self._client = client
        self._namespace = namespace
        self._pace = pace
        self._watches: dict[tuple[Api, str], _Watch] = {}

    @property
    def watches(self) -> int:
        """How many watches are open: one for each kind and field selector that has a subscriber."""
        return len(self._watches)

    async def subscribe(
        self, api: Api, wants: Wants, *, every: bool = False, fields: str = ""
    ) -> AsyncGenerator[Change, None]:
        """Yield the newest state of each object that ``wants`` picks: first all objects, then every change.

        Changes of one object that come faster than they are taken are merged, unless ``every`` one is
        wanted; a DELETED object comes in its last known state. ``fields`` is a field selector.
        Raises ``ClusterError`` if the cluster won't even list the objects.
        """
        key = api, fields
        watch = self._watches.get(key)
        if watch is None:
            target = Target(api, self._namespace)
            watch = self._watches[key] = _Watch(self._client, target, self._pace, fields)
        subscription = watch.join(wants, every=every)
        try:
            while True:
                for change in await subscription.take():
                    yield change
        finally:
            if watch.leave(subscription) and self._watches.get(key) is watch:
                del self._watches[key]
                await watch.close()


class _Watch:
    """All objects of one kind, and their subscribers."""

    def __init__(self, client: Client, target: Target, pace: Pace, fields: str) -> None:
        self._client = client
        self._target = target
        self._pace = pace
        # A label selector, for kinds whose objects carry our labels: most creators copy them
        if target.api == EVENTS or target.api.plural == POD_GROUPS.plural:
            labels: dict[str, Any] = {}
        else:
            labels = {"labels": workloads.UID if target.api.group == KUEUE else OURS}
        self._selectors = {**labels, **({"fields": fields} if fields else {})}
        self._objects: dict[str, Object] = {}
        self._subscriptions: set[Subscription] = set()
        self._version = ""  # from where to watch; empty: list first
        self._synced = False
        self._error: Exception | None = None
        self._task = asyncio.create_task(self._run(), name=f"watch {target}")

    def join(self, wants: Wants, *, every: bool) -> Subscription:
        subscription = Subscription(wants, every=every)
        self._subscriptions.add(subscription)
        for obj in self._objects.values():
            subscription.put(Change(ADDED, obj))
        if self._synced:
            subscription.put(Change(SYNCED, {}))
        if self._error:
            subscription.fail(self._error)
        return subscription

    def leave(self, subscription: Subscription) -> bool:
        """Forget a subscriber; True when it was the last."""
        self._subscriptions.discard(subscription)
        return not self._subscriptions

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            pauses = delays(self._client.pause, _LONGEST_WAIT)
            refusals = 0
            while True:
                try:
                    if not self._version:
                        await self._list()
                        refusals = 0
                    if await self._watch():
                        refusals = 0
                        pauses = delays(self._client.pause, _LONGEST_WAIT)
                        continue
                except _UnwatchableError:
                    await asyncio.sleep(self._pace.poll)
                    continue
                except ClusterError as error:
                    if isinstance(error, ApiError):
                        passing = error.expired or error.too_many or error.server_error
                    else:
                        passing = isinstance(error, UnreachableError) and self._client.reached
                    refusals += not passing
                    if refusals > (_PATIENCE if self._synced else 0):
                        raise
                    if isinstance(error, ApiError) and error.expired:
                        self._version = ""
                await asyncio.sleep(next(pauses))
        except Exception as error:
            self._error = error
            for subscription in self._subscriptions:
                subscription.fail(error)

    async def _list(self) -> None:
        target = self._target
        listing = await self._client.list(target.api, target.namespace, **self._selectors)
        present = {uid(item): item for item in listing.items}
        for key in self._objects.keys() - present.keys():
            self._tell(Change(DELETED, self._objects.pop(key)))
        for key, item in present.items():
            old = self._objects.get(key)
            if old is None or _version(old) != _version(item):
                self._tell(Change(MODIFIED if old else ADDED, item))
        self._objects = present
        self._version = listing.version
        if not self._synced:
            self._synced = True
            self._tell(Change(SYNCED, {}))

    async def _watch(self) -> bool:
        """Follow until the server ends the stream; False if nothing at all was received.

        A healthy server sends a bookmark now and then. One that was restored to an older state waits in
        silence for a resourceVersion from the future: then only a list shows what there is.
        """
        any_heard, rest = False, b""
        try:
            async with self._client.watch(
                self._target, self._version, self._pace.watch, late=self._pace.late, **self._selectors
            ) as answer:
                async for chunk in answer.chunks():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        self._hear(line)
                    if len(rest) > OBJECT_BYTES:
                        raise AnswerTooLargeError(
                            f"a watch of {self._target} has a line above {size(OBJECT_BYTES)}"
                        )
                    any_heard = any_heard or bool(lines)
        except (UnauthorizedError, ForbiddenError, NotFoundError) as error:
            self._version = ""
            raise _UnwatchableError from error
        if not any_heard:
            self._version = ""
        return any_heard

    def _hear(self, line: bytes) -> None:
        type_, obj = parse_change(line, self._target)
        self._version = obj["metadata"].get("resourceVersion") or ""
        if type_ == "BOOKMARK":
            return
        key = uid(obj)
        is_known = key in self._objects
        if type_ == DELETED:
            self._objects.pop(key, None)
        else:
            self._objects[key] = obj
            type_ = MODIFIED if is_known else ADDED
        self._tell(Change(type_, obj))

    def _tell(self, change: Change) -> None:
        for subscription in self._subscriptions:
            subscription.put(change)


def _version(obj: Object) -> str:
    own: str = obj["metadata"].get("resourceVersion") or ""
    return own


class _UnwatchableError(Exception):
    """Watching is refused; the next list shows whether listing is, too."""
