"""A rank stops where its code calls ``breakpoint()``, or where it failed, so that users can attach with pdb.

A rank has no keyboard. pdb's output goes out through a socket in the node's folder, as lines of JSON, and
input comes in through it; the node passes both on (``bridge.py``):

    node   {"by": "…"}                       a user attaches; or {"release": true}
    rank   {"out": "…"}                      pdb's output
           {"prompt": "(Pdb) "}              it waits for a line
    node   {"line": "p x"}                   or {"complete": "p mod", "begin": 2, "end": 5}
    rank   {"words": ["model"]}              the completions
           {"goes": "steps"}                 it goes on, and may stop again
           {"left": "…"}                     the user isn't attached any more

Leaving the debugger, for whatever reason, leaves the rank stopped. If no user attaches for ``wait`` seconds,
it goes on. A rank that failed is held until it is released.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from traceback import format_exception_only
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from nbtorchjob.runtime.api.report import ROUND
from nbtorchjob.runtime.ask.questions import within
from nbtorchjob.runtime.debug.patience import Patience
from nbtorchjob.runtime.facts import emit, injected, onimport
from nbtorchjob.runtime.facts.errors import HERE, users_traceback
from nbtorchjob.runtime.facts.samples import HELD
from nbtorchjob.runtime.look import sampler

BREAKPOINT, FAILURE = "breakpoint", "failure"  # why a rank stops
# How it goes on.
CONTINUES, STEPS, RELEASED, NOBODY, INTERRUPTED = "continues", "steps", "released", "nobody", "interrupted"
LINE_BYTES = 1 << 19
_HEARD_S = 2.0  # for the attached user to receive that it is over
_HEARING_S = 5.0  # for the first message on a new connection
_MOST_HELD = 1 << 15  # characters of output in one record, where each may take 12 bytes
_MOST_WORDS = 200
# Commands after which a rank stops again by itself, and soon.
_STEPS = ("n", "next", "s", "step", "r", "return", "unt", "until", "j", "jump")
_OURS = "nbtorchjob.*"
_DEBUGGERS = ("pdb", "ipdb", "IPython.core.debugger")  # whose ``set_trace`` would read from a keyboard


def socket_of(rank: int) -> str:
    """Return the name of a rank's socket in its node's folder."""
    return "debug-%d.sock" % rank


def mark_of(rank: int) -> str:
    """Return the name of the file that exists in a node's folder while that rank is stopped."""
    return "stopped-%d" % rank


def rank_of(name: str) -> Optional[int]:
    """Return the rank whose socket has that name; None for another file."""
    match = re.match(r"debug-(\d+)\.sock$", name)
    return int(match.group(1)) if match else None


class _Over(BaseException):
    """The stop is over, whatever is typed: code that reads input doesn't catch this."""


