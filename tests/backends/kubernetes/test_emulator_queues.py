"""The emulator's Kueue compared with a real one (0.19), on jobs of three kinds."""

import gzip
import json
import re
import urllib.error
from functools import partial

import pytest
import yaml

from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.emulator import KINDS
from tests.backends.kubernetes.cluster.resources import SHARED
from tests.backends.kubernetes.stage import until

RECORDED = SHARED / "recordings-2"
pytestmark = pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recordings at {RECORDED}")
SCENARIOS = """
    admitted-at-once queued-quota no-localqueue inactive-clusterqueue never-fits preempted drained deactivated
    suspend-admitted suspend-queued unsuspend-queued suspend-and-deactivate suspend-and-to-absent-queue
    queued-to-absent-queue delete-queued deadline-admitted
"""
# If a suspension is reverted while pods begin or end, what operators do is chance, except with a Job.
CHANCE = [
    "suspend-admitted",
    "suspend-and-to-absent-queue",
    "unsuspend-queued",
    "deactivated",
    "suspend-and-deactivate",
    "drained",
    "deadline-admitted",
]
KIND = {"job": "jobs", "pytorchjob": "pytorchjobs", "trainjob": "trainjobs"}
PLAYED = [
    f"{kind}/kueue-{name}"
    for name in SCENARIOS.split()
    for kind in KIND
    if (RECORDED / kind / f"kueue-{name}").is_dir() and (kind == "job" or name not in CHANCE)
]
FURNITURE = ("ResourceFlavor", "WorkloadPriorityClass")
SUSPENDS = {
    "jobs": ("spec", "suspend"),
    "pytorchjobs": ("spec", "runPolicy", "suspend"),
    "trainjobs": ("spec", "suspend"),
}
# A real Kueue frees the quota of another job's pods as they end, before that job has ended.
VARIES = re.compile(r"UID: [\w-]+|\d+m more needed")


class Story:
    """The changes of a job's suspension and of its Workload's conditions, without repetitions."""

    def __init__(self):
        self.said = {}

    def hear(self, resource, obj):
        if resource in SUSPENDS and obj["metadata"]["name"] == "m":
            value = obj
            for name in SUSPENDS[resource]:
                value = (value or {}).get(name)
            self._note("suspend", bool(value))
        elif resource == "workloads":
            for condition in (obj.get("status") or {}).get("conditions") or ():
                if condition["type"] in ("QuotaReserved", "Evicted", "Admitted"):
                    self._note(
                        condition["type"],
                        (condition["status"], condition["reason"], VARIES.sub("", condition["message"])),
                    )

    def _note(self, what, value):
        values = self.said.setdefault(what, [])
        if not values or values[-1] != value:
            values.append(value)


def story(changes, until_t=float("inf")):
    history = Story()
    for t, type_, resource, obj in changes:
        if t < until_t and type_ != "DELETED" and named(obj) == "m":
            history.hear(resource, obj)
    return history.said


def podless(changes, until_t=float("inf")):
    """Return whether the job has no pods yet, or none any more."""
    pods = {}
    for t, type_, resource, obj in changes:
        if t < until_t and resource == "pods" and obj["metadata"]["name"].startswith("m-"):
            pods[obj["metadata"]["uid"]] = type_
    return set(pods.values()) <= {"DELETED"}


def named(obj):
    """Return the name of an object's owner, or its own name if it has none."""
    owners = obj["metadata"].get("ownerReferences") or [obj["metadata"]]
    return owners[0]["name"]


def recorded(folder):
    plain = folder / "watch.jsonl"
    text = (
        plain.read_text()
        if plain.exists()
        else gzip.decompress((folder / "watch.jsonl.gz").read_bytes()).decode()
    )
    lines = [json.loads(line) for line in text.splitlines()]
    return [
        (line["t"], line["type"], line["resource"], line["object"])
        for line in lines
        if line["type"] != "BOOKMARK"
    ]


@pytest.fixture(scope="module")
def kueue(crds):
    """Yield a cluster with queues."""
    with Emulator(kinds=(*KINDS, "kueue")) as emulator:
        yield emulator


