"""A rank that stays: it runs its call and then further turns, in one namespace, until its node lets it go.

The main thread waits for turns on a socket to the node, which costs nothing until one comes (``standing.py``
is the other end). Messages are lines of JSON:

    rank   {"rank": 1, "base": 7, "pid": 42, "done": 0}     it waits: as it connects, and after each turn
    node   {"round": 7, "path": "…", "speaker": 0, …}       a turn to run, or the job's own call
    rank   {…, "done": 7, "failed": true, "names": ["x"]}   done; what ``__main__`` holds, if that has changed
    node   {"end": true}                                    it may return

The user's code may close the socket: then the rank connects again, and repeats its last message.

An interrupt is a signal, with a shared page of memory that names the round. The signal's handler
raises what SIGINT would raise in the code of that turn, but only there: not in another turn that began
meanwhile, nor in this module's code between two turns.
"""

from __future__ import annotations

import bdb
import importlib
import json
import linecache
import mmap
import os
import signal
import socket
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Callable, Deque, Dict, FrozenSet, Iterator, Optional, Tuple

from nbtorchjob.runtime import facts
from nbtorchjob.runtime.api import displays, points, report
from nbtorchjob.runtime.ask.questions import within
from nbtorchjob.runtime.facts import errors
from nbtorchjob.runtime.look.outside import SIGNAL as _SAMPLERS
from nbtorchjob.runtime.node import shortage
from nbtorchjob.runtime.rank import call, settings, streams, worker
from nbtorchjob.runtime.rank.names import Names
from nbtorchjob.runtime.rank.spawned import CELLS, define
from nbtorchjob.runtime.store.payload import Payload

SOCKET = "turns.sock"  # in the node's folder
PAGE = "interrupts"  # in the folder of the round in which ranks began
ROUND, COUNT = range(2)  # which round was interrupted last, and how many interrupts there were
SIGNAL = _SAMPLERS - 1  # SIGINT belongs to the user's code
WAITS = "waits for the next cell"
_NUMBERS = 2 * 8  # bytes
_IDLE_FLUSH_S = 1.0
_CONNECT_S = 10.0
_SHOWN = 1000  # cells whose text tracebacks show
# Limits in bytes for processes that the code starts: on cells, and on payloads that brought values.
_KEPT, _KEPT_PAYLOADS = 1 << 22, 1 << 28


def page(folder: str) -> Any:
    """Map the numbers that a node shares with its ranks; create the file if needed."""
    with open(os.path.join(folder, PAGE), "a+b") as file:
        if os.fstat(file.fileno()).st_size < _NUMBERS:
            file.write(bytes(_NUMBERS))  # a hole could end a rank, on a full disk
            file.flush()
        return memoryview(mmap.mmap(file.fileno(), _NUMBERS)).cast("q")


def stay(rank: worker.Rank) -> None:
    """Run the node's orders in the process of a rank; return once it may end."""
    worker.begin(rank)
    settings.lay(rank.header["settings"])
    _Turns(rank, Interrupts(page(rank.folder))).run()


class Interrupts:
    """Interrupts the code of one round, wherever it is, and nothing else in this process."""

    def __init__(self, numbers: Any) -> None:
        self._numbers = numbers
        self._heeded = 0
        self._running = 0
        signal.signal(SIGNAL, self._heed)
        signal.signal(signal.SIGINT, _ignore)

    def guarded(self, round_: int, act: Callable[[], Any]) -> Tuple[Any, Optional[BaseException]]:
        """Return what ``act`` returns, or any exception that it raises."""
        # The code runs below ``_begin``, and only there does the handler raise: in ``signal.signal``, or in
        # another handler that runs in this frame, an exception would end the rank.
        try:
            return self._begin(round_, act), None
        except BaseException as exc:
            return None, exc
        finally:
            self._rest()

    def _begin(self, round_: int, act: Callable[[], Any]) -> Any:
        self._running = round_
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio replaces only that handler
            if self._due():  # interrupted before its code began
                raise KeyboardInterrupt
            return act()
        finally:
            self._rest()

    def _rest(self) -> None:
        self._running = 0
        signal.signal(signal.SIGINT, _ignore)

    def _due(self) -> bool:
        count = self._numbers[COUNT]
        due = self._numbers[ROUND] == self._running and count != self._heeded
        if due:
            self._heeded = count
        return bool(due)

    def _heed(self, number: int, frame: Optional[FrameType]) -> None:
        # An exception raised from here has to reach ``guarded``, like one of the code itself. A greenlet's
        # frames don't lead to that of ``guarded``.
        at, above = frame, None
        while at is not None and at.f_code is not Interrupts.guarded.__code__:
            at, above = at.f_back, at
        in_code = at is None or (above is not None and above.f_code is Interrupts._begin.__code__)
        if not self._running or not in_code or not self._due():
            return
        codes_own = signal.getsignal(signal.SIGINT)
        if not callable(codes_own) or codes_own is _ignore:
            raise KeyboardInterrupt
        codes_own(signal.SIGINT, frame)


