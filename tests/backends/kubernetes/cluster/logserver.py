"""The log subresource of pods: the choice of a log, its start and its length, and following."""

import asyncio
import datetime
import time
from collections.abc import Callable

from aiohttp import web

from tests.backends.kubernetes.cluster.faults import Faults
from tests.backends.kubernetes.cluster.logs import Log
from tests.backends.kubernetes.cluster.refusals import Refusal
from tests.backends.kubernetes.cluster.resources import PODS, Object
from tests.backends.kubernetes.cluster.server import Call
from tests.backends.kubernetes.cluster.store import Store

CHUNK = 256 * 1024

FindLog = Callable[[str, str, bool], "Log | None"]


class LogEndpoint:
    """GET pods/NAME/log. `find` returns the log of a pod uid and container, in this or its previous life."""

    def __init__(self, store: Store, faults: Faults, find: FindLog) -> None:
        self._store, self._faults, self._find = store, faults, find

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answer with the log, or with the reason why there is none."""
        pod = self._store.get(PODS, call.namespace, call.name)
        _check_options(call)
        if not pod["spec"].get("nodeName"):
            return web.Response(status=204)
        name = named_container(call, pod)
        previous = call.flag("previous")
        log = self._find(pod["metadata"]["uid"], name, previous)
        if log is None:
            raise Refusal(400, _why_not(pod, name, previous))
        if previous and not log.files[0].exists():
            return web.Response(text=f"unable to retrieve container logs for containerd://{log.id}")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(call.http)
        await self._stream(call, log, response)
        return response

    async def _stream(self, call: Call, log: Log, response: web.StreamResponse) -> None:
        view, reader, more = _View(call), _Reader(log, _number(call, "tailLines")), log.listen()
        try:
            with self._faults.stream(call.http):
                while not view.full:
                    more.clear()
                    ended = log.closed
                    while data := reader.read(ended=ended):
                        await response.write(view.show(data))
                        await asyncio.sleep(self._faults.piece_s)
                    if ended or not call.flag("follow"):
                        break
                    await more.wait()
        finally:
            log.ignore(more)


class _Reader:
    """A reader of a log in whole lines, from the newest file on and across rotations."""

    def __init__(self, log: Log, tail: int | None) -> None:
        self._log, self._place, self._offset = log, len(log.files) - 1, 0
        if tail is not None:
            lines = log.files[-1].read_bytes().splitlines(keepends=True)
            self._offset = sum(map(len, lines[: len(lines) - tail])) if tail < len(lines) else 0

    def read(self, *, ended: bool) -> bytes:
        """Return more lines, or nothing if there are none for now."""
        with self._log.files[self._place].open("rb") as file:
            file.seek(self._offset)
            data = file.read(CHUNK)
        # A chunk may end in the middle of a line, but only the log itself may end without a newline.
        whole = data if ended and len(data) < CHUNK else data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        if not whole and self._place + 1 < len(self._log.files):
            self._place, self._offset = self._place + 1, 0
            return self.read(ended=ended)
        return whole


def _number(call: Call, name: str) -> int | None:
    return int(call.query[name]) if name in call.query else None


class _View:
    """A request's view of the log: since when, how much, with or without times."""

    def __init__(self, call: Call) -> None:
        query = call.query
        self._times = call.flag("timestamps")
        self._since = _since(query)
        self._limit = _number(call, "limitBytes")
        self.full = False

    def show(self, data: bytes) -> bytes:
        """Return the requested part of some whole lines."""
        # Not splitlines: a bare \r is part of the line.
        *whole, rest = data.split(b"\n")
        lines = [line + b"\n" for line in whole] + ([rest] if rest else [])
        if self._since:
            lines = [line for line in lines if line[:19] >= self._since]
        shown = b"".join(lines if self._times else [line.partition(b" ")[2] for line in lines])
        if self._limit is not None:
            shown = shown[: self._limit]
            self._limit -= len(shown)
            self.full = self._limit <= 0
        return shown


def _since(query: dict[str, str]) -> bytes:
    """Return the second from which lines are requested, without nanoseconds, as the kubelet does."""
    if "sinceSeconds" in query:
        moment = int(time.time()) - int(query["sinceSeconds"])
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)).encode()
    text = query.get("sinceTime", "")
    if not text:
        return b""
    whole, _, rest = text.partition(".")
    zone = rest.lstrip("0123456789") if rest else ""
    try:
        moment_at = datetime.datetime.fromisoformat((whole + zone).replace("Z", "+00:00"))
    except ValueError as error:
        why = f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse "{text}" as "2006"'
        raise Refusal(400, why) from error
    return moment_at.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S").encode()


def _check_options(call: Call) -> None:
    """Refuse options that make no sense, in the server's words."""
    query = call.query
    causes = []
    if "sinceSeconds" in query and "sinceTime" in query:
        text = "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"
        causes.append(("FieldValueForbidden", text, "[]"))
    if "stream" in query:
        causes.append(("FieldValueForbidden", "Forbidden: may not be specified", "stream"))
    for name, least, rule in (
        ("limitBytes", 1, "must be greater than 0"),
        ("sinceSeconds", 1, "must be greater than 0"),
        ("tailLines", 0, "must be greater than or equal to 0"),
    ):
        if name in query and int(query[name]) < least:
            causes.append(("FieldValueInvalid", f"Invalid value: {query[name]}: {rule}", name))
    if causes:
        entries = [{"reason": reason, "message": text, "field": field} for reason, text, field in causes]
        text = ", ".join(f"{field}: {text}" for _, text, field in causes)
        details = {"name": call.name, "kind": "PodLogOptions", "causes": entries}
        raise Refusal(422, f'PodLogOptions "{call.name}" is invalid: {text}', details=details)


def named_container(call: Call, pod: Object) -> str:
    """Return the container of a request; refuse an unknown name, and a missing one if a pod has several."""
    names = [container["name"] for container in pod["spec"]["containers"]]
    inits = [container["name"] for container in pod["spec"].get("initContainers", ())]
    name = call.query.get("container", "")
    if name and name not in names + inits:
        raise Refusal(400, f"container {name} is not valid for pod {call.name}")
    if not name and len(names) > 1:
        listed = " ".join(names)
        text = f"a container name must be specified for pod {call.name}, choose one of: [{listed}]"
        raise Refusal(400, text)
    return name or names[0]


def _why_not(pod: Object, name: str, previous: bool) -> str:
    where = f'container "{name}" in pod "{pod["metadata"]["name"]}"'
    if previous:
        return f"previous terminated {where} not found"
    statuses = pod.get("status", {})
    containers = [*statuses.get("containerStatuses", ()), *statuses.get("initContainerStatuses", ())]
    waiting = next((status["state"].get("waiting") for status in containers if status["name"] == name), None)
    reason = (waiting or {}).get("reason", "ContainerCreating")
    if reason in ("ErrImagePull", "ImagePullBackOff"):
        return f"{where} is waiting to start: trying and failing to pull image"
    return f"{where} is waiting to start: {reason}"
