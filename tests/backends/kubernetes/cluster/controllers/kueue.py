"""How Kueue 0.19 stops and starts jobs: a job with a queue is suspended until its Workload is admitted."""

import hashlib
from collections.abc import Callable
from typing import ClassVar

from tests.backends.kubernetes.cluster.controllers import facts
from tests.backends.kubernetes.cluster.controllers.client import Client, collection
from tests.backends.kubernetes.cluster.controllers.loop import Controller
from tests.backends.kubernetes.cluster.resources import Object

VERSION = "kueue.x-k8s.io/v1beta2"
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
LONGEST = "kueue.x-k8s.io/max-exec-time-seconds"
UID = "kueue.x-k8s.io/job-uid"
NAMES = ("batch.kubernetes.io/job-name", "training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name")
LOOK_S = 0.1
NOT_READY = "Not all pods are ready or succeeded"


class Queued(Controller):
    """The controller of one kind of job: it suspends and resumes jobs, no matter who else does."""

    owns = ((VERSION, "workloads"),)
    suspend: ClassVar[tuple[str, ...]]
    sets: ClassVar[Callable[[Object], list[Object]]]
    # Whether a suspended job can start again only after its pods have ended.
    patient: ClassVar[bool] = False

    async def reconcile(self, obj: Object) -> float | None:
        name = (obj["metadata"].get("labels") or {}).get(QUEUE)
        workload = next(iter(await self.owned(obj, VERSION, "workloads")), None)
        if "deletionTimestamp" in obj["metadata"] or (workload is None and not name):
            return None
        if workload is None:
            await self._begin(obj, name)
            return None
        if facts.holds(obj, "Complete", "Failed", "Succeeded"):
            await self._finish(obj, workload)
            return None
        if facts.holds(workload, "Evicted") and (
            not self._suspended(obj) or facts.holds(workload, "QuotaReserved")
        ):
            return await self._stop(obj, workload)
        waits = self._suspended(obj) and not facts.holds(workload, "QuotaReserved")
        if waits and name and workload["spec"]["queueName"] != name:
            await self.client.patch(_path(workload), {"spec": {"queueName": name}})
            return None
        if workload["spec"].get("active") is False:
            return LOOK_S  # the Workload is about to be evicted
        if facts.holds(workload, "Admitted"):
            return await self._start(obj, workload) if name else None
        if not self._suspended(obj):
            await self._hold(obj, "Not admitted by cluster queue")
        return None

    async def _begin(self, obj: Object, name: str | None) -> None:
        if not self._suspended(obj):
            await self._hold(
                obj, "No matching Workload; restoring pod templates according to existent Workload"
            )
        if facts.holds(obj, "Complete", "Failed", "Succeeded"):
            return
        meta, labels = obj["metadata"], obj["metadata"].get("labels") or {}
        spec: Object = {"active": True, "queueName": name, "podSets": type(self).sets(obj), "priority": 0}
        if labels.get(PRIORITY):
            named = await self.client.get(f"/apis/{VERSION}/workloadpriorityclasses/{labels[PRIORITY]}")
            if named is None:
                return
            group, kind = VERSION.partition("/")[0], "WorkloadPriorityClass"
            spec["priorityClassRef"] = {"group": group, "kind": kind, "name": labels[PRIORITY]}
            spec["priority"] = named["value"]
        if labels.get(LONGEST):
            spec["maximumExecutionTimeSeconds"] = int(labels[LONGEST])
        called = f"{self.kind.lower()}-{meta['name']}-{hashlib.sha256(meta['uid'].encode()).hexdigest()[:5]}"
        body = {
            "apiVersion": VERSION,
            "kind": "Workload",
            "metadata": {
                "name": called,
                "namespace": meta["namespace"],
                "labels": {UID: meta["uid"]},
                "ownerReferences": [self.reference(obj)],
            },
            "spec": spec,
        }
        await self.client.ensure(collection(VERSION, "workloads", meta["namespace"]), body)
        await self.tell(obj, "CreatedWorkload", f"Created Workload: {meta['namespace']}/{called}")

    async def _finish(self, obj: Object, workload: Object) -> None:
        if facts.holds(workload, "Finished"):
            return
        failed = facts.condition(obj, "Failed")
        failed = failed if failed and failed["status"] == "True" else None
        ended = failed or facts.condition(obj, "Complete") or facts.condition(obj, "Succeeded")
        assert ended is not None
        reason = "Failed" if failed else "Succeeded"
        await _tell(self.client, workload, ("Finished", "True", reason, ended.get("message", "")))

    async def _stop(self, obj: Object, workload: Object) -> float | None:
        evicted = facts.condition(workload, "Evicted")
        assert evicted is not None
        if not self._suspended(obj):
            await self._hold(obj, evicted["message"])
            return LOOK_S
        if any(facts.active(pod) for pod in await self._pods(obj)):
            return LOOK_S
        again = workload["spec"].get("active") is not False and evicted["reason"] not in (
            "ClusterQueueStopped",
        )
        await _tell(
            self.client,
            workload,
            ("QuotaReserved", "False", "Pending", evicted["message"]),
            ("Admitted", "False", "NoReservation", "The workload has no reservation"),
            ("Requeued", "True" if again else "False", evicted["reason"], evicted["message"]),
            admission=None,
        )
        return None

    async def _start(self, obj: Object, workload: Object) -> float | None:
        pods = await self._pods(obj)
        if self._suspended(obj):
            if self.patient and any(not facts.ended(pod) for pod in pods):
                return LOOK_S
            await self._patch(obj, suspended=False)
            await self.tell(
                obj, "Started", f"Admitted by clusterQueue {workload['status']['admission']['clusterQueue']}"
            )
            return LOOK_S
        total = sum(pod_set["count"] for pod_set in workload["spec"]["podSets"])
        if sum(facts.ready(pod) or facts.phase(pod) == "Succeeded" for pod in pods) < total:
            return LOOK_S
        message = "All pods reached readiness and the workload is running"
        await _tell(self.client, workload, ("PodsReady", "True", "Started", message))
        return None

    def _suspended(self, obj: Object) -> bool:
        value = obj
        for name in self.suspend:
            value = value.get(name) or {}
        return bool(value)

    async def _hold(self, obj: Object, why: str) -> None:
        await self._patch(obj, suspended=True)
        await self.tell(obj, "Stopped", why)

    async def _patch(self, obj: Object, *, suspended: bool) -> None:
        body: Object = {self.suspend[-1]: suspended}
        for name in reversed(self.suspend[:-1]):
            body = {name: body}
        await self.client.patch(self.path(obj), body)

    async def _pods(self, obj: Object) -> list[Object]:
        meta = obj["metadata"]
        pods = await self.client.list(collection("v1", "pods", meta["namespace"]))
        labels = [(pod, pod["metadata"].get("labels") or {}) for pod in pods]
        return [pod for pod, label in labels if meta["name"] in [label.get(name) for name in NAMES]]


