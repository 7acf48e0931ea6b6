"""Which kinds of job the cluster has, and which one would be taken (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.doctor import budgets
from nbtorchjob.backends.kubernetes.kinds import KINDS, fit
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.kinds.fit import Served
from nbtorchjob.errors import SpecError, SubmitError
from nbtorchjob.spec.jobspec import JobSpec


def each(served: Served, minor: int, spec: JobSpec, *, needed: bool) -> Iterator[Finding]:
    """Report of each kind whether it is there and can do the job.

    A missing one is bad only if it was requested, or if any is ``needed``.
    """
    for kind in KINDS.values():
        if kind.api[:3] in served:
            yield _there(kind, minor, spec)
        else:
            wanted = spec.cluster.kind == kind.name or (needed and spec.cluster.kind is None)
            yield _missing(kind, served, wanted=wanted)


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


def _missing(kind: Kind, served: Served, *, wanted: bool) -> Finding:
    others = fit.other_versions(kind, served)
    seen = f"served only in {others}" if others else "not served"
    operator = kind.operator or "Kubernetes itself"
    text = f"{kind.name}: {kind.api} {kind.api.version} is {seen}; it comes with {operator}"
    # Whoever doesn't need it shouldn't have to read how to install it.
    return Finding(not wanted, text, kind.install if wanted else "")


def chosen(served: Served, minor: int, spec: JobSpec) -> tuple[Kind | None, list[Finding]]:
    """Return the kind that the job would be, and the findings about it."""
    try:
        kind = fit.choose(served, spec, minor)
    except (SpecError, SubmitError) as exc:
        return None, [Finding(False, _reason(exc, minor))]
    cautions = [*fit.left_to_us(kind, spec, minor), *fit.cautions(kind, spec, minor)]
    notes = [Finding(True, f"mind: {caution}") for caution in cautions]
    found = Finding(True, f"the job would be a {kind.api.kind} (--kind {kind.name})")
    return kind, [found, *budgets.findings(kind, spec, minor), *notes]


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
