"""Kubernetes' own PodGroups: pods that its scheduler places all at once, or not at all (pure).

In 1.36 the Job controller makes one for each Indexed Job of several nodes, where the alpha gates
GenericWorkload and EnableWorkloadWithJob are on; its pods name it. In 1.37 it does so for
every Job, and a group whose job doesn't ask for more has the policy ``basic``: each pod is placed by itself.
"""

from __future__ import annotations

from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import Object
from nbtorchjob.backends.kubernetes.pod.waiting import placing
from nbtorchjob.state import events as ev

_PLACED = ("PodGroupScheduled", "PodGroupInitiallyScheduled")  # in 1.36, and from 1.37 on


def name(pod: Object) -> str:
    """Return the name of a pod's group; "" for one that is in none."""
    return str(((pod.get("spec") or {}).get("schedulingGroup") or {}).get("podGroupName") or "")


def facts(group: Object) -> list[ev.Event]:
    """Return why a group whose pods are placed all at once isn't placed, or that it is."""
    policy = (group.get("spec") or {}).get("schedulingPolicy") or {}
    if "gang" not in policy:
        return []
    fewest = (policy["gang"] or {}).get("minCount")
    pods = f"{fewest} pods" if fewest else "pods"
    for kind in _PLACED:
        if (waits := reading.condition(group, kind, "False")) is not None:
            why = f"waiting until all {pods} fit at once (gang): {placing(str(waits.get('message') or ''))}"
            return [ev.group_waits(reading.since(waits), why)]
        if (placed := reading.condition(group, kind)) is not None:
            return [ev.group_waits(reading.since(placed), "")]
    return []
