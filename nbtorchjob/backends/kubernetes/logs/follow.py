"""One container's log, followed to its end: no line lost, none doubled, whatever breaks in between.

A stream that ends proves nothing: it does so when the container ends, but also when the kubelet restarts
(cleanly), when the API server does (cut), and when nothing was said for long. So after every end we ask what
has become of the container, and ask for the log again from the last second on, until the container
has ended and one more answer brought nothing new.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.api.connection import delays
from nbtorchjob.backends.kubernetes.logs.lines import Lines, Seen, Splitter, earlier
from nbtorchjob.backends.kubernetes.objects.paths import PODS, Target
from nbtorchjob.errors import ApiError, ClusterError, NotFoundError, UnreachableError
from nbtorchjob.frozen import FrozenDataclass

__all__ = ["Life", "Lines", "follow", "read_all"]

# No heartbeat comes while a container is silent, so a dead connection is found only by asking again.
SILENCE_SECONDS = 120.0
_LONGEST_WAIT = 2.0
# For how often the kubelet of a container that has ended may fail to give its log: its host may be gone.
LAST_TRIES = 30


class Life(FrozenDataclass):
    """What is known of a container: how often it was restarted, and whether more can come.

    ``ended``: it won't be started again. ``gone``: its pod doesn't exist any more.
    """

    restarts: int = 0
    ended: bool = False
    gone: bool = False


async def follow(
    client: Client,
    namespace: str,
    pod: str,
    container: str,
    *,
    ended: Callable[[], Awaitable[Life]],
    silence: float = SILENCE_SECONDS,
    tries: int = LAST_TRIES,
    seen: Seen | None = None,
) -> AsyncGenerator[Lines, None]:
    """Yield the lines of a container and, after a restart in place, of the next one, until ``ended`` says so.

    Those of one read from the network at a time; while it isn't taken, no more is read. Waits for a pod that
    hasn't started yet. ``ended`` is asked before every request, and must know the pod by its uid: another
    one may get its name. ``seen`` are lines of an earlier call that aren't given again. Raises
    ``ClusterError`` where the log may not be read, or the last of it can't.
    """
    log = _Log(client, Target(PODS, namespace, pod, "log"), container, silence, seen or Seen())
    pauses, restarts, failures = delays(client.pause, _LONGEST_WAIT), 0, 0
    while not (life := await ended()).gone:
        heard = False
        try:
            if life.restarts > restarts:
                async for lines in log.before():
                    yield lines
                restarts = life.restarts
            async for lines in log.read(follow=not life.ended):
                heard = True
                yield lines
            if life.ended:
                return
        except NotFoundError:
            return
        except ClusterError as error:
            if life.ended and _without_log(error):
                return
            failures += life.ended and isinstance(error, ApiError) and error.server_error
            if not _passing(error) or failures > tries:
                raise
        if heard:
            pauses = delays(client.pause, _LONGEST_WAIT)
        await asyncio.sleep(next(pauses))


def read_all(
    client: Client,
    namespace: str,
    pod: str,
    container: str,
    *,
    restarts: int = 0,
    seen: Seen | None = None,
) -> AsyncGenerator[Lines, None]:
    """Return the whole log of a container that has ended, and of the one before where it was restarted."""

    async def over() -> Life:
        return Life(restarts, ended=True)

    return follow(client, namespace, pod, container, ended=over, seen=seen)


class _Log:
    """One container's log, of which no line is given twice."""

    def __init__(self, client: Client, target: Target, container: str, silence: float, seen: Seen) -> None:
        self._client = client
        self._target = target
        self._silence = silence
        self._query = {"container": container, "timestamps": "true"}
        self._seen = seen
        self._blanks = 0  # batches with empty lines that were really empty

    async def before(self) -> AsyncGenerator[Lines, None]:
        """Yield the rest of the container before this one, if it can still be had.

        The kubelet keeps one dead container, and only until the next one has ended too.
        """
        try:
            async for lines in self.read(previous=True):
                yield lines
        except ClusterError as error:
            if _passing(error):
                raise

    async def read(self, *, follow: bool = False, previous: bool = False) -> AsyncGenerator[Lines, None]:
        """Yield what one answer has that wasn't given yet."""
        asked = {"follow": follow, "previous": previous}
        query = {name: "true" for name, wanted in asked.items() if wanted}
        repeats = self._seen.repeats()
        async with aclosing(
            self._answer({**query, **self._since(self._seen.since)}, whole=not follow)
        ) as answer:
            async for lines in answer:
                new = repeats.drop(lines)
                if not new:
                    continue
                self._seen.add(new.stamps)
                yield await self._mend(new) if follow else new

    async def _answer(self, query: dict[str, str], *, whole: bool) -> AsyncGenerator[Lines, None]:
        splitter = Splitter()
        request = self._client.stream(
            "get", self._target, {**self._query, **query}, silence=self._silence, many=True
        )
        async with request as answer:
            async for chunk in answer.chunks():
                yield splitter.feed(chunk)
            if whole:
                # Of a followed log, half a line at the end may be one that the kubelet broke off.
                yield splitter.end()

    def _since(self, time: str) -> dict[str, str]:
        return {"sinceTime": time} if time else {}

    async def _mend(self, lines: Lines) -> Lines:
        """Fill in lines that came out empty: the kubelet may lose one when it rotates a followed log."""
        blank = lines.blank()
        if not blank:
            return lines
        # Programs print empty lines too: the more of them were real, the rarer it is asked again.
        if self._blanks & (self._blanks - 1):
            self._blanks += 1
            return lines
        mended = await self._data(set(blank), earlier(blank[0]))
        self._blanks += not any(mended.values())
        return Lines.of((stamp, data or mended.get(stamp, b"")) for stamp, data in lines)

    async def _data(self, stamps: set[bytes], since: str) -> dict[bytes, bytes]:
        by_stamp: dict[bytes, bytes] = {}
        try:
            async with aclosing(self._answer(self._since(since), whole=True)) as answer:
                async for lines in answer:
                    by_stamp.update(line for line in lines if line[0] in stamps)
                    if len(by_stamp) == len(stamps):
                        break
        except ClusterError:
            pass
        return by_stamp


def _without_log(error: ClusterError) -> bool:
    # The kubelet's words; it knows nothing of a container before it has first looked at a pod that has just
    # got its host ("container … is not available"), and nothing any more of one that its host has lost while
    # the pod was deleted: it has terminated then, without an id (1.20).
    said = ("is waiting to start", "is not available", "is terminated")
    return isinstance(error, ApiError) and error.bad_request and any(words in error.said for words in said)


def _passing(error: ClusterError) -> bool:
    """Whether it is worth asking again."""
    if isinstance(error, ApiError):
        return error.too_many or error.server_error or _without_log(error)
    return isinstance(error, UnreachableError)
