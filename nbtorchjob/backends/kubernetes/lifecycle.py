"""A pod's life as facts: why it waits, when it started, how it ended, who removed it (pure).

Why something doesn't run yet is read from conditions, container states and events, and put in plain words.

Kubernetes' own PodGroups are read as well: pods that its scheduler places all at once, or not at all.
In 1.36 the Job controller makes one for each Indexed Job of several nodes, if the alpha gates
GenericWorkload and EnableWorkloadWithJob are on; its pods name it. In 1.37 it does so for
every Job, and a group whose job doesn't ask for more has the policy ``basic``: each pod is placed by itself.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from nbtorchjob.backends.kubernetes.api.errors import missing
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import Object, seconds
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.state import failure
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines
from nbtorchjob.state.facts.events import Stage

GATED = "held back until it is admitted (a scheduling gate, as Kueue sets)"

# Parts of a scheduler's message about the hosts, Kubernetes' or Volcano's.
_UNSCHEDULABLE = {
    "node affinity/selector": "no host matches the node selector",
    "untolerated taint": "a host has a taint that the job doesn't tolerate",
    "unbound immediate PersistentVolumeClaims": "its volume claim isn't bound",
    "persistentvolumeclaim": "its volume claim doesn't exist",
    "no nodes available": "the cluster has no hosts",
    "0/0 nodes": "the cluster has no hosts",
    "unschedulable": "a host is closed for new pods",
}
_NOT_ENOUGH = re.compile(r"Insufficient ([\w./-]*[\w/-])")
_QUOTA = re.compile(r"exceeded quota: (\S+), requested: (.+), used: (.+), limited: (.+)")
# Prefixes of messages that name the problem only after them.
_BOTHER = re.compile(r'Error creating: |admission webhook "\S+" denied the request: ')


class Complaints(FrozenDataclass):
    """How an operator reports why it can't make what a job needs, in events of the job and of its children.

    ``refusals`` maps the reasons of events that mean that it can't request pods to explanations. ``plain``
    returns an event's text in the API's own words, from its reason and message, or "" if it is no trouble.
    ``forbidden`` maps signs of what the operator adds to pods, in a Pod Security standard's refusal, to
    remedies.
    """

    refusals: Mapping[str, str] = field(default_factory=dict)
    plain: Callable[[str, str], str] = lambda reason, message: message
    forbidden: Mapping[str, str] = field(default_factory=dict)


_NONE = Complaints()


def requests(pod: Object) -> dict[str, str]:
    """Return what a pod's containers request, by resource."""
    totals: dict[str, str] = {}
    for container in (pod.get("spec") or {}).get("containers") or ():
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            totals[name] = f"{totals[name]} + {amount}" if name in totals else str(amount)
    return totals


def placing(message: str, amounts: Mapping[str, str] | None = None) -> str:
    """Explain in plain words why a scheduler finds no host; ``amounts`` are what the pod requests."""
    if "minAvailable" in message:
        return gang(message)
    short = sorted(set(_NOT_ENOUGH.findall(message)))
    reasons = []
    if short:
        wants = [f"{amounts[name]} {name}" for name in short if name in amounts] if amounts else []
        more = f" (it asks for {' and '.join(wants)})" if wants else ""
        reasons.append(f"no host has enough {' and '.join(short)} free{more}")
    reasons += [words for sign, words in _UNSCHEDULABLE.items() if sign in message]
    return "; ".join(dict.fromkeys(reasons)) or message


def gang(message: str) -> str:
    """Explain in plain words why Volcano starts none of a job's pods."""
    _, _, origin = message.partition("Origin reason is ")
    pod, _, why = origin.partition(": ")
    if why:
        return f"waiting until all pods fit at once (gang): {pod}: {placing(why)}"
    return f"waiting until all pods fit at once (gang): {message}"


def starting(reason: str, message: str) -> tuple[str, str]:
    """Return what is wrong with a container that is about to start ("" for nothing), and why it waits."""
    if reason in ("", "ContainerCreating"):
        return "", "its container is being created"
    if reason == "PodInitializing":
        return "", "its init containers are running"
    trouble = failure.trouble(reason, message)
    return reason, ": ".join(part for part in (trouble, _PULLING.sub("", message.strip())) if part)


# What kubelet and containerd put before the reason; each repeats the image.
_PULLING = re.compile(r'Failed to pull image "[^"]*": (?:rpc error: [^:]*: )?(?=failed to pull)')


