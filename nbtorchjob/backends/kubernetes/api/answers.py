"""What an answer of the API must look like, and how much of an object is kept (pure).

A real server validates its objects against their schemas. Anything else that answers at its address, a proxy
or a login page, may send any JSON: that is rejected on arrival, in one line, and code that reads an object
finds what is promised here.

Listed and watched objects are stripped of what nothing reads, so that a thousand jobs stay small.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import CLUSTER_RUNTIMES, RUNTIMES, Api

# A mapping gives the shape of each value by its key; a key that ends in "!" is required, and "*" is every
# key. Null counts as absent, as with Go's encoders. A list has one shape, that of its items.
Shape: TypeAlias = "Mapping[str, Shape] | list[Shape] | type[str] | Callable[[Any], bool]"

_NUMBERS = 2**53  # what survives any JSON encoder


def _number(answer: Any) -> bool:
    return isinstance(answer, int) and -_NUMBERS < answer < _NUMBERS


def _base64(answer: Any) -> bool:
    try:
        return isinstance(answer, str) and base64.b64decode(answer) is not None
    except ValueError:
        return False


_TEXTS: Shape = {"*": str}
_NAMED: Shape = {"apiVersion": str, "kind": str, "name": str, "uid": str}
META: Mapping[str, Shape] = {
    **dict.fromkeys(("namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"), str),
    "name!": str,
    "deletionGracePeriodSeconds": _number,
    "labels": _TEXTS,
    "annotations": _TEXTS,
    "ownerReferences": [{"apiVersion!": str, "kind!": str, "name!": str, "uid!": str}],
}
_OWN: Shape = {**META, "uid!": str}
_CONDITIONS: Shape = [dict.fromkeys(("type", "status", "reason", "message", "lastTransitionTime"), str)]


def _amount(answer: Any) -> bool:
    return isinstance(answer, str | int)


_AMOUNTS: Shape = {"*": _amount}
_ENDED: Shape = {"exitCode!": _number, "reason": str, "message": str, "startedAt": str, "finishedAt": str}
_STATE: Shape = {
    "running": {"startedAt": str},
    "waiting": {"reason": str, "message": str},
    "terminated": _ENDED,
}
_STATUSES: Shape = [
    {"name!": str, "imageID": str, "restartCount": _number, "state": _STATE, "lastState": _STATE}
]
_CONTAINERS: Shape = [{"name": str, "resources": {"limits": _AMOUNTS, "requests": _AMOUNTS}}]
_RUNTIME: Shape = {
    "mlPolicy": {},
    "template!": {
        "spec!": {
            "replicatedJobs!": [{"name!": str, "template": {"metadata": {"labels": _TEXTS}}}],
        },
    },
}
# Objects that are only checked for existence.
_OTHERS: Mapping[str, Shape] = {
    "metadata!": META,
    "spec": {},
    "status": {},
}
_QUOTAS: Shape = [
    {
        "resources": [
            {"name": str, **dict.fromkeys(("nominalQuota", "borrowingLimit", "lendingLimit"), _amount)}
        ]
    }
]
_QUEUE: Mapping[str, Shape] = {
    "metadata!": META,
    "spec": {
        **dict.fromkeys(("clusterQueue", "cohortName", "cohort"), str),
        "resourceGroups": [{"flavors": _QUOTAS}],
    },
    "status": {
        "conditions": _CONDITIONS,
        "flavorsReservation": [{"resources": [{"name": str, "total": _amount}]}],
    },
}
_PLAIN = (
    *(reading.SERVICES, reading.POLICIES, reading.ACCOUNTS),
    *(reading.PRIORITIES, reading.WORKLOAD_PRIORITIES, reading.COMMANDS),
)
_SHAPES: Mapping[str, Mapping[str, Shape]] = {
    **{api.plural: _OTHERS for api in _PLAIN},
    **{api.plural: _QUEUE for api in (reading.LOCAL_QUEUES, reading.CLUSTER_QUEUES, reading.COHORTS)},
    reading.PODS.plural: {
        "metadata!": _OWN,
        "spec": {
            "nodeName": str,
            "restartPolicy": str,
            "resources": {"limits": _AMOUNTS},
            "containers": _CONTAINERS,
            "initContainers": _CONTAINERS,
        },
        "status": {
            **dict.fromkeys(("phase", "reason", "message", "startTime"), str),
            "conditions": _CONDITIONS,
            "containerStatuses": _STATUSES,
            "initContainerStatuses": _STATUSES,
        },
    },
    reading.EVENTS.plural: {
        "metadata!": _OWN,
        "involvedObject!": _NAMED,
        **dict.fromkeys(("reason", "message", "firstTimestamp", "lastTimestamp", "eventTime"), str),
        "series": {"lastObservedTime": str},
    },
    reading.SECRETS.plural: {"metadata!": _OWN, "data": {"*": _base64}},
    reading.QUOTAS.plural: {
        "metadata!": META,
        "spec!": {"hard": _AMOUNTS, "scopes": [str], "scopeSelector": {}},
        "status": {"hard": _AMOUNTS, "used": _AMOUNTS},
    },
    reading.CLAIMS.plural: {
        "metadata!": META,
        "spec!": {"accessModes": [str], "resources": {"requests": _AMOUNTS}},
        "status": {"phase": str},
    },
    reading.HOSTS.plural: {
        "metadata!": META,
        "spec": {"taints": [{"key!": str, "value": str, "effect": str}]},
        "status": {"allocatable": _AMOUNTS},
    },
    reading.NAMESPACES.plural: {"metadata!": META, "status": {"phase": str}},
    reading.QUEUES.plural: {"metadata!": META, "status": {"state": str}},
    reading.RUNTIMES.plural: {"kind": str, "metadata!": META, "spec!": _RUNTIME},
    reading.CLUSTER_RUNTIMES.plural: {"kind": str, "metadata!": META, "spec!": _RUNTIME},
    reading.LEASES.plural: {
        "metadata!": META,
        "spec": {
            **dict.fromkeys(("holderIdentity", "renewTime", "acquireTime"), str),
            "leaseDurationSeconds": _number,
        },
    },
    reading.REVIEWS.plural: {"status!": {}},
    reading.WHO.plural: {"status!": {"userInfo!": {"username": str}}},
}
_PATCHED: Shape = {"spec": {"replicatedJobs": [{"name!": str}]}}  # of a TrainJob's runtime
# All other objects are jobs, of any kind.
_JOB: Mapping[str, Shape] = {
    "metadata!": _OWN,
    "spec": {"runtimePatches": [{"manager": str, "trainingRuntimeSpec": {"template": _PATCHED}}]},
    "status": {
        "conditions": _CONDITIONS,
        "state": dict.fromkeys(("phase", "reason", "message", "lastTransitionTime"), str),
    },
}
PAGE: Mapping[str, Shape] = {
    "metadata!": {"continue": str, "resourceVersion": str},
    "items": lambda answer: isinstance(answer, list),
}
BARE: Mapping[str, Shape] = {"metadata!": _OWN}
VERSION: Mapping[str, Shape] = {
    "gitVersion!": lambda answer: isinstance(answer, str) and bool(re.match(r"v?\d+\.\d+", answer))
}
HEARD: Shape = {"type!": str, "object!": {}}
MARK: Shape = {"metadata!": {"resourceVersion!": str}}
_VERSIONS: Shape = [{"version!": str, "resources": [{"resource!": str}]}]
# The Workloads that wait in a Kueue queue, as its visibility server counts them.
PENDING: Mapping[str, Shape] = {
    "items": [{"metadata!": {"ownerReferences": [{"uid!": str}]}, "positionInLocalQueue": _number}],
}
SERVED: Mapping[str, Shape] = {
    "items": [{"metadata!": {"name!": str}, "versions!": _VERSIONS}],
    "groups": [{"name!": str, "versions!": _VERSIONS}],
    "resources": [{"name!": str}],
}


def of(api: Api) -> Mapping[str, Shape]:
    """Return the shape of objects of a kind."""
    return _SHAPES.get(api.plural, _JOB)


def wrong(answer: Any, shape: Shape, where: str = "") -> str:
    """Return the path of the first part of ``answer`` that doesn't fit ``shape``; "" if all of it does."""
    if isinstance(shape, Mapping):
        if not isinstance(answer, dict):
            return where or "no object"
        for key, part in shape.items():
            name = key.rstrip("!")
            path = f"{where}.{name}".lstrip(".")
            values = answer.values() if key == "*" else (answer.get(name),)
            if key.endswith("!") and answer.get(name) is None:
                return path
            for value in values:
                if value is not None and (bad := wrong(value, part, path)):
                    return bad
        return ""
    if isinstance(shape, list):
        if not isinstance(answer, list):
            return where
        return next(filter(None, (wrong(item, shape[0], f"{where}[]") for item in answer)), "")
    good = isinstance(answer, str) if shape is str else shape(answer)
    return "" if good else where


Object = dict[str, Any]

_BULK = {"template", "volumes", "volumeMounts", "env", "command", "args", "tolerations"}


def slim(obj: Object, api: Api) -> Object:
    """Remove, in place, what nothing reads: managed fields, and what only the start of a pod needs."""
    # The items of a list have neither if their kind is built in.
    obj.setdefault("kind", api.kind)
    obj.setdefault("apiVersion", api.group_version)
    obj["metadata"].pop("managedFields", None)
    if api not in (RUNTIMES, CLUSTER_RUNTIMES):  # these are templates, and few
        _prune(obj.get("spec"))
    return obj


def _prune(part: Any) -> None:
    if isinstance(part, dict):
        for key in _BULK & part.keys():
            spec = part[key].get("spec") if isinstance(part[key], dict) else None
            if "replicatedJobs" not in (spec or ()):  # there a TrainJob names the job of its runtime
                del part[key]
        for value in part.values():
            _prune(value)
    elif isinstance(part, list):
        for value in part:
            _prune(value)
