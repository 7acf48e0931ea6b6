"""One container's log, followed to its end: no line lost, none doubled, whatever breaks in between.

The end of a stream proves nothing: it ends with the container, but also when the kubelet restarts (cleanly),
when the API server does (cut), and when nothing was written for long. So after every end the follower checks
the state of the container, and requests the log again from the last second on, until the container has ended
and one more answer brought nothing new.

The API sends lines with ``timestamps=true``. How they behave, as seen with Kubernetes 1.36 and containerd:
every line has its own stamp, but lines of stdout and stderr written close together may be swapped in the
file; ``sinceTime`` is cut to whole seconds; a line above 16 KiB is stored in pieces with a stamp each and
served joined under the first, unless ``sinceTime`` leaves out some of its pieces.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from itertools import chain
from operator import methodcaller
from typing import TypeAlias

from nbtorchjob.backends.kubernetes.api.client import Client, delays
from nbtorchjob.backends.kubernetes.objects.reading import PODS, Target
from nbtorchjob.errors import ApiError, ClusterError, NotFoundError, UnreachableError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.store import frames

# When a line was written (RFC 3339, nanoseconds), and the line without its newline.
Line: TypeAlias = "tuple[bytes, bytes]"

# A stdout line may be written this many lines after a stderr line that was stamped later, and the other
# way round; at 100,000 lines a second that is a sixth of a second.
_REMEMBERED = 1 << 14
# Nothing that is meant to be read is longer; a program that writes for ever without a newline gets cut.
_LONGEST = 1 << 20
_SECOND = len("2026-01-01T00:00:00")
# The sort key for stamps of different lengths. Old kubelets leave out trailing zeros: without the "Z",
# "…:05.1" still sorts before "…:05.12"; the sign that other zones begin with sorts before any digit.
_order = methodcaller("rstrip", b"Z")
# If there is no log any more, the kubelet answers 200 with "unable to retrieve container logs for …": text
# without a stamp is no line.
_lines = re.compile(rb"^([^ \n]{10}T[^ \n]*) ?(.*)$", re.MULTILINE).findall
# What ranks wrote. Each byte is examined once, in C. "Not a space" alone matches faster than with "nor a
# newline", so the length of a stamp is limited instead.
_split_fields = re.compile(rb"^(\d{4}-[^ ]{15,30}) %s(.*\n)" % frames.HEAD, re.MULTILINE).split


class Lines:
    """Whole lines of a log; those that ranks wrote are stored in columns, without an object for each line.

    ``stamps`` are those of all lines. The columns ``rank_stamps``, ``logs``, ``offsets``, ``marks``
    (see ``runtime/store/frames.py``) and ``texts`` (with a newline) have an entry for each line of a rank's
    log; ``others`` are the other lines, by the index of the entry that they precede (or one past the last).
    """

    def __init__(self, raw: bytes) -> None:
        fields = _split_fields(raw)
        columns = [fields[at::6] for at in range(6)]
        between, self.rank_stamps, self.logs, self.offsets, self.marks, self.texts = columns
        self.raw, self.stamps = raw, self.rank_stamps
        self.others: dict[int, list[Line]] = {}
        if any(between):
            self.others = {at: _lines(text) for at, text in enumerate(between) if text}
            lines = _lines(raw)
            self.raw, self.stamps = _raw(lines), [stamp for stamp, _ in lines]

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Lines:
        """Return these lines."""
        return cls(_raw(lines))

    def __len__(self) -> int:
        return len(self.stamps)

    def __iter__(self) -> Iterator[Line]:
        return iter(_lines(self.raw))

    def behind(self, count: int) -> Lines:
        """Return all but the first ``count`` lines."""
        return Lines(self.raw.split(b"\n", count)[count]) if count else self

    def blank(self) -> list[bytes]:
        """Return the stamps of empty lines."""
        return [stamp for lines in self.others.values() for stamp, data in lines if not data]


def _raw(lines: Iterable[Line]) -> bytes:
    return b"".join([b"%b %b\n" % line for line in lines])


class Splitter:
    """Turns the chunks that arrive into lines, wherever they were split."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._length = 0

    def feed(self, chunk: bytes) -> Lines:
        """Return the lines that ``chunk`` completes."""
        end, whole = chunk.rfind(b"\n") + 1, b""
        if end:
            whole = b"".join([*self._rest, chunk[:end]])
            self._rest, self._length = [], 0
        rest = chunk[end:]
        if rest and self._length < _LONGEST:
            self._rest.append(rest)
            self._length += len(rest)
        return Lines(whole)

    def end(self) -> Lines:
        """Return the last line, which has no newline if the program wrote none."""
        return Lines(b"".join([*self._rest, b"\n"]))


