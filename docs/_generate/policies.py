"""The page of the documentation about who enforces which run policy (``docs/run-policy.md``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from docs._generate.markdown import table
from nbtorchjob.backends.base import Enforcement
from nbtorchjob.backends.kubernetes.kinds import KINDS, Kind
from nbtorchjob.backends.kubernetes.kinds.fit import NEWEST, check, enforced, retry_owner
from nbtorchjob.backends.local.policies import POLICIES
from nbtorchjob.errors import SpecError
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import CleanPodPolicy, Retry, RunPolicy
from nbtorchjob.state import OPERATOR, US

Case: TypeAlias = tuple[str, str]  # a job's size, and who owns its retries
Policies: TypeAlias = Mapping[str, Enforcement]

_INTRO = """# Run policies: who enforces them

This page is generated from what each kind can do (`nbtorchjob/backends/kubernetes/kinds`).

- **natively**: the cluster does it, or this machine's supervisor, with the notebook closed.
- **by us**: the process that follows the job, a tender ([tending.md](tending.md)) or `%torchjob gc` does
  it; until then it waits.
- **refused**: before anything is sent.

A job that was cancelled, or that nbtorchjob itself ended, as for `start_within`, is suspended: its logs stay
readable, and its operator sees no end. nbtorchjob itself removes it after `ttl_seconds_after_finished`.
"""
_BUDGETS = """
## Who owns the retries

The retry owner starts the next attempt, within the budgets of failures and preemptions. It is either the
operator or nbtorchjob, never both.
"""

_SIZES: Mapping[str, int | str] = {"fixed": 2, "elastic": "1:2"}
_RETRIES = {
    "": None,
    "--retries 3": Retry(3),
    "--retries 3 --preemptions 0": Retry(3, 0),
    "--retries 3 --preemptions 2": Retry(3, 2),
    "--retries 0 --preemptions 0": Retry(0, 0),
    "--on-demand-last --preemptible": Retry(on_demand_last=True),
}
_SPOT = Cluster(image="torch", preemptible=True, spot_toleration=("spot",))
_RETRIED = {"": "no budgets", US: "retried by us", OPERATOR: "retried by its operator"}


def page() -> str:
    """Return the page, as Markdown."""
    kinds = {name: dict(_cases(kind)) for name, kind in KINDS.items()}
    columns: dict[str, Mapping[Case, Policies]] = {"local": {("any", "any"): POLICIES}, **kinds}
    overview = [[f"`{name}`", *(_who(cases, name) for cases in columns.values())] for name in POLICIES]
    parts = [_INTRO, table(["policy", *columns], overview), _BUDGETS]
    parts.append(table(["size", "budgets", *KINDS], _retry_owners()))
    for kind, cases in columns.items():
        parts += [f"\n## {kind}\n", table(["policy", "of a job", "who, and how or why"], _details(cases))]
    return "\n".join([*parts, ""])


def _cases(kind: Kind) -> Iterator[tuple[Case, Policies]]:
    for size, nnodes in _SIZES.items():
        for retry in _RETRIES.values():
            spec = JobSpec(Elastic(nnodes), cluster=_SPOT, retry=retry)
            if _fits(kind, spec):
                who = retry_owner(kind, spec, NEWEST)
                yield (size, _RETRIED[who]), _policies(kind, spec, who)


def _fits(kind: Kind, spec: JobSpec) -> bool:
    try:
        check(kind, spec)
    except SpecError:
        return False
    return True


def _policies(kind: Kind, asked: JobSpec, who: str) -> Policies:
    found: dict[str, Enforcement] = {}
    for policy in CleanPodPolicy:
        launch = replace(asked.launch, run_policy=RunPolicy(policy))
        each = dict(enforced(kind, replace(asked, launch=launch), who))
        found |= {f"clean_pod_policy={policy.value}": each.pop("clean_pod_policy"), **each}
    return found


def _who(cases: Mapping[Case, Policies], policy: str) -> str:
    return " / ".join(dict.fromkeys(found[policy].who for found in cases.values() if policy in found))


def _retry_owners() -> Iterator[Sequence[str]]:
    for size, nnodes in _SIZES.items():
        for flags, retry in _RETRIES.items():
            spec = JobSpec(Elastic(nnodes), cluster=_SPOT, retry=retry)
            if retry is not None:
                yield size, f"`{flags}`", *(_owner(kind, spec) for kind in KINDS.values())


def _owner(kind: Kind, spec: JobSpec) -> str:
    if not _fits(kind, spec):
        return "refused"
    return "we" if retry_owner(kind, spec, NEWEST) == US else "its operator"


def _details(cases: Mapping[Case, Policies]) -> Iterator[Sequence[str]]:
    for policy in POLICIES:
        able = {case: found[policy] for case, found in cases.items() if policy in found}
        for each in dict.fromkeys(able.values()):
            of = [case for case, found in able.items() if found == each]
            yield f"`{policy}`", _of(of, list(able)), str(each)


def _of(some: list[Case], every: list[Case]) -> str:
    """Name some of the cases, by what they have in common if that distinguishes them from the others."""
    if some == every:
        return "any"
    for place in (0, 1):
        common = dict.fromkeys(case[place] for case in some)
        if some == [case for case in every if case[place] in common]:
            return " or ".join(common)
    return "; ".join(map(", ".join, some))
