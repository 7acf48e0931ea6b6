"""Kubernetes objects of any kind: where the API keeps them, how to read them, who may use them (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from nbtorchjob.spec import digits
from nbtorchjob.state.facts import events as ev

Object = Mapping[str, Any]


def seconds(stamp: str | None) -> float:
    """Return an RFC 3339 time as seconds since the epoch; 0 for null, which Kubernetes may write, too."""
    try:
        # Python 3.10 reads neither "Z" nor fractions other than of three or six digits.
        if stamp:
            whole, rest = stamp[:19], stamp[19:].rstrip("Z")
            # The lines of a log may be stamped in the zone of their host.
            sign = max(rest.find("+"), rest.find("-"))
            digits, zone = (rest[:sign], rest[sign:]) if sign >= 0 else (rest, "+00:00")
            return datetime.fromisoformat(f"{whole}.{digits[1:7]:0<6}{zone}").timestamp()
        return 0.0
    except ValueError:  # something else may answer in place of an API server
        return 0.0


def meta(obj: Object) -> Object:
    """Return an object's metadata."""
    metadata: Object = obj.get("metadata") or {}
    return metadata


def status(obj: Object) -> Object:
    """Return an object's status; empty before one was written."""
    value: Object = obj.get("status") or {}
    return value


def created(obj: Object) -> float:
    """When the object was created."""
    return seconds(meta(obj).get("creationTimestamp"))


def deleted(obj: Object) -> float | None:
    """When the object's deletion was requested: its deletionTimestamp is a grace period later."""
    stamp = meta(obj).get("deletionTimestamp")
    return seconds(stamp) - (meta(obj).get("deletionGracePeriodSeconds") or 0) if stamp else None


def ended(pod: Object) -> bool:
    """Whether all containers of a pod have ended, and none begins again."""
    return status(pod).get("phase") in ("Succeeded", "Failed")


def index(text: object) -> int | None:
    """Return the number of a node, as an operator writes it; None for anything else."""
    number = digits(text)
    return number if number is not None and number >= 0 else None


def condition(obj: Object, kind: str, state: str = "True") -> Object | None:
    """Return the condition of that type if its status is ``state``."""
    for candidate in status(obj).get("conditions") or ():
        if candidate.get("type") == kind and candidate.get("status") == state:
            match: Object = candidate
            return match
    return None


def since(condition: Object) -> float:
    """When a condition last changed its status."""
    return seconds(condition.get("lastTransitionTime"))


def job_facts(obj: Object, good: str, bad: str, *, every_node: bool = True) -> list[ev.Event]:
    """Return the facts in a job's conditions; ``good`` and ``bad`` are the types that end it."""
    events: list[ev.Event] = []
    for kind in (bad, good):
        ended = condition(obj, kind)
        if ended is not None and not events:
            reason, text = ended.get("reason", ""), ended.get("message", "")
            events.append(ev.Verdict(since(ended), kind == good, reason, text, every_node))
    deletion = deleted(obj)
    if deletion is not None and not events:
        events.append(ev.CancelRequested(deletion))
    for state in ("True", "False"):
        paused = condition(obj, "Suspended", state)
        if paused is not None:
            events.append(ev.Suspended(since(paused), state == "True"))
    return events


class Api(NamedTuple):
    """One kind of object that a cluster may serve; the core group is ""."""

    group: str
    version: str
    plural: str
    kind: str

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def group_version(self) -> str:
        """The ``apiVersion`` in a manifest."""
        return f"{self.group}/{self.version}" if self.group else self.version


