"""Copies a node's output from files to stdout as frames, for the log of its container.

Output goes to files first so that a rank never waits for a reader of the log, and so that the local backend
and a cluster run the same node. Disk space of copied output is freed, 1 MiB or more at a time.

A rank's log has an index, which says when and to which stream each byte was written. It is a file beside the
log, so that the log itself stays as it was printed: a line "OFFSET SECONDS" in `<log>.times` says that all
bytes before that one, back to the previous line's, were written to stdout by then, and "OFFSET SECONDS 2" the
same for stderr. Bytes without such a line were written when the log's file was last changed. In a log that
has ended, they are the last output of a process that a signal ended: they count as stderr.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

from nbtorchjob.runtime.facts import LONGEST_FACT
from nbtorchjob.runtime.store import LOG, frames

TIMES = ".times"  # the suffix to a log's name for its index
UNMARKED_S = 1.5  # how long the index of a running process may lag behind its log


class Mark(NamedTuple):
    """The bytes of a log from the previous mark to ``offset`` were written to one stream by ``time``."""

    offset: int
    time: float
    stderr: bool = False


def mark_line(mark: Mark) -> bytes:
    """Return a mark's line in an index."""
    return b"%d %.3f%s\n" % (mark.offset, mark.time, b" 2" if mark.stderr else b"")


def read_mark(line: bytes) -> Optional[Mark]:
    """Return the mark in a line of a log's index, None if the line is damaged."""
    offset, _, rest = line.partition(b" ")
    at, _, stream = rest.partition(b" ")
    try:
        return Mark(int(offset), float(at), bool(stream)) if stream in (b"", b"2") else None
    except ValueError:  # half a line from when the disk was full
        return None


_BATCH = 1 << 18  # bytes of one file in one read
_SHORTEST, _LONGEST = 0.005, 0.02  # seconds between two reads
_QUIET_S, _RESTING = 10.0, 0.1  # after that long without output, reads are further apart
_KEEP_SIZE_PUNCH_HOLE = 3
_HOLE = 1 << 20  # bytes; a hole for every read would cost more than it frees


class Tail:
    """Reads the bytes that a file gained since the last read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._freed = 0
        self.offset = 0

    def read(self) -> bytes:
        """Return at most a batch; the file may not exist yet."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
        data = os.read(self._fd, _BATCH)
        self.offset += len(data)
        if self.offset - self._freed >= _HOLE:
            # A long job's logs would fill the node's disk, for which Kubernetes evicts the pod.
            fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
            if fallocate is not None:
                size = ctypes.c_long(self.offset - self._freed)
                fallocate(self._fd, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_long(self._freed), size)
            self._freed = self.offset
        return data

    def remove(self) -> None:
        """Close the file and unlink it."""
        if self._fd >= 0:
            os.close(self._fd)
            os.unlink(self._path)


class Lines:
    """Reads the lines that a file gained since the last read; one above ``longest`` bytes comes in pieces."""

    def __init__(self, path: str, longest: int = frames.LONGEST) -> None:
        self._tail = Tail(path)
        self._longest = longest
        self._rest = b""
        self.remove = self._tail.remove

    def read(self, *, ended: bool) -> List[bytes]:
        """Return whole lines; half a line waits for its end, or for the file's."""
        lines: List[bytes] = []
        while not lines:
            data = self._tail.read()
            *lines, self._rest = (self._rest + data).split(b"\n")
            if self._rest and (len(self._rest) > self._longest or (ended and not data)):
                lines.append(self._rest)
                self._rest = b""
            if not data:
                break
        return lines


