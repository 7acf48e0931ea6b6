"""Run a notebook cell or function as a distributed torch job, and get its value back.

In a notebook: ``%load_ext nbtorchjob``, then ``%%torchjob`` on top of a cell. In Python:
:func:`submit`, :func:`attach`, :func:`jobs`, :func:`dry_run`, :func:`profile` and the decorator
:func:`torchjob`; :func:`map` and :func:`as_completed` for many jobs of one function, :func:`keep` and
:func:`lab` for ranks that stay. :class:`ConfigPanel` is a form for a
job's settings. On ranks: :func:`report`, :func:`checkpoint_dir`, :func:`artifacts_dir`, :func:`data_dir`,
:func:`attempt`, :func:`leaving`, :class:`Leaving`, :func:`swap_point` and :class:`RecoverableError`;
:class:`ResumableTraining` and :class:`GlobalBatchSampler` for training that continues at any size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbtorchjob.api import attach, dry_run, group, jobs, keep, lab, map, pool, profile, submit, torchjob
    from nbtorchjob.errors import (
        ApiError,
        AskError,
        CaptureError,
        ClusterError,
        ForbiddenError,
        JobCancelledError,
        JobEndedError,
        JobFailedError,
        JobNotFoundError,
        JobStoppedError,
        NameTakenError,
        NBTorchJobError,
        NotFoundError,
        ProfileError,
        ResultError,
        SpecError,
        SubmitError,
        SwapError,
        UnreachableError,
    )
    from nbtorchjob.frontends.panel import ConfigPanel
    from nbtorchjob.job import Job
    from nbtorchjob.labs import Lab
    from nbtorchjob.runs import Runs, as_completed
    from nbtorchjob.runtime.api.artifacts import artifacts_dir, data_dir
    from nbtorchjob.runtime.api.checkpoints import attempt, checkpoint_dir
    from nbtorchjob.runtime.api.points import Leaving, leaving, swap_point
    from nbtorchjob.runtime.api.report import report
    from nbtorchjob.runtime.api.sampler import GlobalBatchSampler
    from nbtorchjob.runtime.api.training import ResumableTraining
    from nbtorchjob.runtime.facts.errors import RecoverableError
    from nbtorchjob.spec.cluster import Cluster
    from nbtorchjob.spec.config import Elastic, Master, PyTorch, Worker
    from nbtorchjob.spec.jobspec import JobSpec
    from nbtorchjob.spec.policies import CleanPodPolicy, RestartPolicy, Retry, RunPolicy

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "AskError",
    "CaptureError",
    "CleanPodPolicy",
    "Cluster",
    "ClusterError",
    "ConfigPanel",
    "Elastic",
    "ForbiddenError",
    "GlobalBatchSampler",
    "Job",
    "JobCancelledError",
    "JobEndedError",
    "JobFailedError",
    "JobNotFoundError",
    "JobSpec",
    "JobStoppedError",
    "Lab",
    "Leaving",
    "Master",
    "NBTorchJobError",
    "NameTakenError",
    "NotFoundError",
    "ProfileError",
    "PyTorch",
    "RecoverableError",
    "RestartPolicy",
    "ResultError",
    "ResumableTraining",
    "Retry",
    "RunPolicy",
    "Runs",
    "SpecError",
    "SubmitError",
    "SwapError",
    "UnreachableError",
    "Worker",
    "artifacts_dir",
    "as_completed",
    "attach",
    "attempt",
    "checkpoint_dir",
    "data_dir",
    "dry_run",
    "group",
    "jobs",
    "keep",
    "lab",
    "leaving",
    "load_ipython_extension",
    "map",
    "pool",
    "profile",
    "report",
    "submit",
    "swap_point",
    "torchjob",
    "unload_ipython_extension",
]

# Each name is imported on first use: %load_ext mustn't hold up a notebook's first cell, and a rank that
# runs from this same installation needs only `report`.
_HOMES = {
    "api": (
        *("attach", "dry_run", "group", "jobs", "keep", "lab", "map", "pool", "profile", "submit"),
        "torchjob",
    ),
    "spec.cluster": ("Cluster",),
    "spec.config": ("Elastic", "Master", "PyTorch", "Worker"),
    "spec.policies": ("CleanPodPolicy", "RestartPolicy", "Retry", "RunPolicy"),
    "errors": (
        *("ApiError", "CaptureError", "ClusterError", "ForbiddenError", "JobCancelledError"),
        *("AskError", "JobEndedError", "JobFailedError", "JobNotFoundError", "NBTorchJobError"),
        *("NameTakenError", "NotFoundError", "ProfileError", "ResultError", "SpecError", "SubmitError"),
        *("JobStoppedError", "SwapError", "UnreachableError"),
    ),
    "job": ("Job",),
    "labs": ("Lab",),
    "runs": ("Runs", "as_completed"),
    "runtime.api.artifacts": ("artifacts_dir", "data_dir"),
    "runtime.api.checkpoints": ("attempt", "checkpoint_dir"),
    "runtime.facts.errors": ("RecoverableError",),
    "runtime.api.points": ("Leaving", "leaving", "swap_point"),
    "runtime.api.report": ("report",),
    "runtime.api.sampler": ("GlobalBatchSampler",),
    "runtime.api.training": ("ResumableTraining",),
    "spec.jobspec": ("JobSpec",),
    "frontends.panel": ("ConfigPanel",),
}
_LATE = {name: f"nbtorchjob.{module}" for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module 'nbtorchjob' has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def load_ipython_extension(shell: Any) -> None:
    """Register ``%%torchjob`` and ``%torchjob`` (IPython's hook for ``%load_ext``)."""
    from nbtorchjob.frontends import notebook

    notebook.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Unregister the magics (IPython's hook for ``%unload_ext``); jobs go on."""
    from nbtorchjob.frontends import notebook

    notebook.unload(shell)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Return the folder of the built JupyterLab extension, for `jupyter-builder develop` (its hook)."""
    return [{"src": "labextension", "dest": "nbtorchjob"}]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Return the extension for Jupyter Server to load (its hook)."""
    from nbtorchjob.frontends import server

    return server._jupyter_server_extension_points()
