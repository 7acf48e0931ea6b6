"""Recorded and emulated histories in one form, so that they can be compared.

The form keeps each different list of conditions of a job, in order, and the node and the end of a pod. It
doesn't keep times, random names and counts of replicas, which depend on the speed of the machine.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.store import Change

Step = tuple[tuple[str, str, str], ...]
INDEXES = (
    "training.kubeflow.org/replica-index",
    "batch.kubernetes.io/job-completion-index",
    "volcano.sh/task-index",
)
ROLES = ("training.kubeflow.org/replica-type", "volcano.sh/task-spec")
# End reasons of containers that were killed or never started.
NOT_ITSELF = ("OOMKilled", "StartError")
JOBS = ("pytorchjobs", "trainjobs", "jobsets", "jobs", "vcjobs")


@dataclass(frozen=True)
class Event:
    """One change: its resource and type, the object after it, and, if recorded, its time in seconds."""

    resource: str
    type: str
    object: Object
    t: float = 0.0

    @property
    def job(self) -> bool:
        """Return whether the object is a job of some kind."""
        return self.resource in JOBS


Pod = tuple[str, int]  # the node, and the number of the pod among the node's


@dataclass(frozen=True)
class Ending:
    """The end of a container: its time, pod and life, and whether its grace period was over."""

    t: float
    pod: Pod
    life: str
    killed: bool


@dataclass(frozen=True)
class Life:
    """One pod: its node, its last phase and reason, how its containers ended, and why it was disrupted.

    `gone` pods are being deleted; recordings end before some of them have disappeared.
    """

    node: str
    phase: str
    reason: str
    ended: str
    disrupted: str
    gone: bool

    @property
    def over(self) -> bool:
        """Return whether the pod has ended."""
        return self.phase in ("Succeeded", "Failed")


def recorded(folder: Path) -> list[Event]:
    """Read a recorded history."""
    packed = folder / "watch.jsonl.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / "watch.jsonl").read_bytes()
    lines = [json.loads(line) for line in text.splitlines()]
    return [Event(line["resource"], line["type"], line["object"], line["t"]) for line in lines]


def emulated(changes: Iterable[Change]) -> list[Event]:
    """Return the emulator's history in the same form."""
    return [Event(_plural(change), change.type, change.object) for change in changes]


def _plural(change: Change) -> str:
    return "vcjobs" if change.resource.qualified == "jobs.batch.volcano.sh" else change.resource.plural


def steps(events: Iterable[Event]) -> dict[str, list[Step]]:
    """Return, for each job object, the successive states of its conditions."""
    histories: dict[str, list[Step]] = {}
    for event in events:
        if event.job:
            name = f"{event.resource}/{event.object['metadata']['name']}"
            step = _step(event)
            if histories.setdefault(name, [()])[-1] != step:
                histories[name].append(step)
    return histories


def turns(events: Iterable[Event]) -> list[float]:
    """Return the times at which conditions of jobs changed."""
    last: dict[str, Step] = {}
    times: list[float] = []
    for event in events:
        if event.job:
            name = f"{event.resource}/{event.object['metadata']['name']}"
            if last.get(name, ()) != _step(event):
                times.append(event.t)
            last[name] = _step(event)
    return times


def _step(event: Event) -> Step:
    status = event.object.get("status") or {}
    if event.resource == "vcjobs":
        # Volcano's conditions only repeat its phases.
        phase = (status.get("state") or {}).get("phase", "")
        return ((phase, str(status.get("retryCount", 0)), ""),) if phase else ()
    conditions = status.get("conditions") or ()
    return tuple((condition["type"], condition["status"], condition["reason"]) for condition in conditions)


def lives(events: Iterable[Event]) -> list[Life]:
    """Return the pods of the jobs, ordered by node and then by the time they appeared."""
    last = {event.object["metadata"]["uid"]: event.object for event in events if event.resource == "pods"}
    lifetimes = [_life(pod) for pod in last.values() if _node(pod)]
    return sorted(lifetimes, key=lambda life: life.node)


def _node(pod: Object) -> str:
    labels = pod["metadata"].get("labels") or {}
    index = next((labels[name] for name in INDEXES if name in labels), "")
    role = next((labels[name] for name in ROLES if name in labels), "")
    return f"{role}-{index}" if index else ""


def _life(pod: Object) -> Life:
    dying = "deletionTimestamp" in pod["metadata"]
    status = pod.get("status", {})
    ends = [container["state"].get("terminated") for container in status.get("containerStatuses", ())]
    ended = " ".join(f"{end['reason']} {end['exitCode']}" for end in ends if end)
    conditions = status.get("conditions") or ()
    disrupted = [condition["reason"] for condition in conditions if condition["type"] == "DisruptionTarget"]
    reason = status.get("reason", "")
    return Life(_node(pod), status["phase"], reason, ended, "".join(disrupted), dying)


