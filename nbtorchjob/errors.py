"""What can go wrong, as one tree.

    NBTorchJobError
    ├── LineError                       a command line or magic can't be parsed
    ├── SpecError (ValueError)          a launch config, option or profile has an invalid value
    ├── CaptureError                    the cell or function can't be sent
    │   └── CellSyntaxError             the cell isn't Python
    ├── SubmitError                     the backend refused the job; nothing was started
    │   ├── NameTakenError              a job of that name is still running
    │   └── LackingError                its image is known to lack what the call imports
    ├── ClusterError                    the cluster refused; also a SubmitError while submitting
    │   ├── UnreachableError            it couldn't be reached, or didn't answer
    │   ├── AnswerTooLargeError         its answer exceeds the limit
    │   ├── PayloadGoneError            the payload of another attempt was deleted
    │   ├── UnheededError               a job's operator doesn't act on a request
    │   └── ApiError                    its API returned an error
    │       ├── UnauthorizedError       it doesn't accept the credentials
    │       ├── ForbiddenError          a permission is missing; a quota or a webhook refuses it
    │       ├── NotFoundError           the object, the namespace or the kind isn't there
    │       └── AlreadyExistsError      (also a NameTakenError) an object of that name is there
    ├── JobNotFoundError (LookupError)  no job of that name
    ├── PartialFailureError             a verb failed for some of the names that it was given
    ├── JobEndedError                   the job has ended, and the request needs a running one
    ├── AskError                        a node can't be reached, or refuses
    ├── SwapError                       the code of a running job stays as it is
    ├── ProfileError                    a rank of a running job can't be profiled
    ├── DamagedError                    a job's record can't be read; the job can be deleted
    ├── JobFailedError                  the job failed; also of the type that its rank raised
    │   └── JobCancelledError           it was cancelled
    │       └── JobStoppedError         its reports met a condition for early stopping
    ├── ResultError                     the job succeeded, but its value can't be loaded
    │   └── ValueLostError              the value is damaged or gone
    ├── NotOwnError (PermissionError)   a folder can't be trusted: others may have written there
    ├── UnwritableError                 the command's output can't be written
    ├── MalformedError                  Jupyter Server: a part of a URL is malformed
    ├── NoAnswerError                   Jupyter Server: a backend timed out
    └── NotInstalledError               a package of an extra is missing, or too old

A message is one line: what was wrong, what was seen, what to do.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from nbtorchjob.text import safe
from nbtorchjob.text.hints import hint
from nbtorchjob.text.words import clean


class NBTorchJobError(Exception):
    """Base of all errors that nbtorchjob raises."""

    def _render_traceback_(self) -> list[str]:
        """Draw only the message: the frames are ours, and the message says it all (IPython hook)."""
        # Cut the traceback to the user's frames, among which ``%debug`` then begins.
        trace = last = self.__traceback__  # the last frame that is neither ours nor IPython's
        while trace is not None:
            home = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
            if home == __package__:
                break
            if home != "IPython":
                last = trace
            trace = trace.tb_next
        if trace is not None and last is not None:
            last.tb_next = None
        # An error that stopped a submission has a private type: show its public base's name.
        name = next(type_.__name__ for type_ in type(self).__mro__ if type_.__module__ == __name__)
        return [safe(f"{name}: {self}")]


class LineError(NBTorchJobError):
    """A command line or magic can't be parsed."""


class Shape(Enum):
    """The wording of a ``SpecError``: which field it is about, and what is wrong with it."""

    VALUE = "{field}: ", "got {value!r}, but it must be {allowed}"
    NO_VALUE = "{field} ", "expects a value: {allowed}"
    MISSING = "{field} is ", "required: {allowed}"
    CONFLICT = "{field} ", "can't be given {allowed}"
    UNKNOWN = "", "unknown {field} {word}; {allowed}"
    UNKNOWN_KEY = "{field}: ", "unknown option {word}; {allowed}"
    UNEXPECTED = "", "unexpected {field} {value!r}: {allowed}"


class SpecError(NBTorchJobError, ValueError):
    """A field has an invalid value.

    ``field`` is its name, ``allowed`` describes the valid values or what to do, and ``problem`` is the
    message without the field's name.
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
        """Return the same error under another field name."""
        return type(self)(field, self.value, self.allowed, self.shape)


class CaptureError(NBTorchJobError):
    """The cell or function, or a value that it reads, can't be sent."""


