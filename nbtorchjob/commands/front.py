"""What stands between a verb and who shows it: a notebook, or a terminal."""

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
    """A verb's words, and its options by their long names; those that weren't given aren't there."""

    words: list[str]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The job's name, where the verb takes one at most; "" means the newest."""
        return self.words[0] if self.words else ""


@dataclass(frozen=True)
class Answer:
    """What a verb says: as text, as HTML where a page can show more, and as ``data`` for a program.

    ``good`` is False where something is missing or couldn't be done. An ``aside`` is no part of the
    answer, but belongs beside it.
    """

    text: str
    data: Any = None
    html: str = ""
    good: bool = True
    aside: bool = False


Answers: TypeAlias = Iterator[Answer]
# Gives the job of that name; of "" the one that is meant where none is named.
Find: TypeAlias = Callable[[str], Job[Any]]


class Asked(NamedTuple):
    """A call that is to run, and how."""

    call: capture.Call
    spec: JobSpec
    options: CellOptions
    origin: Origin


class Front(Protocol):
    """Finds what a line means, and shows what comes of it."""

    def find(self, name: str) -> Job[Any]:
        """Return the job of that name, of "" the newest; raises ``JobNotFoundError`` and ``LineError``."""

    def called(self, words: Sequence[str]) -> Asked:
        """Take along the call that ``run`` is given."""

    def say(self, text: str) -> object:
        """Say what is no answer."""

    def show(self, answer: Answer) -> None:
        """Show an answer."""

    def log(self, job: Job[Any], rank: int, tail: int | None, *, follow: bool) -> None:
        """Show a rank's log: all of it, its last lines, or until the job ends."""

    def view(self, job: Job[Any], asked: CellOptions) -> View:
        """Return what draws a job while it is waited for."""

    def reading(self, job: Job[Any]) -> AbstractContextManager[None]:
        """Watch that somebody reads what is drawn meanwhile."""

    def failing(self, job: Job[Any]) -> AbstractContextManager[None]:
        """Show what fails meanwhile, beside raising it."""

    def detached(self, job: Job[Any], out: str | None) -> Any:
        """Show a job that isn't waited for; return what the line's value is."""

    def give(self, job: Job[Any], value: Any, out: str | None) -> Any:
        """Show a job's value; return what the line's value is. ``out`` names the variable that takes it."""