class Debugger:
    """Stops this process, which is ``rank``; its node's folder is ``folder``."""

    def __init__(self, rank: int, folder: str, wait: float, patience: Patience) -> None:
        self._rank = rank
        self._pid = os.getpid()
        self._wait = wait
        self._patience = patience
        self._line = _Line(os.path.join(folder, socket_of(rank)))
        self._mark = os.path.join(folder, mark_of(rank))
        self._alone = threading.Lock()  # one thread at a time stops
        self._stopped: Optional[int] = None  # the id of the stopped thread
        self._own = threading.local()  # each thread's innermost pdb
        self._notice_sent = False

    def install(self) -> None:
        """Have ``breakpoint()``, ``pdb.set_trace()`` and ``torch.distributed.breakpoint()`` stop here."""

        def on_breakpoint(*args: Any, **kwargs: Any) -> Any:
            # As in Python: "0" disables breakpoints, and another value names a different debugger.
            if os.environ.get("PYTHONBREAKPOINT"):
                return sys.__breakpointhook__(*args, **kwargs)
            return self.stop(sys._getframe(1))

        sys.breakpointhook = on_breakpoint
        changes = {**dict.fromkeys(_DEBUGGERS, self._change), "torch.distributed": self._change_distributed}
        for name, change in changes.items():
            if name in sys.modules:
                change(sys.modules[name])
        onimport.change(changes)

    def _change(self, module: Any) -> None:
        def set_trace(*args: Any, **kwargs: Any) -> None:
            self.stop(sys._getframe(1))

        module.set_trace = set_trace

    def _change_distributed(self, module: Any) -> None:
        """Have ``breakpoint(rank)`` stop that rank here: torch's own pdb would read from a keyboard."""
        original = getattr(module, "breakpoint", None)
        if original is None:  # as in a torch without distributed
            return
        passes: Dict[Any, int] = {}

        def stop_one(rank: int = 0, skip: int = 0, *args: Any, **kwargs: Any) -> None:
            caller = sys._getframe(1)
            place = caller.f_code, caller.f_lineno
            passes[place] = passes.get(place, 0) + 1
            if passes[place] <= skip:
                return
            # No rank has the number -1, so in torch's function all only wait until the one that stops comes.
            # ``skip`` is given only if more follows it: not every torch has it.
            meet = partial(original, -1, *((0, *args) if args else ()), **kwargs)
            if module.get_rank() == rank:
                self.stop(caller, meet)
            else:
                meet()

        module.breakpoint = stop_one

    def stop(self, frame: Any, then: Callable[[], object] = lambda: None) -> None:
        """Stop at the next line of ``frame``, and call ``then`` once it goes on from there."""
        if os.getpid() != self._pid:
            text = "nbtorchjob: breakpoint() stops ranks only, not the processes that they start"
            print(text, file=sys.__stderr__)
            return
        if not self._wait:
            then()
            return
        while frame.f_back is not None and frame.f_code.co_filename.startswith(HERE):
            frame = frame.f_back
        if not hasattr(self._own, "pdb"):
            self._own.pdb = self._make_pdb()
        if not self.is_here:  # otherwise a typed line led here, where no other rank comes
            self._own.then = then
        self._own.pdb.set_trace(frame)

    def go_on(self) -> None:
        """Call what had to wait until this thread goes on."""
        self._own.__dict__.pop("then", lambda: None)()

    def _make_pdb(self) -> Any:
        # Tell the peers first: on half a CPU, importing IPython's debugger takes longer than many time-outs.
        with self._patience.stopped(self._rank):
            return _make_pdb(self)

    def over(self) -> None:
        """Stop tracing this thread, as the code has returned."""
        sys.settrace(None)
        if self._alone.acquire(blocking=False):  # otherwise another thread is stopped, for which Python waits
            try:
                self._line.end("rank %d has returned" % self._rank)
            finally:
                self._alone.release()

    def hold(self, exc: BaseException) -> None:
        """Hold this rank in the frame where it failed, until it is released."""
        sys.settrace(None)
        with suppress(ValueError):  # in another thread
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        traceback = users_traceback(exc)
        if traceback is None or os.getpid() != self._pid:
            return
        pdb = self._own.pdb = self._make_pdb()
        libraries: List[Tuple[str, int, str]] = []
        own: List[Tuple[str, int, str]] = []
        entry: Optional[TracebackType] = traceback
        while entry is not None:
            code = entry.tb_frame.f_code
            libraries.append((code.co_filename, entry.tb_lineno, code.co_name))
            if not sampler.is_library(code.co_filename):
                own.append(libraries[-1])
            entry = entry.tb_next
        with self.stopped((own or libraries)[-1], FAILURE):
            while True:
                pdb.reset()
                pdb.interaction(None, traceback)
                self._line.leave("rank %d is still held where it failed" % self._rank)
        self._line.end("rank %d is released" % self._rank)

    @property
    def is_here(self) -> bool:
        """Whether this thread is stopped."""
        return self._stopped == threading.get_ident()

    @contextmanager
    def inside(self, pdb: Any) -> Iterator[None]:
        """Have this thread stop in ``pdb``, which was started at the prompt of another pdb."""
        outer, self._own.pdb = self._own.pdb, pdb
        try:
            yield
        finally:
            self._own.pdb = outer

    @contextmanager
    def stopped(self, place: Tuple[str, int, str], why: str) -> Iterator[None]:
        """Stop this thread, and report that, until the block or the stop is over."""
        with self._alone:
            self._stopped, self._line.over = threading.get_ident(), ""
            try:
                with self._interruptible(), self._told_of(place, why):
                    yield
            finally:
                self._stopped = None

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Have an interrupt end the stop, and then reach the code: it doesn't come from a Ctrl-C in pdb."""
        own = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(own):
            yield
            return

        def interrupt(number: int, frame: Any) -> None:
            # pdb and its interpreter survive a KeyboardInterrupt, and go on to the next line that they read.
            self._line.over = INTERRUPTED
            if self._line.heeds:
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, own)
        if self._line.over == INTERRUPTED:
            own(signal.SIGINT, sys._getframe())

    @contextmanager
    def _told_of(self, place: Tuple[str, int, str], why: str) -> Iterator[None]:
        filename, lineno, function = place
        fields = {"node": int(os.environ[injected.NODE]), "rank": self._rank, "round": int(os.environ[ROUND])}
        text = "nbtorchjob: rank %d stops at %s:%d, in %s" % (self._rank, filename, lineno, function)
        print(text, file=sys.__stderr__)
        self._line.listen()  # first: a user may attach as soon as the event is out
        with suppress(OSError):
            os.close(os.open(self._mark, os.O_CREAT | os.O_WRONLY, 0o600))
        emit("RankStops", **fields, filename=filename, lineno=lineno, function=function, why=why)
        if self._patience.installed and not self._notice_sent and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            self._notice_sent = True
            emit("Notice", text="time-outs of collectives are put off while rank %d is stopped" % self._rank)
        sampler.held = HELD
        self._line.how = CONTINUES
        self._line.until = time.monotonic() + self._wait if why == BREAKPOINT else float("inf")
        try:
            with suppress(_Over), self._patience.stopped(self._rank):
                yield
        finally:
            sampler.held = ""
            with suppress(OSError):
                os.unlink(self._mark)
            if self._line.over == NOBODY:
                text = "rank %d was stopped for %g s, and nobody attached: it continues" % (
                    self._rank,
                    self._wait,
                )
                emit("Notice", text=text)
                print("nbtorchjob: %s" % text, file=sys.__stderr__)
            if self._line.over == INTERRUPTED:
                self._line.leave("rank %d is interrupted" % self._rank)
            emit("RankGoesOn", **fields, how=self._line.over or self._line.how)

    @property
    def line(self) -> "_Line":
        """The connection to the attached user."""
        return self._line

    @property
    def wait(self) -> float:
        """How many seconds to wait for a user."""
        return self._wait


