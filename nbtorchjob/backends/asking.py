"""A node is asked: what is said, whatever carries it, and why a node can't be asked now (pure)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.errors import JobEndedError
from nbtorchjob.runtime import questions
from nbtorchjob.runtime.questions import Messages
from nbtorchjob.runtime.wire import WireError
from nbtorchjob.state import JobState
from nbtorchjob.text.words import line

MOST = 16  # nodes asked at once
OLDER = "it runs an older version of nbtorchjob, which can't be asked"
STARTING = "it is still starting"
_TROUBLE = 500  # characters: a node may say anything


class Conversation:
    """What is said with one node, which takes questions signed with ``key`` (``questions.node_key``).

    One that ``goes_on`` may be of any length: its records are taken as they come.
    """

    def __init__(self, node: int, key: bytes, question: Mapping[str, Any], *, goes_on: bool = False) -> None:
        self.node = node
        self.over = False
        self.said = False  # whether the node itself has ended it
        self._question = question
        self._messages = Messages(key)
        self._came = bytearray()
        self._asked = False
        self._room = math.inf if goes_on else questions.ANSWER_BYTES + questions.RECORD_BYTES
        self._records: deque[dict[str, Any]] = deque()
        self._trouble = ""

    @property
    def heard(self) -> bool:
        """Whether anything came from the node."""
        return self._asked or self.over

    def hear(self, data: bytes) -> bytes:
        """Take what came from the node; return what is to be sent to it."""
        self._came += data
        self._room -= len(data)
        try:
            if self._room < 0:
                raise WireError("there is no end to it")
            while not self.over:
                message = self._messages.read(self._came, questions.RECORD_BYTES)
                if message is None:
                    break
                if isinstance(message, bytes):
                    raise WireError("it isn't a message")
                if not self._asked and "number" in message:
                    return self._ask(message["number"])
                self._take(message)
        except WireError as exc:
            self.end(f"what answers isn't a node of this job: {exc}")
        return b""

    def _ask(self, number: Any) -> bytes:
        if not isinstance(number, str) or not number.isascii():
            raise WireError("it isn't a message")
        self._asked = True
        self._messages.number(number)
        try:
            return self._messages.write(dict(self._question), questions.QUESTION_BYTES)
        except WireError as exc:
            self.end(f"the question is too long: {exc}")
            return b""

    def _take(self, message: dict[str, Any]) -> None:
        if isinstance(end := message.get("end"), str):
            self.said = True
            self.end(end)
        elif self._asked and isinstance(message.get("record"), dict):
            self._records.append(message["record"])
        else:
            raise WireError("it isn't a message")

    def say(self, content: Mapping[str, Any] | bytes) -> bytes:
        """Return what says it to the node; raises ``WireError`` where that is too long."""
        said = content if isinstance(content, bytes) else dict(content)
        return self._messages.write(said, questions.RECORD_BYTES)

    def taken(self) -> dict[str, Any] | None:
        """Take the oldest record; None where none is left."""
        return self._records.popleft() if self._records else None

    def end(self, trouble: str) -> None:
        """Hear no more of it; what it said until then stays."""
        if not self.over:
            self.over = True
            self._trouble = line(trouble, _TROUBLE)

    @property
    def answer(self) -> NodeAnswer:
        """What the node has answered."""
        return NodeAnswer(self.node, tuple(self._records), self._trouble)


def silent(seconds: float) -> str:
    """Say that a node takes too long."""
    return f"doesn't answer since {seconds:.0f} s"


def asked(state: JobState, nodes: Sequence[int] | None) -> tuple[list[int], list[NodeAnswer]]:
    """Return which of these nodes, or of all, can be asked, and answers in the place of the others.

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
