"""Kueue 0.19's quotas: which Workloads it admits, evicts and preempts, and its messages for the others."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Decimal

from tests.backends.kubernetes.cluster.controllers import facts
from tests.backends.kubernetes.cluster.controllers.client import ApiError, Client, collection
from tests.backends.kubernetes.cluster.controllers.kueue import VERSION, _path
from tests.backends.kubernetes.cluster.controllers.loop import Controller
from tests.backends.kubernetes.cluster.quota import quantity
from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.store import age

LOOK_S = 0.1
DEACTIVATED = "The workload is deactivated"
TOO_LONG = "exceeding the maximum execution time"


class Quotas(Controller):
    """The controller of all queues at once, which acts whenever a LocalQueue is due."""

    api_version, plural, kind, component = VERSION, "localqueues", "LocalQueue", "kueue-admission"
    owns = ()

    def __init__(self, client: Client, *, backoff_s: float, scheduler: str = "") -> None:
        super().__init__(client, backoff_s=backoff_s, scheduler=scheduler)
        self._turn = asyncio.Lock()
        self._last = 0.0

    async def reconcile(self, obj: Object) -> float | None:
        async with self._turn:
            if time.monotonic() - self._last > LOOK_S:
                await Turn(self.client).take()
                self._last = time.monotonic()
        return LOOK_S


class Unqueued(Quotas):
    """The controller of Workloads that name a queue that doesn't exist."""

    plural, kind = "workloads", "Workload"

    async def reconcile(self, obj: Object) -> float | None:
        space, name = obj["metadata"]["namespace"], obj["spec"].get("queueName")
        queue = await self.client.get(f"{collection(VERSION, 'localqueues', space)}/{name}")
        if queue is not None or facts.holds(obj, "Finished"):
            return None
        if not facts.holds(obj, "QuotaReserved"):
            await write(self.client, obj, waits("Inadmissible", f"LocalQueue {name} doesn't exist"))
        return LOOK_S


def waits(reason: str, message: str) -> list[tuple[str, str, str, str]]:
    """Return the condition of a Workload that has no quota."""
    return [("QuotaReserved", "False", reason, message)]


async def write(
    client: Client, workload: Object, conditions: Iterable[tuple[str, str, str, str]], **more: object
) -> None:
    """Set conditions and other fields of a Workload's status, if they change it."""
    before = workload.get("status") or {}
    status = {**before, **more}
    for kind, state, reason, message in conditions:
        old = facts.condition({"status": status}, kind)
        if old is None or (old["status"], old["reason"], old["message"]) != (state, reason, message):
            rest = [condition for condition in status.get("conditions") or [] if condition["type"] != kind]
            kept = [old] if old and old["status"] == state else []
            since = kept[0]["lastTransitionTime"] if kept else None
            new = facts.with_condition([], kind, state, reason, message)[0]
            status["conditions"] = [*rest, new | ({"lastTransitionTime": since} if since else {})]
    if status != before:
        with suppress(ApiError):  # somebody else wrote first: the next turn sees the result
            workload.update(await client.write_status(_path(workload), workload, status))