PODS = Api("", "v1", "pods", "Pod")
SECRETS = Api("", "v1", "secrets", "Secret")
SERVICES = Api("", "v1", "services", "Service")
CONFIGMAPS = Api("", "v1", "configmaps", "ConfigMap")
POLICIES = Api("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
EVENTS = Api("", "v1", "events", "Event")
NAMESPACES = Api("", "v1", "namespaces", "Namespace")
ACCOUNTS = Api("", "v1", "serviceaccounts", "ServiceAccount")
CLAIMS = Api("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
QUOTAS = Api("", "v1", "resourcequotas", "ResourceQuota")
HOSTS = Api("", "v1", "nodes", "Node")
PRIORITIES = Api("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
POD_GROUPS = Api("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
RUNTIMES = Api("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
CLUSTER_RUNTIMES = Api(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime"
)
QUEUES = Api("scheduling.volcano.sh", "v1beta1", "queues", "Queue")
COMMANDS = Api("bus.volcano.sh", "v1alpha1", "commands", "Command")
KUEUE = "kueue.x-k8s.io"
WORKLOADS = Api(KUEUE, "v1beta2", "workloads", "Workload")
LOCAL_QUEUES = Api(KUEUE, "v1beta2", "localqueues", "LocalQueue")
CLUSTER_QUEUES = Api(KUEUE, "v1beta2", "clusterqueues", "ClusterQueue")
COHORTS = Api(KUEUE, "v1beta2", "cohorts", "Cohort")
WORKLOAD_PRIORITIES = Api(KUEUE, "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass")
VISIBILITY = "visibility.kueue.x-k8s.io"
VISIBLE_QUEUES = Api(VISIBILITY, "v1beta2", "localqueues", "LocalQueue")
LEASES = Api("coordination.k8s.io", "v1", "leases", "Lease")
WHO = Api("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview")
REVIEWS = Api("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")

# Versions that will do if an object's own isn't served, by group: Kueue before 0.15 had only the older one,
# and PodGroup is new in 1.36.
OLDER = {KUEUE: ("v1beta1",), VISIBILITY: ("v1beta1",), POD_GROUPS.group: ("v1alpha3", "v1alpha2")}
# What a job owns besides its Secrets and pods, by kind.
BESIDE = {api.kind: api for api in (SERVICES, POLICIES)}


class Target(NamedTuple):
    """What a request is for: objects of one kind, or one of them, or a part of it (``pods/log``)."""

    api: Api
    namespace: str | None = None
    name: str | None = None
    part: str | None = None

    @property
    def path(self) -> str:
        """The URL's path."""
        api = self.api
        root = f"/apis/{api.group}/{api.version}" if api.group else f"/api/{api.version}"
        scope = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}{scope}/{api.plural}" + "".join(f"/{word}" for word in (self.name, self.part) if word)

    def __str__(self) -> str:
        text = f"{self.api}/{self.part}" if self.part else str(self.api)
        text += f' "{self.name}"' if self.name else ""
        return text + (f' in namespace "{self.namespace}"' if self.namespace else "")


class Right(NamedTuple):
    """A verb on a resource, as in a Role."""

    verb: str
    group: str
    resource: str

    @property
    def full_name(self) -> str:
        """The resource's full name."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


class Use(NamedTuple):
    """Verbs on a resource, and what they are for; ``part`` is a subresource."""

    verbs: str
    api: Api
    why: str
    part: str = ""

    @property
    def rights(self) -> Iterator[Right]:
        """Each verb by itself."""
        resource = f"{self.api.plural}/{self.part}" if self.part else self.api.plural
        return (Right(verb, self.api.group, resource) for verb in self.verbs.split())


_ACCOUNT = "system:serviceaccount:"
_SECRETS = "# Who may read Secrets of a namespace can read all of them: best one that has only jobs in it.\n"


def grant(
    user: str, namespace: str | None, rules: Iterable[tuple[str, str, str]], name: str = "nbtorchjob"
) -> str:
    """Return the YAML that lets ``user`` do all ``rules``: (verb, API group, resource such as "pods/log").

    It is a Role of that ``name``, or a ClusterRole if there is no namespace.
    """
    rules = list(rules)
    scope = "" if namespace else "Cluster"
    inside = f"\n  namespace: {namespace}" if namespace else ""
    verbs: dict[tuple[str, str], list[str]] = {}
    for verb, group, resource in rules:
        verbs.setdefault((group, resource), []).append(verb)
    lines = "".join(
        f'\n- apiGroups: ["{group}"]\n  resources: ["{resource}"]\n  verbs: {json.dumps(allowed)}'
        for (group, resource), allowed in verbs.items()
    )
    reads = {(verb, "", "secrets") for verb in ("get", "list")}
    caution = _SECRETS if reads & set(rules) else ""
    if user.startswith(_ACCOUNT):
        subject_namespace, _, subject_name = user[len(_ACCOUNT) :].partition(":")
        subject = f"- kind: ServiceAccount\n  name: {subject_name}\n  namespace: {subject_namespace}"
    else:
        subject = f"- apiGroup: rbac.authorization.k8s.io\n  kind: User\n  name: {json.dumps(user)}"
    return f"""\
{caution}apiVersion: rbac.authorization.k8s.io/v1
kind: {scope}Role
metadata:
  name: {name}{inside}
rules:{lines}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {scope}RoleBinding
metadata:
  name: {name}{inside}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {scope}Role
  name: {name}
subjects:
{subject}
"""
