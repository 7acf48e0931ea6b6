"""A pod as facts: when it started, how it ended, who removed it, why it waits (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import Object, seconds
from nbtorchjob.backends.kubernetes.pod import waiting
from nbtorchjob.state import events as ev
from nbtorchjob.state import failure

# What a termination message may hold; our runtime writes it in the form of the log's facts.
_LAST_WORDS = ("RankFailed", "RankExited", "NodeFailed")


def facts(pod: Object, node: int, container: str = "") -> list[ev.Event]:
    """Return a pod's facts about node ``node``; ``container`` names ours, by default the pod's first."""
    return list(_Pod(pod, node, container).facts())


def gone(pod: Object, node: int, time: float) -> ev.Event:
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
        yield from self._placing()
        yield from self._runs()
        yield from self._end()
        yield from self._disruption()

    @property
    def _latest(self) -> float:
        """When something last changed: for what the cluster doesn't date."""
        times = [reading.since(condition) for condition in self._status.get("conditions") or ()]
        return max(*times, reading.created(self._pod), seconds(self._status.get("startTime")), 0.0)

    def _placing(self) -> Iterator[ev.Event]:
        unplaced = reading.condition(self._pod, "PodScheduled", "False")
        if unplaced is not None and unplaced.get("reason") == "SchedulingGated":
            yield self._wait(reading.since(unplaced), waiting.GATED, "SchedulingGated", ev.Stage.QUEUED)
        elif unplaced is not None:
            why = waiting.placing(unplaced.get("message", ""), waiting.requests(self._pod))
            fact = self._wait(reading.since(unplaced), why, "Unschedulable", ev.Stage.PLACING)
            yield replace(fact, since=fact.time)

    def _wait(self, time: float, text: str, reason: str, stage: ev.Stage) -> ev.Waiting:
        return ev.Waiting(time, text, self._node, self._uid, reason, stage)

    def _runs(self) -> Iterator[ev.Event]:
        last = (self._container.get("lastState") or {}).get("terminated")
        waits = self._state.get("waiting")
        if last:
            # restartCount grows with the start of the next run, not with the end of the last.
            yield from self._ended(last, self._run if waits else self._run - 1)
        if (running := self._state.get("running")) is not None:
            yield self._started(running, self._run)
        if (ended := self._state.get("terminated")) is not None:
            yield from self._ended(ended, self._run)
            if self._starts_again(ended):
                yield self._between({}, ended)
        if waits and last:
            yield self._between(waits, last)
        elif waits:
            reason, text = waiting.starting(waits.get("reason") or "", waits.get("message") or "")
            yield self._wait(self._latest, text, reason, ev.Stage.STARTING)

    def _starts_again(self, ended: Object) -> bool:
        """Whether the kubelet will start a container again that has just ended."""
        policy = (self._pod.get("spec") or {}).get("restartPolicy")
        failed = ended["exitCode"] != 0
        live = self._status.get("phase") == "Running" and reading.deleted(self._pod) is None
        return live and (policy == "Always" or (policy == "OnFailure" and failed))

    def _started(self, state: Object, run: int) -> ev.Event:
        time, image = seconds(state.get("startedAt")), str(self._container.get("imageID") or "")
        return ev.NodeStarted(time, self._node, self._host, 0, self._uid, run, image=image)

    def _ended(self, state: Object, run: int) -> Iterator[ev.Event]:
        if seconds(state.get("startedAt")) > 0:  # StartError: 1970; ContainerStatusUnknown: null
            yield self._started(state, run)
        events, text = _last_words(state.get("message") or "")
        yield from events
        reason = str(state.get("reason") or "")
        code: int | None = state["exitCode"]
        if reason == "ContainerStatusUnknown":
            code = None  # the kubelet reports 137 for an end that it never saw
        if reason == "OOMKilled":
            text = f"its limit was {self._memory}" if self._memory else failure.NO_LIMIT
        time = seconds(state.get("finishedAt")) or self._latest
        signal = code - 128 if code is not None and 128 < code <= 192 else None
        fact = ev.NodeExited(time, self._node, code, signal, self._uid, reason, text, run)
        yield fact if failure.tells(fact) or run != self._run else self._with_pods_reason(fact)

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
        failed = _failed_init(self._status)
        if failed is not None:
            code = failed["state"]["terminated"]["exitCode"]
            text = f"its init container {failed['name']} exited with code {code}"
            yield ev.NodeExited(
                end.time, end.node, code, None, self._uid, failure.INIT_FAILED, text, self._run
            )
        else:
            yield self._with_pods_reason(end)

    def _disruption(self) -> Iterator[ev.Event]:
        deleted = reading.deleted(self._pod)
        target = reading.condition(self._pod, "DisruptionTarget")
        # The condition alone may be stale: the disruption was called off (KEP 3329).
        if target is not None and (deleted is not None or self._status.get("phase") == "Failed"):
            reason, text = str(target.get("reason")), str(target.get("message") or "")
            yield ev.NodeDisrupted(reading.since(target), self._node, self._uid, reason, text)
        elif deleted is not None:
            order = str(reading.meta(self._pod).get("resourceVersion") or "")
            yield ev.NodeDisrupted(deleted, self._node, self._uid, ev.DELETED, order=order)


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


def _failed_init(status: Object) -> Object | None:
    entry: Object
    for entry in status.get("initContainerStatuses") or ():
        if ((entry.get("state") or {}).get("terminated") or {}).get("exitCode"):
            return entry
    return None


def _last_words(message: str) -> tuple[list[ev.Event], str]:
    """Return the facts that a termination message holds, and its remaining text."""
    events: list[ev.Event] = []
    text: list[str] = []
    for line in message.splitlines():
        event = _event(line)
        if event is None:
            text.append(line)
        else:
            events.append(event)
    return events, "\n".join(text).strip()


def _event(line: str) -> ev.Event | None:
    try:
        record = json.loads(line)
        return ev.from_json(record) if record["event"] in _LAST_WORDS else None
    except ev.UNREADABLE:  # whatever the container wrote there
        return None
