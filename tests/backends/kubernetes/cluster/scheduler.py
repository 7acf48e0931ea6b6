"""The scheduler, which binds pods to the one node or reports why it can't."""

import asyncio
import re
from collections.abc import Iterator
from decimal import Decimal

from tests.backends.kubernetes.cluster.journal import Journal
from tests.backends.kubernetes.cluster.quota import quantity
from tests.backends.kubernetes.cluster.resources import CLAIMS, HOSTS, POD_GROUPS, PODS, Object
from tests.backends.kubernetes.cluster.store import Change, Store, key_of, now

NODE = "localhost"
LABELS = {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"}
CAPACITY = {"memory": "256Gi", "ephemeral-storage": "100Gi", "pods": "110"}
HELPLESS = "no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."


class Scheduler:
    """A scheduler of the pods that have no node; a held pod stays so until its release."""

    def __init__(self, store: Store, cpus: int) -> None:
        self._store = store
        self._capacity = {"cpu": str(cpus), **CAPACITY}
        self._journal = Journal(store, "default-scheduler")
        # Name patterns of pods that fit nowhere, and the scheduler's reason.
        self.held: dict[str, str] = {}
        store.hooks.append(self._notice)

    def node(self) -> Object:
        """Return the one node of the cluster."""
        room = {"capacity": dict(self._capacity), "allocatable": dict(self._capacity)}
        ready = {"type": "Ready", "status": "True"}
        return {
            "metadata": {"name": NODE, "labels": dict(LABELS)},
            "spec": {},
            "status": room | {"conditions": [ready]},
        }

    def look(self) -> None:
        """Try all waiting pods again."""
        for pod in self._store.list(PODS):
            if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
                self._schedule(pod)

    def _notice(self, change: Change) -> None:
        came = change.resource in (PODS, CLAIMS) and change.type != "MODIFIED"
        came = came or change.resource == HOSTS
        waiting = change.resource == PODS and not change.object["spec"].get("nodeName")
        # A pod that ends makes room; a pod without its gate may be bound.
        moved = waiting and change.before is not None and change.before["spec"] != change.object["spec"]
        if came or moved or _ended(change):
            asyncio.get_running_loop().call_soon(self.look)

    def _schedule(self, pod: Object) -> None:
        if self._store.find(PODS, *key_of(pod)) is not pod:
            return
        if pod["spec"].get("schedulingGates"):
            self._refuse(pod, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
            return
        group = self._group(pod)
        if group is not None:
            self._schedule_together(group)
        elif why := self._obstacle(pod):
            self._refuse(pod, "Unschedulable", why)
        else:
            self._bind(pod)

    def _group(self, pod: Object) -> Object | None:
        """Return the pod's group, which is placed as a whole; a group that doesn't exist yet is None."""
        name = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
        return self._store.find(POD_GROUPS, pod["metadata"]["namespace"], name) if name else None

    def _schedule_together(self, group: Object) -> None:
        """Bind all pods of a group that have no node, or none of them."""
        pods = [
            pod for pod in self._store.list(PODS, group["metadata"]["namespace"]) if self._group(pod) is group
        ]
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        if len(alive) < group["spec"]["schedulingPolicy"]["gang"]["minCount"]:
            return
        left = [pod for pod in alive if not pod["spec"].get("nodeName")]
        whys = [*filter(None, map(self._obstacle, left)), *self._too_much(left)]
        for pod in left:
            if whys:
                self._refuse(pod, "Unschedulable", whys[0])
            else:
                self._bind(pod)
        status, reason = ("False", "Unschedulable") if whys else ("True", "Scheduled")
        fields = {"type": "PodGroupScheduled", "status": status, "reason": reason, "message": [*whys, ""][0]}
        before = group.get("status", {}).get("conditions", [{}])[0]
        if any(before.get(key) != value for key, value in fields.items()):
            changed = {"conditions": [fields | {"lastTransitionTime": now()}]}
            self._store.replace(POD_GROUPS, group | {"status": changed}, status=True)

    def _too_much(self, pods: list[Object]) -> Iterator[str]:
        """Yield a message for each resource that doesn't suffice for all the pods."""
        for resource in sorted({resource for pod in pods for resource in _requested(pod["spec"])}):
            demand = sum((_requested(pod["spec"]).get(resource, Decimal(0)) for pod in pods), Decimal(0))
            if self._used(resource) + demand > quantity(self._capacity.get(resource, "0")):
                yield f"0/1 nodes are available: 1 Insufficient {resource}. {HELPLESS}"

    def _bind(self, pod: Object) -> None:
        bound = pod | {"spec": pod["spec"] | {"nodeName": NODE}}
        bound = self._store.replace(PODS, bound)
        self._condition(bound, {"type": "PodScheduled", "status": "True"})
        space, name = key_of(pod)
        self._journal.tell(pod, "Scheduled", f"Successfully assigned {space}/{name} to {NODE}")

    def _refuse(self, pod: Object, reason: str, why: str) -> None:
        fields = {"type": "PodScheduled", "status": "False", "reason": reason, "message": why}
        before = pod.get("status", {}).get("conditions", [])
        if any(condition.get("message") == why for condition in before):
            return
        self._condition(pod, fields)
        if reason == "Unschedulable":
            self._journal.tell(pod, "FailedScheduling", why, warning=True)

    def _condition(self, pod: Object, fields: Object) -> None:
        others = [
            condition
            for condition in pod.get("status", {}).get("conditions", [])
            if condition["type"] != "PodScheduled"
        ]
        times = {"lastProbeTime": None, "lastTransitionTime": now()}
        status = pod.get("status", {}) | {"conditions": [*others, fields | times]}
        self._store.replace(PODS, pod | {"status": status}, status=True)

    def _obstacle(self, pod: Object) -> str:
        """Return why the pod fits nowhere; "" if it fits."""
        spec = pod["spec"]
        for pattern, why in self.held.items():
            if re.search(pattern, pod["metadata"]["name"]):
                return why
        for volume in spec.get("volumes") or ():
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and not self._store.find(CLAIMS, pod["metadata"]["namespace"], claim):
                return f'0/1 nodes are available: persistentvolumeclaim "{claim}" not found. {HELPLESS}'
        host = self._store.get(HOSTS, "", NODE)["spec"]
        if host.get("unschedulable"):
            return f"0/1 nodes are available: 1 node(s) were unschedulable. {HELPLESS}"
        for taint in host.get("taints") or ():
            if taint["effect"] != "PreferNoSchedule" and not _tolerated(spec, taint):
                text = f"{taint['key']}: {taint.get('value', '')}"
                return f"0/1 nodes are available: 1 node(s) had untolerated taint {{{text}}}. {HELPLESS}"
        if any(LABELS.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
            return f"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. {HELPLESS}"
        for resource in sorted(_requested(spec)):
            if self._used(resource) + _requested(spec)[resource] > quantity(
                self._capacity.get(resource, "0")
            ):
                return f"0/1 nodes are available: 1 Insufficient {resource}. {HELPLESS}"
        return ""

    def _used(self, what: str) -> Decimal:
        ended = ("Succeeded", "Failed")
        bound = [pod for pod in self._store.list(PODS) if pod["spec"].get("nodeName")]
        running = [pod["spec"] for pod in bound if pod["status"].get("phase") not in ended]
        return sum((_requested(spec).get(what, Decimal(0)) for spec in running), Decimal(0))


def _ended(change: Change) -> bool:
    return change.resource == PODS and change.object["status"].get("phase") in ("Succeeded", "Failed")


def _tolerated(spec: Object, taint: Object) -> bool:
    return any(
        toleration.get("key") in (None, taint["key"])
        and toleration.get("effect") in (None, taint["effect"])
        and (toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))
        for toleration in spec.get("tolerations") or ()
    )


def _requested(spec: Object) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for container in spec["containers"]:
        for resource, amount in (container["resources"].get("requests") or {}).items():
            total[resource] = total.get(resource, Decimal(0)) + quantity(amount)
    return total
