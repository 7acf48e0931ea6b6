"""A rank answers its node's questions: what it is doing, and whether anything in it moves.

A thread waits for questions on a socket to the node, which costs nothing until one comes. It isn't known to
``threading``, so that code which lists threads finds only its own. Questions and answers are lines:

    node   pulse 3                      rank   {"at": 3}       it has Python's lock
           sample-65536 4                      {"of": 3, …}    the answer; only the last question gets one
           profile-3.0-812.5 5                         or "memory"; it goes on by itself (``profiler.py``)

A sample's number is its size limit in bytes. A profile's are its seconds, and until when, by the monotonic
clock, it may begin: a question may stay unread for long while something in C holds Python's lock.

In that case the node sends a signal to this very thread, and faulthandler writes all stacks to the socket
(``outside.py``). The user's code may close the socket, and open a file of its own under the same number: that
is checked before anything is read or written.
"""

from __future__ import annotations

import _thread
import faulthandler
import json
import linecache
import os
import re
import signal
import socket
import sys
import threading
import time
from dataclasses import asdict, replace
from typing import Any, Dict, Iterator, List, Optional, Tuple

from nbtorchjob.runtime.api import report
from nbtorchjob.runtime.ask import questions
from nbtorchjob.runtime.ask.questions import within
from nbtorchjob.runtime.facts.errors import HERE, MAX_FRAMES, Frame, shortened, users_frames
from nbtorchjob.runtime.facts.samples import (
    ENDED,
    HAS_RETURNED,
    MAX_BYTES,
    MAX_GROUPS,
    MAX_THREADS,
    RUNS,
    RankSample,
    Thread,
)
from nbtorchjob.runtime.look import recorder
from nbtorchjob.runtime.look.outside import SIGNAL

SOCKET = "ranks.sock"  # in the node's folder
_LINE = 200  # characters of a source line, or of a name
_ASK = 4096

_PATIENCE = HERE + "debug/patience.py"
held = ""  # ``samples.HELD`` while the rank is held

C10D = os.path.join("torch", "distributed", "distributed_c10d.py")
MEETS = ("init_process_group", "new_group")  # whatever they call: a store, or this package's replacement
_STANDARD = os.path.join(os.path.dirname(os.__file__), "")
_LIBRARIES = ("%ssite-packages%s" % (os.sep, os.sep), "%sdist-packages%s" % (os.sep, os.sep))
_TORCHS = re.compile(r"\btorch/(?:autograd|utils/data)/")


