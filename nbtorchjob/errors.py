"""What can go wrong, as one tree.

    NBTorchJobError
    ├── LineError                       a verb's line, or the command's, isn't understood
    ├── SpecError (ValueError)          a launch config, option or profile holds a wrong value
    ├── CaptureError                    the cell or function can't travel
    │   └── CellSyntaxError             the cell isn't Python
    ├── SubmitError                     the backend refused the job, nothing was started
    │   ├── NameTakenError              a job of that name is still running
    │   └── LackingError                its image is known to lack what the call imports
    ├── ClusterError                    the cluster said no; a SubmitError, too, where a job was to be created
    │   ├── UnreachableError            it couldn't be asked, or didn't answer
    │   ├── AnswerTooLargeError         it answered more than is read
    │   ├── PayloadGoneError            what another attempt would run was deleted
    │   ├── UnheededError               a job's operator doesn't do what it was asked to
    │   └── ApiError                    its API answered with an error
    │       ├── UnauthorizedError       it doesn't accept the credentials
    │       ├── ForbiddenError          a permission is missing; a quota or a webhook refuses it
    │       ├── NotFoundError           the object, the namespace or the kind isn't there
    │       └── AlreadyExistsError      (also a NameTakenError) an object of that name is there
    ├── JobNotFoundError (LookupError)  no job of that name
    ├── JobEndedError                   the job has ended: there is nobody left to be asked
    ├── AskError                        a node can't be asked, or refuses
    ├── ProfileError                    a rank of a running job can't be profiled
    ├── DamagedError                    what is kept of a job can't be read; it can be deleted
    ├── JobFailedError                  the job ran and failed; also of the type that its rank raised
    │   └── JobCancelledError           somebody cancelled it
    │       └── JobStoppedError         it was stopped early, by what it reported
    ├── ResultError                     the job succeeded, but its value can't come home
    │   └── ValueLostError              and never will: it is damaged, or gone
    ├── NotOwnError (PermissionError)   a folder can't be trusted: others may have written there
    ├── UnwritableError                 the command's output can't be written
    ├── MalformedError                  Jupyter Server: a part of a URL can't be what it stands for
    ├── NoAnswerError                   Jupyter Server: a backend takes too long
    └── NotInstalledError               a package of an extra is missing, or too old

A message is one line: what was wrong, what was seen, what to do.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from enum import Enum
from http import HTTPStatus
from types import MappingProxyType, TracebackType
from typing import Any

from nbtorchjob.text.hints import hint
from nbtorchjob.text.terminal import safe
from nbtorchjob.text.words import clean


class NBTorchJobError(Exception):
    """Anything that nbtorchjob itself raises."""

    def _render_traceback_(self) -> list[str]:
        """Draw only the message: the frames are ours, and the message says it all (IPython hook)."""
        _end_where_ours_begin(self.__traceback__)
        # What stopped a submission has a name of its own, which nobody need know.
        name = next(type_.__name__ for type_ in type(self).__mro__ if type_.__module__ == __name__)
        return [safe(f"{name}: {self}")]


def _minimal() -> bool:
    """Whether errors are to be drawn in a line each: ``%xmode Minimal``."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(getattr(shell, "InteractiveTB", None), "mode", "") == "Minimal"


