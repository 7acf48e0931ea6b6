"""The client of the emulator's own controllers: it calls the API server's verbs, without a connection.

Over HTTP, the controllers took a fifth of the CPU time of tests that have pods.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from tests.backends.kubernetes.cluster.access import CONTROLLER
from tests.backends.kubernetes.cluster.controllers.client import (
    NO_QUERY,
    ApiError,
    Client,
    Query,
    content_type,
)
from tests.backends.kubernetes.cluster.refusals import Refusal
from tests.backends.kubernetes.cluster.resources import Object, copied
from tests.backends.kubernetes.cluster.server import PLAIN_404, Call, Server
from tests.backends.kubernetes.cluster.store import Store
from tests.backends.kubernetes.cluster.verbs import Verbs
from tests.backends.kubernetes.cluster.watches import Watch


class InsideClient(Client):
    """A client that returns copies of the server's answers; a stopped server refuses the connection."""

    def __init__(self, server: Server, verbs: Verbs, store: Store) -> None:
        self._server, self._verbs, self._store = server, verbs, store

    async def request(self, method: str, path: str, body: Any = None, query: Query = NO_QUERY) -> Object:
        await asyncio.sleep(0)  # other tasks run meanwhile, as with a connection
        call = replace(self._call(method, path, query), body={} if body is None else copied(body))
        try:
            _, answer = self._verbs.answer(call)
        except Refusal as refusal:
            raise ApiError(refusal.code, refusal.status()["message"]) from refusal
        copy: Object = copied(answer)
        return copy

    async def changes(self, path: str) -> AsyncIterator[Object]:
        call = self._call("GET", path, {"watch": "1"})
        watch, changed = Watch(self._store, call), asyncio.Event()
        listeners = self._store.listeners[call.resource]
        listeners.add(changed)
        try:
            for line in watch.beginning():
                yield json.loads(line)["object"]
            while self._server.running and not watch.expired():
                changed.clear()
                for line in watch.news():
                    yield json.loads(line)["object"]
                await changed.wait()
        finally:
            listeners.discard(changed)

    def _call(self, method: str, path: str, query: Query) -> Call:
        if not self._server.running:
            raise ConnectionRefusedError
        try:
            headers = {"Content-Type": content_type(method)}
            call = self._server.call(CONTROLLER, method, path, dict(query), headers)
        except Refusal as refusal:
            raise ApiError(refusal.code, refusal.status()["message"]) from refusal
        if call is None:
            raise ApiError(404, PLAIN_404)
        return call