class _Line:
    """The socket of a stopped rank: the attached user, and the messages."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener: Optional[socket.socket] = None
        self._peer: Optional[socket.socket] = None
        self._came = b""
        self._output = ""  # output that hasn't been sent yet
        self.until = 0.0
        self.how = CONTINUES  # how the rank goes on after the last command
        self.over = ""  # how the rank goes on, whatever is typed
        self.heeds = False  # whether an interrupt raises an exception at once

    def write(self, text: str) -> None:
        """Collect pdb's output."""
        self._output += text
        if len(self._output) > _MOST_HELD:
            self.say({"out": self._output})
            self._output = self._output[-_MOST_HELD:] if self._peer is None else ""

    def flush(self) -> None:
        """Do nothing: output is sent with the next prompt."""

    def isatty(self) -> bool:
        """Return False: this isn't a terminal."""
        return False

    encoding = "utf-8"

    @contextmanager
    def heeding(self) -> Iterator[None]:
        """Have an interrupt raise an exception in the block."""
        before, self.heeds = self.heeds, True
        try:
            yield
        finally:
            self.heeds = before

    def ask(self, pdb: Any) -> str:
        """Return the next line that a user types; raise ``_Over`` once the stop is over."""
        text, prompt = self._parted()
        fresh = bool(text)
        while True:
            if self._peer is None:
                self._await_peer()
                if not fresh and not self.over:
                    pdb.print_stack_entry(pdb.stack[pdb.curindex])
                    text, _ = self._parted()
            if self.over:
                raise _Over
            fresh = False
            self.say({"out": text})
            self.say({"prompt": prompt})
            text = ""
            message = self._hear()
            while message is not None and "complete" in message:
                self.say({"words": _completions(pdb, message)})
                message = self._hear()
            if message is not None:
                return str(message.get("line", ""))

    def _await_peer(self) -> None:
        """Wait until a user attaches, or the stop is over."""
        listener = self.listen()
        while self._peer is None and not self.over:
            seconds = self.until - time.monotonic()
            if seconds <= 0:
                self.over = NOBODY
            elif select.select([listener], [], [], min(seconds, 3600.0))[0]:
                self._accept(listener)

    def _parted(self) -> Tuple[str, str]:
        output, self._output = self._output, ""
        text, new, prompt = output.rpartition("\n")
        return text + new, prompt

    def say(self, record: Dict[str, Any]) -> None:
        """Send a record to the attached user."""
        if self._peer is None:
            return
        text = record.get("out")
        begins = range(0, len(text or ""), _MOST_HELD)  # each piece is a line
        for piece in [record] if text is None else [{"out": text[at : at + _MOST_HELD]} for at in begins]:
            try:
                self._peer.sendall(json.dumps(piece).encode() + b"\n", socket.MSG_NOSIGNAL)
            except OSError:
                self._hang_up()
                return

    def leave(self, why: str) -> None:
        """Detach the attached user."""
        self.say({"out": self._parted()[0]})
        self.say({"left": why})
        self._hang_up()

    def end(self, why: str) -> None:
        """Tell the attached user why, and wait a moment for the message: a node ends with its last rank."""
        self.say({"left": why})
        if self._peer is not None:
            self._peer.settimeout(_HEARD_S)
            with suppress(OSError):
                while self._peer.recv(1 << 12):
                    pass
        self._hang_up()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            with suppress(OSError):
                os.unlink(self._path)

    def _hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        self._came = b""

    def listen(self) -> socket.socket:
        """Let a user attach from now on."""
        if self._listener is None:
            listener = socket.socket(socket.AF_UNIX)
            with suppress(OSError):
                os.unlink(self._path)  # left by an earlier round
            folder, name = os.path.split(self._path)
            os.fchmod(listener.fileno(), 0o600)
            within(folder, name, listener.bind)
            listener.listen(8)
            self._listener = listener
        return self._listener

    def _accept(self, listener: socket.socket) -> None:
        peer, _ = listener.accept()
        peer.settimeout(_HEARING_S)
        try:
            data = b""
            while not data.endswith(b"\n") and len(data) < LINE_BYTES:
                part = peer.recv(1 << 12)
                if not part:
                    break
                data += part
            request = json.loads(data.decode())
            if request.get("release"):
                released = self.until == float("inf")
                self.over = RELEASED if released else self.over
                peer.sendall(json.dumps({"released": released}).encode() + b"\n", socket.MSG_NOSIGNAL)
                peer.close()
            elif self._peer is not None:  # its node makes sure that there is only one
                peer.close()
            else:
                peer.settimeout(None)
                self._peer = peer
        except (OSError, ValueError, AttributeError):
            peer.close()

    def _hear(self) -> Optional[Dict[str, Any]]:
        """Return the user's next message; None once the user has left, or the stop is over."""
        while self._peer is not None:
            line, new, rest = self._came.partition(b"\n")
            if new:
                self._came = rest
                with suppress(ValueError):
                    message = json.loads(line.decode())
                    if isinstance(message, dict):
                        return message
                continue
            ready, _, _ = select.select([self.listen(), self._peer], [], [])
            if self._peer in ready:
                try:
                    data = self._peer.recv(1 << 16)
                except OSError:
                    data = b""
                self._came += data
                if not data or len(self._came) > LINE_BYTES:
                    self._hang_up()
                    if self.until != float("inf"):
                        self.until = time.monotonic() + self.again
            else:
                self._accept(self.listen())
                if self.over:
                    return None
        return None

    again = 0.0  # seconds to wait for a user to come back


