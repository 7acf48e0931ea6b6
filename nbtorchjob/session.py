"""What a bare ``%%torchjob`` starts from in this session: a panel's settings, else the default profile."""

from __future__ import annotations

from nbtorchjob import profiles
from nbtorchjob.spec import JobSpec

_chosen: list[JobSpec] = []  # the one that holds, if any


def default() -> JobSpec:
    """Give what a line of options is laid over where it names no profile. Raises ``SpecError``."""
    return _chosen[0] if _chosen else profiles.default()


def use(spec: JobSpec | None) -> None:
    """Make ``spec`` the session's default; None goes back to the default profile."""
    _chosen[:] = [] if spec is None else [spec]
