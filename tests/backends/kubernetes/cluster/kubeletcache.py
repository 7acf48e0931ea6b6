"""A kubelet's cache of Secrets and ConfigMaps: by namespace and name, never by uid.

As in the kubelet's watch-based manager (Kubernetes 1.36, recorded on a real one), an object is kept as long
as any pod on the host refers to it, from the pod's arrival until its containers have ended. An immutable
object isn't read again in that time, so a pod that arrives meanwhile gets the earlier object, even if it was
deleted and another one has its name. Changes of a mutable object arrive with a delay.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tests.backends.kubernetes.cluster.resources import CONFIGMAPS, SECRETS, Object, Resource
from tests.backends.kubernetes.cluster.store import Change, Store

Place = tuple[Resource, str, str]


class KubeletCache:
    """The objects to which pods of one host refer; `lag_s` is the delay of changes of a mutable one."""

    def __init__(self, store: Store) -> None:
        self.lag_s = 0.0
        self._store = store
        self._users: dict[Place, set[str]] = defaultdict(set)
        self._immutable: dict[Place, Object] = {}
        # Earlier objects and when each was replaced, by place; None if no object existed.
        self._former: dict[Place, list[tuple[float, Object | None]]] = defaultdict(list)
        store.hooks.append(self._notice)

    def register(self, pod: Object) -> None:
        """Keep the objects to which a pod refers."""
        for place in _places(pod):
            self._users[place].add(pod["metadata"]["uid"])

    def unregister(self, pod: Object) -> None:
        """Forget the objects to which only this pod referred: its containers have ended."""
        for place in _places(pod):
            self._users[place].discard(pod["metadata"]["uid"])
            if not self._users[place]:
                del self._users[place]
                self._immutable.pop(place, None)

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Return the object of that name as the host knows it."""
        place = (resource, namespace, name)
        if place in self._immutable:
            return self._immutable[place]
        obj = self._late(place)
        if obj is not None and obj.get("immutable"):
            self._immutable[place] = obj
        return obj

    def _late(self, place: Place) -> Object | None:
        horizon = time.monotonic() - self.lag_s
        for until, former in self._former[place]:
            if until > horizon and former is not None:  # a kubelet asks the server for a missing object
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
