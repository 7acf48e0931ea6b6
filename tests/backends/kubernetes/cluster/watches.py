"""Watches: the history of a resource as a stream of lines."""

import asyncio
import contextlib
import json
from collections.abc import Iterable, Iterator

from aiohttp import web

from tests.backends.kubernetes.cluster.faults import Faults
from tests.backends.kubernetes.cluster.refusals import Refusal
from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.selectors import Test, both
from tests.backends.kubernetes.cluster.server import Call
from tests.backends.kubernetes.cluster.store import Change, Store

# A real server sends a bookmark every minute and some before the end; tests have no minute.
BOOKMARK_S = 1.0
# The time that a server allows if the client names none.
LONGEST_S = 1800.0


def _line(event_type: str, obj: Object) -> bytes:
    return _of(event_type, json.dumps(obj, separators=(",", ":")))


def _of(event_type: str, text: str) -> bytes:
    return f'{{"type":"{event_type}","object":{text}}}\n'.encode()


class Watches:
    """The handler of watches, and the list of the open ones."""

    def __init__(self, store: Store, faults: Faults) -> None:
        self._store, self._faults = store, faults
        self.open: list[str] = []
        self.lag_s: dict[str, float] = {}  # the delay of changes for clients, by plural; "" for all

    async def serve(self, call: Call) -> web.StreamResponse:
        """Stream changes until the time is up, the history is gone or the client leaves."""
        if (version := call.query.get("resourceVersion", "")) and not version.isdigit():
            raise Refusal(500, f'strconv.ParseUint: parsing "{version}": invalid syntax')
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(call.http)
        changed = asyncio.Event()
        self._store.listeners[call.resource].add(changed)
        try:
            with self._seen(call):
                await self._stream(call, response, changed)
        finally:
            self._store.listeners[call.resource].discard(changed)
        return response

    @contextlib.contextmanager
    def _seen(self, call: Call) -> Iterator[None]:
        """List the watch as open, and let `Faults.cut` break it."""
        self.open.append(call.http.path_qs)
        try:
            with self._faults.stream(call.http):
                yield
        finally:
            self.open.remove(call.http.path_qs)

    async def _stream(self, call: Call, response: web.StreamResponse, changed: asyncio.Event) -> None:
        watch, loop = Watch(self._store, call), asyncio.get_running_loop()
        end = loop.time() + watch.seconds
        for line in watch.beginning():
            await response.write(line)
        while (left := end - loop.time()) > 0:
            changed.clear()
            if watch.expired():
                await response.write(_line("ERROR", watch.too_old()))
                return
            lag = self.lag_s.get(call.resource.plural, self.lag_s.get("", 0.0))
            if lag and watch.behind():
                await asyncio.sleep(lag)
            for line in watch.news():
                await response.write(line)
            try:
                await asyncio.wait_for(changed.wait(), min(left, BOOKMARK_S))
            except asyncio.TimeoutError:
                # A change may have arrived just as the wait timed out.
                if watch.bookmarks and not watch.behind():
                    await response.write(watch.bookmark())


class Watch:
    """One watch: its place in the history, and the lines that it sends next."""

    def __init__(self, store: Store, call: Call) -> None:
        self._store, self._resource, self._namespace = store, call.resource, call.namespace
        query = call.query
        fields = query.get("fieldSelector", "")
        if call.name:
            fields = ",".join(filter(None, (fields, f"metadata.name={call.name}")))
        self._wanted: Test = both(call.resource, query.get("labelSelector", ""), fields)
        self.bookmarks = call.flag("allowWatchBookmarks")
        self.seconds = float(query.get("timeoutSeconds") or LONGEST_S)
        self._initial = call.flag("sendInitialEvents")
        revision = int(query.get("resourceVersion") or 0)
        self._from_now = self._initial or revision == 0
        self._seen = store.revision if self._from_now else revision
        history = store.history[call.resource]
        # A watch from an old revision reads the history from its start; one from now skips it.
        self._place = len(history) if self._from_now else 0

    def expired(self) -> bool:
        """Return whether the history at the watch's place is gone."""
        return self._seen < self._store.expired[self._resource]

    def too_old(self) -> Object:
        """Return the Status that ends an expired watch."""
        text = f"too old resource version: {self._seen} ({self._store.expired[self._resource]})"
        return Refusal(410, text).status()

    def beginning(self) -> Iterable[bytes]:
        """Yield the existing objects, for a watch that names no revision."""
        if not self._from_now:
            return
        for obj in self._store.list(self._resource, self._namespace):
            if self._wanted(obj):
                yield _line("ADDED", obj)
        if self._initial:
            yield self.bookmark({"k8s.io/initial-events-end": "true"})

    def news(self) -> Iterable[bytes]:
        """Yield the changes since the last call."""
        history = self._store.history[self._resource]
        while self._place < len(history):
            change = history[self._place]
            self._place += 1
            if change.revision > self._seen:
                self._seen = change.revision
                if line := self._told(change):
                    yield line

    def behind(self) -> bool:
        """Return whether the history has changes that the watch hasn't read."""
        return self._place < len(self._store.history[self._resource])

    def _told(self, change: Change) -> bytes | None:
        """Return a change as this watch sees it: leaving the selection is DELETED, joining it ADDED."""
        space = change.object["metadata"].get("namespace", "")
        if self._namespace and space != self._namespace:
            return None
        before = change.before is not None and self._wanted(change.before)
        after = change.type != "DELETED" and self._wanted(change.object)
        if not before and not after:
            return None
        event_type = "MODIFIED" if before and after else "ADDED" if after else "DELETED"
        return _of(event_type, change.text)

    def bookmark(self, annotations: dict[str, str] | None = None) -> bytes:
        """Return a BOOKMARK of the newest revision up to which the watch has sent everything."""
        if not self.behind():
            self._seen = max(self._seen, self._store.revision)
        meta: Object = {"resourceVersion": str(self._seen)}
        if annotations:
            meta["annotations"] = annotations
        kind = {"kind": self._resource.kind, "apiVersion": self._resource.api_version}
        return _line("BOOKMARK", kind | {"metadata": meta})
