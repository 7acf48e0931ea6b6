"""How a Volcano Job reacts to its pods: lifecycle policies, and the phase that follows from the pods."""

from collections.abc import Iterable

from tests.backends.kubernetes.cluster.controllers import facts
from tests.backends.kubernetes.cluster.resources import Object

VERSION = "volcano.sh/job-version"
LABEL = "volcano.sh/task-spec"


def decide(job: Object, pods: list[Object], lost: Iterable[str]) -> tuple[str, str]:
    """Return the (action, task) of the first policy that applies, or two empty strings."""
    version = str(job.get("status", {}).get("version", 0))
    for pod in pods:
        # A pod of an earlier version has been dealt with.
        if facts.phase(pod) == "Failed" and pod["metadata"]["annotations"].get(VERSION) == version:
            task = pod["metadata"]["labels"][LABEL]
            if "deletionTimestamp" not in pod["metadata"] and (
                action := _action(job, task, "PodFailed", facts.exit_code(pod))
            ):
                return action, task
    for task in lost:
        if action := _action(job, task, "PodEvicted", None):
            return action, task
    for entry in job["spec"]["tasks"]:
        task_pods = [pod for pod in pods if pod["metadata"]["labels"][LABEL] == entry["name"]]
        done = sum(facts.phase(pod) == "Succeeded" for pod in task_pods)
        if done == entry["replicas"] and (action := _action(job, entry["name"], "TaskCompleted", None)):
            return action, entry["name"]
    return "", ""


def _action(job: Object, task: str, event: str, code: int | None) -> str:
    """Return the action of the first policy that matches, the task's before the job's."""
    spec = next(entry for entry in job["spec"]["tasks"] if entry["name"] == task)
    for policies in (spec.get("policies") or (), job["spec"].get("policies") or ()):
        for policy in policies:
            events = {policy.get("event"), *(policy.get("events") or ())}
            by_code = policy.get("exitCode") is not None and policy["exitCode"] == code
            if by_code or event in events or "*" in events:
                return str(policy["action"])
    return ""


def outcome(job: Object, phase: str, pods: list[Object]) -> str:
    """Return the phase that follows from the pods and the job's phase now."""
    spec = job["spec"]
    pods = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    counts = {name: sum(facts.phase(pod) == name for pod in pods) for name in ("Succeeded", "Failed")}
    total = sum(task["replicas"] for task in spec["tasks"])
    if spec.get("minSuccess") and counts["Succeeded"] >= spec["minSuccess"]:
        return "Completed"
    if phase == "Running" and counts["Succeeded"] + counts["Failed"] == total:
        return _conclusion(spec, pods, counts["Succeeded"])
    started = sum(facts.phase(pod) != "Pending" for pod in pods)
    if phase in ("Pending", "Running") and started >= spec["minAvailable"]:
        return "Running"
    # A job that has lost pods stays Running until it has new pods that haven't started.
    return "Running" if phase == "Running" and started == len(pods) else "Pending"


def _conclusion(spec: Object, pods: list[Object], succeeded: int) -> str:
    """Return the last phase of a job after all its pods have ended."""
    tasks = spec["tasks"]
    if spec["minAvailable"] >= sum(task["minAvailable"] for task in tasks):
        for task in tasks:
            task_pods = [pod for pod in pods if pod["metadata"]["labels"][LABEL] == task["name"]]
            if sum(facts.phase(pod) == "Succeeded" for pod in task_pods) < task["minAvailable"]:
                return "Failed"
    return "Completed" if succeeded >= spec["minAvailable"] else "Failed"
