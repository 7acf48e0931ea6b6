"""Volcano Job, as Volcano 1.15 treats it: tasks, policies, retries and the phases between."""

import json
from collections import defaultdict

from tests.backends.kubernetes.cluster.controllers import facts
from tests.backends.kubernetes.cluster.controllers.client import ApiError, Client, collection
from tests.backends.kubernetes.cluster.controllers.loop import Controller
from tests.backends.kubernetes.cluster.controllers.volcanopod import (
    ANNOTATION,
    config_of,
    pods_of,
    policy_of,
    service_of,
)
from tests.backends.kubernetes.cluster.controllers.volcanopolicy import VERSION, decide, outcome
from tests.backends.kubernetes.cluster.quota import quantity
from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.store import age, now

GROUPS = "scheduling.volcano.sh/v1beta1"
BUS = "bus.volcano.sh/v1alpha1"
# The phase that follows an action at once; ENDS has the phase that follows once the pods are gone.
WAYS = {
    "RestartJob": "Restarting",
    "RestartTask": "Restarting",
    "RestartPod": "Restarting",
    "ResumeJob": "Restarting",
    "AbortJob": "Aborting",
    "TerminateJob": "Terminating",
    "CompleteJob": "Completing",
}
# The actions that each phase heeds; any other, even a command, only starts a sync (1.15's state machine).
_ALL = tuple(action for action in WAYS if action != "ResumeJob")
HEEDED = {"Pending": _ALL, "Running": _ALL, "Aborting": ("ResumeJob",), "Aborted": ("ResumeJob",)}
ENDS = {"Aborting": "Aborted", "Terminating": "Terminated", "Completing": "Completed"}
_PLUGGED = "controlledResources"  # status field: plugins that have created their objects
FINISHED = ("Completed", "Failed", "Terminated", "Aborted")


