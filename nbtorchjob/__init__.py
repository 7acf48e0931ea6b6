"""Run a notebook cell or function as a distributed torch job, and get its value back.

In a notebook: ``%load_ext nbtorchjob``, then ``%%torchjob`` on top of a cell. In Python:
:func:`submit`, :func:`attach`, :func:`jobs`, :func:`dry_run` and the decorator :func:`torchjob`.
On ranks: :func:`report` and :class:`RecoverableError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbtorchjob.config import (
    CleanPodPolicy,
    Elastic,
    Master,
    PyTorch,
    RestartPolicy,
    RunPolicy,
    Worker,
)
from nbtorchjob.errors import (
    CaptureError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    NBTorchJobError,
    ResultError,
    SpecError,
    SubmitError,
)
from nbtorchjob.runtime.errors import RecoverableError
from nbtorchjob.runtime.report import report
from nbtorchjob.spec import JobSpec

if TYPE_CHECKING:
    from nbtorchjob.api import attach, dry_run, jobs, submit, torchjob
    from nbtorchjob.job import Job

__version__ = "0.1.0"

__all__ = [
    "CaptureError",
    "CleanPodPolicy",
    "Elastic",
    "Job",
    "JobCancelledError",
    "JobFailedError",
    "JobNotFoundError",
    "JobSpec",
    "Master",
    "NBTorchJobError",
    "PyTorch",
    "RecoverableError",
    "RestartPolicy",
    "ResultError",
    "RunPolicy",
    "SpecError",
    "SubmitError",
    "Worker",
    "attach",
    "dry_run",
    "jobs",
    "load_ipython_extension",
    "report",
    "submit",
    "torchjob",
    "unload_ipython_extension",
]

# Imported when first asked for: they bring cloudpickle and, with the job, a thread.
_LATE = {
    "Job": "nbtorchjob.job",
    "attach": "nbtorchjob.api",
    "dry_run": "nbtorchjob.api",
    "jobs": "nbtorchjob.api",
    "submit": "nbtorchjob.api",
    "torchjob": "nbtorchjob.api",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'nbtorchjob' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATE[name]), name)


def load_ipython_extension(shell: Any) -> None:
    """Register ``%%torchjob`` and ``%torchjob`` (IPython's hook for ``%load_ext``)."""
    from nbtorchjob import extension

    extension.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics back (IPython's hook for ``%unload_ext``); jobs go on."""
    from nbtorchjob import extension

    extension.unload(shell)
