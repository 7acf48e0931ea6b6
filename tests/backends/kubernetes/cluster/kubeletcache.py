"""What a kubelet keeps of Secrets and ConfigMaps: by namespace and name, never by uid.

As the kubelet's watch-based manager does (Kubernetes 1.36, recorded on a real one): an object is kept as long as
any pod on the host refers to it, from when the pod comes until its containers have ended. One that is
immutable isn't looked at again in that time, so a pod that comes meanwhile gets what was there before, though
that was deleted and another one has its name. Of a mutable one it learns with a delay.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tests.backends.kubernetes.cluster.resources import CONFIGMAPS, SECRETS, Object, Resource
from tests.backends.kubernetes.cluster.store import Change, Store

Place = tuple[Resource, str, str]


class KubeletCache:
    """The objects that pods of one host refer to; `lag_s` is how late it learns of a change of a mutable one."""

    def __init__(self, store: Store) -> None:
        self.lag_s = 0.0
        self._store = store
        self._users: dict[Place, set[str]] = defaultdict(set)
        self._immutable: dict[Place, Object] = {}
        # What there was, and until when, by place; None where there was nothing.
        self._former: dict[Place, list[tuple[float, Object | None]]] = defaultdict(list)
        store.hooks.append(self._notice)

    def register(self, pod: Object) -> None:
        """Keep what a pod refers to."""
        for place in _places(pod):
            self._users[place].add(pod["metadata"]["uid"])

    def unregister(self, pod: Object) -> None:
        """Forget what only this pod referred to: its containers have ended."""
        for place in _places(pod):
            self._users[place].discard(pod["metadata"]["uid"])
            if not self._users[place]:
                del self._users[place]
                self._immutable.pop(place, None)

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Return what the host takes for the object of that name."""
        place = (resource, namespace, name)
        if place in self._immutable:
            return self._immutable[place]
        obj = self._late(place)
        if obj is not None and obj.get("immutable"):
            self._immutable[place] = obj
        return obj

    def _late(self, place: Place) -> Object | None:
        known = time.monotonic() - self.lag_s
        for until, former in self._former[place]:
            if until > known and former is not None:  # for what isn't there yet it asks the server
                return former
        return self._store.find(*place)

    def _notice(self, change: Change) -> None:
        if change.resource not in (SECRETS, CONFIGMAPS):
            return
        meta = change.object["metadata"]
        place = (change.resource, meta["namespace"], meta["name"])
        if place in self._users:
            self._former[place].append((time.monotonic(), change.before))


def _places(pod: Object) -> Iterator[Place]:
    space, spec = pod["metadata"]["namespace"], pod["spec"]
    for volume in spec.get("volumes") or ():
        for source in volume.get("projected", {}).get("sources") or [volume]:
            yield from _named(space, source, "secret", "configMap")
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        for source in container.get("envFrom") or ():
            yield from _named(space, source, "secretRef", "configMapRef")
        for variable in container.get("env") or ():
            yield from _named(space, variable.get("valueFrom") or {}, "secretKeyRef", "configMapKeyRef")


def _named(space: str, source: Any, secret: str, configmap: str) -> Iterator[Place]:
    for resource, key in ((SECRETS, secret), (CONFIGMAPS, configmap)):
        if key in source:
            yield resource, space, source[key].get("secretName") or source[key]["name"]
