"""Recorded and emulated histories brought into one form, so that they can be held against each other.

What is kept of a job: each different list of conditions, in order. Of a pod: which node it is, and how it ended. Times, random
names and counts of replicas, which depend on how fast things go, are not kept.
"""

import gzip
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes.cluster.resources import Object
from tests.kubernetes.cluster.store import Change

Step = tuple[tuple[str, str, str], ...]
INDEXES = (
    "training.kubeflow.org/replica-index",
    "batch.kubernetes.io/job-completion-index",
    "volcano.sh/task-index",
)
ROLES = ("training.kubeflow.org/replica-type", "volcano.sh/task-spec")
JOBS = ("pytorchjobs", "trainjobs", "jobsets", "jobs", "vcjobs")


@dataclass(frozen=True)
class Event:
    """One change: what happened to which resource, the object after it, and, if recorded, the second of it."""

    resource: str
    type: str
    object: Object
    t: float = 0.0

    @property
    def job(self) -> bool:
        """Say whether it is about a job of some kind."""
        return self.resource in JOBS


@dataclass(frozen=True)
class Life:
    """One pod: its node, its last phase and reason, how its containers ended, and who took it away.

    `gone` pods have been asked to go; recordings end before some of them have.
    """

    node: str
    phase: str
    reason: str
    ended: str
    disrupted: str
    gone: bool

    @property
    def over(self) -> bool:
        """Say whether it has come to an end."""
        return self.phase in ("Succeeded", "Failed")


def recorded(folder: Path) -> list[Event]:
    """Read a recorded history."""
    packed = folder / "watch.jsonl.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / "watch.jsonl").read_bytes()
    lines = [json.loads(line) for line in text.splitlines()]
    return [Event(line["resource"], line["type"], line["object"], line["t"]) for line in lines]


def emulated(changes: Iterable[Change]) -> list[Event]:
    """Give the emulator's history in the same words."""
    return [Event(_plural(each), each.type, each.object) for each in changes]


def _plural(change: Change) -> str:
    return "vcjobs" if change.resource.qualified == "jobs.batch.volcano.sh" else change.resource.plural


def steps(events: Iterable[Event]) -> dict[str, list[Step]]:
    """Give, for each job object, the different states of its conditions one after the other."""
    found: dict[str, list[Step]] = {}
    for event in events:
        if event.job:
            name = f"{event.resource}/{event.object['metadata']['name']}"
            step = _step(event)
            if found.setdefault(name, [()])[-1] != step:
                found[name].append(step)
    return found


def _step(event: Event) -> Step:
    status = event.object.get("status") or {}
    if event.resource == "vcjobs":
        # Volcano's conditions are its phases once more.
        phase = (status.get("state") or {}).get("phase", "")
        return ((phase, str(status.get("retryCount", 0)), ""),) if phase else ()
    conditions = status.get("conditions") or ()
    return tuple((each["type"], each["status"], each["reason"]) for each in conditions)


def lives(events: Iterable[Event]) -> list[Life]:
    """Give the pods of the jobs, ordered by node and then by the time they appeared."""
    last = {event.object["metadata"]["uid"]: event.object for event in events if event.resource == "pods"}
    found = [_life(pod) for pod in last.values() if _node(pod)]
    return sorted(found, key=lambda life: life.node)


def _node(pod: Object) -> str:
    labels = pod["metadata"].get("labels") or {}
    index = next((labels[name] for name in INDEXES if name in labels), "")
    role = next((labels[name] for name in ROLES if name in labels), "")
    return f"{role}-{index}" if index else ""


def _life(pod: Object) -> Life:
    gone = "deletionTimestamp" in pod["metadata"]
    status = pod.get("status", {})
    ends = [each["state"].get("terminated") for each in status.get("containerStatuses", ())]
    ended = " ".join(f"{end['reason']} {end['exitCode']}" for end in ends if end)
    conditions = status.get("conditions") or ()
    disrupted = [each["reason"] for each in conditions if each["type"] == "DisruptionTarget"]
    reason = status.get("reason", "")
    return Life(_node(pod), status["phase"], reason, ended, "".join(disrupted), gone)


def situation(events: Iterable[Event]) -> tuple[object, tuple[tuple[str, ...], ...]]:
    """Give how things stand: the conditions of each job, and what each pod does right now."""
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
    states = [each["state"] for each in pod["status"].get("containerStatuses", ())]
    waits = [state["waiting"]["reason"] for state in states if "waiting" in state]
    # The two of a failing pull take turns.
    shown = re.sub("ErrImagePull|ImagePullBackOff", "no image", " ".join(waits))
    return pod["status"]["phase"] + (f" {shown}" if shown else ""), going