class Volcano(Controller):
    """The Volcano Job controller: from tasks to pods, from pods to phases."""

    api_version, plural, kind = "batch.volcano.sh/v1alpha1", "jobs", "Job"
    component = "vc-controller-manager"
    owns = (("v1", "pods"), (BUS, "commands"))

    def __init__(self, client: Client, *, backoff_s: float, scheduler: str = "") -> None:
        super().__init__(client, backoff_s=backoff_s, scheduler=scheduler)
        # Tasks of known pods, by the uid of their job: a deleted pod leaves no other trace.
        self._known: dict[str, dict[str, str]] = {}
        # Pending (action, task) pairs, by the uid of the job.
        self._due: dict[str, list[tuple[str, str]]] = defaultdict(list)

    async def reconcile(self, job: Object) -> float | None:
        if "deletionTimestamp" in job["metadata"]:
            return None
        status = {"conditions": [], **job.get("status", {})}
        if "state" not in status:
            _enter(status, "Pending")
            status["minAvailable"] = job["spec"]["minAvailable"]
            job = await self.write(job, status)
        pods = await self._pods(job)
        due = self._due[job["metadata"]["uid"]]
        await self._take_commands(job, due)
        lost = self._lost(job, pods)
        if not due and (decided := decide(job, pods, lost))[0]:
            due.append(decided)
        action, task = due[0] if due else ("", "")
        phase, again = status["state"]["phase"], None
        if action in HEEDED.get(phase, ()):
            await self._act(job, status, pods, action, task)
        elif phase in FINISHED:
            again = await self._finished(job, status, pods)
        elif phase in ENDS:
            await self._ending(job, status, pods)
        else:
            again = await self._sync(job, status, pods)
        # Only now, so that an action that failed halfway is tried again.
        del due[:1]
        return 0.05 if action else again

    async def _pods(self, job: Object) -> list[Object]:
        path = collection("v1", "pods", job["metadata"]["namespace"])
        pods = await self.client.list(path, f"volcano.sh/job-name={job['metadata']['name']}")
        uid = job["metadata"]["uid"]
        return [pod for pod in pods if pod["metadata"]["ownerReferences"][0]["uid"] == uid]

    def _lost(self, job: Object, pods: list[Object]) -> list[str]:
        """Return the tasks of pods that have disappeared since the last call, but not by this controller."""
        version = str(job.get("status", {}).get("version", 0))
        # A pod of an earlier version has been dealt with.
        metas = [pod["metadata"] for pod in pods if pod["metadata"]["annotations"].get(VERSION) == version]
        tasks = {meta["uid"]: meta["labels"]["volcano.sh/task-spec"] for meta in metas}
        before = self._known.get(job["metadata"]["uid"], {})
        self._known[job["metadata"]["uid"]] = tasks
        return [task for uid, task in before.items() if uid not in tasks]

    async def _take_commands(self, job: Object, due: list[tuple[str, str]]) -> None:
        """Move the commands for the job from the bus to ``due``, in the order in which they came."""
        meta = job["metadata"]
        path = collection(BUS, "commands", meta["namespace"])
        commands = [
            command for command in await self.client.list(path) if command["target"]["name"] == meta["name"]
        ]
        for command in sorted(commands, key=lambda obj: int(obj["metadata"]["resourceVersion"])):
            await self.client.delete(f"{path}/{command['metadata']['name']}")
            due.append((str(command["action"]), ""))
            text = (
                f"Start to execute command {command['action']}, "
                "and clean it up to make sure executed not more than once."
            )
            await self.tell(job, "CommandIssued", text)

    async def _act(self, job: Object, status: Object, pods: list[Object], action: str, task: str) -> None:
        """Begin the action of a policy or a command: delete pods, and change the phase."""
        await self.tell(job, "ExecuteAction", f"Start to execute action {action} ")
        restart = WAYS[action] == "Restarting"
        retries = status.get("retryCount", 0) + restart
        last = restart and retries >= job["spec"]["maxRetry"]
        for pod in pods:
            affected = action != "RestartTask" or pod["metadata"]["labels"]["volcano.sh/task-spec"] == task
            # Pods that have ended stay for inspection, unless they are to run again.
            if affected and (not facts.ended(pod) or (restart and not last)):
                await self._delete(job, pod)
        await self._plug_out(job, status)
        if restart:
            status["retryCount"] = retries
        status["version"] = status.get("version", 0) + 1
        _enter(status, WAYS[action])
        remainder = [pod for pod in pods if facts.active(pod) or facts.dying(pod)]
        job = await self.write(
            job, _counted(status, []) | ({"terminating": len(remainder)} if remainder else {})
        )
        if last:
            # The job fails at once: nothing waits for its pods.
            final = dict(job["status"])
            _enter(final, "Failed")
            await self.write(job, final)

    async def _delete(self, job: Object, pod: Object) -> None:
        self._known.get(job["metadata"]["uid"], {}).pop(pod["metadata"]["uid"], None)
        if "deletionTimestamp" not in pod["metadata"]:
            space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            await self.client.delete(f"{collection('v1', 'pods', space)}/{name}")

    async def _ending(self, job: Object, status: Object, pods: list[Object]) -> None:
        left = [pod for pod in pods if not facts.ended(pod) or "deletionTimestamp" in pod["metadata"]]
        for pod in left:
            await self._delete(job, pod)
        if not left:
            _enter(status, ENDS[status["state"]["phase"]])
        await self.write(job, _counted(status, []) | ({"terminating": len(left)} if left else {}))

    async def _finished(self, job: Object, status: Object, pods: list[Object]) -> float | None:
        """Clean up; delete the job when its time after the end is over. An aborted one stays."""
        for pod in pods:
            if facts.active(pod):
                await self._delete(job, pod)
        group = f"{collection(GROUPS, 'podgroups', job['metadata']['namespace'])}/{_group_name(job)}"
        await self.client.delete(group)
        if _PLUGGED in status:
            await self._plug_out(job, status)
            job = await self.write(job, status)
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None or status["state"]["phase"] == "Aborted":
            return None
        left = float(seconds - age(status["state"]["lastTransitionTime"]))
        if left <= 0:
            await self.client.delete(self.path(job))
            return None
        return left

    async def _sync(self, job: Object, status: Object, pods: list[Object]) -> float | None:
        """Create what is missing, and set the phase that follows from the pods."""
        if status["state"]["phase"] == "Restarting" and any(
            "deletionTimestamp" in pod["metadata"] for pod in pods
        ):
            await self.write(job, _counted(status, pods))
            return None
        if not await self._admit(job):
            return 1.0
        job = await self._plug_in(job, status)
        names = {pod["metadata"]["name"] for pod in pods}
        refused: dict[str, ApiError] = {}
        for body in pods_of(job, status, self.reference(job), _group_name(job)):
            if body["metadata"]["name"] not in names:
                body["spec"]["schedulerName"] = self.scheduler or body["spec"]["schedulerName"]
                try:
                    pods.append(await self.make(job, "pods", body))
                except ApiError as error:
                    refused[body["metadata"]["name"]] = error
        if refused:
            errors = " ".join(_go(name, error) for name, error in refused.items())
            await self.tell(job, "FailedCreate", f"Error creating pods: [{errors}]", warning=True)
            raise next(iter(refused.values()))
        self._lost(job, pods)
        phase = outcome(job, status["state"]["phase"], pods)
        status = _counted(status, pods)
        if phase != status["state"]["phase"]:
            _enter(status, phase)
        await self.write(job, status)
        return None

    async def _plug_in(self, job: Object, status: Object) -> Object:
        """Create plugin svc's objects, once for each start; use existing ones, whoever made them."""
        plugins = job["spec"].get("plugins") or {}
        if _PLUGGED in status or not plugins:
            return job
        for path, body in _beside(job) if "svc" in plugins else ():
            body["metadata"]["ownerReferences"] = [self.reference(job)]
            try:
                await self.client.create(path, body)
            except ApiError as error:
                if error.code != 409:
                    raise
                if body["kind"] == "ConfigMap":
                    await self.client.patch(f"{path}/{body['metadata']['name']}", {"data": body["data"]})
        status[_PLUGGED] = {f"plugin-{name}": name for name in plugins}
        return await self.write(job, dict(status))

    async def _plug_out(self, job: Object, status: Object) -> None:
        """Delete plugin svc's objects by name, whoever made them."""
        if "plugin-svc" in status.pop(_PLUGGED, {}):
            for path, body in _beside(job):
                await self.client.delete(f"{path}/{body['metadata']['name']}")

    async def _admit(self, job: Object) -> bool:
        """Create the PodGroup; return whether the cluster has room for the gang: without it, no pods."""
        space, name = job["metadata"]["namespace"], _group_name(job)
        path = collection(GROUPS, "podgroups", space)
        group = await self.client.get(f"{path}/{name}")
        least = job["spec"]["minAvailable"]
        if group is None:
            meta = {"name": name, "ownerReferences": [self.reference(job)]}
            spec = {"minMember": least, "queue": job["spec"]["queue"]}
            body = {"apiVersion": GROUPS, "kind": "PodGroup", "metadata": meta, "spec": spec}
            group = await self.client.create(path, body)
            # Volcano writes this for every gang, even when all is well.
            text = f"0/0 tasks in gang unschedulable: pod group is not ready, {least} minAvailable"
            await self.client.tell(group, "volcano", "Unschedulable", text, warning=True)
        elif group.get("status", {}).get("phase") in ("Inqueue", "Running"):
            return True
        missing = await self._shortage(job)
        phase = "Pending" if missing else "Inqueue"
        # PodGroups have no status subresource.
        await self.client.patch(f"{path}/{name}", {"status": {"phase": phase}})
        if missing:
            text = f"resource in cluster is overused: overused {missing}"
            await self.client.tell(group, "volcano", "Unschedulable", text)
        return not missing

    async def _shortage(self, job: Object) -> str:
        """Return the resource of which the whole job requests more than all nodes have."""
        nodes = await self.client.list(collection("v1", "nodes"))
        for resource in ("cpu", "memory"):
            has = sum(quantity(node["status"]["allocatable"].get(resource, "0")) for node in nodes)
            demand = sum(
                quantity((container.get("resources", {}).get("requests") or {}).get(resource, "0"))
                * task["replicas"]
                for task in job["spec"]["tasks"]
                for container in task["template"]["spec"]["containers"]
            )
            if demand > has:
                return resource
        return ""


