"""The API client: asyncio, plain dicts in and out.

Requests that fail for a moment are tried again for half a minute: any request that the server turned away
before looking at it (429), and after any other trouble those that may happen twice. A create that was cut may
have happened; an existing object counts as ours if it carries all labels and annotations that we sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from http import HTTPStatus
from random import Random
from typing import Any, NamedTuple, TypeVar

from nbtorchjob.backends.kubernetes.api import answers
from nbtorchjob.backends.kubernetes.api.answers import Object, Shape, slim
from nbtorchjob.backends.kubernetes.api.connection import (
    ACCEPT,
    OBJECT_BYTES,
    Answer,
    Connection,
    RefusedError,
    Remote,
    Request,
)
from nbtorchjob.backends.kubernetes.api.errors import api_error
from nbtorchjob.backends.kubernetes.objects.reading import REVIEWS, Api, Target
from nbtorchjob.errors import (
    AlreadyExistsError,
    AnswerTooLargeError,
    ApiError,
    ClusterError,
    NotFoundError,
    UnreachableError,
)
from nbtorchjob.machine import loop

T = TypeVar("T")

MERGE = "application/merge-patch+json"
JOIN = "application/strategic-merge-patch+json"
_TRIES = 7
_LONGEST_WAIT = 8.0
_PAGE = 500
# A thousand jobs and their pods take 25 MiB, a page of them less than this; bigger objects get smaller pages.
_PAGE_BYTES = 16 << 20
_LIST_BYTES = 128 << 20
_LIST_S = 120.0  # for all pages of a list together: twice what an API server gives one answer
# Nothing is tried again after that long: a person waits for it, and callers that can wait try again by
# themselves. An API server that is being replaced is back before that.
_PATIENCE_S = 30.0
# A person waits no longer for a silent server: a list may take longer, but a small request doesn't.
_SILENT_S, _SMALL_S = 2.0, 2.5
# Names and labels without the rest: a Secret's data, above all.
_BARE = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_CHANGES = ("ADDED", "MODIFIED", "DELETED")


class Listing(NamedTuple):
    """Objects, and the resourceVersion from which a watch goes on."""

    items: list[Object]
    version: str


class Client:
    """One kubeconfig context (None: the current one, or the pod's own account) in one event loop.

    Every verb raises ``ClusterError`` with the server's answer in plain words, or ``UnreachableError``.
    ``pause`` is how many seconds to wait after a first failure.
    """

    def __init__(self, context: str | None = None, *, pause: float = 0.25) -> None:
        self.pause = pause
        self._connection = Connection(context)

    @property
    def requests(self) -> int:
        """How many requests were sent so far."""
        return self._connection.requests

    @property
    def context(self) -> str | None:
        """The kubeconfig's context; once logged in, the one that was the current one, if None was chosen."""
        return self._connection.context

    def now(self) -> float:
        """Return the cluster's time, in seconds since the epoch."""
        return self._connection.clock.now()

    def at(self, local_time: float) -> float:
        """Return a time of this machine's clock by the cluster's; 0 where the clocks agree."""
        return self._connection.clock.at(local_time)

    @property
    def reached(self) -> bool:
        """Whether the server has ever answered; one that hasn't is more likely the wrong one."""
        return self._connection.answered

    async def close(self) -> None:
        """Cut every connection; the client can be used again."""
        await self._connection.close()

    async def namespace(self) -> str:
        """Return the context's own namespace."""
        return await self._connection.namespace()

    async def unless_away(self, work: Coroutine[Any, Any, T], *, patient: bool = False) -> T:
        """Do ``work`` for a person who waits; give up once the server doesn't answer at all.

        Behind a load balancer, a server that is gone accepts connections, but never answers. One that has
        answered before is more likely being replaced, and back in half a minute: ``patient`` waits for it.
        """
        if patient and self.reached:
            return await work
        doing = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([doing], timeout=_SILENT_S))[0]:
                # A small request tells a slow server from one that is away.
                request = Request("GET", "/version", whole=_SMALL_S)
                async with self._connection.exchange(request) as answer:
                    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                        target = Target(Api("", "", "version", ""))
                        raise api_error("get", target, answer.status, await answer.read())
            return await doing
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)

    async def get(self, target: Target) -> Object:
        """Return one object."""
        return _object(await self._ask("get", target, Request("GET", target.path)), target.api)

    async def list(
        self, api: Api, namespace: str | None, *, labels: str = "", fields: str = "", bare: bool = False
    ) -> Listing:
        """Return all objects that fit both selectors, without their bulk (``answers.slim``), read in pages.

        With ``bare``, only their metadata is read.
        """
        target, query = Target(api, namespace), _selection(labels, fields)
        shape, accept = (answers.BARE, _BARE) if bare else (answers.of(api), ACCEPT)
        items: list[Object] = []
        token, limit, left = "", _PAGE, _LIST_BYTES
        until = time.monotonic() + _LIST_S
        while time.monotonic() < until:
            turn = {"limit": str(limit) if limit else "", "continue": token}
            turn = {**query, **{key: text for key, text in turn.items() if text}}
            request = Request("GET", target.path, turn, accept=accept)
            try:
                body = await self._body("list", target, request, min(left, _PAGE_BYTES) if limit else left)
            except AnswerTooLargeError:
                if limit <= 1 or left < _PAGE_BYTES:
                    raise
                limit = max(1, limit // 25)
                continue
            except ApiError as error:
                if not (error.expired and token):
                    raise
                # The pages were read more slowly than the server keeps them: read all at once.
                items, token, limit, left = [], "", 0, _LIST_BYTES
                continue
            left -= len(body)
            page = _parsed(body)
            _fit(page, answers.PAGE, f"a list of {api.plural}")
            if "items" not in page:
                raise _another(f"a {page.get('kind')!r} for a list of {api.plural}")
            for item in page["items"] or ():
                _fit(item, shape, f"a list of {api.plural}")
                items.append(slim(item, api))
            before, token = token, page["metadata"].get("continue") or ""
            if not token:
                return Listing(items, page["metadata"].get("resourceVersion") or "")
            if token == before:
                raise _another(f"a list of {api.plural} without an end")
        raise UnreachableError(
            f"the cluster hasn't listed its {api.plural} within {_LIST_S:.0f} s: try again"
        )

    async def create(self, api: Api, namespace: str | None, body: Object, *, dry_run: bool = False) -> Object:
        """Create ``body`` and return it as the server has it; ``dry_run`` only has the server check it."""
        name = body.get("metadata", {}).get("name")
        request = Request("POST", Target(api, namespace).path, _dry(dry_run=dry_run), body)
        return _object(await self._ask("create", Target(api, namespace, name), request), api)

    async def patch(
        self, target: Target, body: Object, *, dry_run: bool = False, join: bool = False
    ) -> Object:
        """Merge ``body`` into one object and return the result.

        With ``join``, lists such as that of owners are joined with the existing ones; this works only for
        kinds that Kubernetes itself defines.
        """
        request = Request("PATCH", target.path, _dry(dry_run=dry_run), body, content=JOIN if join else MERGE)
        return _object(await self._ask("patch", target, request), target.api)

    async def delete(self, target: Target, *, uid: str = "", propagation: str = "Background") -> bool:
        """Delete one object, with what it owns; False if it doesn't exist (any more).

        With ``uid`` a later object of the same name stays. A propagation is always sent: batch/v1 Jobs
        orphan their pods without one.
        """
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        body = {**options, "preconditions": {"uid": uid}} if uid else options
        try:
            await self._ask("delete", target, Request("DELETE", target.path, body=body))
        except NotFoundError:
            return False
        except ApiError as error:
            if uid and error.conflict:
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
        """Open a watch from a resourceVersion on, for ``seconds`` or a little longer; see :meth:`stream`."""
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
        self, verb: str, target: Target, query: Mapping[str, str], *, silence: float, many: bool = False
    ) -> AsyncIterator[Answer]:
        """Open a stream; its chunks end with the body, or raise ``UnreachableError`` when cut or silent.

        It isn't tried again here: the reader knows from where to go on. ``many`` such streams share a few
        connections, if the server can do that; otherwise one too many raises ``OpenFilesError``.
        """
        request = Request("GET", target.path, query, silence=silence, whole=None, many=many)
        async with self._connection.exchange(request) as answer:
            if answer.status >= 400:
                raise api_error(verb, target, answer.status, await answer.read())
            yield answer

    @asynccontextmanager
    async def exec(self, pod: Target, container: str, command: Sequence[str]) -> AsyncIterator[Remote]:
        """Run a command in a container; it isn't tried again.

        Leaving the context ends the command's stdin, but not the command: that ends by itself.
        """
        target = pod._replace(part="exec")
        streams = [(name, "true") for name in ("stdin", "stdout", "stderr")]
        query = [*(("command", word) for word in command), ("container", container), *streams]
        try:
            async with self._connection.channels(target.path, query) as remote:
                yield remote
        except RefusedError as refused:
            raise api_error("get", target, refused.status, refused.body) from None

    async def document(self, path: str, shape: Shape, *, accept: str = ACCEPT) -> Object:
        """Return the document at a path that isn't an object's, such as ``/version``."""
        document = await self._ask("get", Target(Api("", "", path, "")), Request("GET", path, accept=accept))
        _fit(document, shape, path)
        return document

    async def _ask(self, verb: str, target: Target, request: Request) -> Object:
        return _parsed(await self._body(verb, target, request))

    async def _body(self, verb: str, target: Target, request: Request, most: int = OBJECT_BYTES) -> bytes:
        doubt, tries, until = False, 0, time.monotonic() + _PATIENCE_S
        pauses = delays(self.pause, _LONGEST_WAIT)
        while True:
            wait = 0.0
            try:
                async with self._connection.exchange(request) as answer:
                    body = await answer.read(most)
                if answer.status < 400:
                    return body
                error: ClusterError = api_error(verb, target, answer.status, body)
                after = answer.headers.get("Retry-After", "")
                wait = float(after) if after.isdigit() else 0.0  # a date, as proxies send, is ignored
            except ClusterError as unanswered:
                error = unanswered
            if doubt and isinstance(error, AlreadyExistsError) and request.body:
                body = await self._body("get", target, Request("GET", target.path))
                obj = _object(_parsed(body), target.api)
                for field in ("labels", "annotations"):
                    if (
                        not (request.body["metadata"].get(field) or {}).items()
                        <= (obj["metadata"].get(field) or {}).items()
                    ):
                        raise error
                return body
            tries += 1
            pause = max(next(pauses), min(wait, _LONGEST_WAIT))
            over = tries == _TRIES or time.monotonic() + pause > until
            if over or not self._passing(error, verb, target):
                raise error
            doubt = doubt or (verb == "create" and not _turned_away(error))
            await asyncio.sleep(pause)

    def _passing(self, error: ClusterError, verb: str, target: Target) -> bool:
        """Whether to try again."""
        if _turned_away(error):
            return True
        if verb == "create" and not target.name and target.api != REVIEWS:
            return False
        if isinstance(error, ApiError):
            return error.server_error and "too large" not in error.said
        return isinstance(error, UnreachableError) and self.reached