class Turn:
    """One look at all queues."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def take(self) -> None:
        """Read everything; evict, admit and preempt Workloads, and write the status of queues."""
        self._locals = await self._client.list(collection(VERSION, "localqueues"))
        self._whole = {
            queue["metadata"]["name"]: queue
            for queue in await self._client.list(collection(VERSION, "clusterqueues"))
        }
        workloads = await self._client.list(collection(VERSION, "workloads"))
        self._workloads = [workload for workload in workloads if not facts.holds(workload, "Finished")]
        for workload in self._workloads:
            await self._watch(workload)
        for workload in sorted(self._workloads, key=order):
            if not facts.holds(workload, "QuotaReserved") and active(workload):
                await self._try(workload)
        await self._count()

    async def _watch(self, workload: Object) -> None:
        """Evict a Workload that is deactivated, drained, or has run for too long."""
        spec = workload["spec"]
        limit = spec.get("maximumExecutionTimeSeconds")
        admitted = facts.condition(workload, "Admitted")
        runs = admitted is not None and admitted["status"] == "True" and not facts.holds(workload, "Evicted")
        if runs and limit and admitted and age(admitted["lastTransitionTime"]) > limit and active(workload):
            why = ("DeactivationTarget", "True", "MaximumExecutionTimeExceeded", TOO_LONG)
            await write(self._client, workload, [why])
            changed = await self._client.patch(_path(workload), {"spec": {"active": False}})
            workload.update(changed)
        evicted = facts.condition(workload, "Evicted")
        if not active(workload):
            target = facts.condition(workload, "DeactivationTarget")
            reason = f"DeactivatedDueTo{target['reason']}" if target else "Deactivated"
            message = f"{DEACTIVATED} due to {target['message']}" if target else DEACTIVATED
            if evicted is None or evicted["reason"] != reason or evicted["status"] != "True":
                await write(self._client, workload, [("Evicted", "True", reason, message)])
            if not facts.holds(workload, "QuotaReserved"):
                await write(self._client, workload, waits("Pending", message))
        elif evicted and evicted["status"] == "True" and evicted["reason"] == "Deactivated":
            again = ("Requeued", "True", "Reactivated", "The workload was reactivated")
            await write(self._client, workload, [again])
        queue = self._queue(workload)
        if runs and queue is not None and queue["spec"].get("stopPolicy") == "HoldAndDrain":
            why = ("Evicted", "True", "ClusterQueueStopped", "The ClusterQueue is stopped")
            await write(self._client, workload, [why])

    def _queue(self, workload: Object) -> Object | None:
        local = self._local(workload)
        return self._whole.get(local["spec"]["clusterQueue"]) if local else None

    def _local(self, workload: Object) -> Object | None:
        target = workload["metadata"]["namespace"], workload["spec"].get("queueName")
        named = ((queue["metadata"]["namespace"], queue["metadata"]["name"]) for queue in self._locals)
        return next((queue for queue, name in zip(self._locals, named, strict=True) if name == target), None)

    async def _try(self, workload: Object) -> None:
        """Admit a Workload, or record why not in its status."""
        local, queue = self._local(workload), self._queue(workload)
        if local is None:
            return None
        if queue is None:
            named = local["spec"]["clusterQueue"]
            await self._say(workload, "Inadmissible", f"ClusterQueue {named} doesn't exist")
            return None
        name = queue["metadata"]["name"]
        if queue["spec"].get("stopPolicy", "None") != "None":
            await self._say(workload, "Inadmissible", f"ClusterQueue {name} is inactive")
            return None
        for pods in workload["spec"]["podSets"]:
            for resource, amount in sorted(_asked(pods).items()):
                if why := await self._short(workload, queue, resource, amount):
                    return await self._say(
                        workload, "Pending", f"couldn't assign flavors to pod set {pods['name']}: {why}"
                    )
        await self._admit(workload, name)
        return None

    async def _short(self, workload: Object, queue: Object, resource: str, asked: Decimal) -> str:
        """Return why the quota of a resource is too small, else ""; preempt other Workloads if possible."""
        cohort = self._cohort(queue)
        flavor = _flavor(queue, resource)
        if flavor is None:
            return f"resource {resource} unavailable in ClusterQueue"
        all_ = sum((_nominal(member, resource) for member in cohort), Decimal())
        most = _capacity(queue, cohort, resource)
        used = sum((_used(workload, resource) for workload in self._reserving(cohort)), Decimal())
        own_usage = sum((_used(workload, resource) for workload in self._reserving([queue])), Decimal())
        if asked > most:
            request = f"previously considered podsets requests (0) + current podset request ({_text(asked)})"
            return f"insufficient quota for {resource} in flavor {flavor}, {request} > maximum capacity ({_text(most)})"
        short = max(used + asked - all_, own_usage + asked - most)
        if short <= 0:
            return ""
        await self._preempt(workload, queue, cohort, resource, short)
        return f"insufficient unused quota for {resource} in flavor {flavor}, {_text(short)} more needed"

    async def _preempt(
        self, workload: Object, queue: Object, cohort: Sequence[Object], resource: str, short: Decimal
    ) -> None:
        policy = queue["spec"].get("preemption") or {}
        name = queue["metadata"]["name"]
        for victim in sorted(self._reserving(cohort), key=order, reverse=True):
            if short <= 0:
                return
            home_queue = self._queue(victim)
            assert home_queue is not None
            inside = home_queue is queue
            lower = victim["spec"].get("priority", 0) < workload["spec"].get("priority", 0)
            prioritization = inside and lower and policy.get("withinClusterQueue") == "LowerPriority"
            others = [workload for workload in self._reserving(cohort) if self._queue(workload) is home_queue]
            borrows = sum((_used(workload, resource) for workload in others), Decimal()) > _nominal(
                home_queue, resource
            )
            back = not inside and borrows and policy.get("reclaimWithinCohort") in ("Any", "LowerPriority")
            if not (prioritization or back):
                continue
            short -= _used(victim, resource)
            if facts.holds(victim, "Evicted"):
                continue
            how = "prioritization in the ClusterQueue" if prioritization else "reclamation within the cohort"
            owner = workload["metadata"]["ownerReferences"][0]["uid"]
            path, other = (
                f"/{queue['spec'].get('cohortName', '')}/{queue_name}".replace("//", "/")
                for queue_name in (name, home_queue["metadata"]["name"])
            )
            message = f"Preempted to accommodate a workload (UID: {workload['metadata']['uid']}, JobUID: {owner}) due to {how}; preemptor path: {path}; preemptee path: {other}"
            reason = "InClusterQueue" if prioritization else "InCohortReclamation"
            conditions = [("Evicted", "True", "Preempted", message), ("Preempted", "True", reason, message)]
            await write(self._client, victim, conditions)

    async def _admit(self, workload: Object, queue: str) -> None:
        conditions = [
            ("QuotaReserved", "True", "QuotaReserved", f"Quota reserved in ClusterQueue {queue}"),
            ("Admitted", "True", "Admitted", "The workload is admitted"),
        ]
        for kind in ("Evicted", "Preempted"):
            old = facts.condition(workload, kind)
            if old is not None and old["status"] == "True":
                conditions.append((kind, "False", "QuotaReserved", f"Previously: {old['message']}"))
        sets = workload["spec"]["podSets"]
        usage = [
            {
                "name": pod_set["name"],
                "count": pod_set["count"],
                "resourceUsage": {k: _text(v) for k, v in _asked(pod_set).items()},
            }
            for pod_set in sets
        ]
        admission = {"clusterQueue": queue, "podSetAssignments": usage}
        await write(self._client, workload, conditions, admission=admission, resourceRequests=[])

    async def _say(self, workload: Object, reason: str, message: str) -> None:
        requests = [
            {"name": pod_set["name"], "resources": {k: _text(v) for k, v in _asked(pod_set).items()}}
            for pod_set in workload["spec"]["podSets"]
        ]
        await write(
            self._client,
            workload,
            waits(reason, message),
            resourceRequests=requests if reason == "Pending" else [],
        )

    def _cohort(self, queue: Object) -> list[Object]:
        name = queue["spec"].get("cohortName")
        if not name:
            return [queue]
        return [member for member in self._whole.values() if member["spec"].get("cohortName") == name]

    def _reserving(self, cohort: Sequence[Object]) -> list[Object]:
        workloads = [workload for workload in self._workloads if facts.holds(workload, "QuotaReserved")]
        return [workload for workload in workloads if self._queue(workload) in cohort]

    async def _count(self) -> None:
        """Write the status of all queues."""
        for local in self._locals:
            workloads = [workload for workload in self._workloads if self._local(workload) is local]
            queue = self._whole.get(local["spec"]["clusterQueue"])
            up = queue is not None and queue["spec"].get("stopPolicy", "None") == "None"
            cause = (
                ("Ready", "Can submit new workloads to localQueue")
                if up
                else ("ClusterQueueIsInactive", "Can't submit new workloads to clusterQueue")
            )
            path = f"{collection(VERSION, 'localqueues', local['metadata']['namespace'])}/{local['metadata']['name']}"
            await self._status(path, local, workloads, [queue] if queue else [], up, cause)
        for name, queue in self._whole.items():
            workloads = [workload for workload in self._workloads if self._queue(workload) is queue]
            up = queue["spec"].get("stopPolicy", "None") == "None"
            cause = (
                ("Ready", "Can admit new workloads")
                if up
                else ("Stopped", "Can't admit new workloads: is stopped")
            )
            await self._status(f"/apis/{VERSION}/clusterqueues/{name}", queue, workloads, [queue], up, cause)

    async def _status(
        self,
        path: str,
        obj: Object,
        mine: list[Object],
        queues: list[Object],
        up: bool,
        cause: tuple[str, str],
    ) -> None:
        holding = [workload for workload in mine if facts.holds(workload, "QuotaReserved")]
        flavors = [
            {
                "name": flavor["name"],
                "resources": [
                    {
                        "name": resource["name"],
                        "total": _text(
                            sum((_used(workload, resource["name"]) for workload in holding), Decimal())
                        ),
                    }
                    for resource in flavor["resources"]
                ],
            }
            for queue in queues
            for group in queue["spec"].get("resourceGroups", ())
            for flavor in group["flavors"]
        ]
        status = {
            **(obj.get("status") or {}),
            "admittedWorkloads": sum(facts.holds(workload, "Admitted") for workload in mine),
            "reservingWorkloads": len(holding),
            "pendingWorkloads": sum(active(workload) for workload in mine) - len(holding),
            "flavorsReservation": flavors,
            "flavorsUsage": flavors,
        }
        status["conditions"] = facts.with_condition(status.get("conditions") or [], "Active", str(up), *cause)
        if status != obj.get("status"):
            await self._client.write_status(path, obj, status)


def order(workload: Object) -> tuple[int, str, str]:
    """Return the key that sorts a queue's Workloads."""
    meta = workload["metadata"]
    return -workload["spec"].get("priority", 0), meta["creationTimestamp"], meta["name"]


