"""JobSet 0.12, as far as Kubeflow Trainer uses it: jobs, a service, restarts of the whole JobSet."""

import copy
import hashlib

from tests.backends.kubernetes.cluster.controllers import facts
from tests.backends.kubernetes.cluster.controllers.client import ApiError, collection
from tests.backends.kubernetes.cluster.controllers.loop import Controller
from tests.backends.kubernetes.cluster.resources import Object

LABEL = "jobset.sigs.k8s.io"
FAILED = "jobset failed due to one or more job failures (first failed job: {})"
TOO_OFTEN = "jobset failed due to reaching max number of restarts (first failed job: {})"
AGAIN = "applying RestartJobSet failure policy action (first failed job: {})"


class JobSet(Controller):
    """The JobSet controller: from replicated jobs to Jobs, from Jobs to conditions."""

    api_version, plural, kind, component = "jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet", "jobset"
    owns = (("batch/v1", "jobs"),)

    async def reconcile(self, jobset: Object) -> float | None:
        if "deletionTimestamp" in jobset["metadata"] or facts.holds(jobset, "Completed", "Failed"):
            return None
        status = {"restarts": 0, **jobset.get("status", {})}
        jobs = await self._jobs(jobset)
        old = [job for job in jobs if _attempt(job) != status["restarts"]]
        jobs = [job for job in jobs if job not in old]
        for job in old:
            if "deletionTimestamp" not in job["metadata"]:
                await self.client.delete(self._job_path(job), "Foreground")
        if old:
            await self._write(jobset, _counted(jobset, status, jobs))
            return None
        await self._make(jobset, status["restarts"], jobs)
        status = await self._follow_suspend(jobset, status, jobs)
        await self._write(jobset, self._conclude(jobset, _counted(jobset, status, jobs), jobs))
        return None

    async def _jobs(self, jobset: Object) -> list[Object]:
        path = collection("batch/v1", "jobs", jobset["metadata"]["namespace"])
        jobs = await self.client.list(path, f"{LABEL}/jobset-name={jobset['metadata']['name']}")
        uid = jobset["metadata"]["uid"]
        return [job for job in jobs if job["metadata"]["labels"][f"{LABEL}/jobset-uid"] == uid]

    def _job_path(self, job: Object) -> str:
        return f"{collection('batch/v1', 'jobs', job['metadata']['namespace'])}/{job['metadata']['name']}"

    async def _make(self, jobset: Object, attempt: int, jobs: list[Object]) -> None:
        space, name = jobset["metadata"]["namespace"], jobset["metadata"]["name"]
        meta = {"name": name, "ownerReferences": [self.reference(jobset)]}
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {f"{LABEL}/jobset-name": name},
        }
        service = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}
        await self.client.ensure(collection("v1", "services", space), service)
        names = {job["metadata"]["name"] for job in jobs}
        for body in jobs_of(jobset, attempt, self.reference(jobset)):
            if body["metadata"]["name"] not in names:
                try:
                    await self.client.create(collection("batch/v1", "jobs", space), body)
                except ApiError as error:
                    text = f'job "{body["metadata"]["name"]}" creation failed with error: {error.message}'
                    await self.tell(jobset, "JobCreationFailed", text, warning=True)
                    raise

    async def _follow_suspend(self, jobset: Object, status: Object, jobs: list[Object]) -> Object:
        """Suspend or resume the jobs; return the status with its condition Suspended."""
        suspend = bool(jobset["spec"].get("suspend"))
        conditions = status.get("conditions", [])
        if suspend:
            conditions = facts.with_condition(
                conditions, "Suspended", "True", "SuspendedJobs", "jobset is suspended"
            )
        elif facts.condition({"status": status}, "Suspended"):
            conditions = facts.with_condition(
                conditions, "Suspended", "False", "ResumeJobs", "jobset is resumed"
            )
        for job in jobs:
            if bool(job["spec"].get("suspend")) != suspend:
                await self.client.patch(self._job_path(job), {"spec": {"suspend": suspend}})
        return status | ({"conditions": conditions} if conditions else {})

    def _conclude(self, jobset: Object, status: Object, jobs: list[Object]) -> Object:
        """Return the status with the conditions that follow from the jobs."""

        def with_end(kind: str, reason: str, message: str) -> Object:
            conditions = status.get("conditions", [])
            if kind == "Failed" and facts.condition({"status": status}, "RestartingJobSet"):
                cause = "JobSetFailed", "jobset failed"
                conditions = facts.with_condition(conditions, "RestartingJobSet", "False", *cause)
            conditions = facts.with_condition(conditions, kind, "True", reason, message)
            return status | {"conditions": conditions, "terminalState": kind}

        failed = [job["metadata"]["name"] for job in jobs if facts.holds(job, "Failed")]
        if failed:
            limit = (jobset["spec"].get("failurePolicy") or {}).get("maxRestarts")
            if limit is None:
                return with_end("Failed", "FailedJobs", FAILED.format(failed[0]))
            if status["restarts"] >= limit:
                return with_end("Failed", "ReachedMaxRestarts", TOO_OFTEN.format(failed[0]))
            count = status["restarts"] + 1
            conditions = facts.with_condition(
                status.get("conditions", []),
                "RestartingJobSet",
                "True",
                "DefaultFailurePolicy",
                AGAIN.format(failed[0]),
            )
            return status | {"restarts": count, "restartsCountTowardsMax": count, "conditions": conditions}
        if jobs and all(facts.holds(job, "Complete") for job in jobs):
            return with_end("Completed", "AllJobsCompleted", "jobset completed successfully")
        ready = jobs and all(job.get("status", {}).get("ready") == job["spec"]["parallelism"] for job in jobs)
        if ready and facts.holds({"status": status}, "RestartingJobSet"):
            conditions = facts.with_condition(
                status["conditions"], "RestartingJobSet", "False", "JobsReady", "all jobs are ready"
            )
            return status | {"conditions": conditions}
        return status

    async def _write(self, jobset: Object, status: Object) -> None:
        old = {
            (condition["type"], condition["status"])
            for condition in jobset.get("status", {}).get("conditions", ())
        }
        await self.write(jobset, status)
        for condition in status.get("conditions", ()):
            if (condition["type"], condition["status"]) not in old:
                await self.tell(
                    jobset, condition["reason"], condition["message"], warning=condition["type"] == "Failed"
                )


