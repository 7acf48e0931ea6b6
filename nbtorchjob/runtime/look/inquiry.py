"""A node asks all its ranks at once, and has an answer for each within seconds whatever they do.

Ranks connect to the node's socket as they start (``sampler.py`` describes the protocol). A rank that doesn't
answer is looked at from outside.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
import termios
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Dict, Optional, Sequence

from nbtorchjob.runtime.ask import questions
from nbtorchjob.runtime.facts import LONGEST_FACT
from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.runtime.facts.samples import (
    BEGINS,
    BUSY,
    ENDED,
    MAX_BYTES,
    STOPPED,
    UNKNOWN,
    RankSample,
    Thread,
)
from nbtorchjob.runtime.look import outside, sampler

_WAITING_S = 0.3  # after which a rank that hasn't answered waits for Python's lock
_PROMPT_S = 1.0  # in which a rank gets Python's lock, if that is ever released
_TEXT_S = 0.5  # for faulthandler to write
_PAUSE_S = 0.1  # without output, after which faulthandler has written everything
_LIMIT_S = 3.0  # for a sample, whatever the ranks do
_SPARE = 4096  # bytes of a fact apart from its samples
_BACKLOG = 4096


class _Line:
    """The connection to a rank, and what the rank has sent."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.hello: Dict[str, int] = {}
        self.answer: Dict[str, Any] = {}
        self.at = self.number = 0
        self.broken = self._is_read = False
        self.text = ""  # faulthandler's
        self.place: Dict[str, Any] = {}  # where the rank was in the user's code at its last pulse
        self.last: Dict[str, Any] = {}  # the sample that the rank sent as it ended
        self.arrival = 0.0
        self._connection = connection
        self._rest = b""

    @property
    def is_silent(self) -> bool:
        """Whether the rank hasn't had Python's lock since the last question."""
        return self.at != self.number and not self.broken

    @property
    def waits_for_lock(self) -> bool:
        """Whether the rank's thread has read the last question, but hasn't had Python's lock since."""
        if self.is_silent and not any(fcntl.ioctl(self.fileno(), termios.TIOCOUTQ, bytes(4))):
            self._is_read = True
        return self.is_silent and self._is_read

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        is_written = bool(self.text) and time.monotonic() >= self.arrival + _PAUSE_S
        return bool(self.answer) or self.broken or is_written

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def ask(self, question: str, number: int) -> None:
        self._is_read = self.waits_for_lock
        self.answer, self.number, self.text = {}, number, ""
        try:
            self._connection.send(("%s %d\n" % (question, number)).encode(), socket.MSG_NOSIGNAL)
        except OSError:  # it is gone, or has too many unread questions
            pass

    def hear(self) -> None:
        """Read what has come."""
        try:
            data = self._connection.recv(1 << 16)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if not line.startswith(b"{"):
                    self.text += line.decode(errors="replace") + "\n"
                else:
                    record = json.loads(line.decode())
                    if "inode" in record:
                        self.hello = {name: int(value) for name, value in record.items()}
                    self.at = record.get("at", self.at)
                    self.place = record.get("place", self.place)
                    self.last = dict(record.get("last", self.last))
                    if record.get("of") == self.number:
                        self.answer = record
        except BlockingIOError:
            return
        except (OSError, ValueError, TypeError, AttributeError):  # the user's code closed it, or wrote to it
            data = b""
        self.arrival = time.monotonic()
        self.broken = not data or len(self._rest) + len(self.text) > LONGEST_FACT