def pods(events: Iterable[Event]) -> dict[Pod, str]:
    """Return the uids of the jobs' pods."""
    return {pod: event.object["metadata"]["uid"] for pod, event in _told_of_pods(events)}


def happened(events: Iterable[Event]) -> set[tuple[object, str]]:
    """Return the milestones of jobs and pods, to compare them with those of the recording."""
    events = list(events)
    milestones: set[tuple[object, str]] = set()
    for name, gone_through in steps(events).items():
        milestones |= {(name, f"step {number}") for number in range(len(gone_through))}
    for pod, event in _told_of_pods(events):
        milestones |= {(pod, milestone) for milestone in _told(event.object)}
    return milestones


def endings(events: Iterable[Event]) -> list[Ending]:
    """Return the ends of containers that ended by themselves or with their grace period."""
    ends: dict[tuple[Pod, str], Ending] = {}
    for pod, event in _told_of_pods(events):
        for life, end in _ends(event.object):
            going = "deletionTimestamp" in event.object["metadata"]
            external = event.object["status"].get("reason") or end["reason"] in NOT_ITSELF
            if not external:
                ending = Ending(event.t, pod, life, killed=going and end["exitCode"] == 137)
                ends.setdefault((pod, life), ending)
    return list(ends.values())


def removals(events: Iterable[Event]) -> list[tuple[float, Pod]]:
    """Return the removed pods, each after the time of its removal."""
    return [(event.t, pod) for pod, event in _told_of_pods(events) if event.type == "DELETED"]


def first_loss(events: Iterable[Event]) -> float:
    """Return the time when the first pod began to be deleted, or ended."""
    return min(e.t for _, e in _told_of_pods(events) if "going" in _told(e.object) or [*_ends(e.object)])


def _told_of_pods(events: Iterable[Event]) -> Iterator[tuple[Pod, Event]]:
    pods_by_uid: dict[str, Pod] = {}
    count: Counter[str] = Counter()
    for event in events:
        node = _node(event.object) if event.resource == "pods" else ""
        if node:
            uid = event.object["metadata"]["uid"]
            if uid not in pods_by_uid:
                count[node] += 1
                pods_by_uid[uid] = node, count[node]
            yield pods_by_uid[uid], event


def _told(pod: Object) -> Iterator[str]:
    status = pod.get("status", {})
    # Volcano creates the pods of a restart earlier than the emulator does, which makes no difference.
    if status["phase"] != "Pending":
        yield status["phase"]
    if "deletionTimestamp" in pod["metadata"]:
        yield "going"
    for container in status.get("containerStatuses", ()):
        if "running" in container["state"]:
            yield f"runs {container['name']} {container['restartCount']}"
    yield from (f"ended {life}" for life, _ in _ends(pod))


def _ends(pod: Object) -> Iterator[tuple[str, Object]]:
    for status in pod.get("status", {}).get("containerStatuses", ()):
        for back, state in enumerate((status["state"], status.get("lastState") or {})):
            if "terminated" in state:
                yield f"{status['name']} {status['restartCount'] - back}", state["terminated"]


def situation(events: Iterable[Event]) -> tuple[object, tuple[tuple[str, ...], ...]]:
    """Return the situation at the end: the conditions of each job, and the state of each pod."""
    jobs: dict[str, Step] = {}
    pods: dict[str, tuple[str, ...]] = {}
    for event in events:
        meta = event.object["metadata"]
        if event.job:
            jobs[f"{event.resource}/{meta['name']}"] = _step(event)
        elif event.resource == "pods" and event.type != "DELETED":
            pods[meta["uid"]] = (_node(event.object), *_doing(event.object))
        elif event.resource == "pods":
            pods.pop(meta["uid"], None)
    return tuple(sorted(jobs.items())), tuple(sorted(pods.values()))


def _doing(pod: Object) -> tuple[str, str]:
    going = "going" if "deletionTimestamp" in pod["metadata"] else ""
    states = [status["state"] for status in pod["status"].get("containerStatuses", ())]
    waits = [state["waiting"]["reason"] for state in states if "waiting" in state]
    # The two reasons of a failing pull alternate.
    shown = re.sub("ErrImagePull|ImagePullBackOff", "no image", " ".join(waits))
    return pod["status"]["phase"] + (f" {shown}" if shown else ""), going
