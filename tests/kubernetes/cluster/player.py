"""Plays a recorded scenario on the emulator: its manifests, its client's steps, and the faults that it stands for."""

import json
import math
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.cluster.emulator import Emulator
from tests.kubernetes.cluster.histories import Event, emulated, lives, recorded, situation, steps
from tests.kubernetes.cluster.resources import Object

TAINTED = "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
EMPTYDIR = "Evicted", 'Usage of EmptyDir volume "s" exceeds the limit "3Mi". '
# What was done to the machine then is done to all its pods now, by scenario.
FAULTS: dict[str, Callable[[Emulator, str, list[str]], None]] = {
    "-oom": lambda cluster, space, pods: cluster.oom_kill(space, *pods),
    "-taint-": lambda cluster, space, pods: cluster.evict(space, *pods, why=TAINTED),
    "-evicted-emptydir": lambda cluster, space, pods: cluster.fail_pods(space, *pods, why=EMPTYDIR),
}
# Here it is a matter of luck how pods end: whether by themselves within the grace period, and such.
LUCK = (
    *("ptj-suspend-resume", "ptj-suspend-resume-clean", "trainjob-suspend-resume", "trainjob-activedeadline"),
    # Whether the second pod dies before the job's controller hears of the first.
    *("job-oom", "trainjob-oom", "job-retries-perindex-both-pods-fail"),
)
# Here the client went on while pods were still ending, which looks the same only for moments.
HASTY = ("ptj-suspend-resume", "trainjob-suspend-resume")
INDEX = "batch.kubernetes.io/job-completion-index"
LONGEST_S, QUIET_S = 30.0, 1.0
# A recorded second takes this long; with more of it, controllers that are slow come less late.
PACE = 0.6


