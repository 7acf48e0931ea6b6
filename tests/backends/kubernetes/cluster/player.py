"""The player of a recorded scenario on the emulator: its manifests, its client's steps, and its faults."""

import json
import math
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from tests.backends.kubernetes.cluster.emulator import Emulator
from tests.backends.kubernetes.cluster.histories import (
    Ending,
    Event,
    Pod,
    emulated,
    endings,
    first_loss,
    happened,
    lives,
    pods,
    recorded,
    removals,
    situation,
    steps,
    turns,
)
from tests.backends.kubernetes.cluster.resources import Object
from tests.patience import LIMIT

TAINTED = "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
DEADLINE = "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
EMPTYDIR = "Evicted", 'Usage of EmptyDir volume "s" exceeds the limit "3Mi". '
Fault: TypeAlias = Callable[[Emulator, str, list[str]], None]
POD_DEADLINE = "-pod-activedeadline"


def _pass_deadline(cluster: Emulator, space: str, pods: list[str]) -> None:
    """End pods at their deadline, and kill processes that outlast the grace period."""
    cluster.fail_pods(space, *pods, why=DEADLINE)
    cluster.kill_pods(space, *pods)


# By scenario: what was done to the machine in the recording is done to all its pods here.
FAULTS: dict[str, Fault] = {
    "-oom": lambda cluster, space, pods: cluster.oom_kill(space, *pods),
    "-taint-": lambda cluster, space, pods: cluster.evict(space, *pods, why=TAINTED),
    "-evicted-emptydir": lambda cluster, space, pods: cluster.fail_pods(space, *pods, why=EMPTYDIR),
    POD_DEADLINE: _pass_deadline,
}
# In these, chance decides how pods end: by themselves within the grace period or not, for example.
LUCK = (
    *("ptj-suspend-resume", "ptj-suspend-resume-clean", "trainjob-suspend-resume", "trainjob-activedeadline"),
    # Whether the second pod dies before the job's controller hears of the first.
    *("job-oom", "trainjob-oom", "job-retries-perindex-both-pods-fail"),
)
# In these the client went on while pods were still ending, which looks the same only for moments.
HASTY = ("ptj-suspend-resume", "trainjob-suspend-resume")
# In these the job was over before its pods had begun.
UNSTARTED = ("trainjob-activedeadline",)
INDEX = "batch.kubernetes.io/job-completion-index"
QUIET_S, HOUR_S = 1.0, 3600
TOGETHER_S = 1.0  # a controller may see ends this close together as one


class Step(NamedTuple):
    """A step at a time of the recording."""

    t: float
    take: Callable[[], None]


