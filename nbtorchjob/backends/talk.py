"""Conversations with a node over any transport: a question, a talk that goes on, or the debugger."""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, Protocol

from nbtorchjob.backends.base import Backend, NodeAnswer, Talks, able
from nbtorchjob.errors import AskError, JobEndedError
from nbtorchjob.runtime.ask import questions
from nbtorchjob.runtime.ask.questions import RECORD_BYTES, Messages
from nbtorchjob.runtime.objects.wire import WireError
from nbtorchjob.state import JobState
from nbtorchjob.state.facts.events import FAILURE, RankStops
from nbtorchjob.text.hints import hint
from nbtorchjob.text.words import line, ranks

PART_BYTES = RECORD_BYTES - 1  # the most bytes that are sent at once


class Line(Protocol):
    """The transport of a conversation; without a sign of life in ``beat`` seconds it may be cut."""

    beat: float

    def send(self, data: bytes) -> None:
        """Send all of ``data``; no-op if the other end is gone."""

    def receive(self, seconds: float) -> bytes:
        """Return the next bytes, b"" at the end; raises ``TimeoutError`` after ``seconds`` without any."""

    def why(self) -> str:
        """Return why it has ended."""

    def close(self) -> None:
        """Close it."""


class Talk:
    """A conversation with one node that has accepted the question."""

    def __init__(self, conversation: Conversation, line: Line, timeout: float) -> None:
        """Ask the question; raises ``AskError`` if the node doesn't accept it within ``timeout`` seconds."""
        self._conversation = conversation
        self._line = line
        self._sending = Lock()  # each message has its place in the conversation
        self._sent = time.monotonic()
        try:
            until = self._sent + timeout
            while not conversation.has_reply:
                self._hear(until)
        except TimeoutError:
            self.close()
            raise AskError(silent(timeout)) from None
        except BaseException:
            self.close()
            raise

    def send(self, content: Mapping[str, Any] | bytes) -> None:
        """Send another message, from any thread: at most ``PART_BYTES`` bytes, or a mapping as JSON."""
        with self._sending:
            self._sent = time.monotonic()
            self._line.send(self._conversation.say(content))

    def send_all(self, data: memoryview) -> None:
        """Send bytes in as many parts as it takes."""
        for begin in range(0, len(data), PART_BYTES):
            self.send(bytes(data[begin : begin + PART_BYTES]))

    def hear(self, seconds: float) -> dict[str, Any] | None:
        """Return the next record; None once the node has sent all of them.

        Raises ``TimeoutError`` after ``seconds`` without one, and ``AskError`` with why there are no more.
        """
        record = self.receive(seconds)
        if isinstance(record, bytes):
            raise AskError("it answered with bytes, which weren't requested")
        return record

    def receive(self, seconds: float) -> dict[str, Any] | bytes | None:
        """Return the next record, or bytes; otherwise like :meth:`hear`."""
        until = time.monotonic() + seconds
        while (record := self._conversation.next_record()) is None:
            if self._conversation.over:
                if trouble := self._conversation.answer.trouble:
                    raise AskError(trouble, said=self._conversation.ended_by_node, absent=trouble == STARTING)
                return None
            self._hear(until)
        return record

    def _hear(self, until: float) -> None:
        now = time.monotonic()
        if now >= until:
            raise TimeoutError
        beat = self._sent + self._line.beat
        if now >= beat:
            self.send(b"")
            return
        try:
            data = self._line.receive(min(until, beat) - now)
        except TimeoutError:
            return
        if not data:
            self._conversation.end(self._line.why())
        elif message := self._conversation.hear(data):
            self._line.send(message)

    def close(self) -> None:
        """End the conversation."""
        self._line.close()

    def __enter__(self) -> Talk:
        return self

    def __exit__(
        self, type_: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_ALIVE_S = 10.0  # between two signs of life


def meant(state: JobState, rank: int | None) -> RankStops:
    """Return where the requested rank is stopped; raises ``JobEndedError``, and ``AskError`` with why not."""
    name = state.info.name
    if state.phase.terminal:
        raise JobEndedError(f"{name} has ended: there is no rank to look at any more")
    stopped = {stop.rank: stop for stop in state.stopped}
    text = ranks([*stopped])
    if rank is None and len(stopped) == 1:
        return next(iter(stopped.values()))
    if rank is not None and rank in stopped:
        return stopped[rank]
    if rank is None and stopped:
        raise AskError(f"which rank of {name}? {text} are stopped: {hint('debug', name, '--rank N')}")
    if stopped:
        raise AskError(f"rank {rank} of {name} isn't stopped; {text} {'is' if len(stopped) == 1 else 'are'}")
    how = "breakpoint() in the code stops one, and --hold holds one that fails"
    raise AskError(f"no rank of {name} is stopped: {how}")


def release(backend: Backend, state: JobState) -> list[int]:
    """Release all ranks of a job that are held where they failed; return these ranks.

    Raises ``AskError`` if none is held, or if not all could be asked, and ``JobEndedError``.
    """
    name = state.info.name
    if state.phase.terminal:
        raise JobEndedError(f"{name} has ended: none of its ranks is held any more")
    nodes = sorted({stop.node for stop in state.stopped if stop.why == FAILURE})
    if not nodes:
        stopped = ranks([stop.rank for stop in state.stopped])
        more = f"; {stopped} at a breakpoint: {hint('debug', name)}" if state.stopped else ""
        raise AskError(f"no rank of {name} is held where it failed{more}")
    address = state.info.address
    all_ranks = range(state.info.nodes[1] * state.info.nproc_per_node)
    released: set[int] = set()
    for answer in able(backend, Talks, "release", address).ask(address, {"question": "release"}, nodes):
        for record in answer.records:
            names = record.get("released")
            released.update(rank for rank in all_ranks if isinstance(names, list) and rank in names)
        if answer.trouble:
            raise AskError(f"node {answer.node} of {name} can't be asked: {answer.trouble}")
    return sorted(released)


class Session:
    """A debugger session with one stopped rank, which receives the lines that a person types."""

    def __init__(self, talk: Talk, stop: RankStops) -> None:
        self._talk = talk
        self._lock = Lock()  # for messages that are sent while a person types
        self.stop = stop

    def hear(self, seconds: float) -> dict[str, Any] | None:
        """Return the rank's next message (``runtime/debug``); None if it has gone.

        Raises ``TimeoutError`` after ``seconds`` without a message, and ``AskError``.
        """
        return self._talk.hear(seconds)

    def say(self, line: str) -> None:
        """Send a line that was typed."""
        self._talk.send({"line": line})

    def complete(self, line: str, begin: int, end: int) -> list[str]:
        """Return the rank's completions of a line."""
        with self._lock, suppress(AskError, TimeoutError):
            self._talk.send({"complete": line, "begin": begin, "end": end})
            while (record := self._talk.hear(_ALIVE_S)) is not None:
                if "words" in record:
                    words = record["words"]
                    return [str(word) for word in words] if isinstance(words, list) else []
        return []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Stay connected while a person thinks about what to type."""
        done = Event()

        def beat() -> None:
            while not done.wait(_ALIVE_S):
                with self._lock, suppress(AskError, OSError):
                    self._talk.send(b"")

        thread = Thread(target=beat, daemon=True, name="debug")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


@contextmanager
def session(backend: Backend, state: JobState, rank: int | None, by: str) -> Iterator[Session]:
    """Attach to a stopped rank; raises ``AskError`` if that fails, as a second session at a rank does."""
    stop = meant(state, rank)
    question = {"question": "debug", "rank": stop.rank, "by": by}
    address = state.info.address
    with able(backend, Talks, "debug", address).talk(address, stop.node, question) as talk:
        yield Session(talk, stop)


MOST = 16  # nodes asked at once
OLDER = "it runs an older version of nbtorchjob, which can't be asked"
STARTING = "it is still starting"
_TROUBLE = 500  # characters: a node may send anything


class Conversation:
    """The protocol with one node, which accepts questions signed with ``key`` (``questions.node_key``).

    A conversation that ``goes_on`` may have any length: its records are taken as they arrive.
    """

    def __init__(self, node: int, key: bytes, question: Mapping[str, Any], *, goes_on: bool = False) -> None:
        self.node = node
        self.over = False
        self.ended_by_node = False  # whether the node itself has ended it
        self._question = question
        self._messages = Messages(key)
        self._came = bytearray()
        self._question_sent = False
        self._room = math.inf if goes_on else questions.ANSWER_BYTES + questions.RECORD_BYTES
        self._goes_on = goes_on
        self._records: deque[dict[str, Any] | bytes] = deque()
        self._trouble = ""

    @property
    def has_reply(self) -> bool:
        """Whether anything came from the node."""
        return self._question_sent or self.over

    def hear(self, data: bytes) -> bytes:
        """Process bytes from the node; return the bytes to send to it."""
        self._came += data
        self._room -= len(data)
        try:
            if self._room < 0:
                raise WireError("it is too long")
            while not self.over:
                message = self._messages.read(self._came, questions.RECORD_BYTES)
                if message is None:
                    break
                if isinstance(message, bytes):
                    if not (self._question_sent and self._goes_on):
                        raise WireError("it isn't a message")
                    self._records.append(message)
                    continue
                if not self._question_sent and "number" in message:
                    return self._put_question(message["number"])
                if isinstance(end := message.get("end"), str):
                    self.ended_by_node = True
                    self.end(end)
                elif self._question_sent and isinstance(message.get("record"), dict):
                    self._records.append(message["record"])
                else:
                    raise WireError("it isn't a message")
        except WireError as exc:
            self.end(f"the answer isn't from a node of this job: {exc}")
        return b""

    def _put_question(self, number: object) -> bytes:
        """Return the question, signed for this conversation; b"" if it is too long."""
        if not isinstance(number, str) or not number.isascii():
            raise WireError("it isn't a message")
        self._question_sent = True
        self._messages.number(number)
        own = secrets.token_hex(16)
        try:
            question = self._messages.write({**self._question, questions.OWN: own}, questions.QUESTION_BYTES)
        except WireError as exc:
            self.end(f"the question is too long: {exc}")
            return b""
        self._messages.number(own)
        return question

    def say(self, content: Mapping[str, Any] | bytes) -> bytes:
        """Return the bytes of a message to the node; raises ``WireError`` if it is too long."""
        body = content if isinstance(content, bytes) else dict(content)
        return self._messages.write(body, questions.RECORD_BYTES)

    def next_record(self) -> dict[str, Any] | bytes | None:
        """Remove and return the oldest record; None if none is left."""
        return self._records.popleft() if self._records else None

    def end(self, trouble: str) -> None:
        """End the conversation; the records so far stay."""
        if not self.over:
            self.over = True
            self._trouble = line(trouble, _TROUBLE)

    @property
    def answer(self) -> NodeAnswer:
        """The node's answer so far."""
        records = tuple(record for record in self._records if not isinstance(record, bytes))
        return NodeAnswer(self.node, records, self._trouble)


def silent(seconds: float) -> str:
    """Return the text for a node that doesn't answer in time."""
    return f"hasn't answered for {seconds:.0f} s"


def reachable_nodes(state: JobState, nodes: Sequence[int] | None) -> tuple[list[int], list[NodeAnswer]]:
    """Return those of ``nodes``, by default all, that can be asked, and an answer for each of the others.

    Raises ``JobEndedError``.
    """
    if state.phase.terminal:
        raise JobEndedError(f"{state.info.name} has ended: its nodes can't be asked any more")
    newest = max((life.attempt for node in state.nodes.values() for life in node.lives.values()), default=1)
    meant = sorted({*range(state.info.nodes[0]), *state.nodes}) if nodes is None else dict.fromkeys(nodes)
    troubles = {node: _trouble(state, node, newest) for node in meant}
    return (
        [node for node, trouble in troubles.items() if not trouble],
        [NodeAnswer(node, (), trouble) for node, trouble in troubles.items() if trouble],
    )


def _trouble(state: JobState, index: int, attempt: int) -> str:
    node = state.nodes.get(index)
    if node is None:
        return "it hasn't started" if index in range(state.info.nodes[1]) else "the job has no such node"
    life = node.life
    if life.running and life.attempt == attempt:
        return ""
    if life.waiting is not None:
        return life.waiting.text
    return "it has ended" if life.over else "it hasn't started"
