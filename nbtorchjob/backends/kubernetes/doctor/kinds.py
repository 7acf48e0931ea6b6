"""The kinds of job that a cluster has: which is taken, whether nodes start at once, and who retries."""

from __future__ import annotations

from collections.abc import Iterator

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.kinds import KINDS, fit
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.kinds.enforcement import enforced, retry_owner
from nbtorchjob.backends.kubernetes.kinds.fit import Served
from nbtorchjob.backends.kubernetes.objects.paths import HOSTS, POD_GROUPS
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import ForbiddenError, SpecError, SubmitError
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import US

_FOR_ALL = "v1alpha2"  # of 1.36, whose Job controller groups all that it can
_WHAT = "PodGroups (scheduling.k8s.io, Kubernetes 1.36)"
_ALONE = (
    "some may hold theirs while the others wait; --start-within 10m ends that, "
    "and a queue of Kueue's (--queue) avoids it"
)


async def gang_findings(here: Session, kind: Kind | None, spec: JobSpec) -> list[Finding]:
    """Report it of a kind of several nodes that no operator of its own places. Raises ``ClusterError``."""
    if kind is None or not kind.grouped or spec.launch.max_nodes < 2:
        return []
    api = await here.newest(POD_GROUPS)
    if api is None:
        return [Finding(True, f"{_WHAT} aren't served, so nodes get their hosts one by one: {_ALONE}")]
    if api.version == _FOR_ALL:
        gates = "where the Job controller makes them (its gate EnableWorkloadWithJob)"
        return [Finding(True, f"{_WHAT} are served: {gates}, all nodes are placed at once, or none")]
    asked = "but from 1.37 on they place at once only what asks for it, which this job doesn't"
    return [Finding(True, f"{_WHAT} are served, {asked}: {_ALONE}")]


def findings(kind: Kind, spec: JobSpec, minor: int) -> Iterator[Finding]:
    """Report who enforces the budgets, and what that needs; nothing for a job without any."""
    if spec.retry is None:
        return
    who = retry_owner(kind, spec, minor)
    text = f"retries and preemptions: {enforced(kind, spec, who)['retries']}"
    # The first attempt needs it, too, so it is among the permissions that are checked.
    needs = f", and needs permission to create {kind.api} and to list secrets" if who == US else ""
    yield Finding(True, text + needs)


async def hosts(client: Client, spec: JobSpec) -> list[Finding]:
    """Report whether there are preemptible hosts, for a job that requests them. Raises ``ClusterError``."""
    labels = ",".join(f"{key}={value}" for key, value in spec.cluster.spot_selector.items())
    if not (spec.cluster.preemptible and labels):
        return []
    what = f"preemptible hosts ({labels})"
    try:
        number = len((await client.list(HOSTS, None, labels=labels)).items)
    except ForbiddenError:
        return [Finding(True, f"{what}: can't check, because listing nodes isn't permitted")]
    if number:
        return [Finding(True, f"{what}: {number} now")]
    text = (
        f"{what}: none now; unless the cluster adds hosts by itself, change --spot-selector or omit "
        "--preemptible"
    )
    return [Finding(False, text)]


def per_kind(served: Served, minor: int, spec: JobSpec, *, needed: bool) -> Iterator[Finding]:
    """Report of each kind whether it is there and can do the job.

    A missing one is bad only if it was requested, or if any is ``needed``.
    """
    for kind in KINDS.values():
        if kind.api[:3] in served:
            yield _there(kind, minor, spec)
        else:
            wanted = spec.cluster.kind == kind.name or (needed and spec.cluster.kind is None)
            others = fit.other_versions(kind, served)
            seen = f"served only in {others}" if others else "not served"
            operator = kind.operator or "Kubernetes itself"
            text = f"{kind.name}: {kind.api} {kind.api.version} is {seen}; it comes with {operator}"
            # Whoever doesn't need it shouldn't have to read how to install it.
            yield Finding(not wanted, text, kind.install if wanted else "")


def _there(kind: Kind, minor: int, spec: JobSpec) -> Finding:
    text = f"{kind.name}: {kind.api} {kind.api.version} is served"
    asked = spec.cluster.kind == kind.name
    if minor < kind.minor:
        return Finding(not asked, f"{text}, but this kind needs Kubernetes 1.{kind.minor}")
    try:
        fit.check(kind, spec, minor)
    except SpecError as exc:
        return Finding(not asked, f"{text}, but it can't do this job: {exc}")
    return Finding(True, text)


def chosen(served: Served, minor: int, spec: JobSpec) -> tuple[Kind | None, list[Finding]]:
    """Return the kind that the job would be, and the findings about it."""
    try:
        kind = fit.choose(served, spec, minor)
    except (SpecError, SubmitError) as exc:
        return None, [Finding(False, _reason(exc, minor))]
    cautions = [*fit.left_to_us(kind, spec, minor), *fit.cautions(kind, spec, minor)]
    notes = [Finding(True, f"mind: {caution}") for caution in cautions]
    finding = Finding(True, f"the job would be a {kind.api.kind} (--kind {kind.name})")
    return kind, [finding, *findings(kind, spec, minor), *notes]


def _reason(error: Exception, minor: int) -> str:
    """Return why no kind will do, and with it the kinds that need nothing installed."""
    able = [kind for kind in KINDS.values() if not kind.operator]
    for kind in able:
        if minor >= kind.minor:
            return f"{error}; --kind {kind.name} needs nothing installed"
    for kind in able:
        needed = f"but Kubernetes 1.{kind.minor} or later"
        return f"{error}; --kind {kind.name} needs nothing installed, {needed}"
    return str(error)