class RankLog:
    """Reads the bytes that a rank's log gained, by the stream that they were written to."""

    def __init__(self, rank: int, round_: int, path: str) -> None:
        self._rank, self._round = rank, round_
        self._tail, self._index = Tail(path), Lines(path + TIMES)
        self._marks: Deque[Mark] = deque()
        self._data = b""  # bytes that aren't in a frame yet
        self._at = 0  # where they begin
        self._since = 0.0  # when there were none last, or a frame was made

    def read(self, *, ended: bool) -> List[bytes]:
        """Return frames of the bytes marked since the last read; once a rank has ``ended``, of all bytes."""
        if not self._data:
            self._since = time.monotonic()
        self._data += self._tail.read()
        if not self._data:
            return []
        end = self._at + len(self._data)
        while not (self._marks and self._marks[-1].offset >= end):
            lines = self._index.read(ended=False)
            if not lines:
                break
            self._marks += filter(None, map(read_mark, lines))
        pieces: List[Tuple[int, bool]] = []  # where each ends, and whether it is stderr's
        position = self._at
        while self._marks:
            upto, _, stderr = self._marks[0]
            if upto > position:
                if pieces and pieces[-1][1] is stderr:
                    pieces.pop()
                position = min(upto, end)
                pieces.append((position, stderr))
            if upto > end:
                break
            self._marks.popleft()
        if position < end and (ended or time.monotonic() - self._since > UNMARKED_S):
            pieces.append((end, True))
            position = end
        out, at = [], self._at
        for upto, stderr in pieces:
            data = self._data[at - self._at : upto - self._at]
            out.append(frames.log(self._rank, self._round, at, data, stderr=stderr))
            at = upto
        if position > self._at:
            self._data, self._at, self._since = self._data[position - self._at :], position, time.monotonic()
        return out

    def remove(self) -> None:
        """Close the files and unlink them."""
        self._tail.remove()
        self._index.remove()


class Pump(threading.Thread):
    """Copies a node's output from its folder to the file descriptor ``out``, until :meth:`finish`."""

    def __init__(
        self,
        folder: str,
        events: str,
        output: str,
        out: int,
        listeners: Sequence[Callable[[Dict[str, Any]], None]],
    ) -> None:
        super().__init__(daemon=True, name="pump")
        self._folder = folder
        self._events = Lines(events, LONGEST_FACT)
        self._output = Lines(output)
        self._logs: Dict[Tuple[int, int], RankLog] = {}  # by round and rank
        self._out = out
        self._listeners = listeners
        self._ended = threading.Event()

    def finish(self) -> None:
        """Return once everything is copied; all writers must have ended."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        """See the class."""
        pause, quiet = _SHORTEST, 0.0
        while True:
            ended = self._ended.is_set()  # checked before reading, so that the last output is read after it
            out: List[bytes] = []
            for line in self._events.read(ended=ended):
                self._event(line, out)
            for (round_, rank), log in list(self._logs.items()):
                before = round_ < max(self._logs)[0]
                pieces = log.read(ended=ended or before)
                out.extend(pieces)
                if before and not pieces:
                    log.remove()
                    del self._logs[round_, rank]
            out.extend(frames.output(line) for line in self._output.read(ended=ended))
            data = b"".join(out)
            left = memoryview(data)
            while left and self._out >= 0:
                try:
                    left = left[os.write(self._out, left) :]
                except BlockingIOError:
                    select.select([], [self._out], [])
                except OSError:  # there is no reader any more: the job goes on
                    self._out = -1
            moved = len(data)
            if ended and not moved:
                return
            quiet = 0.0 if moved else quiet + pause
            longest = _LONGEST if quiet < _QUIET_S else _RESTING
            pause = _SHORTEST if moved else min(pause * 1.2, longest)
            if moved < _BATCH:
                self._ended.wait(pause)

    def _event(self, line: bytes, out: List[bytes]) -> None:
        try:
            record: Dict[str, Any] = json.loads(line.decode())
        except (ValueError, RecursionError):  # half a line from when the disk was full (``runtime/facts``)
            return
        try:
            if record["event"] == "WorkersStarted":
                for rank in record["ranks"]:
                    path = self._path(record["round"], rank, "log")
                    self._logs[record["round"], rank] = RankLog(rank, record["round"], path)
            elif record.get("ref", "").startswith(LOG + "#"):
                if record["event"] == "ValueReady":
                    of, path = ("rank", "round"), self._path(record["round"], record["rank"], "value")
                else:
                    of = ("node", "attempt")
                    path = os.path.join(self._folder, "artifacts-%d.zip" % record["attempt"])
                with open(path, "rb") as file:
                    out.extend(frames.value(record[of[0]], record[of[1]], file.read()))
                os.unlink(path)
            for hear in self._listeners:
                hear(record)
        except Exception:  # any process of a rank may write there: the host may refuse the event
            pass
        out.append(frames.fact(line))

    def _path(self, round_: int, rank: int, extension: str) -> str:
        return os.path.join(self._folder, "round-%d" % round_, "rank-%d.%s" % (rank, extension))