class Player:
    """One scenario. Each step of the client is taken when things stand as they stood then."""

    def __init__(self, cluster: Emulator, folder: Path, pace: float = PACE) -> None:
        self.recorded = recorded(folder)
        self._cluster, self._folder, self._name, self._pace = cluster, folder, folder.name, pace
        text = (folder / "manifest.yaml").read_text()
        self._documents = [each for each in yaml.safe_load_all(text) if each["kind"] != "Namespace"]
        # Some have an earlier name of the scenario.
        self._space = self._documents[-1]["metadata"]["namespace"]

    def play(self) -> list[Event]:
        """Play it; give what happened up to where the recording ends."""
        self._cluster.namespace(self._space)
        for document in self._documents:
            self._cluster.request("POST", self._cluster.collection(document), _paced(document, self._pace))
        for line in (self._folder / "actions.jsonl").read_text().splitlines():
            self._act(json.loads(line))
        for mark, fault in FAULTS.items():
            if mark in self._name:
                fault(self._cluster, self._space, self._wait(self._up, "all pods to run"))
        self._wait(self._complete, "")
        return self._events()

    def _events(self) -> list[Event]:
        return emulated(self._cluster.history(self._space))

    def _act(self, action: Object) -> None:
        created = action["what"].startswith("create ")
        if action.get("signal"):
            self._signal(action)
            return
        if action["t"] is None or created or action["method"] not in ("DELETE", "PATCH", "POST"):
            return
        self._arrive(action["t"])
        path, body = action["path"], json.dumps(action.get("body") or {})
        for theirs, ours in self._names().items():
            path, body = path.replace(theirs, ours), body.replace(f'"{theirs}"', f'"{ours}"')
        self._cluster.request(action["method"], path, json.loads(body))

    def _signal(self, action: Object) -> None:
        """Send the signal that a container's first process was sent then."""
        self._arrive(action["t"])
        theirs = re.search(r"pod ([\w-]+)", action["to"])
        assert theirs is not None
        pod = self._names().get(theirs[1], theirs[1])
        self._cluster.signal(self._space, pod, signal.Signals[action["signal"]])

    def _arrive(self, t: float) -> None:
        """Wait until things stand as they stood at a time of the recording."""
        jobs, pods = situation(event for event in self.recorded if event.t < t)
        anyhow = self._name in HASTY

        def there(events: list[Event]) -> bool:
            now = situation(events)
            return now[0] == jobs and (anyhow or now[1] == pods)

        self._wait(there, f"{jobs}, {pods}")

    def _names(self) -> dict[str, str]:
        """Give our random names by theirs: pods of an index, uids of jobs."""
        ours, theirs = _called(self._events()), _called(self.recorded)
        return {
            name: ours[known][place]
            for known, names in theirs.items()
            for place, name in enumerate(names)
            if place < len(ours.get(known, ()))
        }

    def _up(self, events: list[Event]) -> list[str]:
        """Give the pods if all of them run, the jobs say what they said of that, and nothing has happened for a while."""
        said = self._said_of_all_up()
        if said is not None and situation(events)[0] != said:
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
        """Give what the jobs said, in the end, of their pods when all of those ran for the first time, if they did."""
        nodes = len({life.node for life in lives(self.recorded)})
        stood = [situation(self.recorded[:end]) for end in range(1, len(self.recorded) + 1)]
        up = [[each[1:] for each in pods] == [("Running", "")] * nodes for _, pods in stood]
        return stood[up.index(False, up.index(True)) - 1][0] if True in up else None

    def _complete(self, events: list[Event]) -> bool:
        return not self.differences(events)

    def differences(self, events: list[Event]) -> list[str]:
        """Give what is otherwise than recorded: conditions of jobs, pods, and how those ended that did."""
        found = []
        for name, wanted in steps(self.recorded).items():
            if steps(events).get(name) != wanted:
                found.append(f"{name} went {steps(events).get(name)}, not {wanted}")
        mine, theirs = lives(events), lives(self.recorded)
        if self._name in LUCK:
            return found
        if [life.node for life in mine] != [life.node for life in theirs]:
            found.append(f"pods were {[life.node for life in mine]}, not {[life.node for life in theirs]}")
        else:
            pairs = zip(mine, theirs, strict=True)
            found += [f"a pod was {one}, not {other}" for one, other in pairs if other.over and one != other]
        return found

    def _wait(self, until: Callable[[list[Event]], Any], what: str) -> Any:
        """Wait for something to be so; without a name for it the caller looks for itself what came."""
        end, seen = time.monotonic() + LONGEST_S * self._pace / PACE, -1
        while True:
            events = self._events()
            # Many play at once: only news is worth a look.
            if len(events) != seen and (found := until(events)):
                return found
            seen = len(events)
            if time.monotonic() > end:
                assert not what, f"waited for {what}, but it is {situation(events)}"
                return None
            time.sleep(0.1)


def _called(events: list[Event]) -> dict[tuple[str, str], list[str]]:
    """Give the random names of what has something in common with its recording, the oldest first."""
    found: dict[tuple[str, str], list[str]] = {}
    for event in events:
        known, name = _identity(event), _random(event)
        if known and name not in found.setdefault(known, []):
            found[known].append(name)
    return found


def _identity(event: Event) -> tuple[str, str] | None:
    """Give what an object with a random name has in common with its recording."""
    meta = event.object["metadata"]
    if event.job:
        return event.resource, meta["name"]
    index = (meta.get("labels") or {}).get(INDEX)
    return (event.resource, index) if event.resource == "pods" and index else None


def _random(event: Event) -> str:
    meta = event.object["metadata"]
    return str(meta["uid"] if event.job else meta["name"])


def _paced(document: Object, pace: float) -> Object:
    """Change sleeps and grace periods alike; let what would eat the machine's memory sleep."""

    def paced(found: re.Match[str]) -> str:
        seconds = float(found[1])
        # A second is what a controller may need to see what came before.
        return f"sleep {max(seconds * pace, min(seconds, 1.0)):g}"

    text = re.sub(r"sleep ([\d.]+)", paced, json.dumps(document))
    text = text.replace('GracePeriodSeconds": 5', f'GracePeriodSeconds": {math.ceil(5 * pace)}')
    text = re.sub(
        r'"command": \[[^\]]*bytearray[^"\\]*(?:\\.[^"\\]*)*"\]', '"command": ["sleep", "30"]', text
    )
    played: Object = json.loads(text)
    return played