def creating(message: str, forbidden: Mapping[str, str]) -> str:
    """Explain in plain words why a controller can't create a pod; ``forbidden`` as in ``Complaints``."""
    quota = _QUOTA.search(message)
    if "violates PodSecurity" in message:
        # The remedy for what a namespace's Pod Security standard forbids
        remedy = next((remedy for sign, remedy in forbidden.items() if sign in message), None)
        if remedy is None and ("volume" in message or "privileged (" in message):
            remedy = "omit the --mount of a host's folder or device, or choose another namespace"
        elif remedy is None:
            remedy = "set --run-as UID to a user other than root that can read the image's files"
        return f"a pod can't be created: {remedy}: {_BOTHER.sub('', message)}"
    if quota is None:
        return missing(message) or f"a pod can't be created: {_BOTHER.sub('', message)}"
    name, requested, used, limited = quota.groups()
    return f"the quota {name} is used up: {used} of {limited} used, {requested} more requested"


# Selectors of the events that say why a pod waits: all warnings, and two kinds of normal events. A selector
# has no "or", and the other reasons of normal events can't be listed, so each of these is a watch of its own.
TELLING = ("type=Warning", "type=Normal,reason=Pulling", "type=Normal,reason=TriggeredScaleUp")


def waiting_facts(
    event: Object,
    node_of: Callable[[str], int | None],
    pod_of: Callable[[str], Object | None] = lambda _: None,
    complaints: Complaints = _NONE,
) -> list[ev.Event]:
    """Return what an event (core/v1) reports; ``node_of`` and ``pod_of`` find the job's pods by name.

    ``complaints`` are those of the operator of the job's kind.
    """
    about: Object = event.get("involvedObject") or {}
    reason, message = str(event.get("reason") or ""), str(event.get("message") or "").strip()
    if about.get("kind") != "Pod":
        node, uid, notice = None, "", _of_job(str(about.get("kind")), reason, message, complaints)
    else:
        name, uid = str(about.get("name")), str(about.get("uid") or "")
        node = node_of(name)
        # A second pull follows a failed one, whose reason stays valid until the image is there.
        again = reason == "Pulling" and int(event.get("count") or 1) > 1
        if node is None or again:
            notice = None
        elif reason == "FailedScheduling":
            notice = Stage.PLACING, "Unschedulable", placing(message, requests(pod_of(name) or {}))
        elif reason == "TriggeredScaleUp":
            notice = Stage.PLACING, "", "the cluster is adding a host for it"
        elif reason == "Pulling":
            notice = Stage.STARTING, "", message[:1].lower() + message[1:]
        elif reason == "InspectFailed":
            notice = Stage.STARTING, *starting("InvalidImageName", message)
        elif reason in (
            "FailedMount",
            "FailedAttachVolume",
            "FailedCreatePodSandBox",
            "ErrImageNeverPull",
        ):
            notice = Stage.STARTING, *starting(reason, message)
        else:
            failed = _failed(message) if reason == "Failed" else None
            notice = (Stage.STARTING, *starting(*failed)) if failed else None
    if notice is None:
        return []
    stage, word, text = notice
    if word:
        stamps = (event.get("firstTimestamp"), event.get("eventTime"))
        since = next((seconds(stamp) for stamp in stamps if stamp), 0.0) or _time(event)
    else:
        since = 0.0
    return [ev.Waiting(_time(event), text, node, uid, word, stage, since=since)]


def _time(event: Object) -> float:
    # The new events API has series and eventTime, the old one lastTimestamp, which repeated events update.
    series: Object = event.get("series") or {}
    stamps = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((seconds(stamp) for stamp in stamps if stamp), 0.0) or reading.created(event)


def _of_job(kind: str, reason: str, message: str, complaints: Complaints) -> tuple[Stage, str, str] | None:
    if kind == "PodGroup" and reason == "Unschedulable":
        return Stage.QUEUED, reason, gang(message)
    message = complaints.plain(reason, message)
    why = _BOTHER.sub("", message)
    if not message:
        return None
    if reason in ("FailedCreate", "FailedCreatePod"):
        return Stage.PLACING, "FailedCreate", creating(message, complaints.forbidden)
    if reason == "FailedCreateService":
        return Stage.PLACING, reason, f"its Service can't be created: {why}"
    if reason in complaints.refusals:
        text = f"its pods can't be requested: {complaints.refusals[reason]}: {why}"
        return Stage.PLACING, failure.PODS_REFUSED, text
    return None


