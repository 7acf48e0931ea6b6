"""Faults that tests cause between a client and the API server."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

from aiohttp import web

from tests.backends.kubernetes.cluster.refusals import REASONS, Refusal


@dataclass
class Trouble:
    """An error status for the next `times` requests that match."""

    method: str
    path: re.Pattern[str]
    code: int
    times: int


@dataclass(frozen=True)
class Moment:
    """An act at the next request that matches: before it is carried out, or after that."""

    user: str
    method: str
    path: re.Pattern[str]
    after: bool
    act: Callable[[], None]


@dataclass
class Faults:
    """Pending troubles and moments, the streams that can be cut, and how long a piece of a log takes."""

    troubles: list[Trouble] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    streams: dict[asyncio.Transport, str] = field(default_factory=dict)
    piece_s: float = 0.0

    def meet(self, method: str, path: str) -> None:
        """Refuse this request if a trouble matches it."""
        for trouble in self.troubles:
            if trouble.times and trouble.method in ("", method) and trouble.path.search(path):
                trouble.times -= 1
                raise Refusal(
                    trouble.code, f"the server says {REASONS.get(trouble.code, trouble.code)} for now"
                )

    @contextlib.asynccontextmanager
    async def around(self, user: str, method: str, path: str) -> AsyncIterator[None]:
        """Call the acts before and after this request; a ConnectionError means that it goes no further."""
        faults = [
            moment
            for moment in self.moments
            if moment.user in ("", user) and moment.method == method and moment.path.search(path)
        ]
        for fault in faults:
            self.moments.remove(fault)
        # Not in the server's own thread: an act may send requests to the server.
        for fault in (fault for fault in faults if not fault.after):
            await asyncio.to_thread(fault.act)
        yield
        for fault in (fault for fault in faults if fault.after):
            await asyncio.to_thread(fault.act)

    @contextlib.contextmanager
    def stream(self, request: web.Request) -> Iterator[None]:
        """Register a stream for ``cut``, as long as it lasts."""
        transport = request.transport
        assert transport is not None
        self.streams[transport] = request.path
        try:
            yield
        finally:
            self.streams.pop(transport, None)

    def cut(self, path: str = "") -> int:
        """Abort the streams (watches, followed logs) with a path that matches; return how many."""
        transports = [transport for transport, at in self.streams.items() if re.search(path, at)]
        for transport in transports:
            self.streams.pop(transport, None)
            transport.abort()
        return len(transports)