class Inquiry:
    """Asks the ranks that connect to a socket in ``folder``, the node's."""

    def __init__(self, folder: str) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._pids: Dict[int, int] = {}  # by rank
        self._codes: Dict[int, int] = {}  # of the ranks that have ended, by rank
        self._kept: Dict[int, Dict[str, Any]] = {}  # by rank
        self._lines: Dict[int, _Line] = {}  # by process id
        self._path = os.path.join(folder, sampler.SOCKET)
        self._listener: Optional[socket.socket] = socket.socket(socket.AF_UNIX)
        try:
            with suppress(FileNotFoundError):
                os.unlink(self._path)  # left by an attempt that was killed
            questions.within(folder, sampler.SOCKET, self._listener.bind)
            os.chmod(self._path, 0o600)
            self._listener.listen(_BACKLOG)
            self._listener.setblocking(False)
        except OSError:  # a file system without sockets: ranks are only looked at from outside
            self._listener.close()
            self._listener = None

    def enter(self, pids: Dict[int, int]) -> None:
        """Ask these processes, by rank, from now on."""
        with self._lock:
            self._accept()
            for pid in self._lines.keys() - set(pids.values()):
                self._lines.pop(pid).close()
            self._pids, self._codes, self._kept = dict(pids), {}, {}

    def ended(self, codes: Dict[int, int]) -> None:
        """Record the exit codes of ranks that have ended."""
        self._codes = codes

    def keep(self) -> None:
        """Sample ranks that have returned: other nodes' ranks may wait for them when they are gone."""
        self._kept = {sample["rank"]: sample for sample in self.samples()}

    def close(self) -> None:
        """Stop asking, and drop a question that is under way."""
        for line in list(self._lines.values()):
            line.close()
        if self._listener is not None:
            self._listener.close()
            try:
                os.unlink(self._path)
            except OSError:  # the user's code may have removed it
                pass

    def pulses(self) -> "dict[int, dict[str, Any]]":
        """Return the pulse (``sampler.py``) of each rank that answers."""
        with self._lock:
            lines = self._ask("pulse", again=False)
            self._hear(list(lines.values()), time.monotonic() + _PROMPT_S)
            return {rank: line.answer for rank, line in lines.items() if "counts" in line.answer}

    def profile(self, rank: int, question: str, seconds: float) -> str:
        """Have a rank profile itself from now on; return why it can't, else ""."""
        with self._lock:
            until = time.monotonic() + _PROMPT_S
            lines = self._ask("%s-%.3f-%.3f" % (question, seconds, until), again=False, only=rank)
            self._hear(list(lines.values()), until)
            answer = lines[rank].answer if rank in lines else {}
            silent = "it doesn't answer" if self.is_there(rank) else "it has ended"
            return str(answer.get("trouble", silent))

    def is_there(self, rank: int) -> bool:
        """Whether a rank is one of this node's, and hasn't ended."""
        pid = self._pids.get(rank)
        return pid is not None and rank not in self._codes and not outside.is_gone(pid)

    def samples(self) -> "list[dict[str, Any]]":
        """Return what each rank is doing, as the JSON of a ``RankSample``."""
        with self._lock:
            most = min(MAX_BYTES, (LONGEST_FACT - _SPARE) // max(1, len(self._pids)))
            began, lines = time.monotonic(), self._ask("sample-%d" % most)
            ran: Dict[int, Dict[int, float]] = {}
            for seconds in (_WAITING_S, _PROMPT_S, _LIMIT_S, _LIMIT_S + _TEXT_S):
                self._hear(list(lines.values()), began + seconds)
                for rank in [rank for rank, line in lines.items() if line.is_silent and not line.text]:
                    if rank in ran:
                        pid, hello = self._pids[rank], lines[rank].hello
                        if hello and outside.holds_still(pid, hello["thread"], ran[rank]):
                            outside.have_written(pid, hello["thread"], hello["fd"], hello["inode"])
                    elif lines[rank].waits_for_lock:
                        ran[rank] = outside.seconds(self._pids[rank])
            for line in self._lines.values():
                line.hear()  # what ranks sent that have ended since
            return [
                self._kept.get(rank)
                or _answer_of(rank, pid, lines.get(rank), self._codes.get(rank), most, self._lines.get(pid))
                for rank, pid in sorted(self._pids.items())
            ]

    def _ask(self, question: str, *, again: bool = True, only: Optional[int] = None) -> "dict[int, _Line]":
        """Ask all ranks that can answer, or ``only`` one; return their lines by rank.

        ``again`` says whether to ask ranks that haven't answered the last question.
        """
        self._accept()
        self._number += 1
        lines = {}
        for rank, pid in self._pids.items():
            if only not in (None, rank):
                continue
            line = self._lines.get(pid)
            if line is None or line.broken or outside.is_gone(pid) or outside.is_stopped(pid):
                continue
            line.hear()
            if again or not line.is_silent:
                line.ask(question, self._number)
                lines[rank] = line
        return lines

    def _accept(self) -> None:
        while self._listener is not None:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # no connection is left
                return
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid = struct.unpack("3i", peer)[0]
            if pid in self._lines:
                self._lines.pop(pid).close()
            self._lines[pid] = _Line(connection)

    def _hear(self, lines: Sequence[_Line], until: float) -> None:
        """Read from lines until nothing more will come from any."""
        while True:
            left = {line.fileno(): line for line in lines if not line.is_done}
            now = time.monotonic()
            pauses = [line.arrival + _PAUSE_S for line in left.values() if line.text]
            if not left or now >= until:
                return
            poll = select.poll()
            for fd in left:
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(1000 * max(0.001, min([until, *pauses]) - now)):
                left[fd].hear()


def _answer_of(
    rank: int, pid: int, line: Optional[_Line], code: Optional[int], most: int, before: Optional[_Line]
) -> Dict[str, Any]:
    """Return a rank's sample: its answer, or a look from outside; ``before`` has what it sent earlier."""
    sample = line.answer.get("sample") if line is not None else None
    if not isinstance(sample, dict):
        if code is not None or outside.is_gone(pid):
            how = "" if code is None else "exit code %d" % code if code >= 0 else "signal %d" % -code
            sample = RankSample(rank, ENDED, pid, note=how).to_json()
        elif outside.is_stopped(pid):
            sample = RankSample(rank, STOPPED, pid).to_json()
        elif line is None or not (line.hello or line.broken):
            sample = RankSample(rank, BEGINS, pid).to_json()
        else:
            threads = outside.stacks(line.text, line.hello.get("main", 0), line.hello.get("own", 0))
            threads = tuple(
                thread for thread in threads if thread.name == "main" or sampler.does_work(thread.frames)
            )
            if threads:
                sample = sampler.bounded(RankSample(rank, BUSY, pid, threads)).to_json()
            else:
                trouble = (
                    "its code has closed the connection"
                    if line.broken
                    else str(line.answer.get("trouble", ""))
                )
                sample = RankSample(
                    rank, UNKNOWN, pid, note=trouble or "it hasn't answered for %d s" % _LIMIT_S
                ).to_json()
        if sample["state"] == STOPPED:
            sample = {**sample, "threads": [asdict(thread) for thread in _last_seen(before)]}
    if before is not None and before.last:  # it is ending, if it hasn't ended
        note = sample.get("note", "") if sample["state"] == ENDED else ""
        sample = {**before.last, "state": ENDED, "note": note}
    notes = [str(sample.get("note", "")), outside.children(pid)]
    answer = {**sample, "rank": rank, "pid": pid, "note": "; ".join(filter(None, notes))}
    if len(json.dumps(answer)) <= most + _SPARE // 8:
        return answer
    return RankSample(rank, UNKNOWN, pid, note="its sample is too long to show").to_json()


def _last_seen(line: Optional[_Line]) -> "tuple[Thread, ...]":
    try:
        place = Frame.from_json(line.place) if line is not None else None
    except (TypeError, ValueError, AttributeError):  # the user's code wrote that
        return ()
    return (Thread("main", (place,)),) if place is not None and place.filename else ()
