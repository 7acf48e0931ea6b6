"""What this session remembers: what a bare ``%%torchjob`` starts from, and the job it submitted last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbtorchjob.spec import profiles
from nbtorchjob.spec.jobspec import JobSpec

if TYPE_CHECKING:
    from nbtorchjob.job import Job

_chosen: list[JobSpec] = []  # the one that holds, if any
_newest: list[Job[Any]] = []  # as above


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
    return job


def forget(job: Job[Any]) -> None:
    """Make :func:`newest` return None, if it returned this job."""
    _newest[:] = [newest for newest in _newest if newest.info.address != job.info.address]


def end() -> None:
    """Forget all of it; jobs keep running."""
    _chosen.clear()
    _newest.clear()
