"""What a namespace's events, Workloads and hosts say about one job.

A name isn't enough: ``sta-x`` may be a separate job beside ``sta``, and events outlive their objects by an
hour, so a name that is used again comes with the troubles of its former owner.

A cloud announces on its Node that a host is about to end. Pods only receive a SIGTERM, which may come minutes
later, or leave less time to save. So a follower that may read Nodes asks the job's pods on such a host to
prepare. Most users may not read Nodes: then the pods aren't warned.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.backends.kubernetes import lifecycle
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.jobs import find, results
from nbtorchjob.backends.kubernetes.kinds import Kind
from nbtorchjob.backends.kubernetes.objects import workloads
from nbtorchjob.backends.kubernetes.objects.reading import HOSTS, Target, created
from nbtorchjob.backends.kubernetes.objects.workloads import Look
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import ClusterError, DamagedError, ForbiddenError, JobEndedError, JobNotFoundError
from nbtorchjob.state import JobState, Phase
from nbtorchjob.state.facts import events as ev


class Workloads:
    """What Kueue says about the objects of the job ``name``, once these are known.

    A queue's Workloads are all in its namespace, so they show the job's place in the queue.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: set[str] = set()  # uids of its objects
        self._early: dict[str, Object] = {}  # Workloads that may be ours, by the uid of the job object
        self._waits: dict[str, workloads.Wait] = {}  # all that wait, by the Workload's uid
        self._own_uid = ""  # the uid of the job's newest Workload
        self._look = Look()
        self._position: tuple[object, ...] | None = None

    def know(self, obj: Object) -> list[ev.Event]:
        """Register an object of the job; return what earlier Workloads say about it."""
        uid = obj["metadata"]["uid"]
        self._jobs.add(uid)
        return self.read(self._early.pop(uid)) if uid in self._early else []

    def read(self, workload: Object) -> list[ev.Event]:
        """Return what a Workload says about the job, if only by waiting in the same queue."""
        uid, owner = workload["metadata"]["uid"], workloads.owner(workload)
        wait = workloads.wait(workload)
        if wait is None:
            self._waits.pop(uid, None)
        else:
            self._waits[uid] = wait
        owners = [ref["name"] for ref in workload["metadata"].get("ownerReferences") or ()]
        facts: list[ev.Event] = []
        if owner in self._jobs:
            self._own_uid = uid
            facts = workloads.facts(workload)
        elif any(name == self._name or name.startswith(f"{self._name}-a") for name in owners):
            # Its owner is named like an attempt of this job
            self._early[owner] = workload
        return [*facts, *self._standing()]

    def forget(self, workload: Object) -> list[ev.Event]:
        """Forget a Workload that is gone; return what that says about the job."""
        self._waits.pop(workload["metadata"]["uid"], None)
        return [*self._standing()]

    @property
    def queue(self) -> str:
        """The queue that the job waits in; "" where it doesn't."""
        wait = self._waits.get(self._own_uid)
        return wait.queue if wait is not None else ""

    def seen(self, look: Look) -> list[ev.Event]:
        """Record the state of the job's queue; return what it says about the job."""
        self._look = look
        return [*self._standing()]

    def _standing(self) -> list[ev.Standing]:
        """Return where the job stands in its queue, if that has changed."""
        own_wait, waits = self._waits.get(self._own_uid), self._waits.values()
        standing = workloads.standing(own_wait, waits, self._look, time.time())
        position = (
            (standing[0].place, standing[0].of, standing[0].used, standing[0].quota) if standing else None
        )
        news = position != self._position
        self._position = position
        return standing if news else []


_EARLY = 64  # more events about objects that aren't known yet are forgotten


class Troubles:
    """What a cluster says about the objects of the job ``name``, once these are known."""

    def __init__(self, kind: Kind, name: str) -> None:
        self._kind = kind
        self._name = name
        self._objects: dict[str, dict[str, Any]] = {}  # of the job, one per attempt, by uid
        self._pods: dict[str, dict[str, Any]] = {}  # by name
        self._early: list[dict[str, Any]] = []

    def may_be_ours(self, event: dict[str, Any]) -> bool:
        """Whether the event is worth a closer look: everything made for a job is named after it."""
        name: str = event["involvedObject"].get("name") or ""
        return name == self._name or name.startswith(f"{self._name}-")

    def know(self, obj: dict[str, Any]) -> list[ev.Event]:
        """Register an object of the job; return what earlier events say about it."""
        self._objects[obj["metadata"]["uid"]] = obj
        return self._again()

    def know_pod(self, pod: dict[str, Any]) -> list[ev.Event]:
        """Register a pod of the job; return what earlier events say about it."""
        self._pods[pod["metadata"]["name"]] = pod
        return self._again()

    def forget_pod(self, pod: dict[str, Any]) -> None:
        """Forget a pod that is gone."""
        # A new pod may have the same name by now.
        if self.pod(pod["metadata"]["name"], pod["metadata"]["uid"]) is not None:
            del self._pods[pod["metadata"]["name"]]

    def pod(self, name: str, uid: str | None = None) -> dict[str, Any] | None:
        """Return the pod with that name, and with that ``uid`` if one is given; None if there is none."""
        pod = self._pods.get(name)
        return pod if pod is not None and uid in (None, pod["metadata"]["uid"]) else None

    def read(self, event: dict[str, Any]) -> list[ev.Event]:
        """Return what an event (core/v1) says about the job."""
        about = event["involvedObject"]
        name, uid = about.get("name") or "", about.get("uid")
        if about.get("kind") == "Pod":
            is_ours = self.pod(name, uid) is not None
        elif uid in self._objects:
            is_ours = True
        else:
            child_name = self._kind.children.get(about.get("kind") or "")
            is_ours = child_name is not None and any(
                # An event from before the job is about an earlier object of that name.
                name == child_name(obj) and created(event) >= created(obj)
                for obj in self._objects.values()
            )
        if not is_ours:
            self._early = [*self._early[-_EARLY:], event]
            return []

        def node(name: str) -> int | None:
            pod = self._pods.get(name)
            return self._kind.node(pod) if pod else None

        return lifecycle.waiting_facts(event, node, self._pods.get, self._kind.complaints)

    def _again(self) -> list[ev.Event]:
        early, self._early = self._early, []
        return [fact for event in early for fact in self.read(event)]


