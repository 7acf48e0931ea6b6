"""A kind: the Kubernetes API that a job is written in, as pure functions and plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from nbtorchjob.backends.kubernetes.paths import Api
from nbtorchjob.backends.kubernetes.submission import Runtime, Submission
from nbtorchjob.events import Event
from nbtorchjob.spec import JobSpec

__all__ = ["Ability", "Api", "Kind", "Runtime", "Submission"]

Ability: TypeAlias = Literal[
    "elastic",  # goes on with fewer nodes
    "elastic backoff",  # restarts pods of such a job
    "roles",  # a master whose image or resources differ from its workers'
    "restart policy",  # a role says when its pods are started again
    "backoff",  # counts restarts of pods
    "deadline",  # ends the job by itself, in time
    "ttl",  # removes an ended job by itself
    "elastic ttl",  # such a job that failed, too
    "clean pods",  # removes ended pods as the job ends
    "priority class",
    "runtime",  # a template that the cluster's administrator keeps
]


@dataclass(frozen=True)
class Kind:
    """One kind of job.

    ``manifests`` gives the job object first, and behind it what the job should own beside its
    Secrets. ``facts`` reads a job object, ``node`` tells which node a pod is (None: not one of the
    job's). ``check`` raises ``SpecError`` for what only this kind refuses. ``minor`` is the oldest
    server that has the kind (Kubernetes 1.x), ``since`` the oldest for an ability. ``suspend`` leads to
    the field that suspends a job; a kind without one can't be suspended through its object.

    ``can`` is what the kind's own API can do: some of the rest we do in its place (``enforcement.py``),
    the others are refused (``fit.py``). ``keeps`` tells whether its operator can keep a spec's budgets
    on a server of that version (``keeping.py``). ``notes`` say of run policies how they are kept, or
    why they can't be. ``children`` are what its operator makes for a job beside its pods, and has events
    of: what each kind of object is called, by the ``{name}`` and ``{uid}`` of the job object. ``restarts``
    reads off a pod how often its operator had started all nodes again before; None where it doesn't say.
    """

    name: str
    api: Api
    container: str
    manifests: Callable[[Submission], list[dict[str, Any]]]
    facts: Callable[[Mapping[str, Any]], list[Event]]
    node: Callable[[Mapping[str, Any]], int | None]
    can: frozenset[Ability]
    check: Callable[[JobSpec], None] = lambda spec: None
    needs_image: bool = True
    minor: int = 0
    since: Mapping[Ability, int] = field(default_factory=dict)
    suspend: tuple[str, ...] = ()
    keeps: Callable[[JobSpec, int], bool] = lambda spec, minor: False
    notes: Mapping[str, str] = field(default_factory=dict)
    children: Mapping[str, str] = field(default_factory=dict)
    restarts: Callable[[Mapping[str, Any]], int | None] = lambda pod: None
    stubborn: bool = False  # runs a failed container again, and a job can't say that it shouldn't

    def suspended(self, *, suspended: bool) -> dict[str, Any]:
        """Give the merge patch that suspends a job, or resumes it."""
        patch: Any = suspended
        for name in reversed(self.suspend):
            patch = {name: patch}
        found: dict[str, Any] = patch
        return found
