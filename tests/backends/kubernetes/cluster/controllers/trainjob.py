"""TrainJob, as Kubeflow Trainer 2.3.0 treats it: a runtime and a trainer become a JobSet."""

import asyncio
import copy
import json

from tests.backends.kubernetes.cluster import patches
from tests.backends.kubernetes.cluster.controllers import facts
from tests.backends.kubernetes.cluster.controllers.client import ApiError, collection
from tests.backends.kubernetes.cluster.controllers.jobset import JobSet
from tests.backends.kubernetes.cluster.controllers.loop import Controller
from tests.backends.kubernetes.cluster.controllers.trainerstatus import StatusServer
from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.store import age

PORT = 29500
# How long the unwanted second JobSet exists.
SECOND_LIFE_S = 0.3
RANK = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
PLURALS = {"TrainingRuntime": "trainingruntimes", "ClusterTrainingRuntime": "clustertrainingruntimes"}
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


class TrainJob(Controller):
    """The TrainJob controller: creates the JobSet, and copies the JobSet's status to the TrainJob."""

    api_version, plural, kind = "trainer.kubeflow.org/v1alpha1", "trainjobs", "TrainJob"
    component = "trainjob-controller"
    owns = ((JobSet.api_version, JobSet.plural),)
    status_server: StatusServer | None = None

    async def reconcile(self, job: Object) -> float | None:
        if "deletionTimestamp" in job["metadata"] or facts.holds(job, "Failed", "Complete"):
            return None
        left = _left(job)
        if left is not None and left <= 0:
            await self._expire(job)
            return None
        jobset = await self.client.get(self._jobset_path(job))
        suspended = bool(job["spec"].get("suspend"))
        if jobset is None:
            jobset = await self._make(job)
        elif bool(jobset["spec"].get("suspend")) != suspended:
            # The condition changes before the JobSet follows.
            job = await self.write(job, _suspension(job, dict(job.get("status", {}))))
            jobset = await self.client.patch(self._jobset_path(job), {"spec": {"suspend": suspended}})
        await self.write(job, _status(job, jobset))
        return left

    def _jobset_path(self, job: Object) -> str:
        space = job["metadata"]["namespace"]
        return f"{collection(JobSet.api_version, JobSet.plural, space)}/{job['metadata']['name']}"

    async def _make(self, job: Object) -> Object:
        space = job["metadata"]["namespace"]
        ref = job["spec"]["runtimeRef"]
        inside = space if ref["kind"] == "TrainingRuntime" else ""
        runtime = await self.client.get(
            f"{collection(self.api_version, PLURALS[ref['kind']], inside)}/{ref['name']}"
        )
        if runtime is None:
            raise ApiError(404, f"{ref['kind']} {ref['name']} not found")
        meta = {
            "name": f"{job['metadata']['name']}-runtime-snapshot",
            "ownerReferences": [self.reference(job)],
        }
        snapshot = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
        await self.client.ensure(
            collection("v1", "configmaps", space), snapshot | {"data": {"runtime": json.dumps(runtime)}}
        )
        body = jobset_of(job, runtime)
        if self.status_server is not None:
            await self._tell_of(self.status_server, job, body)
        body |= {"metadata": {"name": job["metadata"]["name"], "ownerReferences": [self.reference(job)]}}
        try:
            return await self.client.create(collection(JobSet.api_version, JobSet.plural, space), body)
        except ApiError as error:
            text = f"TrainJob resources reconciliation failed: {error.message}"
            await self.tell(job, "TrainJobResourcesCreationFailed", text, warning=True)
            raise

    async def _tell_of(self, server: StatusServer, job: Object, jobset: Object) -> None:
        for replicated in jobset["spec"]["replicatedJobs"]:
            if _trains(replicated):
                pod = replicated["template"]["spec"]["template"]["spec"]
                own = server.tell(job, pod, _node(pod))
                own["metadata"]["ownerReferences"] = [self.reference(job)]
                await self.client.ensure(collection("v1", "configmaps", job["metadata"]["namespace"]), own)

    async def _expire(self, job: Object) -> None:
        """End a job at its deadline.

        2.3.0 then creates the JobSet a second time, and deletes it again: its pods can be seen.
        """
        await self.client.delete(self._jobset_path(job))
        status = dict(job.get("status", {}))
        text = "TrainJob exceeded its active deadline"
        status["conditions"] = facts.with_condition(
            status.get("conditions", []), "Failed", "True", "DeadlineExceeded", text
        )
        job = await self.write(job, status)
        await self._make(job)
        await asyncio.sleep(SECOND_LIFE_S)
        await self.client.delete(self._jobset_path(job))


