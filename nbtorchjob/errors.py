"""What can go wrong, as one tree.

    NBTorchJobError
    ├── SpecError (ValueError)          a launch config, option or profile holds a wrong value
    ├── CaptureError                    the cell or function can't travel
    │   └── CellSyntaxError             the cell isn't Python
    ├── SubmitError                     the backend refused the job, nothing was started
    │   └── NameTakenError              a job of that name exists
    ├── JobNotFoundError (LookupError)  no job of that name
    ├── JobFailedError                  the job ran and failed
    │   └── JobCancelledError           somebody cancelled it
    └── ResultError                     the job succeeded, but its value can't come home

A message is one line: what was wrong, what was seen, what to do.
"""

from __future__ import annotations


class NBTorchJobError(Exception):
    """Anything that nbtorchjob itself raises."""

    def _render_traceback_(self) -> list[str]:
        """Draw only the message: the frames are ours, and the message says it all (IPython hook)."""
        # A backend's own kinds of these are no names that a user knows.
        name = next(kind.__name__ for kind in type(self).__mro__ if kind.__module__ == __name__)
        return [f"{name}: {self}"]


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
        return str(self).split("\n")


class SubmitError(NBTorchJobError):
    """The backend couldn't take the job; nothing of it is left behind."""


class NameTakenError(SubmitError):
    """A job of that name exists already."""


class JobNotFoundError(NBTorchJobError, LookupError):
    """There is no job of that name."""


class JobFailedError(NBTorchJobError):
    """The job ran and didn't succeed; the message holds the first failing rank's traceback."""

    def _render_traceback_(self) -> list[str]:
        return str(self).split("\n")


class JobCancelledError(JobFailedError):
    """The job was cancelled."""


class ResultError(NBTorchJobError):
    """The job succeeded, but its value can't be had here."""