class CellSyntaxError(CaptureError):
    """The cell isn't Python; the message shows where, as Python does.

    Not a ``SyntaxError``: for those, IPython also draws the frames that led to the error, which are ours.
    """

    def _render_traceback_(self) -> list[str]:
        super()._render_traceback_()
        return [safe(str(self))]


class SubmitError(NBTorchJobError):
    """The backend refused the job; nothing was started."""


class NameTakenError(SubmitError):
    """Another job of that name is still running; ``running`` is its address if it runs other code."""

    running = ""


class LackingError(SubmitError):
    """The job's image lacks a package that the call imports; nothing was sent."""


class ClusterError(NBTorchJobError):
    """The cluster refused a request, or couldn't be reached.

    If a permission is missing, ``grant`` is the YAML of the Role and RoleBinding to request.
    """

    def __init__(self, message: str, *, grant: str = "") -> None:
        super().__init__(clean(message))  # it contains the server's text
        self.grant = grant

    def _render_traceback_(self) -> list[str]:
        """Draw the permissions to request below the message (IPython hook)."""
        return ["\n".join([*super()._render_traceback_(), *map(safe, self.grant.splitlines())])]


class UnreachableError(ClusterError):
    """The cluster didn't answer, or the connection broke."""


class AnswerTooLargeError(ClusterError):
    """The cluster's answer exceeds the size limit."""


class PayloadGoneError(ClusterError):
    """The job's payload was deleted, so that no further attempt can run."""


class UnheededError(ClusterError):
    """A job's operator didn't act on a request in time."""


class ApiError(ClusterError):
    """The cluster's API returned an error.

    ``status`` is the HTTP code, or 0 if nbtorchjob detected the error itself; ``reason`` is the API's reason
    ("Forbidden", "Expired", "NotFound", …; may be empty); ``said`` is the server's own message.
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
        """Whether the request is malformed."""
        return self.status == HTTPStatus.BAD_REQUEST

    @property
    def conflict(self) -> bool:
        """Whether the object has changed in the meantime."""
        return self.status == HTTPStatus.CONFLICT

    @property
    def expired(self) -> bool:
        """Whether the resource version has expired: list again."""
        return self.status == HTTPStatus.GONE

    @property
    def too_many(self) -> bool:
        """Whether the server throttled the request."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS

    @property
    def server_error(self) -> bool:
        """Whether the server itself failed."""
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


class UnauthorizedError(ApiError):
    """The cluster doesn't accept the credentials."""


class ForbiddenError(ApiError):
    """A permission is missing, or a quota or a webhook refused the request."""


class NotFoundError(ApiError):
    """The object, its namespace or its kind doesn't exist on the cluster."""


class AlreadyExistsError(ApiError, NameTakenError):
    """An object of that name already exists on the cluster."""


class JobNotFoundError(NBTorchJobError, LookupError):
    """No job has that name."""


class PartialFailureError(NBTorchJobError):
    """A verb failed for some of the names that it was given; the message has a line for each of them."""


class JobEndedError(NBTorchJobError):
    """The job has ended, and the request needs a running one."""


class AskError(NBTorchJobError):
    """A node can't be reached, or refuses the request.

    ``said`` is whether the node itself refused, ``absent`` whether it isn't running now: it is still
    starting, or has ended and another one may take its place.
    """

    def __init__(self, trouble: str, *, said: bool = False, absent: bool = False) -> None:
        super().__init__(trouble)
        self.said = said
        self.absent = absent


class SwapError(NBTorchJobError):
    """The code of a running job can't be changed as asked; its ranks go on as before."""


class ProfileError(NBTorchJobError):
    """A rank of a running job can't be profiled; the job continues."""


class DamagedError(NBTorchJobError):
    """A job's record can't be read; the job can still be deleted."""

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
    """The job failed; the message contains the first failing rank's traceback.

    ``error`` is that exception as data (``nbtorchjob.runtime.facts.errors.Error``), or None: its type,
    message and frames, each with a description of its ``variables``. ``drawn`` is whether a card has shown
    the traceback already.
    """

    drawn = False
    error: Any = None

    def _render_traceback_(self) -> list[str]:
        super()._render_traceback_()
        lines = safe(str(self)).split("\n")
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        minimal = getattr(getattr(shell, "InteractiveTB", None), "mode", "") == "Minimal"  # %xmode's
        # As one part: some of IPython's modes put nothing between two parts (9.18).
        return [": ".join(lines[:2]) if self.drawn or minimal else "\n".join(lines)]