def _end_where_ours_begin(found: TracebackType | None) -> None:
    """Cut a traceback to the user's frames, among which ``%debug`` then begins."""
    last = found  # the last one that isn't ours, nor of what called us
    while found is not None:
        home = str(found.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if home == __package__:
            break
        if home != "IPython":
            last = found
        found = found.tb_next
    if found is not None and last is not None:
        last.tb_next = None


class LineError(NBTorchJobError):
    """What was typed behind a verb isn't understood."""


class Shape(Enum):
    """What a ``SpecError`` says: which field it is about, and what is wrong with it."""

    VALUE = "{field}: ", "got {value!r}, but it must be {allowed}"
    NO_VALUE = "{field} ", "needs a value: {allowed}"
    MISSING = "{field} is ", "required: {allowed}"
    CONFLICT = "{field} ", "can't be given {allowed}"
    UNKNOWN = "", "unknown {field} {word}; {allowed}"
    UNKNOWN_KEY = "{field}: ", "unknown option {word}; {allowed}"
    UNEXPECTED = "", "unexpected {field} {value!r}: {allowed}"


class SpecError(NBTorchJobError, ValueError):
    """A field has a value that isn't allowed.

    ``field`` is what its owner calls it, ``allowed`` what it may be, or what to do; ``problem`` is the
    message without the field, for who shows it beside that.
    """

    def __init__(self, field: str, value: object, allowed: str, shape: Shape = Shape.VALUE) -> None:
        text = str(value)
        word = text if text.isprintable() and not set(text) & set(" '\"") else repr(text)
        lead, problem = (
            part.format(field=field, value=value, word=word, allowed=allowed) for part in shape.value
        )
        super().__init__(lead + problem)
        self.field = field
        self.value = value
        self.allowed = allowed
        self.shape = shape
        self.problem = problem

    def __reduce__(self) -> tuple[type[SpecError], tuple[str, object, str, Shape]]:
        return type(self), (self.field, self.value, self.allowed, self.shape)

    def about(self, field: str) -> SpecError:
        """Return the same error of a field by another name."""
        return type(self)(field, self.value, self.allowed, self.shape)


class CaptureError(NBTorchJobError):
    """The cell or function, or something it reads, can't be taken along."""


class CellSyntaxError(CaptureError):
    """The cell isn't Python; the message shows where, as Python does.

    Not a ``SyntaxError``: of those IPython draws the frames that led to it, which are ours.
    """

    def _render_traceback_(self) -> list[str]:
        super()._render_traceback_()
        return [safe(str(self))]


class SubmitError(NBTorchJobError):
    """The backend couldn't take the job; nothing of it is left behind."""


class NameTakenError(SubmitError):
    """A job of that name exists already, and runs something else."""


class LackingError(SubmitError):
    """The job's image is known to lack what the call imports; nothing was sent."""


class ClusterError(NBTorchJobError):
    """The cluster said no, or couldn't be asked.

    Where a permission is missing, ``grant`` is the YAML of the Role and RoleBinding to ask for.
    """

    def __init__(self, message: str, *, grant: str = "") -> None:
        super().__init__(clean(message))  # the server's words are in it
        self.grant = grant

    def _render_traceback_(self) -> list[str]:
        """Draw what to ask an administrator for beneath the message (IPython hook)."""
        return ["\n".join([*super()._render_traceback_(), *map(safe, self.grant.splitlines())])]


class UnreachableError(ClusterError):
    """No answer came from the cluster, or it broke off in the middle."""


class AnswerTooLargeError(ClusterError):
    """An answer is bigger than any that is looked for."""


class PayloadGoneError(ClusterError):
    """There is nothing left that another attempt could run."""


class UnheededError(ClusterError):
    """A job's operator didn't do in time what it was asked to, and may never do it."""


class ApiError(ClusterError):
    """The cluster's API answered with an error.

    ``status`` is the HTTP code, 0 where we found out ourselves; ``reason`` the API's word for it
    ("Forbidden", "Expired", "NotFound", …; may be empty); ``said`` the server's own message.
    """

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", said: str = "", grant: str = ""
    ) -> None:
        super().__init__(message, grant=grant)
        self.status = status
        self.reason = reason
        self.said = said

    @property
    def bad_request(self) -> bool:
        """Whether the request makes no sense to it, now or ever."""
        return self.status == HTTPStatus.BAD_REQUEST

    @property
    def conflict(self) -> bool:
        """Whether the object isn't what it was thought to be."""
        return self.status == HTTPStatus.CONFLICT

    @property
    def expired(self) -> bool:
        """Whether what was asked to go on has been forgotten: begin anew."""
        return self.status == HTTPStatus.GONE

    @property
    def too_many(self) -> bool:
        """Whether it turned the request away before looking at it."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS

    @property
    def server_error(self) -> bool:
        """Whether the trouble is its own."""
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


class UnauthorizedError(ApiError):
    """The cluster doesn't accept the credentials."""


class ForbiddenError(ApiError):
    """The cluster forbids it: a permission is missing, or a quota or a webhook refuses it."""


class NotFoundError(ApiError):
    """What was asked for isn't on the cluster: the object, its namespace, or its kind."""


class AlreadyExistsError(ApiError, NameTakenError):
    """An object of that name is on the cluster already."""


class JobNotFoundError(NBTorchJobError, LookupError):
    """There is no job of that name."""


class JobEndedError(NBTorchJobError):
    """The job has ended, and what was wanted needs one that runs."""


class AskError(NBTorchJobError):
    """A node can't be asked, or refuses; the message says why. ``said`` is whether the node itself did."""

    said = False


