"""The door to the API: asyncio, plain dicts in and out.

What failed for a moment is tried again: any request that the server turned away before looking at it
(429), and after any other trouble those that may happen twice. A create that was cut may have happened;
it counts as ours when what is there carries all labels and annotations that we sent.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any, NamedTuple

from nbtorchjob import loop
from nbtorchjob.backends.kubernetes.backoff import delays
from nbtorchjob.backends.kubernetes.bulk import Object, slim
from nbtorchjob.backends.kubernetes.connection import ACCEPT, Answer, Connection, Request
from nbtorchjob.backends.kubernetes.paths import REVIEWS, Api, Target
from nbtorchjob.backends.kubernetes.refusals import NameTaken, Refusal, Unreachable, refused

__all__ = ["Client", "Listing", "Object", "shared"]

MERGE = "application/merge-patch+json"
_PASSING = {429, 500, 502, 503, 504}
_TRIES = 7
_LONGEST_WAIT = 8.0
_PAGE = 500


class Listing(NamedTuple):
    """Objects, and the resourceVersion from which a watch goes on."""

    items: list[Object]
    version: str


class Client:
    """One kubeconfig context (None: the current one, or the pod's own account) in one event loop.

    Every verb raises ``Refusal`` with the server's answer in plain words, or ``Unreachable``.
    ``pause`` is how many seconds to wait after a first failure.
    """

    def __init__(self, context: str | None = None, *, pause: float = 0.25) -> None:
        self.context = context
        self.pause = pause
        self._connection = Connection(context)

    @property
    def requests(self) -> int:
        """How many requests were sent so far."""
        return self._connection.requests

    @property
    def reached(self) -> bool:
        """Whether the server has ever answered; one that hasn't is more likely the wrong one."""
        return self._connection.answered

    async def close(self) -> None:
        """Cut every connection; the client can be used again."""
        await self._connection.close()

    async def namespace(self) -> str:
        """Give the context's own namespace."""
        return await self._connection.namespace()

    async def get(self, target: Target) -> Object:
        """Give one object."""
        return _object(await self._ask("get", target, Request("GET", target.path)))

    async def list(self, api: Api, namespace: str | None, *, labels: str = "", fields: str = "") -> Listing:
        """Give all objects that fit both selectors, without their bulk (``bulk.py``), read in pages."""
        target = Target(api, namespace)
        query = _selection(labels, fields)
        items: list[Object] = []
        token, limit = "", {"limit": str(_PAGE)}
        while True:
            turn = {**query, **limit, **({"continue": token} if token else {})}
            try:
                found = await self._ask("list", target, Request("GET", target.path, turn))
            except Refusal as error:
                if error.status != 410 or not token:
                    raise
                # The pages were turned more slowly than the server keeps them: all at once, then.
                items, token, limit = [], "", {}
                continue
            page, metadata = found.get("items") or [], found.get("metadata")
            if not isinstance(page, list) or not isinstance(metadata, dict):
                raise _another("a list without items or metadata")
            items += (slim(_object(item), api) for item in page)
            token = metadata.get("continue", "")
            if not token:
                return Listing(items, metadata.get("resourceVersion", ""))

    async def create(self, api: Api, namespace: str | None, body: Object, *, dry_run: bool = False) -> Object:
        """Create ``body`` and give it as the server has it; ``dry_run`` only has the server check it."""
        name = body.get("metadata", {}).get("name")
        request = Request("POST", Target(api, namespace).path, _dry(dry_run=dry_run), body)
        return await self._ask("create", Target(api, namespace, name), request)

    async def patch(self, target: Target, body: Object, *, dry_run: bool = False) -> Object:
        """Merge ``body`` into one object and give the result."""
        return await self._ask(
            "patch", target, Request("PATCH", target.path, _dry(dry_run=dry_run), body, content=MERGE)
        )

    async def delete(self, target: Target, *, uid: str = "", propagation: str = "Background") -> bool:
        """Delete one object, with what it owns; False where there is none (any more).

        With ``uid`` a later object of the same name stays. A propagation is always sent: batch/v1 Jobs
        orphan their pods without one.
        """
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        body = {**options, "preconditions": {"uid": uid}} if uid else options
        try:
            await self._ask("delete", target, Request("DELETE", target.path, body=body))
        except Refusal as error:
            if error.status == 404 or (uid and error.status == 409):
                return False
            raise
        return True

    def watch(
        self,
        target: Target,
        version: str,
        seconds: float,
        *,
        late: float,
        labels: str = "",
        fields: str = "",
    ) -> AbstractAsyncContextManager[Answer]:
        """Open a watch from a resourceVersion on, for so long, or a little later; see :meth:`stream`."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(int(seconds)),
            **_selection(labels, fields),
        }
        return self.stream("watch", target, query, silence=seconds + late)

    @asynccontextmanager
    async def stream(
        self, verb: str, target: Target, query: Mapping[str, str], *, silence: float
    ) -> AsyncIterator[Answer]:
        """Open a stream; its chunks end with the body, or raise ``Unreachable`` when cut or silent.

        It isn't tried again here: who reads it knows from where to go on.
        """
        request = Request("GET", target.path, query, silence=silence, whole=None)
        async with self._connection.exchange(request) as answer:
            if answer.status >= 400:
                raise refused(verb, target, answer.status, await answer.read())
            yield answer

    async def document(self, path: str, *, accept: str = ACCEPT) -> Object:
        """Give what lies at a path that is no object's, such as ``/version``."""
        return await self._ask("get", Target(Api("", "", path, "")), Request("GET", path, accept=accept))

    async def _ask(self, verb: str, target: Target, request: Request) -> Object:
        doubt = False
        pauses = itertools.islice(delays(self.pause, _LONGEST_WAIT), _TRIES - 1)
        while True:
            wait = 0.0
            try:
                async with self._connection.exchange(request) as answer:
                    body = await answer.read()
                if answer.status < 400:
                    return _parsed(body)
                error = refused(verb, target, answer.status, body)
                wait = _seconds(answer.headers.get("Retry-After", ""))
            except Refusal as unanswered:
                error = unanswered
            if doubt and isinstance(error, NameTaken) and request.body:
                return await self._ours(target, request.body, error)
            pause = next(pauses, None)
            if pause is None or not self._passing(error, verb, target):
                raise error
            doubt = doubt or (verb == "create" and error.status != 429)
            await asyncio.sleep(max(pause, min(wait, _LONGEST_WAIT)))

    def _passing(self, error: Refusal, verb: str, target: Target) -> bool:
        """Whether to ask again."""
        if error.status == 429:
            return True
        if verb == "create" and not target.name and target.api != REVIEWS:
            return False
        if isinstance(error, Unreachable):
            return self.reached
        return error.status in _PASSING and "too large" not in error.said

    async def _ours(self, target: Target, sent: Object, taken: NameTaken) -> Object:
        found = await self.get(target)
        for what in ("labels", "annotations"):
            if not (sent["metadata"].get(what) or {}).items() <= (found["metadata"].get(what) or {}).items():
                raise taken
        return found


@cache
def shared(context: str | None, kubeconfig: str | None) -> Client:
    """Give the one client of a context for our own event loop; it is closed when the process ends.

    ``kubeconfig`` is what KUBECONFIG says: another file may mean another cluster by the same name.
    """
    client = Client(context)
    loop.at_end(client.close)
    return client


def _parsed(body: bytes) -> Object:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    raise _another(repr(" ".join(body[:80].decode("utf-8", "replace").split())))


def _object(found: Any) -> Object:
    """Give an object if it has what all have: metadata that is a mapping, with a name."""
    metadata = found.get("metadata") if isinstance(found, dict) else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise _another("an object without a name")
    for key in ("spec", "status"):
        if not isinstance(found.get(key) or {}, dict):
            raise _another(f"an object whose {key} is no mapping")
    for key in ("labels", "annotations"):
        if not isinstance(metadata.get(key) or {}, dict):
            raise _another(f"an object whose {key} are no mapping")
    return dict(found)


def _another(what: str) -> Refusal:
    return Refusal(f"what answers isn't a Kubernetes API, it says {what}: check the kubeconfig, or a proxy")


def _selection(labels: str, fields: str) -> dict[str, str]:
    return {name: text for name, text in (("labelSelector", labels), ("fieldSelector", fields)) if text}


def _dry(*, dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _seconds(retry_after: str) -> float:
    """Read the header: seconds, as the API server sends it; a proxy's date counts as none."""
    return float(retry_after) if retry_after.isdigit() else 0.0