class Sampler:
    """Answers for this process, which is ``rank``, once :meth:`start` has found the node."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._returned = False
        self._socket: Optional[socket.socket] = None
        self._file: Tuple[int, int] = (0, 0)
        self._counts: Optional[Dict[str, List[int]]] = None
        self._folder = ""
        self._profiler: Any = None
        self._speaks = threading.Lock()
        self.note = ""  # what the rank waits for while it runs no user's code

    def start(self, folder: str) -> None:
        """Connect to the node whose folder this is; without one, there are no questions."""
        node = socket.socket(socket.AF_UNIX)
        try:
            node.setblocking(False)  # a node that accepts no connections mustn't delay the rank
            within(folder, SOCKET, node.connect)
            node.setblocking(True)
        except OSError:
            node.close()
            return
        self._folder = folder
        self._socket, self._file = node, _file(node.fileno())

        def forget() -> None:  # a forked process doesn't answer questions
            if self._socket is not None:
                faulthandler.unregister(SIGNAL)
                self._close(self._socket)
                self._socket = None
                if self._profiler is not None:
                    self._profiler.forget()

        os.register_at_fork(after_in_child=forget)
        # The user's code may block signals and wait for them: this thread mustn't take them instead.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        _thread.start_new_thread(self._run, (node,))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def renew(self) -> None:
        """Connect again if the user's code has closed the connection."""
        if self._socket is not None and not self._is_there(self._socket):
            self._socket.detach()  # its thread may still wait on it
            self.start(self._folder)

    def returned(self) -> None:
        """Record that the call has returned: the rank only waits for the others now."""
        self._returned = True

    def say_last(self, frames: "Optional[tuple[Frame, ...]]" = None) -> None:
        """Tell the node what this rank was doing, before it ends; ``frames`` are those of its exception."""
        if self._socket is None:
            return
        try:
            sample = self._sample()
            if frames is not None:
                sample = replace(sample, threads=(Thread("main", shortened(frames)),))
            self._say(self._socket, {"last": bounded(sample).to_json()})
        except Exception:  # it ends, and its node may be gone
            pass

    def _close(self, node: socket.socket) -> None:
        if self._is_there(node):
            node.close()
        else:
            node.detach()

    def _is_there(self, node: socket.socket) -> bool:
        return _file(node.fileno()) == self._file

    def _run(self, node: socket.socket) -> None:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (SIGNAL,))
            faulthandler.register(SIGNAL, node.fileno(), all_threads=True)
            hello = {"thread": threading.get_native_id(), "fd": node.fileno(), "inode": self._file[1]}
            self._say(node, {**hello, "main": threading.main_thread().ident, "own": threading.get_ident()})
            while self._is_there(node):
                chunk = node.recv(_ASK)
                question, number = chunk.split(b"\n")[-2].decode().split()
                self._say(node, {"at": int(number)})
                answer: Dict[str, Any]
                try:
                    name, _, most = question.partition("-")
                    if name == "pulse":
                        answer = self._pulse()
                    elif name in ("profile", "memory"):
                        answer = {"trouble": self._profile(name, *map(float, most.split("-")))}
                    else:
                        answer = {"sample": bounded(self._sample(), int(most)).to_json()}
                except Exception as exc:
                    answer = {"trouble": "%s: %s" % (type(exc).__name__, exc)}
                self._say(node, {"of": int(number), **answer})
        except BaseException:  # whatever goes wrong here mustn't affect the job
            pass
        finally:
            self._close(node)

    def _say(self, node: socket.socket, record: Dict[str, Any]) -> None:
        with self._speaks:
            if self._is_there(node):
                # The user's code may have asked for SIGPIPE.
                node.sendall(json.dumps(record).encode() + b"\n", socket.MSG_NOSIGNAL)

    def _profile(self, kind: str, seconds: float, until: float) -> str:
        """Begin a profile; return why it can't, else ""."""
        if self._returned:
            return "it has returned"
        if time.monotonic() > until:
            return "it was asked too long ago"
        if self._profiler is None:
            questions.take_modules(self._folder)
            from nbtorchjob.runtime.look.profiler import Profiler  # late: it comes with the question

            self._profiler = Profiler()
        why: str = self._profiler.start(self._folder, self._rank, seconds, memory=kind == "memory")
        return why

    def _pulse(self) -> Dict[str, Any]:
        """Return how far this rank has come, and what it waits for if it hasn't moved since last time."""
        before = self._counts
        self._counts = {**recorder.counts(), **recorder.sequence_numbers()}
        still = before == self._counts and not self._returned
        # Where the main thread is in the user's code, in case this process is stopped later
        stack = _places(sys._current_frames().get(threading.main_thread().ident or 0))
        own = (frame for frame in reversed(stack) if not is_library(frame.filename))
        *_, last = stack or [Frame("", 0, "")]
        meets = any(frame.filename.endswith(C10D) and frame.name in MEETS for frame in stack)
        calls = last.filename.endswith(C10D) or ".wait(" in linecache.getline(last.filename, last.lineno)
        return {
            "counts": self._counts,
            "reports": report.sent,
            "place": asdict(_with_line(next(own, Frame("", 0, "")))),
            "pending": recorder.pending() if still else [],
            # For another rank, in a call that isn't in a recorder
            "waits": still and (meets or (bool(self._counts) and calls)),
        }

    def _sample(self) -> RankSample:
        if self._returned:
            groups = recorder.groups(left=True)
            return RankSample(self._rank, ENDED, os.getpid(), groups=groups, note=HAS_RETURNED)
        threads = () if self.note else tuple(_threads())
        sample = RankSample(self._rank, held or RUNS, os.getpid(), threads, note=self.note)
        try:
            return replace(sample, groups=recorder.groups())
        except Exception as exc:  # another version of torch
            return replace(
                sample, note="its process groups can't be read: %s: %s" % (type(exc).__name__, exc)
            )


