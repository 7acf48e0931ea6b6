"""Answers questions to a node on a socket in the node's own folder, in threads beside its agent.

No question may end, slow down or change a job: if there is no answer, the reason is the answer, and questions
are bounded in size, number and time. A handler must end by itself: nothing can end its thread, which takes up
one of the few places until then. (``lookout.py`` never waits without a limit.)
"""

from __future__ import annotations

import _thread
import glob
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from itertools import chain
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Union

from nbtorchjob.runtime.ask import questions
from nbtorchjob.runtime.ask.questions import (
    ANSWER_BYTES,
    MODULES,
    OWN,
    QUESTION_BYTES,
    RECORD_BYTES,
    SOCKET,
    Content,
    Messages,
    within,
)
from nbtorchjob.runtime.objects.wire import WireError

# Most questions at once, and most long conversations of one name: a port may stay forwarded for days.
MOST = 8
_ASKING_S = 10.0  # for a question to arrive whole, and for each part of an answer to be received
_ANSWERING_S = 600.0  # for a whole answer, checked between its records
# Signals that the agent and torch handle.
_AGENTS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
)
_BUSY = "it is already answering %d questions: try again" % MOST


class Question(Dict[str, Any]):
    """A question, and what the asker says after it.

    Once a handler calls ``hear``, its answer may be of any length and take any time.
    """

    def __init__(self, fields: Dict[str, Any], talk: "_Talk") -> None:
        super().__init__(fields)
        self._talk = talk
        self._goes_on = False

    @property
    def goes_on(self) -> bool:
        """Whether the answer may be of any length and take any time: then it has a place of its own.

        Setting it raises ``Refused`` if too many conversations of this name go on.
        """
        return self._goes_on

    @goes_on.setter
    def goes_on(self, goes_on: bool) -> None:
        if goes_on and not self._goes_on:
            self._talk.stay(str(self.get("question")))
            self._goes_on = True

    def fileno(self) -> int:
        """Return a descriptor that can be waited for beside others; earlier messages may be buffered here."""
        return self._talk.fileno()

    def hear(self, seconds: float) -> Optional[Content]:
        """Return the next message, b"" being a sign of life; None if none arrives within ``seconds``.

        Raises ``ConnectionError`` once the asker has left, and ``WireError`` for a message of someone else.
        """
        self.goes_on = True
        return self._talk.hear(RECORD_BYTES, seconds)


# Only conversations that go on contain answers in bytes.
Handler = Callable[[Question], Iterator[Union[Dict[str, Any], bytes]]]


def serve(folder: str, key: bytes, handlers: Mapping[str, Handler]) -> None:
    """Answer each question with the handler of its name, as long as this process lives.

    ``key`` is the node's own (``questions.node_key``). Raises ``OSError`` if the folder can't hold a socket.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        os.fchmod(listener.fileno(), 0o600)  # the bound path has this mode from the beginning (Linux)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, SOCKET))  # of an earlier attempt
        within(folder, SOCKET, listener.bind)
        listener.listen(4 * MOST)
    except OSError:
        listener.close()
        raise
    _thread.start_new_thread(_Desk(key, handlers).run, (listener,))  # ``Thread.start`` waits until it runs


def close(folder: str) -> None:
    """Remove the sockets: a folder with a socket in it can't be copied (``shutil.copytree``, 3.11)."""
    for path in (SOCKET, "debug-*.sock"):  # the latter are from ranks that were stopped (``debug``)
        for socket_path in glob.glob(os.path.join(glob.escape(folder), path)):
            with suppress(OSError):
                os.unlink(socket_path)


class Refused(Exception):
    """A handler refuses a question; the message is one line that says why."""


