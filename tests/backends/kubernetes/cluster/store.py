"""All objects of the cluster, their revisions and the history that watches read.

Writes replace objects and never change them in place, so a watch or a list may keep one for any time. The
server's event loop owns all of it.
"""

import asyncio
import datetime
import json
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.backends.kubernetes.cluster.refusals import already_exists, conflict, not_found
from tests.backends.kubernetes.cluster.resources import PODS, Object, Resource, copied

Key = tuple[str, str]

# etcd counts from 1; even a new cluster is already well past that.
FIRST_REVISION = 100


def now(*, later_s: int = 0) -> str:
    """Return the time in the format of objects (UTC, whole seconds), or the time some seconds later."""
    time = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=later_s)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def later(moment: str, seconds: int) -> str:
    """Return an object's time plus some seconds."""
    then = datetime.datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return (then + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(moment: str) -> float:
    """Return the seconds since a time of an object."""
    then = datetime.datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return (datetime.datetime.now(datetime.timezone.utc) - then).total_seconds()


def key_of(obj: Object) -> Key:
    """Return namespace (empty for a cluster-scoped object) and name."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def suffix() -> str:
    """Return the five characters that generateName adds."""
    return "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))


@dataclass(frozen=True)
class Change:
    """One entry of the history; `before` is the object as it was, None at its creation."""

    revision: int
    resource: Resource
    type: str
    object: Object
    before: Object | None

    @cached_property
    def text(self) -> str:
        """Return the object as JSON, which all its watches send."""
        return json.dumps(self.object, separators=(",", ":"))


class Store:
    """The objects by resource, namespace and name; every write is a new revision."""

    def __init__(self) -> None:
        self.revision = FIRST_REVISION
        self.history: dict[Resource, list[Change]] = defaultdict(list)
        # Changes up to this revision can't be watched any more.
        self.expired: dict[Resource, int] = defaultdict(lambda: FIRST_REVISION)
        self.listeners: dict[Resource, set[asyncio.Event]] = defaultdict(set)
        self.hooks: list[Callable[[Change], None]] = []
        self._objects: dict[Resource, dict[Key, Object]] = defaultdict(dict)

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Return the object, or None."""
        return self._objects[resource].get((namespace, name))

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Return the object; 404 if there is none."""
        obj = self.find(resource, namespace, name)
        if obj is None:
            raise not_found(resource, name)
        return obj

    def list(self, resource: Resource, namespace: str = "") -> list[Object]:
        """Return the objects of a namespace, or of all, in the order of their keys."""
        objects = self._objects[resource]
        return [
            objects[key] for key in sorted(key for key in objects if not namespace or key[0] == namespace)
        ]

    def everything(self) -> Iterable[tuple[Resource, Object]]:
        """Return each object with its resource."""
        return [(resource, obj) for resource, objects in self._objects.items() for obj in objects.values()]

    def prepare(self, resource: Resource, body: Object) -> Object:
        """Return the object as the server would store it: with a name, a creation time and a uid."""
        obj: Object = copied(body)
        meta = obj.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            # The server truncates the prefix so that the name stays a label of 63 characters.
            meta["name"] = meta["generateName"][:58] + suffix()
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
        if "spec" in obj:
            meta["generation"] = 1
        for unwanted in ("resourceVersion", "deletionTimestamp", "managedFields"):
            meta.pop(unwanted, None)
        return obj

    def create(self, resource: Resource, obj: Object) -> Object:
        """Add a prepared object; 409 if its name is taken."""
        if key_of(obj) in self._objects[resource]:
            raise already_exists(resource, obj["metadata"]["name"])
        return self._write(resource, "ADDED", obj, None)

    def replace(self, resource: Resource, obj: Object, *, status: bool = False) -> Object:
        """Replace an object: its status alone, or all but its status.

        A `resourceVersion` that isn't the current one is a 409. A write without changes makes no revision. An
        object that is being deleted is removed with its last finalizer.
        """
        before = self.get(resource, *key_of(obj))
        check_version(resource, obj, before)
        after = merged(resource, copied(obj), before, status=status)
        if after == before:
            return before
        version = self._write(resource, "MODIFIED", after, before)
        if _done(resource, version):
            self.remove(resource, version)
        return version

    def mark(self, resource: Resource, obj: Object, **metadata: Any) -> Object:
        """Write metadata that only the server may write: a deletion and its finalizers."""
        after = obj | {"metadata": obj["metadata"] | metadata}
        return obj if after == obj else self._write(resource, "MODIFIED", after, obj)

    def remove(self, resource: Resource, obj: Object) -> Object:
        """Remove the object."""
        before = self._objects[resource].pop(key_of(obj))
        return self._write(resource, "DELETED", before, before)

    def expire(self, resource: Resource) -> None:
        """Forget the history: a watch from any revision so far gets a 410, and so do running ones."""
        self.expired[resource] = self.revision
        self._wake(resource)

    def _write(self, resource: Resource, what: str, obj: Object, before: Object | None) -> Object:
        self.revision += 1
        obj = obj | {"metadata": obj["metadata"] | {"resourceVersion": str(self.revision)}}
        if what != "DELETED":
            self._objects[resource][key_of(obj)] = obj
        change = Change(self.revision, resource, what, obj, before)
        self.history[resource].append(change)
        self._wake(resource)
        for hook in self.hooks:
            hook(change)
        return obj

    def _wake(self, resource: Resource) -> None:
        for listener in self.listeners[resource]:
            listener.set()


def check_version(resource: Resource, obj: Object, before: Object) -> None:
    """Refuse a write based on an older version of the object."""
    version = obj["metadata"].get("resourceVersion")
    if version and version != before["metadata"]["resourceVersion"]:
        raise conflict(resource, before["metadata"]["name"])


SERVERS_OWN = (
    "uid",
    "creationTimestamp",
    "resourceVersion",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
)


def merged(resource: Resource, obj: Object, before: Object, *, status: bool) -> Object:
    """Return the object after a write, which changes the status alone or all but the status."""
    if status:
        return before | ({"status": obj["status"]} if "status" in obj else {})
    kept = {name: before["metadata"][name] for name in SERVERS_OWN if name in before["metadata"]}
    metadata = {name: value for name, value in obj["metadata"].items() if name not in SERVERS_OWN}
    after = obj | {"metadata": metadata | kept}
    if "status" in resource.subresources:
        after.pop("status", None)
        after |= {"status": before["status"]} if "status" in before else {}
    if resource != PODS and after.get("spec") != before.get("spec"):
        after["metadata"]["generation"] = before["metadata"].get("generation", 0) + 1
    return after


def _done(resource: Resource, obj: Object) -> bool:
    meta = obj["metadata"]
    # A pod waits for its kubelet, even without finalizers.
    graceful = resource == PODS and meta.get("deletionGracePeriodSeconds")
    return bool(meta.get("deletionTimestamp") and not meta.get("finalizers") and not graceful)