@cache
def shared(context: str | None, kubeconfig: str | None) -> Client:
    """Return the one client of a context for our own event loop; it is closed when the process ends.

    ``kubeconfig`` is what KUBECONFIG says: another file may mean another cluster by the same name.
    """
    client = Client(context)
    loop.at_end(client.close)
    return client


os.register_at_fork(after_in_child=shared.cache_clear)  # its connections are its parent's


def _turned_away(error: ClusterError) -> bool:
    """Whether the server refused the request for now, and has done nothing."""
    if not isinstance(error, ApiError):
        return False
    # The admission by a quota gives up once others have changed the quota's status too often meanwhile, as
    # when many objects are created at once (kubernetes/kubernetes#67761).
    return error.too_many or (error.conflict and "cannot be fulfilled on resourcequotas" in error.said)


def _parsed(body: bytes) -> Object:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        return document
    raise _another(repr(" ".join(body[:80].decode("utf-8", "replace").split())))


def _object(obj: Object, api: Api) -> Object:
    """Return an object if everything that is read of such objects has the right shape."""
    _fit(obj, answers.of(api), f"a {api.kind}")
    obj.setdefault("kind", api.kind)
    obj.setdefault("apiVersion", api.group_version)
    return obj


def parse_change(line: bytes, target: Target) -> tuple[str, Object]:
    """Return the type and the object of a watch's line; raises ``ApiError`` for a line with an error."""
    change = _parsed(line)
    _fit(change, answers.HEARD, "a watch")
    type_, obj = change["type"], change["object"]
    if type_ in _CHANGES:
        return type_, slim(_object(obj, target.api), target.api)
    if type_ != "BOOKMARK":
        code = obj.get("code")
        raise api_error("watch", target, code if isinstance(code, int) else 500, json.dumps(obj).encode())
    _fit(obj, answers.MARK, "a watch")
    return type_, obj


def _fit(answer: Any, shape: Shape, description: str) -> None:
    if bad := answers.wrong(answer, shape):
        raise _another(f"{description} with a {bad} of another kind")


def _another(description: str) -> ClusterError:
    return ClusterError(
        f"the server isn't a Kubernetes API, it answered with {description}: check the kubeconfig, or a proxy"
    )


def _selection(labels: str, fields: str) -> dict[str, str]:
    return {name: text for name, text in (("labelSelector", labels), ("fieldSelector", fields)) if text}


def _dry(*, dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


# Not `random` itself: a notebook that has seeded it must find its own numbers there.
_random = Random()


def delays(first: float, cap: float) -> Iterator[float]:
    """Yield seconds without end: ``first``, doubling up to ``cap``.

    Each is cut by up to a half at random, so that the clients of a server that was away don't all come
    back at the same moment.
    """
    while True:
        yield first * _random.uniform(0.5, 1)
        first = min(first * 2, cap)
