"""The interface between a verb and what shows it: a notebook, or a terminal.

Also what this session remembers: the spec that a bare ``%%torchjob`` uses, and the job it submitted last.
"""

from __future__ import annotations

import io
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

from nbtorchjob import capture
from nbtorchjob.errors import NBTorchJobError, PartialFailureError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec import profiles
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import CellOptions
from nbtorchjob.state import Origin
from nbtorchjob.state.facts.logs import ALL, LineFilter, LogLine, Stream

if TYPE_CHECKING:
    from nbtorchjob.job import Job
    from nbtorchjob.labs import Lab, LabAnswer
    from nbtorchjob.runs import Runs
    from nbtorchjob.ui.card.sending import Output, Sending
    from nbtorchjob.ui.card.view import View
    from nbtorchjob.ui.runs.view import RunsView


class ParsedArgs(NamedTuple):
    """A verb's words, and its options by their long names; those that weren't given are missing."""

    words: list[str]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The job's name, where the verb takes at most one; "" means the newest."""
        return self.words[0] if self.words else ""


class LogRequest(FrozenDataclass):
    """Which log is to be shown, and how: a rank's, or sorted by time all ranks' (None), or a ``node``'s.

    With a ``stream``, only what ranks wrote to it.
    """

    rank: int | None = 0
    node: int | None = None
    tail: int | None = None
    follow: bool = False
    timestamps: bool = False
    selection: LineFilter = ALL
    stream: Stream | None = None

    @property
    def as_written(self) -> bool:
        """Whether it is to be shown byte by byte, as the rank wrote it."""
        return self.rank is not None and not self.timestamps and self.selection == ALL

    def shown(self, line: LogLine) -> bytes:
        """Return a line as it is to be shown."""
        return line.shown(time=self.timestamps, rank=self.rank is None)

    def of(self, job: Job[Any]) -> Iterator[bytes]:
        """Return the log so far, in pieces; as lines unless it is shown as written."""
        if self.as_written and self.rank is not None:
            pieces = job.read_log(self.rank, self.stream)
            return pieces if self.tail is None else iter(deque(_lines(pieces), self.tail))
        lines = job.lines(self.rank, node=self.node, stream=self.stream)
        shown = map(self.shown, filter(self.selection.has, lines))
        return shown if self.tail is None else iter(deque(shown, self.tail))


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a log's lines, of which a piece may have many, or only a part."""
    line: list[bytes] = []
    for piece in pieces:
        for part in io.BytesIO(piece):  # bytes.splitlines takes a progress bar's \r for a new line
            line.append(part)
            if part.endswith(b"\n"):
                yield b"".join(line)
                line.clear()
    if line:
        yield b"".join(line)


class Answer(FrozenDataclass):
    """A verb's answer: as text, as HTML where a page can show more, and as ``data`` for a program.

    Data or HTML that takes long to make may be a function that makes it.

    ``good`` is False if something is missing or couldn't be done. An ``aside`` is a remark beside the answer,
    which the command prints to stderr.
    """

    text: str
    data: Any = None
    html: str | Callable[[], str] = ""
    good: bool = True
    aside: bool = False


Answers: TypeAlias = Iterator[Answer]
# Returns the job of that name; for "" the job that a line without a name refers to.
Find: TypeAlias = "Callable[[str], Job[Any]]"


class OnLab(NamedTuple):
    """The lab that a call is to run on, and what its ranks reported before the call was captured."""

    lab: Lab
    answer: LabAnswer
    ranks: tuple[int, ...]


class RunRequest(NamedTuple):
    """A call to run, and how; maybe on an existing lab."""

    call: capture.Call
    spec: JobSpec
    options: CellOptions
    origin: Origin
    on: OnLab | None = None
    rows: Sequence[Mapping[str, Any]] = ()  # the parameters of each run of a group