def _ignore(number: int, frame: Optional[FrameType]) -> None:
    """Ignore a SIGINT that comes while there is nothing to interrupt."""


class _Turns:
    def __init__(self, rank: worker.Rank, interrupts: Interrupts) -> None:
        self._of = rank
        self._rank = rank.number
        self._base = rank.round
        self._local = int(os.environ["LOCAL_RANK"])
        self._variables = worker.own_variables()
        self._home = os.path.dirname(rank.folder)
        self._interrupts = interrupts
        self._output = _Output(rank.flusher)
        self._namespace: Dict[str, Any] = {"__name__": "__main__"}
        self._names: FrozenSet[str] = frozenset()
        self._shown: Deque[str] = deque()
        self._kept = 0  # bytes of payloads
        self._line = Line(self._home, {"rank": rank.number, "base": rank.round, "pid": os.getpid()})

    def run(self) -> None:
        call.become_main(self._namespace, os.path.abspath(self._of.path))
        facts.emit("RankBegan", rank=self._rank, round=self._base)
        self._line.say({"done": 0})
        while True:
            self._of.sampler.note = WAITS
            self._output.rest()
            while True:
                try:
                    order = self._line.hear()
                    break
                except OSError:  # the node's end is gone
                    raise
                except Exception:  # from a signal handler of the user's code, as for a pending alarm
                    traceback.print_exc()
            if "end" in order:
                return
            outcome: Dict[str, Any]
            try:
                outcome = {"failed": self._turn(order)}
            except OSError as exc:
                if shortage.number_of(exc) not in shortage.FULL:
                    raise
                exc.filename = exc.filename or self._home
                outcome = {
                    "failed": True,
                    "error": shortage.explained(errors.from_exception(exc), exc).to_json(),
                }
            # The names in ``__main__``, if they have changed
            names = frozenset(
                name for name in list(self._namespace) if type(name) is str and name.isidentifier()
            )
            if names == self._names:
                news = {}
            else:
                self._names = names
                news = {"names": sorted(names)}
            self._line.say({"done": order["round"], **outcome, **news})

    def _turn(self, order: Dict[str, Any]) -> bool:
        """Run a turn, and report it; return whether it failed."""
        round_, first = order["round"], order["round"] == self._base
        folder = os.path.join(self._home, "round-%d" % round_)
        log = os.path.join(folder, "rank-%d.log" % self._rank)
        self._of.sampler.note = ""
        os.environ[report.ROUND] = str(round_)
        if not first:
            self._output.turn_to(log)
            points.begin(folder, self._local)
            report.begin()
        displays.begin(order["speaker"])
        pid = os.getpid()
        value, exc = self._interrupts.guarded(round_, partial(self._run, order))
        worker.end_fork(pid, exc)
        worker.restore(self._variables)
        worker.over(self._of)
        self._output.renew()
        self._of.sampler.renew()
        if exc is not None and errors.is_a(exc, SystemExit) and errors.exit_code(exc) in (None, 0):
            exc = None  # success without a value
        if points.first_call() and (exc is None or errors.is_a(exc, points.Leaving)):
            worker.leave(self._rank, round_)
        if exc is None and (self._rank == order["speaker"] or order["all_ranks"]):
            sent = partial(worker.send, value, self._rank, round_, folder, self._of.key)
            _, exc = self._interrupts.guarded(round_, sent)
            del sent
        failed = exc is not None
        if exc is not None:
            self._fail(exc, round_, log, order["locals"])
        # Its traceback refers to this frame: the cycle would keep everything alive that the frames hold.
        value = exc = None
        streams.flush()
        return failed

    def _run(self, order: Dict[str, Any]) -> Any:
        payload = Payload(order["path"])
        if order["files"]:
            importlib.invalidate_caches()
        for name in payload.show_sources():
            if name in self._shown:
                self._shown.remove(name)
            self._shown.append(name)
        while len(self._shown) > _SHOWN:
            linecache.cache.pop(self._shown.popleft(), None)
        names = Names(self._namespace, payload.header.get("push", ()))
        content = names.load(payload)
        del payload
        if order["round"] != self._base:
            facts.emit("RankBegan", rank=self._rank, round=order["round"])
            # Let processes that the code starts with "spawn" find what a payload brought or a cell defines.
            path = os.path.join(self._of.folder, "rank-%d.later" % self._rank)
            os.environ[CELLS] = path
            size = os.path.getsize(order["path"])
            with open(path, "a") as file:
                if names.laid and self._kept + size <= _KEPT_PAYLOADS:
                    kept = "%s-%d" % (path, order["round"])
                    with suppress(OSError):  # a file system without links
                        os.link(order["path"], kept)
                        self._kept += size
                        file.write(json.dumps({"payload": kept, "push": names.push}) + "\n")
                if "cell" in content and file.tell() < _KEPT:
                    file.write(
                        json.dumps({name: content[name] for name in ("cell", "filename", "flags")}) + "\n"
                    )
        sys.argv = list(content["argv"])
        return call.act(content, self._namespace)

    def _fail(self, exc: BaseException, round_: int, log: str, variables: bool) -> None:
        # Cut the traceback where the user's code was interrupted, maybe while stopped in the debugger.
        at = errors.traceback_of(exc)
        while at is not None and at.tb_next is not None:
            if at.tb_next.tb_frame.f_code in (Interrupts._heed.__code__, bdb.Bdb.trace_dispatch.__code__):
                at.tb_next = None
            at = at.tb_next
        if shortage.number_of(exc) in shortage.FULL:
            errors.add_notes(exc, [shortage.limit_met(exc)])
        muted = worker.mute_handlers()
        try:
            streams.flush()
            error, text = worker.described(exc, self._of.header, log)
            worker.tell(exc, error, text, self._rank, round_, stays=True)
        finally:
            for number, handler in muted.items():
                signal.signal(number, handler)
        if variables:
            more = partial(worker.tell_variables, exc, error, text, self._rank, round_, stays=True)
            self._interrupts.guarded(round_, more)