def _file(fd: int) -> "tuple[int, int]":
    try:
        status = os.fstat(fd)
        return status.st_dev, status.st_ino
    except OSError:
        return 0, 0


def _threads() -> Iterator[Thread]:
    """Yield the threads that do the user's work, main first."""
    me, main = threading.get_ident(), threading.main_thread().ident
    # Release the user's frames before anything else runs: their objects mustn't be finalized in this thread.
    stacks, arguments = {}, {}
    for ident, frame in sys._current_frames().items():
        if ident != me:
            stacks[ident], arguments[ident] = _places(frame), _arguments(frame)
            if stacks[ident][-1:] and stacks[ident][-1].filename.endswith("selectors.py"):
                stacks[ident] += _awaited(frame)
    del frame
    named = dict(getattr(threading, "_active", {}))  # without its lock, which the main thread may hold
    for ident in sorted(stacks, key=lambda thread: thread != main):
        frames = users_frames(stacks[ident])
        name = "main" if ident == main else getattr(named.get(ident), "name", "")
        if ident == main or does_work(frames):
            stack = map(_with_line, shortened(frames))
            yield Thread(str(name or "thread")[:_LINE], tuple(stack), arguments[ident])


def _places(frame: Any) -> "list[Frame]":
    """Return the stack of a frame, the outermost first."""
    places = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename != _PATIENCE:  # which only waits in torch's place
            places.append(Frame(code.co_filename, frame.f_lineno or 0, code.co_name[:_LINE]))
        frame = frame.f_back
    return places[::-1]


def _awaited(frame: Any) -> "list[Frame]":
    """Return where the coroutine that a stack's event loop runs is suspended, which no stack shows."""
    while frame is not None and frame.f_code.co_name != "run_until_complete":
        frame = frame.f_back
    task: Any = frame.f_locals.get("future") if frame is not None else None
    coroutine: Any = task.get_coro() if hasattr(task, "get_coro") else None
    places: List[Frame] = []
    while getattr(coroutine, "cr_frame", None) is not None and len(places) < MAX_FRAMES:
        code = coroutine.cr_frame.f_code
        places.append(Frame(code.co_filename, coroutine.cr_frame.f_lineno or 0, code.co_name[:_LINE]))
        coroutine = coroutine.cr_await
    return places


def _arguments(frame: Any) -> "tuple[tuple[str, str], ...]":
    """Return the arguments of the outermost function of torch.distributed on a stack."""
    called = None
    while frame is not None:
        called = frame if frame.f_code.co_filename.endswith(C10D) else called
        frame = frame.f_back
    if called is None:
        return ()
    try:
        return recorder.call_arguments(called)
    except Exception:  # another version of torch, or the user's code has replaced the function
        return ()


def _with_line(frame: Frame) -> Frame:
    return replace(frame, line=linecache.getline(frame.filename, frame.lineno).strip()[:_LINE])


def does_work(frames: "tuple[Frame, ...]") -> bool:
    """Whether a thread runs code of the user, autograd or DataLoader, and isn't a library's idle thread."""
    return any(not is_library(frame.filename) or _TORCHS.search(frame.filename) for frame in frames)


def is_library(filename: str) -> bool:
    """Whether a file isn't the user's code."""
    own = filename.startswith((HERE, _STANDARD, "<frozen ")) or not filename
    return own or any(part in filename for part in _LIBRARIES)


# Limits for frames of a thread, threads and groups, each row smaller.
_CUTS = ((MAX_FRAMES, MAX_THREADS, MAX_GROUPS), (30, 16, 32), (16, 8, 16), (8, 2, 4), (4, 1, 1))


def bounded(sample: RankSample, most: int = MAX_BYTES) -> RankSample:
    """Return a sample whose JSON has at most ``most`` bytes; its note says that something was left out."""
    for frames, threads, groups in _CUTS:
        cut = replace(
            sample,
            threads=tuple(
                replace(thread, frames=shortened(thread.frames, frames))
                for thread in sample.threads[:threads]
            ),
            groups=sample.groups[:groups],
        )
        if cut != sample:
            cut = replace(cut, note="it has more frames, threads or groups than fit here")
        if len(json.dumps(cut.to_json())) <= most:
            return cut
    return RankSample(sample.rank, sample.state, sample.pid, note="its sample is too long to show")