# Types that are never mixed in: IPython draws the frames of a SyntaxError, a generator turns a StopIteration
# into another error, a TimeoutError means that the job goes on, ours have meanings of their own, and some
# take no text.
_NEVER = (
    *(SyntaxError, StopIteration, StopAsyncIteration, TimeoutError, NBTorchJobError, UnicodeError),
    getattr(builtins, "BaseExceptionGroup", NBTorchJobError),  # Python 3.11
)
_HEAP_TYPE = 1 << 9  # CPython's flag of a type that isn't built in


def failed(text: str, type_: str = "") -> JobFailedError:
    """Return the error of a failed job, which ``except`` clauses for the rank's own exception also catch.

    If this process hasn't loaded ``type_``, or its constructor may need more than a text, the result is a
    plain ``JobFailedError``: the job chose the name, so nothing is imported and no code of the type runs.
    """
    kind = _loaded(type_)
    if kind is None:
        return JobFailedError(text)
    own = {
        # Not the rank's type's methods: a KeyError shows its text in quotes.
        "__init__": lambda self, text: BaseException.__init__(self, text),
        "__str__": lambda self: self.args[0],
        "__reduce__": lambda self: (failed, (self.args[0], type_), vars(self)),
        "__module__": __name__,
    }
    also: type[JobFailedError] = type(JobFailedError.__name__, (JobFailedError, kind), own)
    return also(text)


def _loaded(name: str) -> type[Exception] | None:
    module, _, plain = name.rpartition(".")
    for home in (module,) if module else ("builtins", "__main__"):  # ranks omit these two
        loaded = getattr(sys.modules.get(home), "__dict__", {}).get(plain)
        if isinstance(loaded, type) and issubclass(loaded, Exception):
            own = [vars(base).keys() for base in loaded.__mro__ if base.__flags__ & _HEAP_TYPE]
            odd = {"__init__", "__new__", "__slots__", "__init_subclass__", "__getattribute__"}
            fits = type(loaded) is type and all(odd.isdisjoint(names) for names in own)
            return loaded if fits and not issubclass(loaded, _NEVER) and loaded is not Exception else None
    return None


class JobCancelledError(JobFailedError):
    """The job was cancelled."""


class JobStoppedError(JobCancelledError):
    """The job was stopped early; ``metrics`` are its last reported values."""

    metrics: Mapping[str, float] = MappingProxyType({})


class ResultError(NBTorchJobError):
    """The job succeeded, but its value can't be loaded here."""


class ValueLostError(ResultError):
    """The job's value is damaged or gone."""


class NotOwnError(NBTorchJobError, PermissionError):
    """A folder can't be trusted, because other users may have written there."""


class UnwritableError(NBTorchJobError):
    """An output stream or file can't be written."""


class MalformedError(NBTorchJobError):
    """A part of a URL is malformed."""


class NoAnswerError(NBTorchJobError):
    """A backend didn't answer in time; the request may still take effect."""


class NotInstalledError(NBTorchJobError):
    """A package of an extra is missing, or too old."""


@contextmanager
def needs_extra(extra: str, by: str) -> Iterator[None]:
    """Turn failed imports of packages of an ``extra`` into ``NotInstalledError``.

    ``by`` names what needs the extra, for the message.
    """
    try:
        yield
    except ImportError as exc:
        from importlib import metadata  # late: only needed if a package is missing

        from packaging.requirements import Requirement

        lacking: list[str] = []  # not installed, or not in a version that the extra accepts
        for text in metadata.requires(__package__) or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": extra}):
                continue
            dependency = f"{requirement.name}{requirement.specifier}"
            try:
                version = metadata.version(requirement.name)
            except metadata.PackageNotFoundError:
                lacking.append(dependency)
                continue
            if not requirement.specifier.contains(version, prereleases=True):
                lacking.append(f"{dependency} (here: {version})")
        lacks = sorted(lacking) or [exc.name or str(exc)]
        text = f"{by} needs {' and '.join(lacks)}: pip install '{__package__}[{extra}]'"
        raise NotInstalledError(text) from exc