def later(space: Dict[str, Any]) -> Iterator[str]:
    """Define what turns have defined in ``space``, in a process that a rank has started; yield the names."""
    with open(os.environ[CELLS]) as file:
        for record in map(json.loads, file):
            if "payload" in record:
                payload = Payload(record["payload"])
                payload.show_sources()
                Names(space, record["push"]).take(payload)
            else:
                with suppress(SyntaxError):  # the cell didn't run on any rank, either
                    yield from define(record, space)


class _Output:
    """The output of turns: each has its own log, through the same streams."""

    def __init__(self, flusher: streams.Flusher) -> None:
        self._flusher = flusher
        self._own = sys.stdout, sys.stderr

    def rest(self) -> None:
        """Wait for the next turn."""
        self._flusher.pace(_IDLE_FLUSH_S)

    def turn_to(self, log: str) -> None:
        """Send all further output to ``log``."""
        try:
            for stream in self._own:
                stream.writable()
        except ValueError:  # the code has closed it, or detached its buffer
            self._flusher = streams.redirect(log)
            self._own = sys.stdout, sys.stderr
            return
        with self._flusher.lock:
            streams.flush()
            self._flusher.index.turn_to(log)
        self._flusher.pace(streams.FLUSH_S)

    def renew(self) -> None:
        """Restore the streams that the code has replaced."""
        replacements = [stream for stream in (sys.stdout, sys.stderr) if stream not in self._own]
        sys.stdout, sys.stderr = self._own
        for stream in replacements:
            with suppress(Exception):  # it may be anything
                stream.flush()


class Line:
    """The connection to the node."""

    def __init__(self, folder: str, hello: Dict[str, Any]) -> None:
        self._folder = folder
        self._hello = hello
        self._last_message = b""
        self._node: Optional[socket.socket] = None
        self._inode = 0
        self._buffer = b""

    def fileno(self) -> int:
        """Return the file descriptor, so that it can be waited for together with others."""
        assert self._node is not None
        return self._node.fileno()

    def close(self) -> None:
        """Close the connection, in a process that was forked."""
        if self._node is not None:
            self._node.close()

    def say(self, record: Dict[str, Any]) -> None:
        """Send a message to the node."""
        self._last_message = json.dumps({**self._hello, **record}).encode() + b"\n"
        try:
            if self._node is not None and self._is_there(self._node):
                self._node.sendall(self._last_message, socket.MSG_NOSIGNAL)
                return
        except OSError:
            pass
        self._connect()

    def hear(self) -> Dict[str, Any]:
        """Return the node's next message; raises ``OSError`` once the node is gone."""
        while b"\n" not in self._buffer:
            assert self._node is not None
            data = self._node.recv(1 << 16)
            self._buffer += data
            if not data:
                self._connect()
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Dict[str, Any] = json.loads(line.decode())
        return message

    def _connect(self) -> None:
        if self._node is not None and not self._is_there(self._node):
            self._node.detach()  # its descriptor belongs to another file now
        elif self._node is not None:
            self._node.close()
        until, self._buffer = time.monotonic() + _CONNECT_S, b""
        while True:
            self._node = socket.socket(socket.AF_UNIX)
            self._inode = os.fstat(self._node.fileno()).st_ino
            try:
                within(self._folder, SOCKET, self._node.connect)
                self._node.sendall(self._last_message, socket.MSG_NOSIGNAL)
                return
            except OSError:
                self._node.close()
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def _is_there(self, node: socket.socket) -> bool:
        try:
            return os.fstat(node.fileno()).st_ino == self._inode
        except OSError:
            return False