def _path(workload: Object) -> str:
    return f"{collection(VERSION, 'workloads', workload['metadata']['namespace'])}/{workload['metadata']['name']}"


async def _tell(client: Client, workload: Object, *rows: tuple[str, str, str, str], **more: object) -> None:
    """Set conditions of a Workload: type, status, reason and message of each."""
    status = {**(workload.get("status") or {}), **more}
    for condition in rows:
        status["conditions"] = facts.with_condition(status.get("conditions") or [], *condition)
    if status != workload.get("status"):
        kept = {name: value for name, value in status.items() if value is not None}
        await client.write_status(_path(workload), workload, kept)


def _of_template(name: str, count: int, template: Object) -> Object:
    return {"name": name, "count": count, "template": template}


def _of_job(job: Object) -> list[Object]:
    return [_of_template("main", job["spec"]["parallelism"], job["spec"]["template"])]


def _of_pytorchjob(job: Object) -> list[Object]:
    replicas = job["spec"]["pytorchReplicaSpecs"]
    return [
        _of_template(role.lower(), replica.get("replicas", 1), replica["template"])
        for role, replica in replicas.items()
    ]


def _of_trainjob(job: Object) -> list[Object]:
    trainer = job["spec"].get("trainer") or {}
    container = {"name": "node", "resources": trainer.get("resourcesPerNode") or {}}
    return [_of_template("node", trainer.get("numNodes", 1), {"spec": {"containers": [container]}})]


class QueuedJob(Queued):
    """The controller of batch/v1 Jobs."""

    api_version, plural, kind, component = "batch/v1", "jobs", "Job", "batch/job-kueue-controller"
    suspend, sets = ("spec", "suspend"), _of_job


class QueuedPyTorchJob(Queued):
    """The controller of PyTorchJobs."""

    api_version, plural, kind = "kubeflow.org/v1", "pytorchjobs", "PyTorchJob"
    component = "kubeflow.org/pytorchjob-kueue-controller"
    suspend, sets = ("spec", "runPolicy", "suspend"), _of_pytorchjob


class QueuedTrainJob(Queued):
    """The controller of TrainJobs."""

    api_version, plural, kind = "trainer.kubeflow.org/v1alpha1", "trainjobs", "TrainJob"
    component = "trainer.kubeflow.org/trainjob-kueue-controller"
    suspend, sets, patient = ("spec", "suspend"), _of_trainjob, True