class Player:
    """The player of one scenario, which takes each step of the client in the situation of the recording."""

    def __init__(self, cluster: Emulator, folder: Path) -> None:
        self.recorded = recorded(folder)
        self._cluster, self._folder, self._name = cluster, folder, folder.name
        text = (folder / "manifest.yaml").read_text()
        self._traps = "trap " in text
        self._documents = [
            document for document in yaml.safe_load_all(text) if document["kind"] != "Namespace"
        ]
        # Some namespaces have an earlier name of the scenario.
        self._space = self._documents[-1]["metadata"]["namespace"]
        # How many events of the recording came before the last step of the client.
        self._seen = 0

    def play(self) -> list[Event]:
        """Play the scenario; return the events up to the end of the recording."""
        self._cluster.namespace(self._space)
        for document in self._documents:
            self._cluster.request("POST", self._cluster.collection(document), self._gated(document))
        for step in self._steps():
            step.take()
        self._wait(self._complete, "")
        return self._events()

    def _events(self) -> list[Event]:
        return emulated(self._cluster.history(self._space))

    def _gated(self, document: Object) -> Object:
        """Replace sleeps and programs that eat the machine's memory by gates; make grace an hour long.

        A job's deadline runs from the start of pods, so it becomes longer for a slow machine; a pod's becomes
        so long that only the fault passes it, once all pods run.
        """
        text = json.dumps(document)
        text = re.sub(r"(trap [^;]*?echo [^;]*); sleep [\d.]+", r"\1", text)
        text = re.sub(r"-lt \d+ \]; do sleep", "-lt 1 ]; do sleep", text)
        text = re.sub(r"\bsleep [\d.]+", "gate", text)
        # These pods fail without a sleep, again and again while the other pod may be late.
        text = text.replace("/dev/termination-log; exit", "/dev/termination-log; gate; exit")
        text = re.sub(r'GracePeriodSeconds": \d+', f'GracePeriodSeconds": {HOUR_S}', text)
        longer = HOUR_S if POD_DEADLINE in self._name else 4
        text = re.sub(
            r'("activeDeadlineSeconds": )(\d)\b', lambda match: f"{match[1]}{longer * int(match[2])}", text
        )
        text = re.sub(r'"command": \[[^\]]*bytearray[^"\\]*(?:\\.[^"\\]*)*"\]', '"command": ["gate"]', text)
        played: Object = json.loads(text)
        return played

    def _steps(self) -> list[Step]:
        """Return the steps in order: those of the client, the faults, and the ends and removals of pods."""
        lines = (self._folder / "actions.jsonl").read_text().splitlines()
        plan = [
            Step(action["t"], partial(self._act, action))
            for action in map(json.loads, lines)
            if _acts(action)
        ]
        between = [*turns(self.recorded), *(step.t for step in plan)]
        if self._name not in UNSTARTED:
            groups = _groups(self.recorded, between)
            # If pods are signalled one after the other, a slow machine would show one end before the next.
            signals = [action["t"] for action in map(json.loads, lines) if action.get("signal")]
            plan[:0] = [Step(self._begun(group, signals), partial(self._bind, group)) for group in groups]
            plan += [Step(group[0].t, partial(self._end, group)) for group in groups]
            plan += [Step(t, partial(self._let_go, t, pod)) for t, pod in removals(self.recorded)]
        for mark, fault in FAULTS.items():
            if mark in self._name:
                plan.append(Step(first_loss(self.recorded), partial(self._strike, fault)))
        return sorted(plan, key=lambda step: step.t)

    def _strike(self, fault: Fault) -> None:
        fault(self._cluster, self._space, self._wait(self._up, "all pods to run"))

    def _begun(self, group: list[Ending], signals: list[float]) -> float:
        """Return when containers ended, or when the first of the signals that ended them was sent."""
        end = group[0].t
        before = max((event.t for event in self.recorded if event.t < end), default=0.0)
        return min((t for t in signals if before < t <= end), default=end)

    def _bind(self, group: list[Ending]) -> None:
        """Make the ends of containers visible only together."""
        uids = self._come(group[0].t, *(ending.pod for ending in group))
        self._cluster.end_together(*(uids[ending.pod] for ending in group))

    def _end(self, group: list[Ending]) -> None:
        """End containers as in the recording: by themselves, or at the end of their grace period."""
        uids = self._come(group[0].t, *(ending.pod for ending in group))
        for ending in group:
            if ending.killed:
                self._cluster.end_grace(uids[ending.pod])
        left = [ending for ending in group if not ending.killed]

        def all_end(events: list[Event]) -> bool:
            over = happened(events)
            left[:] = [
                ending
                for ending in left
                if (ending.pod, f"ended {ending.life}") not in over
                and not self._cluster.open_gate(uids[ending.pod])
            ]
            return not left

        self._wait(all_end, f"{left} to end", look_always=True)

    def _let_go(self, t: float, pod: Pod) -> None:
        self._cluster.let_go(self._come(t, pod)[pod])

    def _come(self, t: float, *those: Pod) -> dict[Pod, str]:
        """Wait for the milestones of the recording before ``t``, and for those pods; return all uids."""
        before = happened(event for event in self.recorded if event.t < t)

        def come(events: list[Event]) -> bool:
            return happened(events) >= before and pods(events).keys() >= set(those)

        self._wait(come, f"{before}, {those}")
        return pods(self._events())

    def _act(self, action: Object) -> None:
        if action.get("signal"):
            self._signal(action)
        else:
            self._ask(action)

    def _ask(self, action: Object) -> None:
        self._arrive(action["t"])
        path, body = action["path"], json.dumps(action.get("body") or {})
        for name, counterpart in self._names().items():
            path, body = path.replace(name, counterpart), body.replace(f'"{name}"', f'"{counterpart}"')
        self._cluster.request(action["method"], path, json.loads(body))

    def _signal(self, action: Object) -> None:
        """Send the recorded signal to a container's first process."""
        self._arrive(action["t"])
        match = re.search(r"pod ([\w-]+)", action["to"])
        assert match is not None
        pod = self._names().get(match[1], match[1])
        self._cluster.signal(self._space, pod, signal.Signals[action["signal"]])

    def _arrive(self, t: float) -> None:
        """Wait until the situation is that of the recording at ``t``."""
        then = [event for event in self.recorded if event.t < t]
        if len(then) == self._seen:
            return  # no event came after the last step, which may have taken effect by now
        self._seen = len(then)
        before, (jobs, doing) = happened(then), situation(then)
        anyhow = self._name in HASTY

        def there(events: list[Event]) -> bool:
            now = situation(events)
            arrived = now[0] == jobs and (now[1] == doing or anyhow) and happened(events) >= before
            return arrived and (not self._traps or self._at_gates(events))

        self._wait(there, f"{before}, {jobs}, {doing}", look_always=self._traps)

    def _at_gates(self, events: list[Event]) -> bool:
        """Return whether all running pods are at their gates, after they have set their traps."""
        last = {event.object["metadata"]["uid"]: event for event in events if event.resource == "pods"}
        return all(
            self._cluster.at_gate(uid)
            for uid, event in last.items()
            if event.type != "DELETED" and event.object["status"]["phase"] == "Running"
        )

    def _names(self) -> dict[str, str]:
        """Return our random names by those of the recording: names of an index's pods, uids of jobs."""
        emulation, recording = _called(self._events()), _called(self.recorded)
        return {
            name: emulation[identity][place]
            for identity, names in recording.items()
            for place, name in enumerate(names)
            if place < len(emulation.get(identity, ()))
        }

    def _up(self, events: list[Event]) -> list[str]:
        """Return the pods if all run, jobs' conditions are as recorded, and nothing changes for QUIET_S."""
        conditions = self._said_of_all_up()
        if conditions is not None and situation(events)[0] != conditions:
            return []
        last = {
            event.object["metadata"]["name"]: event.object for event in events if event.resource == "pods"
        }
        running = [name for name, pod in last.items() if pod["status"]["phase"] == "Running"]
        if len(running) < len({life.node for life in lives(self.recorded)}):
            return []
        time.sleep(QUIET_S)
        return running if len(self._events()) == len(events) else []

    def _said_of_all_up(self) -> object:
        """Return the jobs' last recorded conditions while all pods first ran; None if they never did."""
        nodes = len({life.node for life in lives(self.recorded)})
        stood = [situation(self.recorded[:end]) for end in range(1, len(self.recorded) + 1)]
        up = [[pod[1:] for pod in pods] == [("Running", "")] * nodes for _, pods in stood]
        return stood[up.index(False, up.index(True)) - 1][0] if True in up else None

    def _complete(self, events: list[Event]) -> bool:
        return not self.differences(events)

    def differences(self, events: list[Event]) -> list[str]:
        """Return the differences from the recording: conditions of jobs, pods, and how ended pods ended."""
        lines = []
        for name, sequence in steps(self.recorded).items():
            if steps(events).get(name) != sequence:
                lines.append(f"{name} went {steps(events).get(name)}, not {sequence}")
        emulation, recording = lives(events), lives(self.recorded)
        if self._name in LUCK:
            return lines
        if [life.node for life in emulation] != [life.node for life in recording]:
            lines.append(
                f"pods were {[life.node for life in emulation]}, not {[life.node for life in recording]}"
            )
        else:
            pairs = zip(emulation, recording, strict=True)
            lines += [
                f"a pod was {life}, not {other}" for life, other in pairs if other.over and life != other
            ]
        return lines

    def _wait(self, until: Callable[[list[Event]], Any], what: str, *, look_always: bool = False) -> Any:
        """Return the result of ``until`` once it is true; at the limit, fail with ``what`` or return None."""
        end, length = time.monotonic() + LIMIT, -1
        while True:
            history = self._cluster.history(self._space)
            # Many players run at once: look only if there are new changes.
            if (look_always or len(history) != length) and (answer := until(emulated(history))):
                return answer
            length = len(history)
            if time.monotonic() > end:
                assert not what, f"waited for {what}, but it is {situation(emulated(history))}"
                return None
            time.sleep(0.1)


