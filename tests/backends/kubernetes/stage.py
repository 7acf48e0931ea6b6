"""Jobs on the emulator with pods that act a part instead of running torch, so that a test takes a second.

A part is Python that runs in the job's container in place of the node, with ``parts/words.py``. It waits
for signs that the test gives.
"""

import contextlib
import json
import secrets
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from nbtorchjob import capture, submission
from nbtorchjob.backends.kubernetes.doctor import server
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects.reading import PODS, SECRETS, SERVICES
from nbtorchjob.machine import folders
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import Phase
from tests import packed
from tests.patience import LIMIT

IMAGE = "localhost/python:3.11"


def collection(api_):
    """Return the path of a namespace's objects, with a placeholder for the namespace."""
    return f"{'apis' if api_.group else 'api'}/{api_.group_version}/{{}}/{api_.plural}"


JOBS = [collection(kind.api) for kind in KINDS.values()]
COLLECTIONS = [*map(collection, (SECRETS, SERVICES, PODS)), *JOBS]

# A part finds the payload as a node does, and after it this checkout, for the helpers of parts. Not by
# PYTHONPATH: with one, the emulator's pods start cold.
PLACES = f"/etc/nbtorchjob/job.pyz:{Path(__file__).parents[3]}"
WORDS = """
import os, sys
sys.path[:0] = os.environ["PLACES"].split(":")
from tests.backends.kubernetes.parts.words import *
"""


