"""Which of a namespace's Workloads are about one job, and what they say."""

from __future__ import annotations

from nbtorchjob.backends.kubernetes.api.client import Object
from nbtorchjob.backends.kubernetes.objects import workloads
from nbtorchjob.state import events as ev

_MOST_EARLY = 64  # those of jobs that only begin with this one's name are never asked for


class Workloads:
    """What Kueue says about the objects of the job ``name``, once these are known."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: set[str] = set()  # uids of its objects
        self._early: dict[str, Object] = {}  # by the uid of the job object

    def may_be_ours(self, workload: Object) -> bool:
        """Whether a Workload is worth a closer look: its owner is called as an attempt of the job."""
        owners = workload["metadata"].get("ownerReferences") or ()
        return any(
            each["name"] == self._name or each["name"].startswith(f"{self._name}-a") for each in owners
        )

    def know(self, obj: Object) -> list[ev.Event]:
        """Take note of an object of the job; return what was said of it before it was known."""
        uid = obj["metadata"]["uid"]
        self._jobs.add(uid)
        return self.read(self._early.pop(uid)) if uid in self._early else []

    def read(self, workload: Object) -> list[ev.Event]:
        """Return what a Workload says of the job."""
        uid = workloads.owner(workload)
        if uid in self._jobs:
            return workloads.facts(workload)
        self._early[uid] = workload
        if len(self._early) > _MOST_EARLY:
            del self._early[next(iter(self._early))]
        return []
