"""Histories of real jobs on a real cluster (Kubernetes 1.36), read by the code under test."""

import gzip
import json
import random
from dataclasses import replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

from nbtorchjob.backends.kubernetes import lifecycle as pods
from nbtorchjob.backends.kubernetes.control.selection import Troubles
from nbtorchjob.backends.kubernetes.jobs import of_object
from nbtorchjob.backends.kubernetes.kinds import KINDS, Kind
from nbtorchjob.backends.kubernetes.objects import reading, workloads
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.text import facts

ROOT = Path(__file__).parents[4] / "shared" / "recordings"
# A kind's folder -> the resource of its jobs, and the kind that reads them.
FOLDERS: dict[str, tuple[str, Kind]] = {
    "pytorchjob": ("pytorchjobs", KINDS["pytorchjob"]),
    "trainjob": ("trainjobs", KINDS["trainjob"]),
    "vcjob": ("vcjobs", KINDS["volcano"]),
    "job": ("jobs", KINDS["indexedjob"]),
    "pod": ("", replace(KINDS["indexedjob"], node=lambda pod: 0)),  # each pod by itself
}
LATER = 2e9  # seconds since the epoch; after everything recorded


def scenarios():
    """Return the folders of all recorded jobs by name; none if no recordings lie beside the checkout."""
    return {path.name: path for kind in FOLDERS for path in sorted((ROOT / kind).glob("*"))}


class Recording:
    """One recorded job."""

    def __init__(self, path):
        self.path = path
        self.resource, self.kind = FOLDERS[path.parent.name]

    @cached_property
    def changes(self):
        """The changes that the watches sent, in the order of arrival."""
        plain = self.path / "watch.jsonl"
        packed = self.path / "watch.jsonl.gz"
        text = plain.read_text() if plain.exists() else gzip.decompress(packed.read_bytes()).decode()
        changes = map(json.loads, text.splitlines())
        return [change for change in changes if change["type"] != "BOOKMARK"]

    @cached_property
    def refused(self):
        """The messages with which the cluster refused to create objects."""
        lines = map(json.loads, (self.path / "actions.jsonl").read_text().splitlines())
        return [line["response"]["message"] for line in lines if line["status"] >= 400]

    def is_ours(self, obj):
        """Return whether an object is of the recorded job, and not of one that took its quota."""
        if not self.path.name.startswith("kueue-") or obj["kind"] == "Event":
            return True
        owners = obj["metadata"].get("ownerReferences") or [obj["metadata"]]
        return owners[0]["name"].partition("-")[0] == "m"

    def until_deleted(self):
        """Return the changes before somebody deleted the job's object."""
        for at, change in enumerate(self.changes):
            deletion = change["type"] == "DELETED" or reading.deleted(change["object"]) is not None
            if change["resource"] == self.resource and deletion and self.is_ours(change["object"]):
                return self.changes[:at]
        return self.changes

    def in_another_order(self, seed):
        """Yield the changes with their resources reordered, some doubled, and some sent as by a new list."""
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
        """Yield the state after each change."""
        state = JobState(JobInfo(self.path.name, "kubernetes", nodes=(2, 2)))
        troubles = Troubles(self.kind, "")
        for change in changes:
            state = reduce(apply, self.facts(change, troubles), state)
            yield state

    def facts(self, change, troubles):
        """Return the facts that a follower takes from one change."""
        obj, deletion = change["object"], change["type"] == "DELETED"
        if not self.is_ours(obj):
            return []
        if change["resource"] == self.resource:
            events = [*of_object(self.kind, obj), *troubles.know(obj)]
            return [*events, *([ev.Removed(LATER)] if deletion else [])]
        if change["resource"] == "events":
            return troubles.read(obj)
        if change["resource"] == "workloads":
            return [] if deletion else workloads.facts(obj)
        if change["resource"] != "pods" or (node := self.kind.node(obj)) is None:
            return []
        last = [pods.gone_fact(obj, node, LATER + change["t"])] if deletion else []
        return [*pods.facts(obj, node), *troubles.know_pod(obj), *last]

    def state(self, changes=None):
        """Return the state at the end."""
        *_, last = self.read(self.changes if changes is None else changes)
        return last

    def told(self):
        """Return all texts about waiting, from before the deletion of the job."""
        return {line for state in self.read(self.until_deleted()) for line in facts.waiting(state)}