class SeenLines:
    """Which lines were yielded already, so that a log can be requested again."""

    def __init__(self) -> None:
        self._recent: deque[tuple[Sequence[bytes], bytes]] = deque()  # with the latest of each
        self._count = 0
        self._before = b""  # all lines with stamps up to this one were yielded
        self._latest = b""
        self._again = b""  # the second from which lines come again

    def add(self, stamps: Sequence[bytes]) -> None:
        """Record that lines with these stamps were yielded."""
        latest = max(stamps)  # its second is right without ``_order``, too
        if latest[:_SECOND] > self._latest[:_SECOND]:
            with suppress(ValueError):  # a line without a time in front
                self._again = earlier(latest)[:_SECOND].encode()
        self._latest = max(self._latest, latest)
        if stamps[0][:_SECOND] < self._again:  # as when catching up with a log
            over = [stamp for stamp in stamps if stamp[:_SECOND] < self._again]
            stamps = [stamp for stamp in stamps if stamp[:_SECOND] >= self._again]
            self._before = max(self._before, _order(_latest(over)))
        self._recent.append((stamps, latest))
        self._count += len(stamps)
        # A thousand logs may be followed at once: stamps that won't come again aren't remembered.
        while len(self._recent) > 1 and (
            self._count - len(self._recent[0][0]) >= _REMEMBERED or self._recent[0][1][:_SECOND] < self._again
        ):
            old, _ = self._recent.popleft()
            self._count -= len(old)
            if old:
                self._before = max(self._before, _order(_latest(old)))

    @property
    def since(self) -> str:
        """The time from which to request the log again (``sinceTime``); empty for the start.

        One second early: a line that was stamped before the latest one may come after it.
        """
        return earlier(self._latest) if self._latest else ""

    def repeats(self) -> Repeats:
        """Return what a new answer will repeat."""
        recent = chain.from_iterable(stamps for stamps, _ in self._recent)
        return Repeats(Counter(recent), self._before, self._latest)


class Repeats:
    """The lines that an answer repeats. They come first: no new line precedes one that was yielded."""

    def __init__(self, owed: Counter[bytes], before: bytes, latest: bytes) -> None:
        self._owed = owed
        self._before = before
        self._second = latest[:_SECOND]

    def drop(self, lines: Lines) -> Lines:
        """Return the lines after the last one that was yielded already.

        A line before that one that wasn't yielded is no whole line: ``sinceTime`` cut off its first pieces.
        """
        if not lines or min(lines.stamps)[:_SECOND] > self._second:
            return lines
        new = 0
        for index, stamp in enumerate(lines.stamps, 1):
            if self._owed.get(stamp, 0):
                self._owed[stamp] -= 1
                new = index
            elif _order(stamp) <= self._before:
                new = index
        return lines.behind(new)


def _latest(stamps: Sequence[bytes]) -> bytes:
    return max(stamps) if len({*map(len, stamps)}) == 1 else max(stamps, key=_order)


def earlier(stamp: bytes) -> str:
    """Return the full second before the one of ``stamp``, in its own time zone, as ``sinceTime`` takes it."""
    second = datetime.fromisoformat(stamp[:_SECOND].decode()) - timedelta(seconds=1)
    return second.isoformat() + ("Z" if stamp.endswith(b"Z") else stamp[-6:].decode())


# No heartbeat comes while a container is silent, so a dead connection is found only by asking again.
SILENCE_SECONDS = 120.0
_LONGEST_WAIT = 2.0
# How often the kubelet may fail to return the log of a container that has ended: its host may be gone.
LAST_TRIES = 30


class Life(FrozenDataclass):
    """The state of a container: how often it was restarted, and whether its log can grow.

    ``ended``: it won't be started again. ``missing``: its pod doesn't exist any more.
    """

    restarts: int = 0
    ended: bool = False
    missing: bool = False


