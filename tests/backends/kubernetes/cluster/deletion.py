"""Deleting: grace, finalizers, what happens to dependents, and namespaces with all that is in them."""

import asyncio
import copy
from typing import Any

from tests.backends.kubernetes.cluster.refusals import conflict
from tests.backends.kubernetes.cluster.resources import JOBS, NAMESPACES, PODS, Object, Resource
from tests.backends.kubernetes.cluster.store import Change, Store, key_of, later, now

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
FINALIZERS = {"Foreground": FOREGROUND, "Orphan": ORPHAN}
POD_GRACE = 30


def delete(store: Store, resource: Resource, obj: Object, options: Object) -> Object | None:
    """Delete as DeleteOptions say; give the object if it stays for now, None if it is gone."""
    _check(resource, obj, options)
    policy = options.get("propagationPolicy") or _default_policy(resource)
    if resource == NAMESPACES:
        return _namespace(store, obj)
    meta = obj["metadata"]
    finalizers = list(meta.get("finalizers", []))
    wanted = FINALIZERS.get(policy)
    if wanted and wanted not in finalizers:
        finalizers.append(wanted)
    grace = _grace(obj, options) if resource == PODS else 0
    marks: dict[str, Any] = {"finalizers": finalizers} if finalizers else {}
    marks |= _when(meta, grace)
    if grace or finalizers:
        return store.mark(resource, obj, **marks)
    # The end of a pod is seen twice: a deletion without grace, and then the deletion.
    store.remove(resource, store.mark(resource, obj, **marks) if resource == PODS else obj)
    return None


def _when(meta: Object, grace: int) -> Object:
    """Return until when it is being deleted: a shorter grace ends it sooner, a longer one changes nothing."""
    if "deletionTimestamp" not in meta:
        return {"deletionTimestamp": now(later_s=grace), "deletionGracePeriodSeconds": grace}
    before = meta["deletionGracePeriodSeconds"]
    if grace >= before:
        return {}
    # What ends it at once is dated anew (recorded with 1.36: 5 s until :26, then 0 s until :25).
    end = later(meta["deletionTimestamp"], grace - before) if grace else now()
    return {"deletionTimestamp": end, "deletionGracePeriodSeconds": grace}


def _check(resource: Resource, obj: Object, options: Object) -> None:
    name, meta = obj["metadata"]["name"], obj["metadata"]
    wanted = options.get("preconditions") or {}
    if wanted.get("uid") not in (None, meta["uid"]):
        why = (
            f"the UID in the precondition ({wanted['uid']}) does not match the UID in record ({meta['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(resource, name, why, kind=resource.kind)
    if wanted.get("resourceVersion") not in (None, meta["resourceVersion"]):
        why = (
            f"the ResourceVersion in the precondition ({wanted['resourceVersion']}) does not match the ResourceVersion "
            f"in record ({meta['resourceVersion']}). The object might have been modified"
        )
        raise conflict(resource, name, why, kind=resource.kind)


def _default_policy(resource: Resource) -> str:
    # A batch Job is deleted as its first version was, when nothing collected its pods.
    return "Orphan" if resource == JOBS else "Background"


def _grace(pod: Object, options: Object) -> int:
    """Return the seconds a pod gets: none when no process of it can be running."""
    ended = pod.get("status", {}).get("phase") in ("Failed", "Succeeded")
    if not pod["spec"].get("nodeName") or ended:
        return 0
    given = options.get("gracePeriodSeconds")
    return int(pod["spec"].get("terminationGracePeriodSeconds", POD_GRACE) if given is None else given)


def _namespace(store: Store, obj: Object) -> Object | None:
    marked = store.mark(NAMESPACES, obj, deletionTimestamp=now())
    store.replace(NAMESPACES, marked | {"status": {"phase": "Terminating"}}, status=True)
    for resource, each in store.everything():
        if each["metadata"].get("namespace") == obj["metadata"]["name"]:
            delete(store, resource, each, {"propagationPolicy": "Background"})
    _close_namespace(store, obj["metadata"]["name"])
    return store.find(NAMESPACES, "", obj["metadata"]["name"])


def _close_namespace(store: Store, name: str) -> None:
    found = store.find(NAMESPACES, "", name)
    if found is None or "deletionTimestamp" not in found["metadata"]:
        return
    if not any(each["metadata"].get("namespace") == name for _, each in store.everything()):
        store.remove(NAMESPACES, found)


class Collector:
    """The garbage collector: dependents follow their owners, or are let go."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._due = False
        store.hooks.append(self._notice)

    def _notice(self, change: Change) -> None:
        """Look again soon: not at once, as a write must be finished before the next one."""
        concerned = change.type == "DELETED" or "deletionTimestamp" in change.object["metadata"]
        if (concerned or change.object["metadata"].get("ownerReferences")) and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._collect)

    def _collect(self) -> None:
        self._due = False
        everything = self._store.everything()
        living = {obj["metadata"]["uid"]: obj for _, obj in everything}
        dependents = [each for each in everything if each[1]["metadata"].get("ownerReferences")]
        for resource, obj in dependents:
            self._follow(resource, obj, living)
        for resource, obj in everything:
            self._release(resource, obj, dependents)
        for resource, obj in everything:
            if resource == NAMESPACES and "deletionTimestamp" in obj["metadata"]:
                _close_namespace(self._store, obj["metadata"]["name"])

    def _follow(self, resource: Resource, obj: Object, living: dict[str, Object]) -> None:
        """Delete what has no owner left, or whose owner waits for it."""
        if "deletionTimestamp" in obj["metadata"] or self._store.find(resource, *key_of(obj)) is not obj:
            return
        owners = [living.get(owner["uid"]) for owner in obj["metadata"]["ownerReferences"]]
        waits = any(owner and FOREGROUND in owner["metadata"].get("finalizers", ()) for owner in owners)
        if waits or not any(owners):
            delete(self._store, resource, obj, {"propagationPolicy": "Foreground" if waits else "Background"})

    def _release(self, resource: Resource, obj: Object, dependents: list[tuple[Resource, Object]]) -> None:
        """Take the collector's own finalizers off an owner whose dependents are gone, or have been let go."""
        current = self._store.find(resource, *key_of(obj))
        if current is None or "deletionTimestamp" not in current["metadata"]:
            return
        mine = set(current["metadata"].get("finalizers", ())) & {FOREGROUND, ORPHAN}
        held = [each for each in dependents if _owned(each[1], current)]
        if ORPHAN in mine:
            for kind, each in held:
                self._let_go(kind, each, current)
        elif any(self._store.find(kind, *key_of(each)) for kind, each in held):
            return
        if mine:
            left = [name for name in current["metadata"]["finalizers"] if name not in mine]
            meta = current["metadata"] | {"finalizers": left}
            self._store.replace(resource, current | {"metadata": meta})

    def _let_go(self, resource: Resource, obj: Object, owner: Object) -> None:
        current = copy.deepcopy(self._store.find(resource, *key_of(obj)))
        if current is not None:
            refs = current["metadata"].get("ownerReferences", [])
            current["metadata"]["ownerReferences"] = [
                ref for ref in refs if ref["uid"] != owner["metadata"]["uid"]
            ]
            self._store.replace(resource, current)


def _owned(obj: Object, owner: Object) -> bool:
    return any(ref["uid"] == owner["metadata"]["uid"] for ref in obj["metadata"].get("ownerReferences", ()))
