"""The webhooks of Volcano: defaults and refusals."""

from typing import Any

from tests.backends.kubernetes.cluster.refusals import webhook
from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.store import Store

VOLCANO = "validatejob.volcano.sh"
PLUGINS = ("env", "svc", "ssh", "pytorch", "tensorflow", "mpi", "ray", "hcclrank")
ACTIONS = (
    *("AbortJob", "RestartJob", "RestartTask", "RestartPod"),
    *("RestartPartition", "TerminateJob", "CompleteJob", "ResumeJob"),
)
EVENTS = (
    "*",
    "PodPending",
    "TaskCompleted",
    "TaskFailed",
    "PodFailed",
    "PodEvicted",
    "Unknown",
    "JobUpdated",
)


def default(spec: Object) -> None:
    """Fill in the defaults of the mutating webhook."""
    # The webhook can't distinguish zero from unset: maxRetry 0 becomes 3.
    spec["maxRetry"] = spec.get("maxRetry") or 3
    spec["queue"] = spec.get("queue") or "default"
    spec["schedulerName"] = spec.get("schedulerName") or "volcano"
    for index, task in enumerate(spec.get("tasks") or ()):
        task["maxRetry"] = task.get("maxRetry") or 3
        task.setdefault("name", f"default{index}")
        task.setdefault("replicas", 1)
        task.setdefault("minAvailable", task["replicas"])
        task.get("template", {}).setdefault("metadata", {})
    spec["minAvailable"] = spec.get("minAvailable") or sum(
        task["minAvailable"] for task in spec.get("tasks") or ()
    )


def validate(obj: Object, store: Store) -> None:
    """Refuse an invalid Volcano Job."""

    def refuse(why: str) -> None:
        raise webhook(VOLCANO, f"{why};", 400)

    spec, name = obj["spec"], obj["metadata"]["name"]
    queues = [obj["metadata"]["name"] for resource, obj in store.everything() if resource.plural == "queues"]
    if spec["queue"] not in queues:
        refuse(f'unable to find job queue: queue.scheduling.volcano.sh "{spec["queue"]}" not found')
    seen = set()
    for task in spec["tasks"]:
        if task["name"] in seen:
            refuse(f"duplicated task name {task['name']}")
        seen.add(task["name"])
        pod = f"{name}-{task['name']}-{task['replicas'] - 1}"
        if len(pod) > 63:
            refuse(
                f"create pod with name {name}-{task['name']}-0 validate failed [name part must be no more than 63 bytes]"
            )
        _policies(task.get("policies") or (), refuse)
    if spec["minAvailable"] > sum(task["replicas"] for task in spec["tasks"]):
        refuse("job 'minAvailable' should not be greater than total replicas in tasks")
    for plugin in spec.get("plugins") or ():
        if plugin not in PLUGINS:
            refuse(f"unable to find job plugin: {plugin}")
    _policies(spec.get("policies") or (), refuse)


def _policies(policies: Any, refuse: Any) -> None:
    def listed(problem: str) -> str:
        events, actions = " ".join(EVENTS), " ".join(ACTIONS)
        return (
            f"1 error occurred:\n\t* {problem}\n\n valid events are [{events}], valid actions are [{actions}]"
        )

    seen: list[str] = []
    for policy in policies:
        if policy.get("action") not in ACTIONS:
            refuse(listed(f'spec.policies: Invalid value: "{policy.get("action")}": invalid policy action'))
        if policy.get("exitCode") == 0:
            refuse(listed("0 is not a valid error code"))
        for event in filter(None, [policy.get("event"), *(policy.get("events") or ())]):
            if event in seen:
                refuse(listed(f"duplicate event {event}  across different policy"))
            seen.append(event)
    if "*" in seen and len(seen) > 1:
        refuse(listed("if there's * here, no other policy should be here"))