def _make_pdb(debugger: Debugger) -> Any:
    """Return a pdb: IPython's, if it is installed and works here."""
    try:
        module = importlib.import_module("IPython.core.debugger")
        history = importlib.import_module("IPython.core.history")
        history.HistoryManager.enabled = False  # a rank needs no history file
        return _prompt(module.Pdb, debugger)
    except Exception:
        return _prompt(importlib.import_module("pdb").Pdb, debugger)


def _prompt(base: Any, debugger: Debugger) -> Any:
    line = debugger.line
    line.again = debugger.wait

    class Prompt(base):  # type: ignore[misc]
        asks = False  # whether it waits for a line, or runs one

        def set_trace(self, frame: Any) -> None:
            if self.asks:
                self.message("breakpoint() is ignored in code typed here: `debug EXPR` stops there")
            elif debugger.is_here:
                # Frames below the code that this debugger runs belong to the outer debugger.
                while frame is not None and frame is not self.botframe:
                    frame.f_trace = self.trace_dispatch
                    frame = frame.f_back
                self.set_step()
                sys.settrace(self.trace_dispatch)
            else:
                super().set_trace(frame)

        def interaction(self, frame: Any, *rest: Any) -> None:
            if debugger.is_here:  # held where it failed, or in a typed line
                self._interact(frame, *rest)
                return
            place = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
            with debugger.stopped(place, BREAKPOINT):
                self._interact(frame, *rest)
            line.say({"goes": line.how})
            debugger.go_on()

        def _interact(self, *args: Any) -> None:
            self.asks = True
            try:
                super().interaction(*args)
            except _Over:
                self.set_continue()
                raise
            finally:
                self.asks = False

        def user_return(self, frame: Any, value: Any) -> None:
            super().user_return(frame, value)
            if frame.f_back is None or frame.f_back.f_code.co_filename.startswith(HERE):
                self.set_continue()  # the user's code is over: there is nothing left to step through

        def get_stack(self, *args: Any) -> Any:
            stack, at = super().get_stack(*args)
            names = [frame.f_code.co_filename for frame, _ in stack]
            # Find where the user's frames begin, by file name
            first = max(
                (at + 1 for at, name in enumerate(names) if name == HERE + "rank/worker.py"), default=0
            )
            while first < len(names) and names[first].startswith(HERE):
                first += 1
            first = first if first < len(names) else 0
            return stack[first:], max(0, at - first)

        def onecmd(self, text: str) -> Any:
            command = (self.parseline(text)[0] or "") if text.strip() else self.lastcmd.partition(" ")[0]
            line.how = STEPS if command in _STEPS else CONTINUES
            streams = sys.stdout, sys.stderr
            sys.stdout = sys.stderr = (
                self.stdout
            )  # IPython's commands print; ``interact`` writes its tracebacks
            try:
                with line.heeding():
                    return super().onecmd(text)
            except (_Over, KeyboardInterrupt):
                raise
            except BaseException as exc:  # otherwise it would count as the rank's failure
                self.error(format_exception_only(type(exc), exc)[-1].strip())
            finally:
                sys.stdout, sys.stderr = streams

        def stop_here(self, frame: Any) -> bool:
            # IPython's prints a line into the rank's log for each call of a module that is skipped.
            if self.is_skipped_module(frame.f_globals.get("__name__", "")):
                return False
            return bool(super().stop_here(frame))

        def do_debug(self, arg: str) -> None:
            """debug CODE: step through it in a debugger of its own."""
            inner = _prompt(base, debugger)
            inner.prompt = "(%s) " % self.prompt.strip()
            # Before Python 3.13, ``f_locals`` builds a new dict each time it is read.
            names = self.curframe_locals if sys.version_info < (3, 13) else self.curframe.f_locals
            traces = sys.gettrace()
            sys.settrace(None)
            self.message("ENTERING RECURSIVE DEBUGGER")
            try:
                with debugger.inside(inner):
                    sys.call_tracing(inner.run, (arg, self.curframe.f_globals, names))
            finally:
                self.message("LEAVING RECURSIVE DEBUGGER")
                self.lastcmd = inner.lastcmd
                sys.settrace(traces)

        def do_quit(self, arg: str) -> None:
            """q(uit): leave the debugger; the rank stays stopped."""
            line.leave("")

        do_q = do_exit = do_EOF = do_quit

        def do_run(self, arg: str) -> None:
            """Tell that a rank can't be started again."""
            self.error("a rank can't be started again from here")

        do_restart = do_run

        def do_interact(self, arg: str) -> Any:
            """interact: an interpreter with the names of this frame."""
            streams = sys.stdin, sys.stdout
            sys.stdin, sys.stdout = self.stdin, self.stdout
            try:
                return super().do_interact(arg)
            except SystemExit:  # quit()
                return None
            finally:
                sys.stdin, sys.stdout = streams

    prompt = Prompt(stdin=None, stdout=line, skip=[_OURS], nosigint=True)
    prompt.use_rawinput = False
    prompt.report_skipped = False  # IPython's; it would write that to the rank's log
    prompt.stdin = _Typed(line, prompt)
    return prompt


