"""A rank that is stopped in the debugger: which one is meant, and what is said with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from typing import Any

from nbtorchjob.backends.base import Backend
from nbtorchjob.backends.talking import Talk
from nbtorchjob.errors import AskError, JobEndedError
from nbtorchjob.state import JobState
from nbtorchjob.state.events import FAILURE, RankStops
from nbtorchjob.text.hints import hint
from nbtorchjob.text.words import ranks

_ALIVE_S = 10.0  # between two signs of life


def meant(state: JobState, rank: int | None) -> RankStops:
    """Return where the rank is stopped that is meant; raises ``AskError`` with why none is, and others."""
    name = state.info.name
    if state.phase.terminal:
        raise JobEndedError(f"{name} has ended: there is no rank to look at any more")
    stopped = {stop.rank: stop for stop in state.stopped}
    there = ranks([*stopped])
    if rank is None and len(stopped) == 1:
        return next(iter(stopped.values()))
    if rank is not None and rank in stopped:
        return stopped[rank]
    if rank is None and stopped:
        raise AskError(f"which rank of {name}? {there} are stopped: {hint('debug', name, '--rank N')}")
    if stopped:
        raise AskError(f"rank {rank} of {name} isn't stopped; {there} {'is' if len(stopped) == 1 else 'are'}")
    how = "breakpoint() in the code stops one, and --hold holds one that fails"
    raise AskError(f"no rank of {name} is stopped: {how}")


def release(backend: Backend, state: JobState) -> list[int]:
    """Let go of all ranks of a job that are held where they failed; return which.

    Raises ``AskError`` where none is, or where not all could be asked.
    """
    name = state.info.name
    if state.phase.terminal:
        raise JobEndedError(f"{name} has ended: none of its ranks is held any more")
    nodes = sorted({stop.node for stop in state.stopped if stop.why == FAILURE})
    if not nodes:
        stopped = ranks([stop.rank for stop in state.stopped])
        more = f"; {stopped} at a breakpoint: {hint('debug', name)}" if state.stopped else ""
        raise AskError(f"no rank of {name} is held where it failed{more}")
    known = range(state.info.nodes[1] * state.info.nproc_per_node)
    released: set[int] = set()
    for answer in backend.ask(state.info.address, {"question": "release"}, nodes):
        for record in answer.records:
            told = record.get("released")
            released.update(rank for rank in known if isinstance(told, list) and rank in told)
        if answer.trouble:
            raise AskError(f"node {answer.node} of {name} can't be asked: {answer.trouble}")
    return sorted(released)


class Session:
    """What is said with one rank that is stopped: it talks, and is told lines."""

    def __init__(self, talk: Talk, stop: RankStops) -> None:
        self._talk = talk
        self._lock = Lock()  # of what is said while somebody types
        self.stop = stop

    def hear(self, seconds: float) -> dict[str, Any] | None:
        """Return what the rank says next (``runtime/debugger``); None where it has gone.

        Raises ``TimeoutError`` where it says nothing for so long, and ``AskError``.
        """
        return self._talk.hear(seconds)

    def say(self, line: str) -> None:
        """Type a line."""
        self._talk.send({"line": line})

    def complete(self, line: str, begin: int, end: int) -> list[str]:
        """Return what the rank would complete a line to."""
        with self._lock, suppress(AskError, TimeoutError):
            self._talk.send({"complete": line, "begin": begin, "end": end})
            while (said := self._talk.hear(_ALIVE_S)) is not None:
                if "words" in said:
                    words = said["words"]
                    return [str(word) for word in words] if isinstance(words, list) else []
        return []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Stay connected while nothing is said, as somebody thinks about what to type."""
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
    """Attach to a rank that is stopped; raises ``AskError`` where that can't be done, as for a second one."""
    stop = meant(state, rank)
    question = {"question": "debug", "rank": stop.rank, "by": by}
    with backend.talk(state.info.address, stop.node, question) as talk:
        yield Session(talk, stop)