def _called(events: list[Event]) -> dict[tuple[str, str], list[str]]:
    """Return objects' random names by what they have in common with the recording, the oldest first."""
    names: dict[tuple[str, str], list[str]] = {}
    for event in events:
        identity, name = _identity(event), _random(event)
        if identity and name not in names.setdefault(identity, []):
            names[identity].append(name)
    return names


def _identity(event: Event) -> tuple[str, str] | None:
    """Return the part of an object with a random name that it has in common with its recording."""
    meta = event.object["metadata"]
    if event.job:
        return event.resource, meta["name"]
    index = (meta.get("labels") or {}).get(INDEX)
    return (event.resource, index) if event.resource == "pods" and index else None


def _random(event: Event) -> str:
    meta = event.object["metadata"]
    return str(meta["uid"] if event.job else meta["name"])


def _groups(events: list[Event], between: list[float]) -> list[list[Ending]]:
    """Return the ends of containers in groups that came soon after each other, with nothing in between."""
    groups: list[list[Ending]] = []
    for ending in sorted(endings(events), key=lambda end: end.t):
        last = groups[-1][-1].t if groups else -math.inf
        if ending.t - last < TOGETHER_S and not any(last <= t <= ending.t for t in between):
            groups[-1].append(ending)
        else:
            groups.append([ending])
    return groups


def _acts(action: Object) -> bool:
    """Return whether the client did something other than create the job."""
    changes = action["t"] is not None and action.get("method") in ("DELETE", "PATCH", "POST")
    return bool(action.get("signal") or (changes and not action["what"].startswith("create ")))