def _failed(message: str) -> tuple[str, str] | None:
    """Return the waiting reason of the container that a ``Failed`` event stands for, and its text."""
    if message.startswith("Failed to pull image"):
        return "ErrImagePull", message
    text = message.removeprefix("Error: ")
    if " " not in text:  # only names a reason, such as ImagePullBackOff
        return None
    return ("CreateContainerConfigError" if _UNFIT.search(text) else "RunContainerError"), text


# A Secret, a ConfigMap or a key of one that doesn't exist, and an image that runs as root. What doesn't exist
# may also be a program in the image.
_UNFIT = re.compile(r"^(secret|configmap) .* not found|find key .* in (Secret|ConfigMap)|runAsNonRoot")


_PLACED = ("PodGroupScheduled", "PodGroupInitiallyScheduled")  # in 1.36, and from 1.37 on


def name(pod: Object) -> str:
    """Return the name of a pod's group; "" for a pod without a group."""
    return str(((pod.get("spec") or {}).get("schedulingGroup") or {}).get("podGroupName") or "")


def group_facts(group: Object) -> list[ev.Event]:
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


# What a termination message may hold; our runtime writes it in the form of the log's facts.
_LAST_WORDS = ("RankFailed", "RankExited", "NodeFailed")


def facts(pod: Object, node: int, container: str = "") -> list[ev.Event]:
    """Return a pod's facts about ``node``; ``container`` names the job's own, by default the pod's first."""
    return list(_Pod(pod, node, container).facts())


def gone_fact(pod: Object, node: int, time: float) -> ev.Event:
    """Return the fact that the pod no longer exists, as seen at ``time`` (seconds since the epoch)."""
    return ev.NodeGone(time, node, str(reading.meta(pod)["uid"]))


