"""Facts that controllers read from pods and conditions."""

from collections.abc import Sequence

from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.store import now


def phase(pod: Object) -> str:
    """Return the pod's phase."""
    return str(pod.get("status", {}).get("phase", "Pending"))


def ended(pod: Object) -> bool:
    """Return whether the pod is in its last phase."""
    return phase(pod) in ("Succeeded", "Failed")


def dying(pod: Object) -> bool:
    """Return whether the pod is being deleted and hasn't ended."""
    return "deletionTimestamp" in pod["metadata"] and not ended(pod)


def active(pod: Object) -> bool:
    """Return whether the pod runs or will run, and isn't being deleted."""
    return not ended(pod) and "deletionTimestamp" not in pod["metadata"]


def ready(pod: Object) -> bool:
    """Return whether the pod's Ready condition is True."""
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in _conditions(pod)
    )


def exit_code(pod: Object, container: str = "") -> int | None:
    """Return the exit code of a container (the first if none is named), or None if it has none."""
    for status in pod.get("status", {}).get("containerStatuses", ()):
        if not container or status["name"] == container:
            code = status["state"].get("terminated", {}).get("exitCode")
            return None if code is None else int(code)
    return None


def restarts(pod: Object) -> int:
    """Return how often containers of the pod have been restarted in place."""
    status = pod.get("status", {})
    both = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
    return sum(status["restartCount"] for status in both)


def _conditions(obj: Object) -> list[Object]:
    conditions: list[Object] = obj.get("status", {}).get("conditions") or []
    return conditions


def condition(obj: Object, kind: str) -> Object | None:
    """Return the condition of that type."""
    return next((condition for condition in _conditions(obj) if condition["type"] == kind), None)


def holds(obj: Object, *kinds: str) -> bool:
    """Return whether one of these conditions is True."""
    return any(condition["type"] in kinds and condition["status"] == "True" for condition in _conditions(obj))


def with_condition(
    conditions: Sequence[Object], kind: str, status: str, reason: str, message: str, **more: str
) -> list[Object]:
    """Return the conditions with this one set: in place of one of its type, else last."""
    new = {"type": kind, "status": status, "reason": reason, "message": message, **more}
    new["lastTransitionTime"] = now()
    old = next((condition for condition in conditions if condition["type"] == kind), None)
    if old is None:
        return [*conditions, new]
    if old["status"] == status:
        new["lastTransitionTime"] = old["lastTransitionTime"]
        if old["reason"] == reason:
            return list(conditions)
    return [new if condition is old else condition for condition in conditions]
