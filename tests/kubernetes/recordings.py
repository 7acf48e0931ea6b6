"""Histories of real jobs on a real cluster (Kubernetes 1.36), read by the code under test."""

import gzip
import json
import random
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

from nbtorchjob import events as ev
from nbtorchjob.backends.kubernetes import reading
from nbtorchjob.backends.kubernetes.kinds.indexedjob import status as indexedjob
from nbtorchjob.backends.kubernetes.kinds.pytorchjob import status as pytorchjob
from nbtorchjob.backends.kubernetes.kinds.trainjob import status as trainjob
from nbtorchjob.backends.kubernetes.kinds.volcano import status as volcano
from nbtorchjob.backends.kubernetes.pod import status as pods
from nbtorchjob.backends.kubernetes.pod import waiting
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.text import facts

ROOT = Path(__file__).parents[3] / "shared" / "recordings"
# The folder of a kind -> the resource that its jobs are, and what reads them.
KINDS: dict[str, tuple[str, Any]] = {
    "pytorchjob": ("pytorchjobs", pytorchjob),
    "trainjob": ("trainjobs", trainjob),
    "vcjob": ("vcjobs", volcano),
    "job": ("jobs", indexedjob),
    "pod": ("", None),
}
LATER = 2e9  # seconds since the epoch; after all that was recorded


def scenarios():
    """Give the folders of all recorded jobs by name; none where there are no recordings beside."""
    return {path.name: path for kind in KINDS for path in sorted((ROOT / kind).glob("*"))}


class Recording:
    """One recorded job."""

    def __init__(self, path):
        self.path = path
        self.resource, self.kind = KINDS[path.parent.name]

    @cached_property
    def changes(self):
        """What the watches gave, in the order of arrival."""
        plain = self.path / "watch.jsonl"
        packed = self.path / "watch.jsonl.gz"
        text = plain.read_text() if plain.exists() else gzip.decompress(packed.read_bytes()).decode()
        changes = map(json.loads, text.splitlines())
        return [change for change in changes if change["type"] != "BOOKMARK"]

    @cached_property
    def refused(self):
        """The messages of what the cluster refused to create."""
        lines = map(json.loads, (self.path / "actions.jsonl").read_text().splitlines())
        return [each["response"]["message"] for each in lines if each["status"] >= 400]

    def until_deleted(self):
        """Give the changes before somebody asked for the end of the job's object."""
        for at, change in enumerate(self.changes):
            gone = change["type"] == "DELETED" or reading.deleted(change["object"]) is not None
            if change["resource"] == self.resource and gone:
                return self.changes[:at]
        return self.changes

    def in_another_order(self, seed):
        """Give the changes with each resource's delayed anew, some doubled, and some lists sent again."""
        chance = random.Random(seed)
        streams: dict[str, list[Any]] = {}
        for change in self.changes:
            streams.setdefault(change["resource"], []).append(change)
        order = [change["resource"] for change in self.changes]
        chance.shuffle(order)
        for resource in order:
            stream = streams[resource]
            yield stream[0]
            if chance.random() < 0.2:
                yield stream[0]
            done = stream.pop(0)
            if done["type"] != "DELETED" and chance.random() < 0.1:
                yield {**done, "type": "ADDED"}

    def read(self, changes):
        """Give the state after each change."""
        state = JobState(JobInfo(self.path.name, "kubernetes", nodes=(2, 2)))
        nodes: dict[str, int] = {}
        early: list[Any] = []
        for change in changes:
            if change["resource"] == "events":
                early.append(change["object"])
            # What is said of a pod that no list has shown yet is read once one has.
            new = [*self._facts(change, nodes), *(e for o in early for e in waiting.facts(o, nodes.get))]
            early = [o for o in early if o["involvedObject"].get("kind") == "Pod" and not _known(o, nodes)]
            state = reduce(apply, new, state)
            yield state

    def _facts(self, change, nodes):
        obj, gone = change["object"], change["type"] == "DELETED"
        if change["resource"] == self.resource:
            return [*self.kind.facts(obj), *([ev.Removed(LATER)] if gone else [])]
        if change["resource"] != "pods":
            return []
        node = self.kind.node(obj) if self.kind else 0
        if node is None:
            return []
        nodes[obj["metadata"]["name"]] = node
        last = [pods.gone(obj, node, LATER + change["t"])] if gone else []
        return [*pods.facts(obj, node), *last]

    def state(self, changes=None):
        """Give the state at the end."""
        *_, last = self.read(self.changes if changes is None else changes)
        return last

    def told(self):
        """Give all that was said of what waits, while the job was there."""
        return {line for state in self.read(self.until_deleted()) for line in facts.waiting(state)}


def _known(event, nodes):
    return event["involvedObject"].get("name") in nodes