class Stage:
    """A namespace of an emulator, and the jobs of one test in it."""

    def __init__(self, cluster, folder, monkeypatch, security=""):
        self.cluster = cluster
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        monkeypatch.setenv(folders.STATE, str(folder / "state"))
        packed.lend(folder / "state")
        self.signs = folder / "signs"
        self.signs.mkdir()
        self.namespace = cluster.namespace(f"stage-{secrets.token_hex(3)}", security)

    def spec(self, launch=None, name=None, retry=None, hold=None, env=None, **asked):
        """Return the spec of a job in this namespace."""
        asked = {"namespace": self.namespace, "image": IMAGE, "kind": "indexedjob", **asked}
        cluster = Cluster(**asked)
        more = {"name": name, "retry": retry, "hold": hold, "env": env or {}}
        return JobSpec(launch or Elastic(), "kubernetes", cluster=cluster, **more)

    def submit(self, part=None, cell="1", variables=None, **asked):
        """Submit a cell; with a part, its pods act the part."""
        if part is not None:
            asked["pod_patch"] = self.acting(part)
        return submission.submit(capture.from_cell(cell, variables or {}), self.spec(**asked))

    def acting(self, part, grace=1, **variables):
        """Return the pod patch that makes pods act a part, with more variables in their environment."""
        words = {"PLACES": PLACES, "SIGNS": str(self.signs), **variables}
        return self.patch(["python", "-c", WORDS + part], grace=grace, **words)

    def become(self, *without):
        """Become a user who may do all that jobs need except some (verb, resource); return their name."""
        needed = [*server.EVENTS, *(right for kind in KINDS.values() for right in server.needed_rights(kind))]
        return self.be([right for right in needed if (right.verb, right.resource) not in without])

    def be(self, allowed):
        """Become a user who may do exactly this; return their name."""
        user = f"ada-{secrets.token_hex(3)}"
        rules = [{"apiGroups": [group], "resources": [of], "verbs": [verb]} for verb, group, of in allowed]
        self.cluster.allow(user, self.namespace, rules)
        self._monkeypatch.setenv("KUBECONFIG", str(self.cluster.user(user)))
        return user

    def admin(self):
        """Become the administrator again, who may do anything."""
        self._monkeypatch.setenv("KUBECONFIG", str(self.cluster.kubeconfig))

    def patch(self, command, grace=1, **variables):
        """Return the pod patch that makes the job's container run another command, with more variables.

        As PID 1 a command ignores a SIGTERM that it doesn't handle, or not yet: a short grace period ends it.
        """
        env = [{"name": name, "value": value} for name, value in variables.items()]
        container = {"command": command, **({"env": env} if env else {})}
        return json.dumps({"spec": {"containers": [container], "terminationGracePeriodSeconds": grace}})

    def sign(self, name):
        """Give a sign, so that the parts that wait for it go on."""
        (self.signs / name).touch()

    def left(self):
        """Return the names of all objects in the namespace."""
        return [item["metadata"]["name"] for path in COLLECTIONS for item in self.objects(path)]

    def objects(self, path):
        """Return the objects of one of the namespace's collections; none if its operator is absent."""
        return self.cluster.objects(path.format(f"namespaces/{self.namespace}"))

    def warn(self, job, reason, message):
        """Record a warning about the object of an Indexed Job, as a component does."""
        jobs = self.objects("apis/batch/v1/{}/jobs")
        (obj,) = (obj for obj in jobs if obj["metadata"]["name"] == job.name)
        self.tell({**obj, "kind": "Job", "apiVersion": "batch/v1"}, reason, message)

    def tell(self, obj, reason, message, type="Warning"):
        """Record an event of an object, a second from now, as a component does."""
        name, uid = obj["metadata"]["name"], obj["metadata"]["uid"]
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.{secrets.token_hex(4)}", "namespace": self.namespace},
            "involvedObject": {
                "kind": obj["kind"],
                "apiVersion": obj["apiVersion"],
                "name": name,
                "uid": uid,
            },
            "type": type,
            "reason": reason,
            "message": message,
            "lastTimestamp": stamp,
        }
        self.cluster.request("POST", f"/api/v1/namespaces/{self.namespace}/events", body)

    def close(self):
        """Delete the jobs that still exist."""
        for path in COLLECTIONS:
            if path.endswith("jobs"):
                for item in self.objects(path):
                    with contextlib.suppress(urllib.error.HTTPError):  # deleted with its owner
                        self.delete(path, item["metadata"]["name"])

    def delete(self, path, name):
        """Delete an object of one of the namespace's collections, as somebody else would."""
        self.cluster.request(
            "DELETE", f"/{path.format(f'namespaces/{self.namespace}')}/{name}?propagationPolicy=Background"
        )

    def pods(self):
        """Return the pods, in the order of their names."""
        return sorted(self.objects("api/v1/{}/pods"), key=lambda pod: pod["metadata"]["name"])

    def pod(self, index=0):
        """Return the name of one of the pods, once it exists."""
        until(lambda: len(self.pods()) > index)
        return self.pods()[index]["metadata"]["name"]

    def follow(self, job):
        """Follow a job until its nodes are known; let the parts go on that wait for this; return the job.

        A follower can't report what came and went before: on a busy machine, that is as long as a part takes.
        """
        until(lambda: job.wait(0) or job.state.nodes)
        self.sign("followed")
        return job

    def refused(self, error, /, *args, **asked):
        """Submit a job that must be refused with such an error, and leave nothing; return the error."""
        before = self.left()
        with pytest.raises(error) as caught:
            self.submit(*args, **asked)
        until(lambda: self.left() == before)  # pods of a withdrawn job take their own time to end
        assert "\n" not in str(caught.value)
        return caught.value


def running(job):
    """Follow a job until it runs; return it."""
    _follow(job)
    until(
        lambda: (
            job.state.phase is Phase.RUNNING and any(node.life.starts for node in job.state.nodes.values())
        )
    )
    return job


def working(job):
    """Follow a job until its nodes work; return it."""
    _follow(job)
    until(lambda: job.state.working)
    return job


def _follow(job):
    # The first state comes from a lookup, before anybody follows: what goes in between goes unseen.
    job.wait(0)


def until(condition):
    """Wait until a condition holds; return its value."""
    end = time.monotonic() + LIMIT
    while not (value := condition()):
        assert time.monotonic() < end, "it didn't come to that"
        time.sleep(0.02)
    return value


def waits(job):
    """Return the texts of a job's waits, joined; "" if it doesn't wait."""
    return " | ".join(wait.text for wait in job.state.waiting)