def _attempt(job: Object) -> int:
    return int(job["metadata"]["labels"][f"{LABEL}/restart-attempt"])


def _counted(jobset: Object, status: Object, jobs: list[Object]) -> Object:
    """Count Jobs, not pods, for each replicated job."""
    counts = []
    for replicated in jobset["spec"]["replicatedJobs"]:
        name = replicated["name"]
        replicas = [job for job in jobs if job["metadata"]["labels"][f"{LABEL}/replicatedjob-name"] == name]
        counts.append(
            {
                "name": name,
                "active": sum(bool(job.get("status", {}).get("active")) for job in replicas),
                "ready": sum(_ready(job) for job in replicas),
                "succeeded": sum(facts.holds(job, "Complete") for job in replicas),
                "failed": sum(facts.holds(job, "Failed") for job in replicas),
                "suspended": sum(facts.holds(job, "Suspended") for job in replicas),
            }
        )
    return status | {"replicatedJobsStatus": counts}


def _ready(job: Object) -> bool:
    """Return whether the job's pods are ready or have succeeded, and the job isn't over."""
    status = job.get("status", {})
    count = status.get("ready", 0) + status.get("succeeded", 0)
    return bool(count >= job["spec"]["parallelism"] and not facts.holds(job, "Complete", "Failed"))


def jobs_of(jobset: Object, attempt: int, owner: Object) -> list[Object]:
    """Return the Jobs of a JobSet."""
    meta, bodies = jobset["metadata"], []
    for replicated in jobset["spec"]["replicatedJobs"]:
        replicas = replicated.get("replicas", 1)
        for index in range(replicas):
            name = f"{meta['name']}-{replicated['name']}-{index}"
            labels = {
                "jobset-name": meta["name"],
                "jobset-uid": meta["uid"],
                "replicatedjob-name": replicated["name"],
                "replicatedjob-replicas": str(replicas),
                "global-replicas": str(replicas),
                "group-name": "default",
                "group-replicas": str(replicas),
                "job-index": str(index),
                "job-global-index": str(index),
                "job-group-index": str(index),
                "job-key": hashlib.sha1(f"{meta['namespace']}/{name}".encode()).hexdigest(),
                "restart-attempt": str(attempt),
            }
            own = {f"{LABEL}/{key}": value for key, value in labels.items()}
            bodies.append(_job(jobset, replicated, name, own, owner))
    return bodies


def _job(jobset: Object, replicated: Object, name: str, own: dict[str, str], owner: Object) -> Object:
    template = copy.deepcopy(replicated["template"])
    labels = (template.get("metadata") or {}).get("labels") or {}
    spec = template["spec"]
    spec.setdefault("completionMode", "Indexed")
    spec["suspend"] = bool(jobset["spec"].get("suspend"))
    pod = spec["template"]
    inner = pod.setdefault("metadata", {})
    inner["labels"] = {**(inner.get("labels") or {}), **own}
    inner["annotations"] = {**(inner.get("annotations") or {}), **own}
    pod["spec"].setdefault("restartPolicy", "OnFailure")
    pod["spec"]["subdomain"] = jobset["metadata"]["name"]
    meta = {"name": name, "labels": {**labels, **own}, "annotations": own, "ownerReferences": [owner]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
