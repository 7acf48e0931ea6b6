"""Wrong answers in an API server's place, and a server that gives one of them to all requests."""

import asyncio
import functools
import threading
import zlib
from contextlib import contextmanager
from types import MappingProxyType

from tests.backends.kubernetes.scripted import CUT, HANG, Reply, Server, Stream, kubeconfig
from tests.patience import LIMIT

MIB = 1 << 20
_NAMED = {"name": "train-2222", "uid": "u", "resourceVersion": "1"}
_GZIP = {"Content-Encoding": "gzip"}


def listed(*items, **metadata):
    """Return a list of objects."""
    return {"kind": "PodList", "metadata": {"resourceVersion": "1", **metadata}, "items": list(items)}


def _long(begin, piece, count, counted):
    def pieces():
        yield begin
        for _ in range(count):
            counted[0] += len(piece)
            yield piece

    return Stream(pieces())


def _endless(request):
    return Reply(body=listed(**{"continue": "the same"}))


@functools.cache
def _bomb():
    packer = zlib.compressobj(1, wbits=31)  # gzip's format, without 300 MiB in memory
    parts = [packer.compress(b'{"items": [')] + [packer.compress(b" " * MIB) for _ in range(300)]
    return b"".join([*parts, packer.flush()])


# Answers by name; each is made anew for each request, and counts the bytes that it has sent.
ANSWERS = MappingProxyType(
    {
        "a login page": lambda _: Reply(200, b"<html><title>Please sign in</title>"),
        "nothing at all": lambda _: Reply(200, b""),
        "bytes": lambda _: Reply(200, bytes(range(256))),
        "half of an answer": lambda _: Reply(200, b'{"metadata": {"name": "tra'),
        "an answer that breaks off": lambda _: Stream([b'{"metadata": '], CUT),
        "a list for an object, and an object for a list": lambda _: Reply(200, [{"metadata": _NAMED}]),
        "a number": lambda _: Reply(200, 7),
        "a success of something else": lambda _: Reply(200, {"kind": "Status", "metadata": {}}),
        "items that are null": lambda _: Reply(200, listed(None)),
        "items that aren't a list": lambda _: Reply(200, {**listed(), "items": {"a": 1}}),
        "no metadata": lambda _: Reply(200, {"items": [{}]}),
        "a number for a name": lambda _: Reply(200, listed({"metadata": {**_NAMED, "name": 7}})),
        "labels that are a list": lambda _: Reply(200, listed({"metadata": {**_NAMED, "labels": ["a"]}})),
        "a deep nest": lambda _: Reply(200, b'{"metadata":' * 100_000),
        "a list without an end": lambda _: _endless,
        "300 MiB": lambda sent: _long(b'{"items": [', b" " * MIB, 300, sent),
        "a bomb": lambda _: Reply(200, _bomb(), _GZIP),
        "a byte now and then": lambda _: Stream([b" "], HANG),
        "an error of odd parts": lambda _: Reply(403, {"kind": "Status", "reason": 7, "details": [None]}),
    }
)

_GOOD = {
    "/version": {"gitVersion": "v1.36.2"},
    "/apis": {"kind": "APIGroupList", "groups": [{"name": "batch", "versions": [{"version": "v1"}]}]},
    "/apis/batch/v1": {"resources": [{"name": "jobs"}]},
}


class _Wrong(dict):  # type: ignore[type-arg]
    """Replies that are the same for every path but some."""

    def __init__(self, answer, sent, good):
        super().__init__({path: [Reply(body=body)] for path, body in good.items()})
        self._answer, self._sent = answer, sent

    def get(self, path, default=None):
        return super().get(path) or [self._answer(self._sent)]


@contextmanager
def serving(folder, monkeypatch, name, *, good=MappingProxyType(_GOOD)):
    """Serve a wrong answer to all but discovery, as the context "far"; yield a count of the bytes sent."""
    sent, ready, stop = [0], threading.Event(), []
    ANSWERS[name](sent)  # a bomb takes a second to make

    async def serve():
        async with Server() as server:
            server.replies = _Wrong(ANSWERS[name], sent, good)
            monkeypatch.setenv("KUBECONFIG", kubeconfig(folder / "far", server.url, name="far", token="t"))
            end = asyncio.Event()
            stop.append(functools.partial(asyncio.get_running_loop().call_soon_threadsafe, end.set))
            ready.set()
            await end.wait()

    # asyncio.run ends all tasks, even that of the last connection.
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(LIMIT)
    try:
        yield sent
    finally:
        stop[0]()
        thread.join()
