"""batch/v1 Job with completionMode Indexed, as the job controller of Kubernetes 1.36 treats it."""

from dataclasses import dataclass

from tests.backends.kubernetes.cluster.controllers import facts, jobpolicy
from tests.backends.kubernetes.cluster.controllers.client import ApiError, collection
from tests.backends.kubernetes.cluster.controllers.indexedpod import (
    FAILURES,
    IGNORED,
    NAME,
    TRACKING,
    UID,
    counted,
    ended_at,
    index_of,
    pod_of,
    ranges,
    read_ranges,
)
from tests.backends.kubernetes.cluster.controllers.loop import Controller
from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.store import age, now

GANGS = "scheduling.k8s.io/v1alpha2"


@dataclass
class Progress:
    """The progress of a job, as its pods show it."""

    pods: list[Object]
    completed: list[int]
    failed_indexes: list[int]
    new_failures: list[Object]
    # With a limit per index, the last failed pod of each index that waits for a new pod. It records how often
    # the index has failed, so it is kept, and not counted, until the new pod exists.
    waiting: dict[int, Object]

    @property
    def active(self) -> list[Object]:
        """Return the pods that run or will run."""
        return [pod for pod in self.pods if facts.active(pod)]

    @property
    def terminating(self) -> list[Object]:
        """Return the pods that are being deleted and haven't ended."""
        return [pod for pod in self.pods if facts.dying(pod)]