def _left(job: Object) -> float | None:
    """Return the seconds until the deadline, which counts from the last resume, or else from the creation."""
    seconds = job["spec"].get("activeDeadlineSeconds")
    if seconds is None or job["spec"].get("suspend"):
        return None
    resumed = facts.condition(job, "Suspended")
    since = job["metadata"]["creationTimestamp"]
    if resumed and resumed["status"] == "False":
        since = resumed["lastTransitionTime"]
    return float(seconds - age(since))


def _suspension(job: Object, status: Object) -> Object:
    conditions = status.get("conditions", [])
    if job["spec"].get("suspend"):
        conditions = facts.with_condition(
            conditions, "Suspended", "True", "Suspended", "TrainJob is suspended"
        )
    elif facts.condition({"status": status}, "Suspended"):
        conditions = facts.with_condition(conditions, "Suspended", "False", "Resumed", "TrainJob is resumed")
    return status | ({"conditions": conditions} if conditions else {})


def _status(job: Object, jobset: Object) -> Object:
    status = _suspension(job, dict(job.get("status", {})))
    statuses = jobset.get("status", {}).get("replicatedJobsStatus")
    if statuses:
        status["jobsStatus"] = statuses
    for condition, counterpart in (("Completed", "Complete"), ("Failed", "Failed")):
        end = facts.condition(jobset, condition)
        if end and end["status"] == "True":
            status["conditions"] = facts.with_condition(
                status.get("conditions", []), counterpart, "True", end["reason"], end["message"]
            )
    return status


def jobset_of(job: Object, runtime: Object) -> Object:
    """Return the JobSet of a TrainJob: the runtime's template, with patches and the trainer applied."""
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    for patch in job["spec"].get("runtimePatches") or ():
        over = patch.get("trainingRuntimeSpec", {}).get("template", {}).get("spec", {})
        spec = patches.strategic(spec, over)
    for replicated in spec["replicatedJobs"]:
        if _trains(replicated):
            _train(job, runtime, replicated["template"]["spec"])
    spec["suspend"] = bool(job["spec"].get("suspend"))
    return {"apiVersion": JobSet.api_version, "kind": "JobSet", "spec": spec}


def _trains(replicated: Object) -> bool:
    labels = replicated.get("template", {}).get("metadata", {}).get("labels") or {}
    return bool(labels.get(STEP) == "trainer")


def _node(pod: Object) -> Object:
    node: Object = next(container for container in pod["containers"] if container["name"] == "node")
    return node


def _train(job: Object, runtime: Object, spec: Object) -> None:
    trainer = job["spec"].get("trainer")
    policy = runtime["spec"].get("mlPolicy", {})
    nodes = (trainer or {}).get("numNodes") or policy.get("numNodes", 1)
    spec |= {"completions": nodes, "parallelism": nodes}
    container = _node(spec["template"]["spec"])
    if trainer is None:
        return
    for name in ("image", "command", "args"):
        if name in trainer:
            container[name] = trainer[name]
    if "resourcesPerNode" in trainer:
        container["resources"] = {**container.get("resources", {}), **trainer["resourcesPerNode"]}
    variables = {
        variable["name"]: variable
        for variable in [*(container.get("env") or ()), *(trainer.get("env") or ())]
    }
    if "torch" in policy:
        name = job["metadata"]["name"]
        injected: Object = {
            "PET_NNODES": {"value": str(nodes)},
            "PET_NPROC_PER_NODE": {"value": str(trainer.get("numProcPerNode") or _processes(container))},
            "PET_NODE_RANK": {"valueFrom": RANK},
            "PET_MASTER_ADDR": {"value": f"{name}-node-0-0.{name}"},
            "PET_MASTER_PORT": {"value": str(PORT)},
        }
        variables |= {name: {"name": name, **value} for name, value in injected.items()}
        container["ports"] = [*container.get("ports", ()), {"containerPort": PORT, "protocol": "TCP"}]
    if variables:
        container["env"] = list(variables.values())


def _processes(container: Object) -> str | int:
    """Return how many processes a node gets by default: `auto` with GPUs, else one per requested CPU."""
    resources = container.get("resources", {})
    requests = {**resources.get("limits", {}), **resources.get("requests", {})}
    if any(name.endswith("/gpu") for name in requests):
        return "auto"
    cpus = str(requests.get("cpu", "1"))
    return max(1, int(cpus) if cpus.isdigit() else 1)