class _Desk:
    def __init__(self, key: bytes, handlers: Mapping[str, Handler]) -> None:
        self._key = key
        self._handlers = handlers
        self._free = threading.Semaphore(MOST)
        self._lock = threading.Lock()
        self._staying: Dict[str, int] = {}  # conversations that go on, by name

    def run(self, listener: socket.socket) -> None:
        # A signal ends the agent's waits only if the agent's own thread gets it. Threads inherit this mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, _AGENTS)
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:  # no file descriptors left
                time.sleep(0.1)
                continue
            if not self._free.acquire(blocking=False):
                _Talk(peer, self._key, self).refuse(_BUSY)
                continue
            try:
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()
            except RuntimeError:  # no threads left
                self._free.release()
                _Talk(peer, self._key, self).refuse("it can't start a thread to answer")

    def stay(self, name: str) -> None:
        """Free the place of a question that goes on; raise ``Refused`` if too many of its name go on."""
        with self._lock:
            count = self._staying.get(name, 0)
            if count == MOST:
                raise Refused("it already has %d of these conversations: end one" % MOST)
            self._staying[name] = count + 1
        self._free.release()

    def _answer(self, peer: socket.socket) -> None:
        talk = _Talk(peer, self._key, self)
        try:
            talk.answer(self._handlers)
        finally:
            if talk.stays is None:
                self._free.release()
            else:
                with self._lock:
                    self._staying[talk.stays] -= 1


class _Talk:
    """One connection; ``stays`` is the name of its conversation, once that goes on."""

    def __init__(self, peer: socket.socket, key: bytes, desk: _Desk) -> None:
        self._peer = peer
        self._messages = Messages(key)
        self._came = bytearray()
        self._desk = desk
        self.stays: Optional[str] = None

    def stay(self, name: str) -> None:
        self._desk.stay(name)
        self.stays = name

    def fileno(self) -> int:
        return self._peer.fileno()

    def refuse(self, why: str) -> None:
        """Tell the asker why there is no answer."""
        with self._peer, suppress(OSError):
            self._say({"end": why})  # it fits into the empty buffer of a new connection

    def answer(self, handlers: Mapping[str, Handler]) -> None:
        """Read the question and answer it; the asker may leave at any time."""
        with self._peer, suppress(OSError):
            number = os.urandom(16).hex()
            self._say({"number": number})
            self._messages.number(number)
            try:
                question = self.hear(QUESTION_BYTES, _ASKING_S)
                if question is None:
                    raise ConnectionError("no question came")
                if isinstance(question, bytes):
                    raise WireError("it isn't a question")
                self._messages.number(str(question.pop(OWN, "")))
            except WireError as exc:
                self._say({"end": "it can't take the question: %s" % exc})
            else:
                self._say({"end": self._answered(handlers, question)})

    def _answered(self, handlers: Mapping[str, Handler], fields: Dict[str, Any]) -> str:
        """Send the records; return why there are no more, "" if they are complete."""
        handler = handlers.get(str(fields.get("question")))
        if handler is None:
            return "it knows no question %.40r" % fields.get("question")
        questions.add_modules(fields.get(MODULES, {}))
        until, room = time.monotonic() + _ANSWERING_S, ANSWER_BYTES
        question = Question(fields, self)
        # So errors from the call of the handler surface in the loop, like those from its records.
        records = chain.from_iterable(map(handler, (question,)))
        while question.goes_on or (room >= RECORD_BYTES and time.monotonic() < until):
            try:
                record = next(records)
                content = record if isinstance(record, bytes) else {"record": record}
                message = self._messages.write(content, RECORD_BYTES)
            except StopIteration:
                return ""
            except Refused as exc:
                return str(exc)
            except Exception as exc:  # the handler's, or from a record that isn't JSON, or is too long
                return "it can't answer: %s: %.400s" % (type(exc).__name__, " ".join(str(exc).split()))
            self._send(message)
            room -= len(message)
        return "the answer is longer than allowed"

    def _say(self, content: Dict[str, Any]) -> None:
        self._send(self._messages.write(content, RECORD_BYTES))

    def _send(self, message: bytes) -> None:
        self._peer.settimeout(_ASKING_S)
        self._peer.sendall(message)

    def hear(self, most: int, seconds: float) -> Optional[Content]:
        """Return the next message; None if it isn't complete within ``seconds``."""
        until = time.monotonic() + seconds
        while True:
            message = self._messages.read(self._came, most)
            if message is not None:
                return message
            self._peer.settimeout(max(1e-3, until - time.monotonic()))
            try:
                part = self._peer.recv(QUESTION_BYTES)
            except socket.timeout:
                return None
            if not part:
                raise ConnectionError("whoever asked has left")
            self._came += part
