"""The interface between a verb and what shows it: a notebook, or a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from nbtorchjob import capture
from nbtorchjob.job import Job
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import CellOptions
from nbtorchjob.state import Origin
from nbtorchjob.ui.card.view import View


class Given(NamedTuple):
    """A verb's words, and its options by their long names; those that weren't given are missing."""

    words: list[str]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The job's name, where the verb takes at most one; "" means the newest."""
        return self.words[0] if self.words else ""


@dataclass(frozen=True)
class Answer:
    """A verb's answer: as text, as HTML where a page can show more, and as ``data`` for a program.

    ``good`` is False where something is missing or couldn't be done. An ``aside`` isn't part of the
    answer, but accompanies it.
    """

    text: str
    data: Any = None
    html: str = ""
    good: bool = True
    aside: bool = False


Answers: TypeAlias = Iterator[Answer]
# Returns the job of that name; for "" the one that is meant where none is named.
Find: TypeAlias = Callable[[str], Job[Any]]


class Asked(NamedTuple):
    """A call to run, and how."""

    call: capture.Call
    spec: JobSpec
    options: CellOptions
    origin: Origin


class Front(Protocol):
    """Resolves what a line refers to, and shows the outcome."""

    def find(self, name: str) -> Job[Any]:
        """Return the job of that name, of "" the newest; raises ``JobNotFoundError`` and ``LineError``."""

    def called(self, words: Sequence[str]) -> Asked:
        """Capture the call that ``run`` is given."""

    def say(self, text: str) -> object:
        """Show a message that isn't an answer."""

    def show(self, answer: Answer) -> None:
        """Show an answer."""

    def log(self, job: Job[Any], rank: int, tail: int | None, *, follow: bool) -> None:
        """Show a rank's log: all of it, its last lines, or until the job ends."""

    def view(self, job: Job[Any], asked: CellOptions) -> View:
        """Return the view that draws a job while a line waits for it."""

    def reading(self, job: Job[Any]) -> AbstractContextManager[None]:
        """Watch that somebody reads what is drawn in the meantime."""

    def failing(self, job: Job[Any]) -> AbstractContextManager[None]:
        """Show errors raised within, besides letting them pass."""

    def detached(self, job: Job[Any], out: str | None) -> Any:
        """Show a job that the line doesn't wait for; return the line's value."""

    def give(self, job: Job[Any], value: Any, out: str | None) -> Any:
        """Show a job's value; return the line's value. ``out`` names the variable that receives it."""