class Front(Protocol):
    """Resolves what a line refers to, and shows the outcome.

    One that ``stays`` outlives the line, as a kernel does.
    """

    stays: ClassVar[bool]

    def find(self, name: str) -> Job[Any]:
        """Return the job of that name, for "" the newest; raises ``JobNotFoundError`` and ``LineError``."""

    def called(self, words: Sequence[str]) -> RunRequest:
        """Capture the call that ``run`` is given."""

    def namespace(self) -> dict[str, Any]:
        """Return the variables that code written here uses."""

    def origin(self, call: capture.Call) -> Origin:
        """Return where a call was written."""

    def asks(self, question: str) -> bool | None:
        """Ask the user to confirm; return None if nobody can be asked."""

    def say(self, text: str) -> object:
        """Show a message that isn't an answer."""

    def show(self, answer: Answer) -> None:
        """Show an answer."""

    def log(self, job: Job[Any], request: LogRequest) -> None:
        """Show the requested part of the job's logs: what exists so far, or everything until the job ends."""

    def sending(self, request: RunRequest) -> AbstractContextManager[Sending]:
        """Show that a call is being prepared and sent, if that takes long."""

    def view(self, job: Job[Any], options: CellOptions, place: Output | None) -> View:
        """Return the view that draws a job while a line waits for it, in that output if it can.

        Without an output, the line asks to see an existing job, so even one that has ended is drawn.
        """

    def reading(self, job: Job[Any]) -> AbstractContextManager[None]:
        """Watch whether somebody reads what is drawn in the meantime."""

    def failing(self, job: Job[Any]) -> AbstractContextManager[None]:
        """Show errors raised within, besides letting them pass."""

    def view_runs(self, runs: Runs[Any], options: CellOptions, place: Output) -> RunsView:
        """Return the view that draws a group's runs while a line waits for them."""

    def give_runs(self, runs: Runs[Any], out: str | None, *, ended: bool) -> Any:
        """Show a group's runs, which have ended or are detached; return the line's value."""

    def detached(self, job: Job[Any], out: str | None) -> Any:
        """Show a job that the line doesn't wait for; return the line's value."""

    def give(self, job: Job[Any], value: Any, out: str | None) -> Any:
        """Show a job's value; return the line's value. ``out`` names the variable that receives it."""


@contextmanager
def trying_all(names: Sequence[str]) -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """Let a verb try all of its names: errors within what is yielded are raised only at the end.

    As ``kubectl`` does it: a misspelt name must leave no other job running. The error of a single name is
    raised as it is, those of several names, or of a group's jobs, as one ``PartialFailureError``.
    """
    failures: list[tuple[str, NBTorchJobError]] = []

    @contextmanager
    def trying(name: str) -> Iterator[None]:
        try:
            yield
        except NBTorchJobError as exc:
            failures.append((name, exc))

    yield trying
    if len(names) == 1 and failures and failures[0][0] == names[0]:
        raise failures[0][1]
    if failures:
        lines = (str(exc) if name in str(exc) else f"{name}: {exc}" for name, exc in failures)
        raise PartialFailureError("\n".join(lines))


def for_each_name(answers: Callable[[str, Find], Answers]) -> Callable[[ParsedArgs, Find], Answers]:
    """Make a verb for one name a verb for several, all of which are tried."""

    @wraps(answers)
    def of_all(args: ParsedArgs, find: Find) -> Answers:
        with trying_all(args.words) as trying:
            for name in args.words:
                with trying(name):
                    yield from answers(name, find)

    return of_all


_chosen: list[JobSpec] = []  # the one in force, if any
_newest: list[Job[Any]] = []  # as above
_of_cells: dict[str, Job[Any]] = {}  # the last one of each cell, by the cell's id


def default() -> JobSpec:
    """Return the spec that a line of options overrides if it names no profile. Raises ``SpecError``."""
    return _chosen[0] if _chosen else profiles.default()


def use(spec: JobSpec | None) -> None:
    """Make ``spec``, a panel's settings, the session's default; None restores the default profile."""
    _chosen[:] = [] if spec is None else [spec]


def newest() -> Job[Any] | None:
    """Return the job that ``%torchjob`` refers to without a name, if there is one."""
    return _newest[0] if _newest else None


def remember(job: Job[Any]) -> Job[Any]:
    """Make :func:`newest` return ``job``; return it, too."""
    _newest[:] = [job]
    if job.info.cell and not job.info.of_lab:
        _of_cells[job.info.cell] = job
    return job


def of_cell(cell: str) -> Job[Any] | None:
    """Return the job that a cell submitted last in this session, if any."""
    return _of_cells.get(cell)


class EditedCell(NamedTuple):
    """A cell that ran while a job still ran its former text, to be swapped in."""

    text: str
    filename: str
    front: Front


# By the job's address, and when it was made: a later job may have the name of a deleted one.
_edited: dict[tuple[str, float], EditedCell] = {}


def keep_edited(job: Job[Any], edited: EditedCell) -> None:
    """Make :func:`edited` return that cell for the job."""
    _edited[job.info.address, job.info.created] = edited


def edited(job: Job[Any]) -> EditedCell | None:
    """Return the newest edit of the job's cell, if one was run in this session."""
    return _edited.get((job.info.address, job.info.created))


def forget(job: Job[Any]) -> None:
    """Make :func:`newest` return None, if it returned this job."""
    _newest[:] = [newest for newest in _newest if newest.info.address != job.info.address]


def end() -> None:
    """Forget everything; jobs keep running."""
    _chosen.clear()
    _newest.clear()
    _of_cells.clear()
    _edited.clear()


@contextmanager
def warned() -> Iterator[list[str]]:
    """Collect warnings raised within: an answer needn't show which line of our code warned."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield notes
    notes += dict.fromkeys(str(warning.message) for warning in caught)