# Taints of a host that is about to end, set when it is drained or before. Left out are those of hosts whose
# pods go on: a cordon (node.kubernetes.io/unschedulable), and mere candidates and recommendations
# (DeletionCandidateOfClusterAutoscaler, aws-node-termination-handler/rebalance-recommendation). So is
# karpenter.sh/disrupted, which is removed again if no other host is available: only the deletion of the Node
# by Karpenter is final, and the Node's finalizer keeps it until the host is drained.
TAINTS = (
    "cloud.google.com/impending-node-termination",  # GKE: the --taint of its handlers of VM terminations
    "aws-node-termination-handler/spot-itn",  # this and the next two: its pkg/node/node.go
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "remediator.kubernetes.azure.com/unschedulable",  # AKS: node auto-drain and auto-repair
    "ToBeDeletedByClusterAutoscaler",  # cluster-autoscaler: utils/taints/taints.go
)
# For a pass over a job's hosts; jobs here share what was read of a host for half of it. Azure's notice is the
# shortest, 30 s.
EVERY_S = 5.0
_APART_S = 0.2  # between two hosts at least
_ANSWER_WITHIN_S = 20.0
_MOST = 24  # questions to a pod whose ranks don't call leaving(): they may still get to it


def host_notice(host: Object) -> str:
    """Return the sign that a host is about to end; "" if there is none."""
    if host["metadata"].get("deletionTimestamp"):
        return "its host is being deleted"
    keys = {taint["key"] for taint in (host.get("spec") or {}).get("taints") or ()}
    reason = next((key for key in TAINTS if key in keys), "")
    return f"its host has the taint {reason}" if reason else ""


class Hosts:
    """The hosts of the job at ``address``; ``state`` returns its state as far as it is known."""

    def __init__(self, session: Session, address: str, state: Callable[[], JobState]) -> None:
        self._session = session
        self._address = address
        self._state = state
        self._questions: Counter[str] = Counter()  # how many, by the pod's uid; _MOST for a pod that leaves

    async def heed(self) -> None:
        """Pass notices about hosts on to the job's nodes; stop if this user may not read Nodes."""
        with suppress(ForbiddenError):
            while True:
                # By host, its nodes that must still be told, with the uids of their pods.
                state, hosts = self._state(), dict[str, dict[int, str]]()
                for node in state.nodes.values() if state.phase is Phase.RUNNING else ():
                    life = node.life
                    if life.running and node.host and self._questions[life.pod] < _MOST:
                        hosts.setdefault(node.host, {})[node.index] = life.pod
                for host, nodes in hosts.items():
                    # Another job here may have just read the same host's notice: many run on one host
                    now, notices = time.monotonic(), self._session.notices
                    if host not in notices or now - notices[host][0] > EVERY_S / 2:
                        notices[host] = now, asyncio.ensure_future(self._look(host))
                    notice = await asyncio.shield(notices[host][1])
                    if why := notice:
                        await self._tell(nodes, why)
                    await asyncio.sleep(max(_APART_S, EVERY_S / len(hosts)))
                if not hosts:
                    await asyncio.sleep(EVERY_S)

    async def _look(self, host: str) -> str:
        try:
            return host_notice(await self._session.client.get(Target(HOSTS, None, host)))
        except ForbiddenError:
            raise
        except ClusterError:  # it is gone, or the server doesn't answer for now
            return ""

    async def _tell(self, pods: dict[int, str], why: str) -> None:
        def on_answer(answer: NodeAnswer) -> None:
            if any(record.get("leaves") is True for record in answer.records):
                self._questions[pods[answer.node]] = _MOST

        self._questions.update(pods.values())
        with suppress(ClusterError, DamagedError, JobEndedError, JobNotFoundError):
            job = await find.find(self._address)
            question = {"question": "leave", "why": why}
            await results.ask(job, question, [*pods], _ANSWER_WITHIN_S, on_answer)
