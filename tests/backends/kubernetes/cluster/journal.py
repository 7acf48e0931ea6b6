"""Core events, which components write about objects."""

import time

from tests.backends.kubernetes.cluster.resources import EVENTS, NAMESPACES, Object
from tests.backends.kubernetes.cluster.store import Store, now


class Journal:
    """The events of one component; a repeated event raises its count."""

    def __init__(self, store: Store, component: str) -> None:
        self._store, self._component = store, component
        self._known: dict[tuple[str, str, str, str], tuple[str, str]] = {}

    def tell(
        self, obj: Object, reason: str, message: str, *, warning: bool = False, container: str = ""
    ) -> None:
        """Record an event about an object, or one container of a pod."""
        meta = obj["metadata"]
        namespace = self._store.find(NAMESPACES, "", meta["namespace"])
        if namespace is None or "deletionTimestamp" in namespace["metadata"]:
            return
        key = (meta["uid"], reason, message, container)
        if key in self._known and (old := self._store.find(EVENTS, *self._known[key])):
            repeated = {"count": old["count"] + 1, "lastTimestamp": now()}
            self._store.replace(EVENTS, old | repeated)
            return
        kinds = {"kind": obj["kind"], "apiVersion": obj["apiVersion"]}
        involved = kinds | {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
        if container:
            involved["fieldPath"] = f"spec.containers{{{container}}}"
        event = {
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {
                "name": f"{meta['name']}.{time.time_ns():x}"[:253],
                "namespace": meta["namespace"],
            },
            "involvedObject": involved,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": self._component},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
            "type": "Warning" if warning else "Normal",
            "reportingComponent": self._component,
            "reportingInstance": "",
        }
        stored = self._store.create(EVENTS, self._store.prepare(EVENTS, event))
        self._known[key] = (meta["namespace"], stored["metadata"]["name"])