def active(workload: Object) -> bool:
    """Return whether a Workload is active: nobody has deactivated it."""
    return workload["spec"].get("active") is not False


def _asked(pods: Object) -> dict[str, Decimal]:
    totals: dict[str, Decimal] = {}
    for container in pods["template"]["spec"]["containers"]:
        resources = container.get("resources") or {}
        for name, amount in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            totals[name] = totals.get(name, Decimal()) + quantity(amount) * pods["count"]
    return totals


def _used(workload: Object, resource: str) -> Decimal:
    return sum(
        (_asked(pod_set).get(resource, Decimal()) for pod_set in workload["spec"]["podSets"]), Decimal()
    )


def _flavors(queue: Object, resource: str) -> list[tuple[str, Decimal]]:
    return [
        (flavor["name"], quantity(listed["nominalQuota"]))
        for group in queue["spec"].get("resourceGroups", ())
        for flavor in group["flavors"]
        for listed in flavor["resources"]
        if listed["name"] == resource
    ]


def _flavor(queue: Object, resource: str) -> str | None:
    return next((name for name, _ in _flavors(queue, resource)), None)


def _nominal(queue: Object, resource: str) -> Decimal:
    return sum((amount for _, amount in _flavors(queue, resource)), Decimal())


def _capacity(queue: Object, cohort: Sequence[Object], resource: str) -> Decimal:
    """Return the most that a queue can have of a resource: its own, and what it may borrow from others."""
    others = [member for member in cohort if member is not queue]
    lent = sum(
        (min(_nominal(other, resource), _limit(other, resource, "lendingLimit")) for other in others),
        Decimal(),
    )
    return _nominal(queue, resource) + min(lent, _limit(queue, resource, "borrowingLimit"))


def _limit(queue: Object, resource: str, name: str) -> Decimal:
    limits = [
        listed[name]
        for group in queue["spec"].get("resourceGroups", ())
        for flavor in group["flavors"]
        for listed in flavor["resources"]
        if listed["name"] == resource and name in listed
    ]
    return sum(map(quantity, limits), Decimal()) if limits else Decimal("Infinity")


def _text(amount: Decimal) -> str:
    whole = amount == amount.to_integral_value()
    return f"{int(amount)}" if whole else f"{int(amount * 1000)}m"
