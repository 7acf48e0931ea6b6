"""Who owns a job's retries, within its budgets: its operator, or whoever follows it, never both."""

from __future__ import annotations

from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import OPERATOR, US


def retry_owner(kind: Kind, spec: JobSpec, minor: int) -> str:
    """Return who starts attempts again (``JobInfo.retry_owner``): US, the OPERATOR, or "" without budgets.

    ``minor`` is the server's version, Kubernetes 1.x.
    """
    if spec.retry is None:
        return ""
    return OPERATOR if kind.owns_retries(spec, minor) and not moves(spec) else US


def moves(spec: JobSpec) -> bool:
    """Whether the last attempt runs on other hosts than those before: no operator does that."""
    return spec.retry is not None and spec.retry.on_demand_last and spec.cluster.preemptible