class Play:
    """A scenario on the emulator: its objects, and, in order, its client's steps and the ends of its pods."""

    def __init__(self, cluster, folder):
        self.cluster, self.changes = cluster, recorded(folder)
        self.actions = [json.loads(line) for line in (folder / "actions.jsonl").read_text().splitlines()]
        text = re.sub(r"\bsleep [\d.]+", "gate", (folder / "manifest.yaml").read_text())
        text = re.sub(r"-lt \d+ \]", "-lt 1 ]", text)
        self.documents = [
            document for document in yaml.safe_load_all(text) if document["kind"] != "Namespace"
        ]
        self.space = next(
            document["metadata"]["namespace"]
            for document in self.documents
            if document["metadata"].get("namespace")
        )

    def run(self):
        """Play the scenario to its end; raise if it goes differently."""
        self.cluster.namespace(self.space)
        for document in self.documents:
            if document["kind"] in FURNITURE:
                self._once(document)
        for t, step in sorted(self._steps(), key=lambda step: step[0]):
            self._arrive(t)
            step()
        self._arrive(float("inf"))

    def _steps(self):
        waiting = [document for document in self.documents if document["kind"] not in FURNITURE]
        for action in self.actions:
            if action["what"].startswith("create "):
                kind = action["what"].split()[1]
                body = next(document for document in waiting if document["kind"] == kind)
                waiting.remove(body)
                yield (
                    action["t"],
                    lambda body=body: self.cluster.request("POST", self.cluster.collection(body), body),
                )
            elif action["method"] in ("PATCH", "DELETE"):
                yield action["t"], lambda action=action: self._ask(action)
        ended: dict[str, set[str]] = {}  # pod names by job name
        for t, _, resource, obj in self.changes:
            terminating = "deletionTimestamp" in obj["metadata"]
            if (
                resource == "pods"
                and (obj.get("status") or {}).get("phase") == "Succeeded"
                and not terminating
            ):
                name = obj["metadata"]["name"]
                job = name.partition("-")[0]
                pods = ended.setdefault(job, set())
                if name not in pods:
                    pods.add(name)
                    yield t, partial(self._let_end, job, len(pods))

    def _once(self, body):
        path = self.cluster.collection(body)
        if not any(
            item["metadata"]["name"] == body["metadata"]["name"]
            for item in self.cluster.request("GET", path)["items"]
        ):
            self.cluster.request("POST", path, body)

    def _ask(self, action):
        path = action["path"]
        if "/workloads/" in path:
            path = path.rpartition("/")[0] + "/" + self._workload()
        self.cluster.request(action["method"], path, action.get("body"))

    def _workload(self):
        workloads = self.cluster.objects(f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{self.space}/workloads")
        return next(pod["metadata"]["name"] for pod in workloads if named(pod) == "m")

    def _let_end(self, job, number):
        """Let ``number`` pods of a job end, and no more: with the last one the job ends, and others begin."""

        def ends():
            pods = self.cluster.objects(f"/api/v1/namespaces/{self.space}/pods")
            job_pods = [
                pod
                for pod in pods
                if pod["metadata"]["name"].startswith(f"{job}-")
                and "deletionTimestamp" not in pod["metadata"]
            ]
            left = [pod for pod in job_pods if pod["status"].get("phase") != "Succeeded"]
            more = number - (len(job_pods) - len(left))
            opened = [self.cluster.open_gate(pod["metadata"]["uid"]) for pod in left[: max(more, 0)]]
            return len(job_pods) >= number and all(opened)

        until(ends)

    def _arrive(self, t):
        """Wait until the emulator's history matches the recording's up to ``t``."""
        target, no_pods = story(self.changes, t), podless(self.changes, t)

        def come():
            changes = self._changes()
            return story(changes) == target and (podless(changes) or not no_pods)

        try:
            until(come)
        except AssertionError:
            assert story(self._changes()) == target, t
            raise

    def _changes(self):
        history = self.cluster.history(self.space)
        return [(0.0, event.type, event.resource.plural, event.object) for event in history]


def shaped(value):
    """Return an answer with type names in place of values, which differ from cluster to cluster."""
    if isinstance(value, dict):
        return {key: shaped(item) for key, item in value.items()}
    return [shaped(item) for item in value] if isinstance(value, list) else type(value).__name__


def test_who_waits_in_a_queue_is_told_as_a_real_visibility_server_did(kueue):
    path = "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/kueue-api/localqueues/{}/pendingworkloads"
    real = json.loads((RECORDED / "kueue-api/200-visibility-localqueue-v1beta2.json").read_text())
    missing = json.loads((RECORDED / "kueue-api/404-visibility-localqueue-missing.json").read_text())
    kueue.namespace("kueue-api")
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "spec": {"clusterQueue": "none"}}
    queue["metadata"] = {"name": "team", "namespace": "kueue-api"}
    kueue.request("POST", kueue.collection(queue), queue)
    job = json.loads((RECORDED / "kueue-api/201-job-dryrun.json").read_text())["request"]["body"]
    job["metadata"]["namespace"] = "kueue-api"
    kueue.request("POST", kueue.collection(job), job)

    until(lambda: kueue.request("GET", path.format("team"))["items"])
    assert shaped(kueue.request("GET", path.format("team"))) == shaped(real["response"]["body"])
    with pytest.raises(urllib.error.HTTPError) as caught:
        kueue.request("GET", path.format("absent"))
    assert json.loads(caught.value.read()) == missing["response"]["body"]


@pytest.mark.parametrize("name", PLAYED)
def test_a_queue_does_with_a_job_what_a_real_one_did(kueue, name):
    Play(kueue, RECORDED / name).run()
