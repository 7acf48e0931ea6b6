"""Deletion: grace periods, finalizers, dependents, and namespaces with all that is in them."""

import asyncio
from typing import Any

from tests.backends.kubernetes.cluster.refusals import conflict
from tests.backends.kubernetes.cluster.resources import JOBS, NAMESPACES, PODS, Object, Resource
from tests.backends.kubernetes.cluster.store import Change, Key, Store, key_of, later, now

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
FINALIZERS = {"Foreground": FOREGROUND, "Orphan": ORPHAN}
POD_GRACE = 30

Place = tuple[Resource, Key]


def delete(store: Store, resource: Resource, obj: Object, options: Object) -> Object | None:
    """Delete as DeleteOptions say; return the object if it stays for now, None if it is gone."""
    _check(resource, obj, options)
    policy = options.get("propagationPolicy") or _default_policy(resource)
    if resource == NAMESPACES:
        return _namespace(store, obj)
    meta = obj["metadata"]
    finalizers = list(meta.get("finalizers", []))
    finalizer = FINALIZERS.get(policy)
    if finalizer and finalizer not in finalizers:
        finalizers.append(finalizer)
    grace = _grace(obj, options) if resource == PODS else 0
    marks: dict[str, Any] = {"finalizers": finalizers} if finalizers else {}
    marks |= _when(meta, grace)
    if grace or finalizers:
        return store.mark(resource, obj, **marks)
    # A pod's end causes two changes: a deletion timestamp without grace, and then the removal.
    store.remove(resource, store.mark(resource, obj, **marks) if resource == PODS else obj)
    return None


def _when(meta: Object, grace: int) -> Object:
    """Return the metadata of its deletion: a shorter grace moves it up, a longer one changes nothing."""
    if "deletionTimestamp" not in meta:
        return {"deletionTimestamp": now(later_s=grace), "deletionGracePeriodSeconds": grace}
    before = meta["deletionGracePeriodSeconds"]
    if grace >= before:
        return {}
    # Without grace, the deletion is dated anew (recorded with 1.36: 5 s until :26, then 0 s until :25).
    end = later(meta["deletionTimestamp"], grace - before) if grace else now()
    return {"deletionTimestamp": end, "deletionGracePeriodSeconds": grace}