class _Typed:
    """The input of pdb."""

    def __init__(self, line: _Line, pdb: Any) -> None:
        self._line = line
        self._pdb = pdb

    def readline(self, size: Any = -1) -> str:
        """Return the next line."""
        with self._line.heeding():
            return self._line.ask(self._pdb).rstrip("\n") + "\n"


_the: List[Debugger] = []


def begin(
    folder: str, wait: float, patient: bool, address: str, round_: int, fail: Callable[[BaseException], Any]
) -> None:
    """Let this rank stop in the debugger; if ``patient``, time-outs of collectives are put off meanwhile.

    The other parameters are those of ``Debugger`` and ``Patience``.
    """
    patience = Patience(address, round_, fail)
    if patient:
        patience.install()
    _the[:] = [Debugger(int(os.environ["RANK"]), folder, wait, patience)]
    _the[0].install()


def over() -> None:
    """See ``Debugger.over``."""
    for debugger in _the:
        debugger.over()


def hold_at(exc: BaseException) -> None:
    """See ``Debugger.hold``."""
    for debugger in _the:
        debugger.hold(exc)


def _completions(pdb: Any, request: Dict[str, Any]) -> List[str]:
    """Return pdb's completions of a line."""
    try:
        line, begin, end = str(request["complete"]), int(request["begin"]), int(request["end"])
        typed = line[begin:end]
        command = pdb.parseline(line)[0] if begin else None
        if command is None:
            names = [
                *pdb.completenames(typed, line, begin, end),
                *pdb._complete_expression(typed, line, begin, end),
            ]
        else:
            complete = getattr(pdb, "complete_" + command, None) or pdb._complete_expression
            names = complete(typed, line, begin, end)
        return sorted({str(name) for name in names if str(name).startswith(typed)})[:_MOST_WORDS]
    except Exception:  # raised by the user's objects
        return []
