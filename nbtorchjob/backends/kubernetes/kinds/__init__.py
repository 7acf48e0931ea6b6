"""The kinds of job that a cluster may serve, best first: each module here defines one, as its ``KIND``.

A kind is the Kubernetes API that a job is written in, as pure functions and plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from typing import Any, Literal, TypeAlias

from nbtorchjob.backends.kubernetes.lifecycle import Complaints
from nbtorchjob.backends.kubernetes.objects.reading import Api, Use
from nbtorchjob.backends.kubernetes.objects.submission import Runtime, Submission
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec.cluster import KINDS as NAMES
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state.facts.events import Event

Ability: TypeAlias = Literal[
    "elastic",  # continues with fewer nodes
    "elastic backoff",  # restarts pods of such a job
    "roles",  # a master whose image or resources differ from its workers'
    "restart policy",  # each role states when its pods are started again
    "backoff",  # counts restarts of pods
    "deadline",  # ends the job by itself, in time
    "ttl",  # removes an ended job by itself
    "elastic ttl",  # removes an elastic job that failed, too
    "clean pods",  # removes ended pods as the job ends
    "priority class",
    "workload priority",  # in a Kueue queue
    "runtime",  # a template that the cluster's administrator keeps
]


class Queues(FrozenDataclass):
    """The queues of a kind's own scheduler: each of its jobs is in one, by default in ``default``.

    ``owner`` names the system that has them. ``closed`` returns the state of a queue that accepts no jobs,
    and "" for one that does.
    """

    api: Api
    owner: str
    default: str
    closed: Callable[[Mapping[str, Any]], str]


class Runtimes(FrozenDataclass):
    """The templates that a kind's jobs refer to, one each: a namespace's ``own``, and ``shared`` ones.

    ``default`` is for jobs that name none. ``trainer`` returns which of a template's jobs trains,
    ``made_for`` what a template is made for ("": torch), ``runs`` what it runs, for a list, ``restarts`` how
    often it starts a failed job again by itself ("": never), and ``initializers`` which steps fetch data.
    """

    own: Api
    shared: Api
    default: Runtime
    trainer: Callable[[Mapping[str, Any]], str]
    made_for: Callable[[Mapping[str, Any]], str]
    runs: Callable[[Mapping[str, Any]], str]
    restarts: Callable[[Mapping[str, Any]], str]
    initializers: Callable[[Mapping[str, Any]], Sequence[str]]


class Commands(FrozenDataclass):
    """What a kind's controller acts on: an object that requests that a job is suspended (True), or resumed.

    ``command`` makes one for a job object. It may be lost: it is sent again until the job shows its effect.
    """

    api: Api
    command: Callable[[Mapping[str, Any], bool], dict[str, Any]]


class Kind(FrozenDataclass):
    """One kind of job, with everything specific to it; no code outside its folder compares its name.

    ``manifests`` returns the job object first, and after it what the job should own besides its
    Secrets. ``facts`` reads a job object, ``node`` returns which node a pod is (None: not one of the
    job's). ``check`` raises ``SpecError`` for what only this kind refuses. ``minor`` is the oldest
    server that has the kind (Kubernetes 1.x), ``since`` the oldest for an ability. ``suspend`` is the path to
    the field that suspends a job; a kind without one has ``commands``. ``ended`` is the merge patch
    that ends a running job and its pods for good, by a deadline that has passed. ``runtimes`` go with the
    ability ``runtime``.

    ``about`` describes it in one line of the documentation. ``operator`` is the project that defines it, ""
    for Kubernetes itself, and ``install`` that project's command to install the release that we support.

    ``can`` is what the kind's own API can do: some of the rest we do in its place, and the others are
    refused (``fit.py``). ``owns_retries`` returns whether its operator can enforce a
    spec's budgets on a server of that version (``fit.py``). ``notes`` state how run policies are met,
    or why they can't be. ``children`` are the objects that its operator makes for a job besides its pods, and
    reports events about: each one's kind, and its name by the job object. ``restarts``
    reads from a pod how often its operator had started all nodes again before; None where it isn't recorded.

    ``complaints`` are how its operator reports that something can't be made. ``cautions`` warn of what works
    otherwise than a user might expect, on a server of that version. ``uses`` are what an account must be
    permitted besides what all kinds need. ``unrestricted`` yields what its operator adds to the job's pods
    that the Pod Security level ``restricted`` refuses, each with what to do. ``controls`` returns whether a
    pod's controller, an owner reference, is the job object or was made for it by its operator. ``adopts`` are
    the objects that its operator makes once for a job, by ``{name}``, or takes as they are if there are any.
    """

    name: str
    about: str
    api: Api
    container: str
    manifests: Callable[[Submission], list[dict[str, Any]]]
    facts: Callable[[Mapping[str, Any]], list[Event]]
    node: Callable[[Mapping[str, Any]], int | None]
    can: frozenset[Ability]
    check: Callable[[JobSpec], None] = lambda spec: None
    operator: str = ""
    install: str = ""
    needs_image: bool = True
    minor: int = 0
    since: Mapping[Ability, int] = field(default_factory=dict)
    suspend: tuple[str, ...] = ()
    ended: Mapping[str, Any] = field(default_factory=lambda: {"spec": {"activeDeadlineSeconds": 1}})
    commands: Commands | None = None
    runtimes: Runtimes | None = None
    owns_retries: Callable[[JobSpec, int], bool] = lambda spec, minor: False
    notes: Mapping[str, str] = field(default_factory=dict)
    children: Mapping[str, Callable[[Mapping[str, Any]], str]] = field(default_factory=dict)
    restarts: Callable[[Mapping[str, Any]], int | None] = lambda pod: None
    complaints: Complaints = field(default_factory=Complaints)
    cautions: Callable[[JobSpec, int], Iterable[str]] = lambda spec, minor: ()
    uses: tuple[Use, ...] = ()
    queues: Queues | None = None
    adopts: tuple[tuple[Api, str], ...] = ()
    unrestricted: Callable[[JobSpec], Iterable[str]] = lambda spec: ()
    controls: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = lambda owner, obj: (
        owner.get("uid") == obj["metadata"]["uid"]
    )
    grouped: bool = False  # Kubernetes itself may place all its pods at once (``lifecycle``)
    stubborn: bool = False  # runs a failed container again, and a job can't forbid it

    def suspends(self, obj: Mapping[str, Any]) -> bool:
        """Whether a job object should have no pods: its spec says so before its status does."""
        value: Any = obj if self.suspend else None
        for name in self.suspend:
            value = (value or {}).get(name)
        return bool(value)

    def suspended(self, *, suspended: bool) -> dict[str, Any]:
        """Return the merge patch that suspends a job, or resumes it."""
        patch: Any = suspended
        for name in reversed(self.suspend):
            patch = {name: patch}
        merge_patch: dict[str, Any] = patch
        return merge_patch


# Below the definitions that these modules import from here.
KINDS: Mapping[str, Kind] = {name: import_module(f"{__name__}.{name}").KIND for name in NAMES}