class IndexedJob(Controller):
    """The Job controller: from indexes to pods, from pods to counts, from counts to conditions."""

    api_version, plural, kind, component = "batch/v1", "jobs", "Job", "job-controller"
    grouped = False  # whether pods are placed all at once
    # A second in Kubernetes: the controller sees the ends of pods within that time together.
    patience_s = 0.1

    async def reconcile(self, job: Object) -> float | None:
        if facts.holds(job, "Complete", "Failed"):
            return await self._age(job)
        pods = await self._pods(job)
        if "deletionTimestamp" in job["metadata"]:
            await self._release(pods)
            return None
        status = {"conditions": [], **job.get("status", {})}
        progress = self._progress(job, status, pods)
        end = self._end(job, status, progress)
        if end is not None:
            return await self._finish(job, status, progress, *end)
        if job["spec"].get("suspend"):
            await self._suspend(job, status, progress)
            return None
        return await self._go_on(job, status, progress)

    async def forget(self, namespace: str, name: str) -> None:
        """Release the pods of a job that is gone: remove their finalizer."""
        await self._release(await self.client.list(collection("v1", "pods", namespace), f"{NAME}={name}"))

    async def _pods(self, job: Object) -> list[Object]:
        path = collection("v1", "pods", job["metadata"]["namespace"])
        return await self.client.list(path, f"{UID}={job['metadata']['uid']}")

    def _progress(self, job: Object, status: Object, pods: list[Object]) -> Progress:
        """Count: one success completes an index; a failure counts once, when its pod is released."""
        # A pod that a suspension has released doesn't count.
        succeeded = [pod for pod in pods if facts.phase(pod) == "Succeeded"]
        done = {index_of(pod) for pod in succeeded if TRACKING in pod["metadata"].get("finalizers", ())}
        completed = sorted(done | set(read_ranges(status.get("completedIndexes", ""))))
        patient = job["spec"].get("podReplacementPolicy") == "Failed"
        # Without a policy that waits for its end, a pod that is being deleted has failed.
        failed = [pod for pod in pods if facts.phase(pod) == "Failed" or (facts.dying(pod) and not patient)]
        uncounted = [pod for pod in failed if TRACKING in pod["metadata"].get("finalizers", ())]
        new = [pod for pod in uncounted if jobpolicy.action(job, pod) != "Ignore"]
        lost = {index_of(pod) for pod in uncounted if jobpolicy.fails_index(job, pod)}
        failed_indexes = sorted(lost | set(read_ranges(status.get("failedIndexes", ""))))
        progress = Progress(pods, completed, failed_indexes, new, {})
        if "backoffLimitPerIndex" in job["spec"]:
            done = {*completed, *failed_indexes, *map(index_of, progress.active)}
            ends = [pod for pod in uncounted if index_of(pod) not in done]
            progress.waiting = {index_of(pod): pod for pod in sorted(ends, key=_failures)}
        return progress

    def _end(self, job: Object, status: Object, progress: Progress) -> tuple[str, str, str] | None:
        """Return (condition, reason, message) if the job is to end."""
        for kind in ("FailureTarget", "SuccessCriteriaMet"):
            if condition := facts.condition({"status": status}, kind):
                return kind, condition["reason"], condition["message"]
        failed = status.get("failed", 0) + len(progress.new_failures)
        lost, done = progress.failed_indexes, progress.completed
        if why := jobpolicy.failure(job, status, progress.pods, failed, lost, done):
            return "FailureTarget", *why
        if why := jobpolicy.success(job, progress.completed, progress.failed_indexes):
            return "SuccessCriteriaMet", *why
        return None

    async def _finish(
        self, job: Object, status: Object, progress: Progress, target: str, reason: str, message: str
    ) -> float | None:
        """Announce the end of the job, end its pods, and set the last condition once all of them are gone."""
        failing = target == "FailureTarget"
        conditions = facts.with_condition(status["conditions"], target, "True", reason, message)
        for pod in progress.active:
            await self._delete(job, pod)
        # Pods that a failing job ends count as its failures.
        lost = progress.active if failing else []
        ended = {pod["metadata"]["uid"]: pod for pod in [*progress.new_failures, *lost]}
        status = self._counts(status, progress) | {"conditions": conditions, "active": 0, "ready": 0}
        status["terminating"] = len(progress.terminating) + len(progress.active)
        job = await self._count(job, status, list(ended.values()), progress.pods)
        if status["terminating"]:
            return None
        last, final = "Failed" if failing else "Complete", dict(job["status"])
        final["conditions"] = facts.with_condition(conditions, last, "True", reason, message)
        if not failing:
            final["completionTime"] = now()
        job = await self.write(job, final)
        if failing:
            await self.tell(job, reason, message, warning=True)
        else:
            await self.tell(job, "Completed", "Job completed")
        return await self._age(job)

    async def _suspend(self, job: Object, status: Object, progress: Progress) -> None:
        for pod in progress.active:
            await self._delete(job, pod)
        was_suspended = facts.holds({"status": status}, "Suspended")
        conditions = facts.with_condition(
            status["conditions"], "Suspended", "True", "JobSuspended", "Job suspended"
        )
        status = self._counts(status, progress) | {"conditions": conditions, "active": 0, "ready": 0}
        status.pop("startTime", None)
        try:
            job = await self.write(job, status)
        finally:  # pods that a suspension ends are no failures, even if the job was resumed meanwhile
            await self._release(progress.pods)
        if not was_suspended:
            await self.tell(job, "Suspended", "Job suspended")

    async def _go_on(self, job: Object, status: Object, progress: Progress) -> float | None:
        """Create the missing pods."""
        status = self._counts(status, progress)
        resumed = facts.holds({"status": status}, "Suspended")
        if resumed:
            conditions = facts.with_condition(
                status["conditions"], "Suspended", "False", "JobResumed", "Job resumed"
            )
            status["conditions"] = conditions
        status.setdefault("startTime", now())
        per_index = "backoffLimitPerIndex" in job["spec"]
        wait = 0.0 if per_index else self._wait(progress)
        count, later = (0, wait) if wait else await self._make(job, progress)
        status["active"] = len(progress.active) + count
        kept = [pod["metadata"]["uid"] for pod in progress.waiting.values()]
        pods = [pod for pod in progress.pods if pod["metadata"]["uid"] not in kept]
        new = [pod for pod in progress.new_failures if pod["metadata"]["uid"] not in kept]
        job = await self._count(job, status, new, pods)
        if resumed:
            await self.tell(job, "Resumed", "Job resumed")
        return self._next(job, later)

    def _wait(self, progress: Progress) -> float:
        """Return the seconds until a new pod may follow a failed one."""
        failed = [pod for pod in progress.pods if facts.phase(pod) == "Failed"]
        if not failed:
            return 0.0
        since = min(age(ended_at(pod)) for pod in failed)
        return max(float(self.backoff_s * 2 ** min(len(failed) - 1, 5) - since), 0.0)

    def _next(self, job: Object, wait: float) -> float | None:
        deadline = job["spec"].get("activeDeadlineSeconds")
        waits = [wait] if wait else []
        if deadline is not None:
            waits.append(deadline - age(job["status"]["startTime"]) + 0.05)
        return float(min(waits)) if waits else None

    async def _make(self, job: Object, progress: Progress) -> tuple[int, float]:
        """Create pods for the first indexes without one; return how many, and the seconds until the next."""
        spec = job["spec"]
        used_indexes = {index_of(pod) for pod in progress.active} | set(progress.completed)
        used_indexes |= set(progress.failed_indexes)
        room = min(spec["parallelism"], spec["completions"] - len(progress.completed)) - len(progress.active)
        if spec.get("podReplacementPolicy") == "Failed":
            used_indexes |= {index_of(pod) for pod in progress.terminating}
            room -= len(progress.terminating)
        missing = [index for index in range(spec["completions"]) if index not in used_indexes][: max(room, 0)]
        # An index that waits for its next try keeps its place: no later index takes it meanwhile.
        waits = {index: self._pause(progress.waiting.get(index)) for index in missing}
        group = await self._group(job) if self.grouped else ""
        count = 0
        for index in (index for index, wait in waits.items() if not wait):
            notes = jobpolicy.notes_after(job, progress.waiting.get(index))
            body = pod_of(job, index, self.reference(job), notes)
            if group:
                body["spec"]["schedulingGroup"] = {"podGroupName": group}
            try:
                pod = await self.make(job, "pods", body)
            except ApiError as error:
                await self.tell(job, "FailedCreate", f"Error creating: {error.message}", warning=True)
                break
            count += 1
            await self.tell(job, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")
        return count, min(filter(None, waits.values()), default=0.0)

    async def _group(self, job: Object) -> str:
        """Create the Workload and PodGroup of a job that is placed at once; return the PodGroup's name."""
        spec, meta = job["spec"], job["metadata"]
        if spec["parallelism"] < 2 or spec["completions"] != spec["parallelism"]:
            return ""
        name, policy = f"{meta['name']}-{meta['uid'][:5]}", {"gang": {"minCount": spec["parallelism"]}}
        ref = {"apiGroup": "batch", "kind": "Job", "name": meta["name"]}
        templates = [{"name": "workers", "schedulingPolicy": policy}]
        template = {"workload": {"workloadName": name, "podGroupTemplateName": "workers"}}
        for kind, plural, own_spec in (
            ("Workload", "workloads", {"controllerRef": ref, "podGroupTemplates": templates}),
            ("PodGroup", "podgroups", {"podGroupTemplateRef": template, "schedulingPolicy": policy}),
        ):
            own = {"name": name, "ownerReferences": [self.reference(job)]}
            body = {"apiVersion": GANGS, "kind": kind, "metadata": own, "spec": own_spec}
            await self.client.ensure(collection(GANGS, plural, meta["namespace"]), body)
        return name

    def _pause(self, last: Object | None) -> float:
        """Return the seconds until an index may have a new pod after its last one failed."""
        if last is None:
            return 0.0
        return max(float(self.backoff_s * 2 ** min(_failures(last), 5)) - age(ended_at(last)), 0.0)

    def _counts(self, status: Object, progress: Progress) -> Object:
        counts = {
            "active": len(progress.active),
            "ready": sum(facts.ready(pod) for pod in progress.active),
            "terminating": len(progress.terminating),
            "succeeded": len(progress.completed),
            "completedIndexes": ranges(progress.completed),
            "uncountedTerminatedPods": {},
        }
        if progress.failed_indexes:
            counts["failedIndexes"] = ranges(progress.failed_indexes)
        return status | counts

    async def _count(self, job: Object, status: Object, new: list[Object], pods: list[Object]) -> Object:
        """Write counts in two steps that survive a crash: name new failures, then release and add them."""
        if new:
            named = {"failed": [pod["metadata"]["uid"] for pod in new]}
            job = await self.write(job, status | {"uncountedTerminatedPods": named})
            await self._release(new)
            status = status | {"failed": status.get("failed", 0) + len(new)}
        job = await self.write(job, status)
        await self._release([pod for pod in pods if facts.ended(pod)])
        return job

    async def _release(self, pods: list[Object]) -> None:
        for pod in pods:
            left = [name for name in pod["metadata"].get("finalizers", ()) if name != TRACKING]
            if TRACKING in pod["metadata"].get("finalizers", ()):
                pod["metadata"]["finalizers"] = left
                space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
                try:
                    await self.client.patch(
                        f"{collection('v1', 'pods', space)}/{name}", {"metadata": {"finalizers": left}}
                    )
                except ApiError as error:
                    if error.code != 404:
                        raise

    async def _delete(self, job: Object, pod: Object) -> None:
        space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        await self.client.delete(f"{collection('v1', 'pods', space)}/{name}")
        await self.tell(job, "SuccessfulDelete", f"Deleted pod: {name}")

    async def _age(self, job: Object) -> float | None:
        """Delete the job if its time after the end is over; else return the seconds left."""
        await self._release(await self._pods(job))
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None:
            return None
        end = facts.condition(job, "Complete") or facts.condition(job, "Failed")
        assert end is not None
        left = float(seconds - age(end["lastTransitionTime"]))
        if left <= 0:
            await self.client.delete(self.path(job))
            return None
        return left


def _failures(pod: Object) -> int:
    """Return how many earlier pods of the pod's index failed, ignored or not."""
    return counted(pod, FAILURES) + counted(pod, IGNORED)