def _go(name: str, error: ApiError) -> str:
    """Return the error of a refused pod as Go prints it; recorded."""
    text = json.dumps(error.message, ensure_ascii=False)
    empty = 'v1.TypeMeta{Kind:"", APIVersion:""}, ListMeta:v1.ListMeta{SelfLink:"", ResourceVersion:"", Continue:"", '
    empty += "RemainingItemCount:(*int64)(nil), ShardInfo:(*v1.ShardInfo)(nil)}"
    return (
        f"failed to create pod {name}, err: &errors.StatusError{{ErrStatus:v1.Status{{TypeMeta:{empty}, "
        f'Status:"Failure", Message:{text}, Reason:"Forbidden", Details:(*v1.StatusDetails)(0x311a8d9f0540), '
        f"Code:{error.code}}}}}"
    )


def _beside(job: Object) -> list[tuple[str, Object]]:
    """Return plugin svc's objects, each after the path of its collection, in the order of their creation."""
    space = job["metadata"]["namespace"]
    return [
        (collection("v1", "configmaps", space), config_of(job)),
        (collection("v1", "services", space), service_of(job)),
        (collection("networking.k8s.io/v1", "networkpolicies", space), policy_of(job)),
    ]


def _group_name(job: Object) -> str:
    return f"{job['metadata']['name']}-{job['metadata']['uid']}"


def _enter(status: Object, phase: str) -> None:
    """Change the phase; the conditions have each phase once, with its last time."""
    moment = now()
    status["state"] = {"phase": phase, "lastTransitionTime": moment}
    others = [condition for condition in status["conditions"] if condition["status"] != phase]
    status["conditions"] = [*others, {"status": phase, "lastTransitionTime": moment}]


def _counted(status: Object, pods: list[Object]) -> Object:
    """Return the status with the pods counted; counts of 0 are left out."""
    counts = dict.fromkeys(("pending", "running", "succeeded", "failed", "terminating"), 0)
    tasks: Object = {}
    for pod in pods:
        phase = facts.phase(pod)
        counts["terminating" if "deletionTimestamp" in pod["metadata"] else phase.lower()] += 1
        task = tasks.setdefault(pod["metadata"]["annotations"][f"{ANNOTATION}/task-spec"], {"phase": {}})
        task["phase"][phase] = task["phase"].get(phase, 0) + 1
    kept = {name: value for name, value in status.items() if name not in {*counts, "taskStatusCount"}}
    shown = {name: count for name, count in counts.items() if count}
    return kept | shown | ({"taskStatusCount": tasks} if tasks else {})
