"""What can go wrong, as one tree.

    NBTorchJobError
    ├── LineError                       a verb's line, or the command's, isn't understood
    ├── SpecError (ValueError)          a launch config, option or profile holds a wrong value
    ├── CaptureError                    the cell or function can't travel
    │   └── CellSyntaxError             the cell isn't Python
    ├── SubmitError                     the backend refused the job, nothing was started
    │   └── NameTakenError              a job of that name exists
    ├── ClusterError                    the cluster said no; a SubmitError, too, where a job was to be created
    │   └── UnreachableError            it couldn't be asked
    ├── JobNotFoundError (LookupError)  no job of that name
    ├── DamagedError                    what is kept of a job can't be read; it can be deleted
    ├── JobFailedError                  the job ran and failed
    │   └── JobCancelledError           somebody cancelled it
    └── ResultError                     the job succeeded, but its value can't come home

A message is one line: what was wrong, what was seen, what to do.
"""

from __future__ import annotations

from nbtorchjob.terminal import safe


class NBTorchJobError(Exception):
    """Anything that nbtorchjob itself raises."""

    def _render_traceback_(self) -> list[str]:
        """Draw only the message: the frames are ours, and the message says it all (IPython hook)."""
        # A backend's own kinds of these are no names that a user knows.
        name = next(kind.__name__ for kind in type(self).__mro__ if kind.__module__ == __name__)
        return [safe(f"{name}: {self}")]


class LineError(NBTorchJobError):
    """What was typed behind a verb isn't understood."""


class SpecError(NBTorchJobError, ValueError):
    """A field has a value that isn't allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}: got {value!r}, but it must be {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type[SpecError], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.allowed)


class CaptureError(NBTorchJobError):
    """The cell or function, or something it reads, can't be taken along."""


class CellSyntaxError(CaptureError):
    """The cell isn't Python; the message shows where, as Python does.

    Not a ``SyntaxError``: of those IPython draws the frames that led to it, which are ours.
    """

    def _render_traceback_(self) -> list[str]:
        return safe(str(self)).split("\n")


class SubmitError(NBTorchJobError):
    """The backend couldn't take the job; nothing of it is left behind."""


class NameTakenError(SubmitError):
    """A job of that name exists already."""


class ClusterError(NBTorchJobError):
    """The cluster said no, or couldn't be asked."""


class UnreachableError(ClusterError):
    """No answer came from the cluster, or it broke off in the middle."""


class JobNotFoundError(NBTorchJobError, LookupError):
    """There is no job of that name."""


class DamagedError(NBTorchJobError):
    """What is kept of a job can't be read; to delete it is all that can be done."""

    def __init__(self, backend: str, name: str, what: str, why: str) -> None:
        super().__init__(f"the {what} of {name} can't be read ({why}): %torchjob delete {name} removes it")
        self.backend = backend
        self.name = name
        self.what = what
        self.why = why

    def __reduce__(self) -> tuple[type[DamagedError], tuple[str, str, str, str]]:
        return type(self), (self.backend, self.name, self.what, self.why)


class JobFailedError(NBTorchJobError):
    """The job ran and didn't succeed; the message holds the first failing rank's traceback."""

    def _render_traceback_(self) -> list[str]:
        return safe(str(self)).split("\n")


class JobCancelledError(JobFailedError):
    """The job was cancelled."""


class ResultError(NBTorchJobError):
    """The job succeeded, but its value can't be had here."""
