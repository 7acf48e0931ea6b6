"""PyTorchJob, as training-operator 1.9.0 treats it."""

from tests.backends.kubernetes.cluster.controllers import facts
from tests.backends.kubernetes.cluster.controllers.client import ApiError, collection
from tests.backends.kubernetes.cluster.controllers.loop import Controller
from tests.backends.kubernetes.cluster.controllers.pytorchpod import (
    LABEL,
    labels,
    pod_of,
    replicas_of,
    service_of,
)
from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.store import age, now

LIMIT = "it has reached the specified backoff limit"
DEADLINE = "it was active longer than specified deadline"


class PyTorchJob(Controller):
    """The PyTorchJob controller: from replicas to pods and services, from pods to conditions."""

    api_version, plural, kind = "kubeflow.org/v1", "pytorchjobs", "PyTorchJob"
    component = "pytorchjob-controller"

    async def reconcile(self, job: Object) -> float | None:
        if "deletionTimestamp" in job["metadata"]:
            return None
        pods = await self._mine(job, "pods")
        if facts.holds(job, "Succeeded", "Failed"):
            return await self._clean_up(job, pods)
        status = {"conditions": [], **job.get("status", {})}
        name = job["metadata"]["name"]
        if not status["conditions"]:
            _set(status, "Created", "True", f"PyTorchJob {name} is created.")
        if _policy(job).get("suspend"):
            await self._suspend(job, status, pods)
            return None
        if facts.condition({"status": status}, "Suspended"):
            self._resume(status, name)
        status.setdefault("startTime", now())
        if why := _exceeded(job, status, pods):
            # 1.9.0 removes everything here, whatever cleanPodPolicy says.
            await self._remove(job, pods, await self._mine(job, "services"))
            status["completionTime"] = now()
            _set(status, "Failed", "True", f"Job {name} has failed because {why}")
            await self._write(job, status)
            return None
        status["replicaStatuses"] = {}
        for role, replica in replicas_of(job).items():
            # As long as a pod or service can't be created, the status isn't written.
            await self._replicas(job, status, role, replica, pods)
        await self._write(job, status)
        return self._ttl(job | {"status": status})

    async def _mine(self, job: Object, plural: str) -> list[Object]:
        path = collection("v1", plural, job["metadata"]["namespace"])
        objects = await self.client.list(path, f"{LABEL}/job-name={job['metadata']['name']}")
        # Objects of an earlier job of the same name have the same labels, but another owner.
        uid = job["metadata"]["uid"]
        return [obj for obj in objects if uid in [r["uid"] for r in obj["metadata"]["ownerReferences"]]]

    async def _replicas(
        self, job: Object, status: Object, role: str, replica: Object, pods: list[Object]
    ) -> None:
        role_pods = [
            pod for pod in pods if pod["metadata"]["labels"][f"{LABEL}/replica-type"] == role.lower()
        ]
        pods_by_index = {int(pod["metadata"]["labels"][f"{LABEL}/replica-index"]): pod for pod in role_pods}
        for index in range(replica.get("replicas", 1)):
            pod = pods_by_index.get(index)
            if pod is None:
                await self._create(job, pod_of(job, role, index, self.reference(job)), "pods", "Pod")
            elif facts.phase(pod) == "Failed" and "deletionTimestamp" not in pod["metadata"]:
                await self._failed(job, status, role, replica, pod)
        services = {service["metadata"]["name"] for service in await self._mine(job, "services")}
        for index in range(replica.get("replicas", 1)):
            service = service_of(job, role, index, self.reference(job))
            if service["metadata"]["name"] not in services:
                await self._create(job, service, "services", "Service")
        counts = status["replicaStatuses"][role] = _counts(job, role, role_pods)
        self._conclude(job, status, role, replica, counts)

    async def _create(self, job: Object, body: Object, plural: str, kind: str) -> None:
        try:
            await self.make(job, plural, body)
        except ApiError as error:
            await self.tell(job, f"FailedCreate{kind}", f"Error creating: {error.message}", warning=True)
            raise
        await self.tell(job, f"SuccessfulCreate{kind}", f"Created {kind.lower()}: {body['metadata']['name']}")

    async def _failed(self, job: Object, status: Object, role: str, replica: Object, pod: Object) -> None:
        """Delete a failed pod that may run again, or fail the job if it may not."""
        policy, name = replica.get("restartPolicy", "OnFailure"), job["metadata"]["name"]
        code = facts.exit_code(pod, "pytorch")
        space, own = pod["metadata"]["namespace"], pod["metadata"]["name"]
        if code is not None:
            await self.tell(job, "ExitedWithCode", f"Pod: {space}.{own} exited with code {code}")
        # A pod without an exit code counts as one that may run again.
        retryable = code is None or code >= 128
        if policy in ("OnFailure", "Always") or (policy == "ExitCode" and retryable):
            await self.client.delete(f"{collection('v1', 'pods', space)}/{own}")
            _set(status, "Restarting", "True", f"job {name} is restarting because {role} replica(s) failed.")
        elif policy == "ExitCode":
            _set(status, "Failed", "True", f'job "{name}" is failing because "{role}" replica(s) failed.')

    def _conclude(self, job: Object, status: Object, role: str, replica: Object, counts: Object) -> None:
        """Set the conditions that follow from the counts of one kind of replica."""
        space, name = job["metadata"]["namespace"], job["metadata"]["name"]
        replicas = replica.get("replicas", 1)
        running, succeeded, failed = (counts.get(phase, 0) for phase in ("active", "succeeded", "failed"))
        mastered = "Master" in replicas_of(job)
        elastic = job["spec"].get("elasticPolicy") is not None
        if not mastered or role == "Master":
            done = succeeded >= replicas or (not mastered and elastic and succeeded > 0)
            shown = name if mastered else f"{space}/{name}"
            if done:
                status["completionTime"] = now()
                outcome = "is successfully completed" if mastered else "successfully completed"
                _set(status, "Succeeded", "True", f"PyTorchJob {shown} {outcome}.")
                return
            if running:
                _set(status, "Running", "True", f"PyTorchJob {shown} is running.")
        if failed and replicas > succeeded + running:
            reason = f"because {failed} {role} replica(s) failed."
            if replica.get("restartPolicy", "OnFailure") != "Never":
                _set(status, "Restarting", "True", f"PyTorchJob {name} is restarting {reason}")
            elif not facts.holds({"status": status}, "Failed"):
                status["completionTime"] = now()
                _set(status, "Failed", "True", f"PyTorchJob {name} is failed {reason}")

    async def _suspend(self, job: Object, status: Object, pods: list[Object]) -> None:
        await self._remove(job, pods, await self._mine(job, "services"))
        text = f"PyTorchJob {job['metadata']['name']} is suspended."
        if facts.holds({"status": status}, "Running"):
            _set(status, "Running", "False", text, reason="Suspended")
        _set(status, "Suspended", "True", text)
        status["replicaStatuses"] = {role: {} for role in replicas_of(job)}
        await self._write(job, status)

    def _resume(self, status: Object, name: str) -> None:
        if facts.holds({"status": status}, "Suspended"):
            _set(status, "Suspended", "False", f"PyTorchJob {name} is resumed.", reason="Resumed")
            status["startTime"] = now()

    async def _clean_up(self, job: Object, pods: list[Object]) -> float | None:
        """Delete what cleanPodPolicy says, and the job itself once its time after the end is over."""
        policy = _policy(job).get("cleanPodPolicy", "None")
        if policy == "All":
            await self._remove(job, pods, await self._mine(job, "services"))
        elif policy == "Running":
            victims = [pod for pod in pods if not facts.ended(pod)]
            names = {pod["metadata"]["name"] for pod in victims}
            services = [
                service
                for service in await self._mine(job, "services")
                if service["metadata"]["name"] in names
            ]
            await self._remove(job, victims, services)
        return await self._expire(job)

    def _ttl(self, job: Object) -> float | None:
        seconds, completed = _policy(job).get("ttlSecondsAfterFinished"), job["status"].get("completionTime")
        # Without a completionTime, as after a permanent exit code, a job is never removed.
        return None if seconds is None or not completed else float(seconds - age(completed))

    async def _expire(self, job: Object) -> float | None:
        left = self._ttl(job)
        if left is None or left > 0:
            return left
        await self.client.delete(self.path(job))
        return None

    async def _remove(self, job: Object, pods: list[Object], services: list[Object]) -> None:
        space = job["metadata"]["namespace"]
        for plural, objects in (("pods", pods), ("services", services)):
            for pod in objects:
                if "deletionTimestamp" not in pod["metadata"]:
                    name = pod["metadata"]["name"]
                    await self.client.delete(f"{collection('v1', plural, space)}/{name}")
                    kind = plural.removesuffix("s")
                    await self.tell(job, f"SuccessfulDelete{kind.title()}", f"Deleted {kind}: {name}")

    async def _write(self, job: Object, status: Object) -> None:
        old = {
            (condition["type"], condition["status"])
            for condition in job.get("status", {}).get("conditions", ())
        }
        await self.write(job, status)
        for condition in status["conditions"]:
            new = (condition["type"], condition["status"]) not in old
            if new and condition["type"] not in ("Created", "Running"):
                bad = condition["type"] in ("Failed", "Restarting")
                await self.tell(job, condition["reason"], condition["message"], warning=bad)