class ProfileError(NBTorchJobError):
    """A rank of a running job can't be profiled, now or at all; the job goes on as before."""


class DamagedError(NBTorchJobError):
    """What is kept of a job can't be read; to delete it is all that can be done."""

    def __init__(self, backend: str, name: str, what: str, why: str) -> None:
        delete = hint("delete", name)
        super().__init__(f"the {what} of {name} can't be read ({why}): {delete} removes it")
        self.backend = backend
        self.name = name
        self.what = what
        self.why = why

    def __reduce__(self) -> tuple[type[DamagedError], tuple[str, str, str, str]]:
        return type(self), (self.backend, self.name, self.what, self.why)


class JobFailedError(NBTorchJobError):
    """The job ran and didn't succeed; the message holds the first failing rank's traceback.

    ``error`` is that exception as data (``nbtorchjob.runtime.facts.errors.Error``), if one ended the job: its
    type, message and frames, each with its ``variables``, described. ``drawn`` says that a card has shown
    all that, so that a notebook needn't do so once more.
    """

    drawn = False
    error: Any = None

    def _render_traceback_(self) -> list[str]:
        super()._render_traceback_()
        lines = safe(str(self)).split("\n")
        # In one part: some modes of IPython's put nothing between two (9.18).
        return [": ".join(lines[:2]) if self.drawn or _minimal() else "\n".join(lines)]


# Of these none is made: IPython draws the frames of a SyntaxError, a generator makes another error of a
# StopIteration, a TimeoutError says that the job goes on, ours say what they say, and some take no text.
_NEVER = (
    *(SyntaxError, StopIteration, StopAsyncIteration, TimeoutError, NBTorchJobError, UnicodeError),
    getattr(builtins, "BaseExceptionGroup", NBTorchJobError),  # Python 3.11
)
_HEAP_TYPE = 1 << 9  # CPython's flag of a type that isn't built in


def failed(text: str, type_: str = "") -> JobFailedError:
    """Return the error of a job whose rank raised an exception of that type, by which it is caught, too.

    Where this process hasn't loaded the type, or its instances may need more than a text, it is a
    ``JobFailedError`` alone: the name is a job's, so nothing is imported and no code of the type is run.
    """
    kind = _loaded(type_)
    return JobFailedError(text) if kind is None else _also(kind, type_)(text)


def _loaded(name: str) -> type[Exception] | None:
    module, _, plain = name.rpartition(".")
    for home in (module,) if module else ("builtins", "__main__"):  # as ranks tell of it
        found = getattr(sys.modules.get(home), "__dict__", {}).get(plain)
        if isinstance(found, type) and issubclass(found, Exception):
            own = [vars(each).keys() for each in found.__mro__ if each.__flags__ & _HEAP_TYPE]
            odd = {"__init__", "__new__", "__slots__", "__init_subclass__", "__getattribute__"}
            fits = type(found) is type and all(odd.isdisjoint(names) for names in own)
            return found if fits and not issubclass(found, _NEVER) and found is not Exception else None
    return None


def _also(kind: type[Exception], name: str) -> type[JobFailedError]:
    own = {
        # Not the other type's: a KeyError shows its text in quotes.
        "__init__": lambda self, text: BaseException.__init__(self, text),
        "__str__": lambda self: self.args[0],
        "__reduce__": lambda self: (failed, (self.args[0], name), vars(self)),
    }
    return type(JobFailedError.__name__, (JobFailedError, kind), {**own, "__module__": __name__})


class JobCancelledError(JobFailedError):
    """The job was cancelled."""


class JobStoppedError(JobCancelledError):
    """The job was stopped early, by what it reported; ``metrics`` is the newest of that."""

    metrics: Mapping[str, float] = MappingProxyType({})


class ResultError(NBTorchJobError):
    """The job succeeded, but its value can't be had here."""


class ValueLostError(ResultError):
    """There is no value that could be lost any more: it is damaged, or gone."""


class NotOwnError(NBTorchJobError, PermissionError):
    """A folder can't be trusted: others may have written there."""


class UnwritableError(NBTorchJobError):
    """What an answer, or a log, is written to doesn't take it."""


class MalformedError(NBTorchJobError):
    """A part of a URL can't be what it stands for."""


class NoAnswerError(NBTorchJobError):
    """What was asked didn't answer in time; it may do what it was asked to all the same."""


class NotInstalledError(NBTorchJobError):
    """What an extra brings is missing here, or too old."""
