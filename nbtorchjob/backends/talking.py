"""A conversation with a node that goes on after its question, both ways, over whatever carries it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from nbtorchjob.backends.asking import Conversation, silent
from nbtorchjob.errors import AskError
from nbtorchjob.runtime.questions import RECORD_BYTES

PART_BYTES = RECORD_BYTES - 1  # of bytes that are sent at once


class Line(Protocol):
    """What carries a conversation's bytes; without a sign of life in ``beat`` seconds it may be cut."""

    beat: float

    def send(self, data: bytes) -> None:
        """Send all of it; to an end that is gone nothing is sent."""

    def receive(self, seconds: float) -> bytes:
        """Return what comes, b"" at its end; raises ``TimeoutError`` where nothing does for so long."""

    def why(self) -> str:
        """Return why it has ended."""

    def close(self) -> None:
        """End it."""


class Talk:
    """A conversation with one node, from when it has taken the question in."""

    def __init__(self, conversation: Conversation, line: Line, timeout: float) -> None:
        """Ask the question; raises ``AskError`` where the node doesn't take it within ``timeout`` seconds."""
        self._conversation = conversation
        self._line = line
        self._sent = time.monotonic()
        try:
            until = self._sent + timeout
            while not conversation.heard:
                self._hear(until)
        except TimeoutError:
            self.close()
            raise AskError(silent(timeout)) from None
        except BaseException:
            self.close()
            raise

    def send(self, said: Mapping[str, Any] | bytes) -> None:
        """Say something more: at most ``PART_BYTES`` bytes, or as JSON."""
        self._sent = time.monotonic()
        self._line.send(self._conversation.say(said))

    def send_all(self, data: memoryview) -> None:
        """Say bytes, in as many parts as it takes."""
        for begin in range(0, len(data), PART_BYTES):
            self.send(bytes(data[begin : begin + PART_BYTES]))

    def hear(self, seconds: float) -> dict[str, Any] | None:
        """Return the next record; None once the node has said all that it has to say.

        Raises ``TimeoutError`` where none comes for so long, and ``AskError`` with why there are no more.
        """
        until = time.monotonic() + seconds
        while (record := self._conversation.taken()) is None:
            if self._conversation.over:
                if trouble := self._conversation.answer.trouble:
                    error = AskError(trouble)
                    error.said = self._conversation.said
                    raise error
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
        elif said := self._conversation.hear(data):
            self._line.send(said)

    def close(self) -> None:
        """Leave."""
        self._line.close()

    def __enter__(self) -> Talk:
        return self

    def __exit__(
        self, type_: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