async def follow(
    client: Client,
    namespace: str,
    pod: str,
    container: str,
    *,
    ended: Callable[[], Awaitable[Life]],
    silence: float = SILENCE_SECONDS,
    tries: int = LAST_TRIES,
    seen: SeenLines | None = None,
) -> AsyncGenerator[Lines, None]:
    """Yield the lines of a container and, after a restart in place, of the next one, until ``ended`` says so.

    Each item holds the lines of one read from the network; until it is taken, no more is read. Waits for a
    pod that hasn't started yet. ``ended`` is called before every request, and must identify the pod by its
    uid: another one may get its name. ``seen`` are lines of an earlier call that aren't yielded again. Raises
    ``ClusterError`` if the log may not be read, or if the end of it can't be.
    """
    log = _Log(client, Target(PODS, namespace, pod, "log"), container, silence, seen or SeenLines())
    pauses, restarts, failures = delays(client.pause, _LONGEST_WAIT), 0, 0
    while not (life := await ended()).missing:
        has_lines = False
        try:
            if life.restarts > restarts:
                async for lines in log.before():
                    yield lines
                restarts = life.restarts
            async for lines in log.read(follow=not life.ended):
                has_lines = True
                yield lines
            if life.ended:
                return
        except ClusterError as error:
            reason = error.reason if isinstance(error, NotFoundError) else None
            if reason or (life.ended and _without_log(error)):
                return
            is_page = reason == ""  # a gateway's, which tells nothing about the pod
            failures += is_page or (life.ended and isinstance(error, ApiError) and error.server_error)
            if not (is_page or _passing(error)) or failures > tries:
                raise
        if has_lines:
            pauses = delays(client.pause, _LONGEST_WAIT)
        await asyncio.sleep(next(pauses))


def read_all(
    client: Client,
    namespace: str,
    pod: str,
    container: str,
    *,
    restarts: int = 0,
    seen: SeenLines | None = None,
) -> AsyncGenerator[Lines, None]:
    """Return the whole log of a container that has ended, and of the one before if it was restarted."""

    async def over() -> Life:
        return Life(restarts, ended=True)

    return follow(client, namespace, pod, container, ended=over, seen=seen)


class _Log:
    """One container's log, of which no line is yielded twice."""

    def __init__(
        self, client: Client, target: Target, container: str, silence: float, seen: SeenLines
    ) -> None:
        self._client = client
        self._target = target
        self._silence = silence
        self._query = {"container": container, "timestamps": "true"}
        self._seen = seen
        self._blanks = 0  # batches with empty lines that were really empty

    async def before(self) -> AsyncGenerator[Lines, None]:
        """Yield the rest of the log of the container before this one, if it still exists.

        The kubelet keeps one dead container, and only until the next one has ended too.
        """
        try:
            async for lines in self.read(previous=True):
                yield lines
        except ClusterError as error:
            if _passing(error):
                raise

    async def read(self, *, follow: bool = False, previous: bool = False) -> AsyncGenerator[Lines, None]:
        """Yield the lines of one answer that weren't yielded yet."""
        flags = {"follow": follow, "previous": previous}
        query = {name: "true" for name, is_set in flags.items() if is_set}
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
                # In a followed log, an incomplete line at the end may be one that the kubelet broke off.
                yield splitter.end()

    def _since(self, time: str) -> dict[str, str]:
        return {"sinceTime": time} if time else {}

    async def _mend(self, lines: Lines) -> Lines:
        """Fill in lines that came out empty: the kubelet may lose one when it rotates a followed log."""
        blank = lines.blank()
        if not blank:
            return lines
        # Programs print empty lines too: the more of them were real, the more rarely a request is made.
        if self._blanks & (self._blanks - 1):
            self._blanks += 1
            return lines
        stamps = set(blank)
        since = earlier(blank[0])
        mended: dict[bytes, bytes] = {}
        try:
            async with aclosing(self._answer(self._since(since), whole=True)) as answer:
                async for data_lines in answer:
                    mended.update(line for line in data_lines if line[0] in stamps)
                    if len(mended) == len(stamps):
                        break
        except ClusterError:
            pass
        self._blanks += not any(mended.values())
        return Lines.of((stamp, data or mended.get(stamp, b"")) for stamp, data in lines)


def _without_log(error: ClusterError) -> bool:
    # The kubelet's words. It doesn't know a container before it has first looked at a pod that just got its
    # host ("container … is not available"), and no longer knows one that its host lost while the pod was
    # deleted: that counts as terminated, without an id (1.20).
    phrases = ("is waiting to start", "is not available", "is terminated")
    return isinstance(error, ApiError) and error.bad_request and any(words in error.said for words in phrases)


def _passing(error: ClusterError) -> bool:
    """Whether it is worth trying again."""
    if isinstance(error, ApiError):
        return error.too_many or error.server_error or _without_log(error)
    return isinstance(error, UnreachableError)
