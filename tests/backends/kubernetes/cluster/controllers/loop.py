"""The base of every controller: feeds of changes, a queue of objects to reconcile, retries."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

import aiohttp

from tests.backends.kubernetes.cluster.controllers.client import ApiError, Client, collection
from tests.backends.kubernetes.cluster.resources import Object

Key = tuple[str, str]
# An object that can't be reconciled is retried ever less often.
RETRY_S, LONGEST_RETRY_S = 0.1, 5.0
BUSY_S = 0.02
# How many objects one controller reconciles at a time.
WORKERS = 4


class Controller(ABC):
    """A controller of one kind of object: each call brings one object to what its spec asks for."""

    api_version: ClassVar[str]
    plural: ClassVar[str]
    kind: ClassVar[str]
    component: ClassVar[str]
    # Resources that it creates, and so has to watch: (apiVersion, plural).
    owns: ClassVar[Sequence[tuple[str, str]]] = (("v1", "pods"),)

    # How long it gathers changes before it reconciles.
    patience_s: ClassVar[float] = 0.0

    def __init__(self, client: Client, *, backoff_s: float, scheduler: str = "") -> None:
        self.client, self.backoff_s, self.scheduler = client, backoff_s, scheduler

    @abstractmethod
    async def reconcile(self, obj: Object) -> float | None:
        """Do what is due now; return the seconds until the next call, if nothing changes before."""

    async def forget(self, namespace: str, name: str) -> None:  # noqa: B027 few have anything left to do
        """Clean up after an object that is gone."""

    def path(self, obj: Object) -> str:
        """Return the path of an object of this kind."""
        return f"{collection(self.api_version, self.plural, obj['metadata']['namespace'])}/{obj['metadata']['name']}"

    def reference(self, obj: Object) -> Object:
        """Return the owner reference to this object."""
        meta = obj["metadata"]
        own = {"apiVersion": self.api_version, "kind": self.kind, "name": meta["name"], "uid": meta["uid"]}
        return own | {"controller": True, "blockOwnerDeletion": True}

    async def owned(self, obj: Object, api_version: str, plural: str) -> list[Object]:
        """Return the objects of a resource that this one owns."""
        objects = await self.client.list(collection(api_version, plural, obj["metadata"]["namespace"]))
        uid = obj["metadata"]["uid"]
        return [
            obj
            for obj in objects
            if any(ref["uid"] == uid for ref in obj["metadata"].get("ownerReferences", ()))
        ]

    async def make(self, owner: Object, plural: str, body: Object) -> Object:
        """Create a core object for its owner, unless the owner is gone meanwhile, or being deleted."""
        obj = await self.client.get(self.path(owner))
        if obj is None or "deletionTimestamp" in obj["metadata"]:
            raise ApiError(404, "the owner is gone")
        return await self.client.create(collection("v1", plural, owner["metadata"]["namespace"]), body)

    async def tell(self, obj: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """Write an event about the object."""
        await self.client.tell(obj, self.component, reason, message, warning=warning)

    async def write(self, obj: Object, status: Object) -> Object:
        """Write a status if it has changed; return the object as it is then."""
        if status == obj.get("status"):
            return obj
        return await self.client.write_status(self.path(obj), obj, status)


class Runner:
    """The feeds and workers of a set of controllers."""

    def __init__(self, client: Client, controllers: Sequence[Controller]) -> None:
        self._client, self._controllers = client, controllers
        self._queues: dict[Controller, asyncio.Queue[Key]] = defaultdict(asyncio.Queue)
        self._waiting: dict[Controller, set[Key]] = defaultdict(set)
        self._busy: set[tuple[Controller, Key]] = set()
        self._failures: dict[tuple[Controller, Key], int] = defaultdict(int)

    async def run(self) -> None:
        """Run until cancelled."""
        feeds = {(controller.api_version, controller.plural) for controller in self._controllers}
        feeds |= {watched for controller in self._controllers for watched in controller.owns}
        tasks = [self._feed(*feed) for feed in sorted(feeds)]
        workers = [self._work(controller) for controller in self._controllers for _ in range(WORKERS)]
        await asyncio.gather(*tasks, *workers)

    async def _feed(self, api_version: str, plural: str) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, ApiError, ConnectionError):
                async for obj in self._client.changes(collection(api_version, plural)):
                    self._sort(obj)
            await asyncio.sleep(RETRY_S)

    def _sort(self, obj: Object) -> None:
        """Queue an object with its controller, and its owners with theirs."""
        meta = obj["metadata"]
        for controller in self._controllers:
            if obj["kind"] == controller.kind and obj["apiVersion"] == controller.api_version:
                self._queue(controller, (meta["namespace"], meta["name"]))
            for ref in meta.get("ownerReferences", ()):
                if ref["kind"] == controller.kind and ref["apiVersion"] == controller.api_version:
                    self._queue(controller, (meta["namespace"], ref["name"]))

    def _queue(self, controller: Controller, key: Key, after: float = 0.0) -> None:
        if key not in self._waiting[controller]:
            self._waiting[controller].add(key)
            put = self._queues[controller].put_nowait
            asyncio.get_running_loop().call_later(controller.patience_s + after, put, key)

    async def _work(self, controller: Controller) -> None:
        """Reconcile one object after the other, but never the same one twice at a time."""
        while True:
            key = await self._queues[controller].get()
            self._waiting[controller].discard(key)
            if (controller, key) in self._busy:
                self._queue(controller, key, BUSY_S)
                continue
            self._busy.add((controller, key))
            again = await self._look(controller, key)
            self._busy.discard((controller, key))
            if again is not None:
                asyncio.get_running_loop().call_later(max(again, 0.01), self._queue, controller, key)

    async def _look(self, controller: Controller, key: Key) -> float | None:
        """Reconcile an object; return the seconds until the next time."""
        try:
            path = f"{collection(controller.api_version, controller.plural, key[0])}/{key[1]}"
            obj = await self._client.get(path)
            again = await controller.reconcile(obj) if obj else None
            if obj is None:
                await controller.forget(*key)
        except (aiohttp.ClientError, ApiError, ConnectionError):
            # A conflict means that the object has changed; a refusal or a lost connection may pass.
            self._failures[controller, key] += 1
            return float(min(RETRY_S * 2 ** self._failures[controller, key], LONGEST_RETRY_S))
        self._failures.pop((controller, key), None)
        return again