def _policy(job: Object) -> Object:
    policy: Object = job["spec"].get("runPolicy") or {}
    return policy


def _set(status: Object, kind: str, value: str, message: str, reason: str = "") -> None:
    """Set a condition, unless Failed is. Running and Restarting exclude each other; an end resets Running."""
    if facts.holds({"status": status}, "Failed"):
        return
    conditions = status["conditions"]
    rival = {"Running": "Restarting", "Restarting": "Running"}.get(kind)
    conditions = [condition for condition in conditions if condition["type"] != rival]
    if kind in ("Succeeded", "Failed"):
        conditions = [
            condition | {"status": "False"} if condition["type"] == "Running" else condition
            for condition in conditions
        ]
    old = facts.condition({"status": {"conditions": conditions}}, kind)
    word = f"PyTorchJob{reason or kind}"
    if old and (old["status"], old["reason"]) == (value, word):
        status["conditions"] = conditions
        return
    if kind == "Running" and value == "True":
        conditions = [condition for condition in conditions if condition["type"] != kind]
    status["conditions"] = facts.with_condition(conditions, kind, value, word, message, lastUpdateTime=now())


def _exceeded(job: Object, status: Object, pods: list[Object]) -> str:
    """Return which limit of the job is exceeded; an empty string if none is."""
    policy, replicas = _policy(job), replicas_of(job)
    limit = policy.get("backoffLimit")
    if limit is not None:
        total = sum(replica.get("replicas", 1) for replica in replicas.values())
        failed = sum(facts.phase(pod) == "Failed" for pod in pods)
        before = sum(replica.get("failed", 0) for replica in status.get("replicaStatuses", {}).values())
        # The operator's count of retries is always 0, so this clause holds only for limit 0.
        fresh = failed > before and sum(facts.active(pod) for pod in pods) != total and limit < 1
        if fresh or _restarted_too_often(replicas, pods, limit):
            return LIMIT
    deadline = policy.get("activeDeadlineSeconds")
    # Nothing triggers a check when the time is over: the operator notices it at the next change.
    if deadline is not None and age(status["startTime"]) >= deadline:
        return DEADLINE
    return ""


def _restarted_too_often(replicas: Object, pods: list[Object], limit: int) -> bool:
    restarting = {
        role.lower()
        for role, replica in replicas.items()
        if replica.get("restartPolicy", "OnFailure") != "Never"
    }
    count = sum(
        facts.restarts(pod)
        for pod in pods
        if facts.phase(pod) == "Running" and pod["metadata"]["labels"][f"{LABEL}/replica-type"] in restarting
    )
    return count > 0 if limit == 0 else count >= limit


def _counts(job: Object, role: str, pods: list[Object]) -> Object:
    """Count the pods of a role; one that runs but is being deleted counts as failed."""
    running = [pod for pod in pods if facts.phase(pod) == "Running"]
    counts = {
        "active": sum("deletionTimestamp" not in pod["metadata"] for pod in running),
        "succeeded": sum(facts.phase(pod) == "Succeeded" for pod in pods),
        "failed": sum(facts.phase(pod) == "Failed" for pod in pods)
        + sum("deletionTimestamp" in pod["metadata"] for pod in running),
    }
    selected = labels(job, role)
    selector = ",".join(f"{name}={value}" for name, value in sorted(selected.items()))
    return {name: count for name, count in counts.items() if count} | {"selector": selector}