def _check(resource: Resource, obj: Object, options: Object) -> None:
    name, meta = obj["metadata"]["name"], obj["metadata"]
    preconditions = options.get("preconditions") or {}
    if preconditions.get("uid") not in (None, meta["uid"]):
        why = (
            f"the UID in the precondition ({preconditions['uid']}) does not match the UID in record ({meta['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(resource, name, why, kind=resource.kind)
    if preconditions.get("resourceVersion") not in (None, meta["resourceVersion"]):
        why = (
            f"the ResourceVersion in the precondition ({preconditions['resourceVersion']}) does not match the ResourceVersion "
            f"in record ({meta['resourceVersion']}). The object might have been modified"
        )
        raise conflict(resource, name, why, kind=resource.kind)


def _default_policy(resource: Resource) -> str:
    # A batch Job has the default of its first version, when nothing collected its pods.
    return "Orphan" if resource == JOBS else "Background"


def _grace(pod: Object, options: Object) -> int:
    """Return a pod's grace period in seconds: 0 if no process of it can be running."""
    ended = pod.get("status", {}).get("phase") in ("Failed", "Succeeded")
    if not pod["spec"].get("nodeName") or ended:
        return 0
    seconds = options.get("gracePeriodSeconds")
    return int(pod["spec"].get("terminationGracePeriodSeconds", POD_GRACE) if seconds is None else seconds)


def _namespace(store: Store, obj: Object) -> Object | None:
    marked = store.mark(NAMESPACES, obj, deletionTimestamp=now())
    store.replace(NAMESPACES, marked | {"status": {"phase": "Terminating"}}, status=True)
    for resource, child in store.everything():
        if child["metadata"].get("namespace") == obj["metadata"]["name"]:
            delete(store, resource, child, {"propagationPolicy": "Background"})
    _close_namespace(store, obj["metadata"]["name"])
    return store.find(NAMESPACES, "", obj["metadata"]["name"])


def _close_namespace(store: Store, name: str) -> None:
    namespace = store.find(NAMESPACES, "", name)
    if namespace is None or "deletionTimestamp" not in namespace["metadata"]:
        return
    if not any(obj["metadata"].get("namespace") == name for _, obj in store.everything()):
        store.remove(NAMESPACES, namespace)


class Collector:
    """The garbage collector: it deletes dependents with their owners, or orphans them.

    Like a cluster's own, it keeps what it needs to know from each change: most changes don't concern it, and
    a look at all objects at each would take a third of a test. `lag_s` is the delay before it begins.
    """

    def __init__(self, store: Store) -> None:
        self.lag_s = 0.0
        self._store = store
        self._due = False
        self._living: dict[str, Place] = {}
        # Both in order of insertion.
        self._dependents: dict[Place, None] = {}
        self._leaving: dict[Place, None] = {}
        store.hooks.append(self._notice)

    def _notice(self, change: Change) -> None:
        """Note a change; collect soon if it matters, but not at once, as a write must end before the next."""
        meta, place = change.object["metadata"], (change.resource, key_of(change.object))
        present = change.type != "DELETED"
        leaving, owners = present and "deletionTimestamp" in meta, present and meta.get("ownerReferences")
        _keep(self._living, meta["uid"], place, present)
        _keep(self._leaving, place, None, leaving)
        _keep(self._dependents, place, None, owners)
        before = change.before and change.before["metadata"].get("ownerReferences")
        if (not present or leaving or (owners and owners != before)) and not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(self.lag_s, self._collect)

    def _collect(self) -> None:
        self._due = False
        for place in list(self._dependents):
            self._follow(*place)
        for place in list(self._leaving):
            self._release(*place)
        for resource, (_, name) in list(self._leaving):
            if resource == NAMESPACES:
                _close_namespace(self._store, name)

    def _follow(self, resource: Resource, key: Key) -> None:
        """Delete an object that has no owner left, or an owner that waits for its deletion."""
        obj = self._store.find(resource, *key)
        if obj is None or "deletionTimestamp" in obj["metadata"]:
            return
        owners = [self._owner(ref["uid"]) for ref in obj["metadata"]["ownerReferences"]]
        waits = any(owner and FOREGROUND in owner["metadata"].get("finalizers", ()) for owner in owners)
        if waits or not any(owners):
            delete(self._store, resource, obj, {"propagationPolicy": "Foreground" if waits else "Background"})

    def _owner(self, uid: str) -> Object | None:
        if uid not in self._living:
            return None
        resource, key = self._living[uid]
        return self._store.find(resource, *key)

    def _release(self, resource: Resource, key: Key) -> None:
        """Remove the collector's own finalizers from an owner once its dependents are gone or orphaned."""
        owner = self._store.find(resource, *key)
        own_finalizers = (
            set(owner["metadata"].get("finalizers", ())) & {FOREGROUND, ORPHAN} if owner else None
        )
        if not owner or not own_finalizers:
            return
        dependents = [
            place for place in self._dependents if _owned(self._store.get(place[0], *place[1]), owner)
        ]
        if ORPHAN in own_finalizers:
            for kind, dependent in dependents:
                self._let_go(kind, dependent, owner)
        elif dependents:
            return
        left = [name for name in owner["metadata"]["finalizers"] if name not in own_finalizers]
        self._store.replace(resource, owner | {"metadata": owner["metadata"] | {"finalizers": left}})

    def _let_go(self, resource: Resource, key: Key, owner: Object) -> None:
        obj = self._store.get(resource, *key)
        refs = obj["metadata"]["ownerReferences"]
        left = [ref for ref in refs if ref["uid"] != owner["metadata"]["uid"]]
        self._store.replace(resource, obj | {"metadata": obj["metadata"] | {"ownerReferences": left}})


def _keep(kept: dict[Any, Any], key: Any, value: Any, present: Any) -> None:
    if present:
        kept.setdefault(key, value)
    else:
        kept.pop(key, None)


def _owned(obj: Object, owner: Object) -> bool:
    return any(ref["uid"] == owner["metadata"]["uid"] for ref in obj["metadata"].get("ownerReferences", ()))
