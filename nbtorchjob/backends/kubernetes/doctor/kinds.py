"""Which kinds of job the cluster has, and which one would be taken (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.doctor import budgets
from nbtorchjob.backends.kubernetes.kinds import KINDS, fit
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.kinds.fit import Served
from nbtorchjob.backends.kubernetes.kinds.indexedjob.manifest import POD_FAILURE_POLICY
from nbtorchjob.errors import SpecError, SubmitError
from nbtorchjob.spec import JobSpec

# As their projects document it, in the releases that nbtorchjob was written for; a plain Indexed Job
# comes with Kubernetes.
_INSTALL = {
    "pytorchjob": (
        "kubectl apply --server-side -k "
        '"github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.4"'
    ),
    "trainjob": (
        "helm install kubeflow-trainer oci://ghcr.io/kubeflow/charts/kubeflow-trainer --version 2.3.0 "
        "--namespace kubeflow-system --create-namespace --set runtimes.defaultEnabled=true"
    ),
    "volcano": (
        "helm repo add volcano-sh https://volcano-sh.github.io/helm-charts\n"
        "helm install volcano volcano-sh/volcano --version 1.15.1 -n volcano-system --create-namespace"
    ),
}
_OPERATOR = {
    "pytorchjob": "Kubeflow's training-operator 1.9",
    "trainjob": "Kubeflow's trainer 2.3",
    "volcano": "Volcano 1.15",
}


def each(served: Served, minor: int, spec: JobSpec, *, needed: bool) -> Iterator[Finding]:
    """Say of each kind whether it is there and can do the job.

    One that isn't there is bad only where it was asked for, or any is ``needed``.
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
        return Finding(not asked, f"{text}, but jobs need Kubernetes 1.{kind.minor} for it")
    try:
        fit.check(kind, spec, minor)
    except SpecError as exc:
        return Finding(not asked, f"{text}, but it can't do this job: {exc}")
    return Finding(True, text)


def _missing(kind: Kind, served: Served, *, wanted: bool) -> Finding:
    others = fit.other_versions(kind, served)
    seen = f"served only in {others}" if others else "not served"
    operator = _OPERATOR.get(kind.name, "Kubernetes itself")
    text = f"{kind.name}: {kind.api} {kind.api.version} is {seen}; it comes with {operator}"
    # Nobody who does without it should read how to install it.
    return Finding(not wanted, text, _INSTALL.get(kind.name, "") if wanted else "")


def chosen(served: Served, minor: int, spec: JobSpec) -> tuple[Kind | None, list[Finding]]:
    """Give the kind that the job would be, and what is to be said of it."""
    try:
        kind = fit.choose(served, spec, minor)
    except (SpecError, SubmitError) as exc:
        return None, [Finding(False, _reason(exc, minor))]
    notes = [Finding(True, f"mind: {caution}") for caution in _cautions(kind, minor, spec)]
    found = Finding(True, f"the job would be a {kind.api.kind} (--kind {kind.name})")
    return kind, [found, *budgets.kept(kind, spec, minor), *notes]


def _cautions(kind: Kind, minor: int, spec: JobSpec) -> Iterator[str]:
    yield from fit.cautions(kind, spec, minor)
    if kind.name == "indexedjob" and minor < POD_FAILURE_POLICY:
        needed = f"tells them apart from Kubernetes 1.{POD_FAILURE_POLICY} on"
        yield f"pods that are evicted or preempted count as failures: an Indexed Job {needed}"


def _reason(error: Exception, minor: int) -> str:
    oldest = KINDS["indexedjob"].minor
    if minor >= oldest:
        return f"{error}; --kind indexedjob needs nothing installed"
    return f"{error}; --kind indexedjob would need nothing installed, but Kubernetes 1.{oldest} or later"