class _Pod:
    """One pod as it was read once."""

    def __init__(self, pod: Object, node: int, container: str) -> None:
        self._pod = pod
        self._node = node
        self._uid = str(reading.meta(pod)["uid"])
        self._status = reading.status(pod)
        spec: Object = pod.get("spec") or {}
        self._host = str(spec.get("nodeName") or "")
        containers = spec.get("containers") or [{}]
        name = container or containers[0].get("name")
        self._memory = _limit(_named(spec, "containers", name)) or _limit(spec)
        self._container = _named(self._status, "containerStatuses", name)
        self._run = int(self._container.get("restartCount") or 0)
        self._state: Object = self._container.get("state") or {}

    def facts(self) -> Iterator[ev.Event]:
        yield ev.Waiting(reading.created(self._pod), "waiting for a host", self._node, self._uid)
        unplaced = reading.condition(self._pod, "PodScheduled", "False")
        if unplaced is not None and unplaced.get("reason") == "SchedulingGated":
            yield self._wait(reading.since(unplaced), GATED, "SchedulingGated", ev.Stage.QUEUED)
        elif unplaced is not None:
            why = placing(unplaced.get("message", ""), requests(self._pod))
            fact = self._wait(reading.since(unplaced), why, "Unschedulable", ev.Stage.PLACING)
            yield replace(fact, since=fact.time)
        last = (self._container.get("lastState") or {}).get("terminated")
        waits = self._state.get("waiting")
        if last:
            # restartCount grows with the start of the next run, not with the end of the last.
            yield from self._ended(last, self._run if waits else self._run - 1)
        if (running := self._state.get("running")) is not None:
            yield self._started(running, self._run)
        if (ended := self._state.get("terminated")) is not None:
            yield from self._ended(ended, self._run)
            # The kubelet may start a container again that has just ended.
            policy = (self._pod.get("spec") or {}).get("restartPolicy")
            failed = ended["exitCode"] != 0
            live = self._status.get("phase") == "Running" and reading.deleted(self._pod) is None
            if live and (policy == "Always" or (policy == "OnFailure" and failed)):
                yield self._between({}, ended)
        if waits and last:
            yield self._between(waits, last)
        elif waits:
            reason, text = starting(waits.get("reason") or "", waits.get("message") or "")
            yield self._wait(self._latest, text, reason, ev.Stage.STARTING)
        yield from self._end()
        deleted = reading.deleted(self._pod)
        target = reading.condition(self._pod, "DisruptionTarget")
        # The condition alone may be stale: the disruption was called off (KEP 3329).
        if target is not None and (deleted is not None or self._status.get("phase") == "Failed"):
            reason, text = str(target.get("reason")), str(target.get("message") or "")
            yield ev.NodeDisrupted(reading.since(target), self._node, self._uid, reason, text)
        elif deleted is not None:
            order = str(reading.meta(self._pod).get("resourceVersion") or "")
            yield ev.NodeDisrupted(deleted, self._node, self._uid, ev.DELETED, order=order)

    @property
    def _latest(self) -> float:
        """When something last changed, for facts that the cluster doesn't date."""
        times = [reading.since(condition) for condition in self._status.get("conditions") or ()]
        return max(*times, reading.created(self._pod), seconds(self._status.get("startTime")), 0.0)

    def _wait(self, time: float, text: str, reason: str, stage: ev.Stage) -> ev.Waiting:
        return ev.Waiting(time, text, self._node, self._uid, reason, stage)

    def _started(self, state: Object, run: int) -> ev.Event:
        time, image = seconds(state.get("startedAt")), str(self._container.get("imageID") or "")
        return ev.NodeStarted(time, self._node, self._host, 0, self._uid, run, image=image)

    def _ended(self, state: Object, run: int) -> Iterator[ev.Event]:
        if seconds(state.get("startedAt")) > 0:  # StartError: 1970; ContainerStatusUnknown: null
            yield self._started(state, run)
        # The facts that a termination message holds, and its remaining text
        message = state.get("message") or ""
        rest: list[str] = []
        for line in message.splitlines():
            try:
                record = json.loads(line)
                event = factlines.from_json(record) if record["event"] in _LAST_WORDS else None
            except factlines.UNREADABLE:  # whatever the container wrote there
                event = None
            if event is None:
                rest.append(line)
            else:
                yield event
        text = "\n".join(rest).strip()
        reason = str(state.get("reason") or "")
        code: int | None = state["exitCode"]
        if reason == failure.UNSEEN:
            code = None
        if reason == "OOMKilled":
            text = f"its limit was {self._memory}" if self._memory else failure.NO_LIMIT
        time = seconds(state.get("finishedAt")) or self._latest
        signal = code - 128 if code is not None and 128 < code <= 192 else None
        fact = ev.NodeExited(time, self._node, code, signal, self._uid, reason, text, run)
        yield fact if failure.explains(fact) or run != self._run else self._with_pods_reason(fact)

    def _with_pods_reason(self, end: ev.NodeExited) -> ev.NodeExited:
        reason = self._status.get("reason") if self._status.get("phase") == "Failed" else None
        text = str(self._status.get("message") or "").strip()
        if not reason:
            return end
        return ev.NodeExited(end.time, end.node, end.code, end.signal, end.pod, str(reason), text, end.run)

    def _between(self, waits: Object, last: Object) -> ev.Event:
        reason = last["reason"] if last.get("reason") not in (None, "Error") else waits.get("reason", "")
        how = f"{last.get('reason') or 'Error'}, exit code {last['exitCode']}"
        time = seconds(last.get("finishedAt")) or self._latest
        fact = self._wait(time, f"starting again after {how}", reason, ev.Stage.RESTARTING)
        return replace(fact, run=self._run)

    def _end(self) -> Iterator[ev.Event]:
        """Yield the end of a pod whose container reports none: refused, lost with its host, never started."""
        if self._status.get("phase") != "Failed" or self._state.get("terminated") is not None:
            return
        end = ev.NodeExited(self._latest, self._node, pod=self._uid, run=self._run)
        inits = self._status.get("initContainerStatuses") or ()
        ends = ((entry, (entry.get("state") or {}).get("terminated") or {}) for entry in inits)
        failed = next((entry for entry, ended in ends if ended.get("exitCode")), None)
        if failed is not None:
            terminated = failed["state"]["terminated"]
            target = reading.condition(self._pod, "DisruptionTarget")
            times = [reading.deleted(self._pod), None if target is None else reading.since(target)]
            finished = seconds(terminated.get("finishedAt")) or math.inf
            # A pod that is evicted, preempted or deleted ends its init container, whose code says nothing.
            if self._status.get("reason") or any(time is not None and time <= finished for time in times):
                failed = None
        if failed is not None:
            code = terminated["exitCode"]
            text = f"its init container {failed['name']} exited with code {code}"
            yield ev.NodeExited(
                end.time, end.node, code, None, self._uid, failure.INIT_FAILED, text, self._run
            )
        else:
            yield self._with_pods_reason(end)


def _named(status: Object, group: str, name: Any) -> Object:
    entry: Object
    for entry in status.get(group) or ():
        if entry.get("name") == name:
            return entry
    return {}


def _limit(owner: Object) -> str | None:
    """Return the memory limit of a container, or of a pod's spec (from Kubernetes 1.32 on)."""
    limit: str | None = ((owner.get("resources") or {}).get("limits") or {}).get("memory")
    return limit
