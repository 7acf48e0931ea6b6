"""A job on a terminal, or in the log of a CI run: its own log on stdout, its status on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from nbtorchjob.commands.front import LogRequest
from nbtorchjob.job import Job
from nbtorchjob.state import JobState, Phase
from nbtorchjob.state.events import Closed, Event, LogChunk, Lost, WorkersStarted
from nbtorchjob.state.logs import LogLine, Splitter, of_stream
from nbtorchjob.ui.card import render
from nbtorchjob.ui.card.view import Stops

_RANK_0 = LogRequest()


class Stream:
    """What was asked for of the logs as it comes, and a line for each phase (a ``View``).

    The log is written in the thread that follows the job, so that a slow reader slows that down and
    nothing piles up here.
    """

    tells = False

    def __init__(
        self,
        job: Job[Any],
        *,
        write: Callable[[bytes], object],
        tell: Callable[[str], object],
        request: LogRequest = _RANK_0,
    ) -> None:
        self._write = write
        self._tell = tell
        self._request = request
        self._splitters: dict[int, Splitter] = {}  # by rank
        self._there: set[tuple[int, int]] = set()  # of the node that was asked for: rank and round
        self._line_open = False
        self._phase: Phase | None = None
        self._stops = Stops()
        job.listen(self._heard)

    def _heard(self, event: Event) -> None:
        if isinstance(event, Closed | Lost):
            self._put(line for splitter in self._splitters.values() for line in splitter.end())
        if isinstance(event, WorkersStarted) and event.node == self._request.node:
            self._there |= {(rank, event.round) for rank in event.ranks}
        if not isinstance(event, LogChunk) or not self._is_wanted(event):
            return
        if self._request.as_written:
            if data := b"".join(data for _, data in of_stream(event, self._request.stream)):
                self._write(data)
                self._line_open = not data.endswith(b"\n")
        else:
            splitter = Splitter(event.rank, self._request.stream)
            self._put(self._splitters.setdefault(event.rank, splitter).feed(event))

    def _is_wanted(self, chunk: LogChunk) -> bool:
        if self._request.node is not None:
            return (chunk.rank, chunk.round) in self._there
        return self._request.rank in (None, chunk.rank)

    def _put(self, lines: Iterable[LogLine]) -> None:
        if shown := b"".join(map(self._request.shown, filter(self._request.wanted.has, lines))):
            self._write(shown)

    def draw(self, state: JobState) -> None:
        """Print the job's status, once for each phase, and which ranks stop in the debugger."""
        if state.phase is not self._phase and not state.phase.terminal:
            self._phase = state.phase
            self._say(state)
        if stops := self._stops.new(state):
            self._tell(stops.rstrip("\n"))

    def close(self, state: JobState, value: str = "") -> None:
        """Print how the job ended, or its status when it is left."""
        self._say(state)

    def _say(self, state: JobState) -> None:
        # A progress bar leaves the line open.
        self._tell(("\n" if self._line_open else "") + render.last_line(state, time.time()))
        self._line_open = False
