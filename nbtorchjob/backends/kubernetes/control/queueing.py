"""Which of a namespace's Workloads are about one job, what they say, and which wait beside it."""

from __future__ import annotations

import time

from nbtorchjob.backends.kubernetes.api.client import Object
from nbtorchjob.backends.kubernetes.objects import workloads
from nbtorchjob.backends.kubernetes.objects.queues import Look
from nbtorchjob.state import events as ev


class Workloads:
    """What Kueue says about the objects of the job ``name``, once these are known.

    A queue's Workloads are all in its namespace, so the job's place is known from them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: set[str] = set()  # uids of its objects
        self._early: dict[str, Object] = {}  # Workloads that may be ours, by the uid of the job object
        self._waits: dict[str, workloads.Wait] = {}  # all that wait, by the Workload's uid
        self._mine = ""  # the uid of the job's newest Workload
        self._look = Look()
        self._told: tuple[object, ...] | None = None

    def know(self, obj: Object) -> list[ev.Event]:
        """Take note of an object of the job; return what was said of it before it was known."""
        uid = obj["metadata"]["uid"]
        self._jobs.add(uid)
        return self.read(self._early.pop(uid)) if uid in self._early else []

    def read(self, workload: Object) -> list[ev.Event]:
        """Return what a Workload, or that it waits, too, says of the job."""
        uid, owner = workload["metadata"]["uid"], workloads.owner(workload)
        wait = workloads.wait(workload)
        if wait is None:
            self._waits.pop(uid, None)
        else:
            self._waits[uid] = wait
        found: list[ev.Event] = []
        if owner in self._jobs:
            self._mine = uid
            found = workloads.facts(workload)
        elif self._named_alike(workload):
            self._early[owner] = workload
        return [*found, *self._standing()]

    def forget(self, workload: Object) -> list[ev.Event]:
        """Take note that a Workload is gone; return what that says of the job."""
        self._waits.pop(workload["metadata"]["uid"], None)
        return [*self._standing()]

    @property
    def queue(self) -> str:
        """The queue that the job waits in; "" where it doesn't."""
        mine = self._waits.get(self._mine)
        return mine.queue if mine is not None else ""

    def seen(self, look: Look) -> list[ev.Event]:
        """Take note of what the job's queue says of itself; return what that says of the job."""
        self._look = look
        return [*self._standing()]

    def _standing(self) -> list[ev.Standing]:
        """Return where the job stands, if that has changed."""
        mine, waits = self._waits.get(self._mine), self._waits.values()
        found = workloads.standing(mine, waits, self._look, time.time())
        told = (found[0].place, found[0].of, found[0].used, found[0].quota) if found else None
        news = told != self._told
        self._told = told
        return found if news else []

    def _named_alike(self, workload: Object) -> bool:
        """Whether a Workload's owner is called as an attempt of the job."""
        owners = workload["metadata"].get("ownerReferences") or ()
        names = [each["name"] for each in owners]
        return any(name == self._name or name.startswith(f"{self._name}-a") for name in names)
