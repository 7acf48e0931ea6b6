"""Kernels in processes of their own, to be killed, and the machines that a new kernel may run on."""

import os
import signal
import subprocess
import sys

from nbtorchjob import api, folders
from nbtorchjob.backends.kubernetes import objects
from tests.kubernetes.stage import COLLECTIONS, until
from tests.patience import LIMIT

SCRIPT = """
import os, signal, sys
from nbtorchjob import api
from nbtorchjob.backends.kubernetes.client import Client

name, when, verb, plural = sys.argv[1:]

def deadly(do):
    async def act(client, place, *given, **asked):
        fatal = plural in ("", getattr(place, "api", place).plural)
        if fatal and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = await do(client, place, *given, **asked)
        if fatal and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    return act

{first}
if verb:
    setattr(Client, verb, deadly(getattr(Client, verb)))
api.attach(name).wait()
"""


class Kernel:
    """Another kernel that follows a job; ``first`` is what it does before.

    With a ``step`` it is killed ``before`` or ``after`` it creates or patches an object of that plural
    ("" for any): ``("after", "create", "services")``.
    """

    def __init__(self, job, step=("", "", ""), first=""):
        command = [sys.executable, "-c", SCRIPT.format(first=first), job.name, *step]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        """Kill it, if it lives."""
        self._process.kill()
        self._process.wait()

    def dies(self):
        """Wait for it to be killed at its step."""
        assert self._process.wait(LIMIT) == -signal.SIGKILL

    def follows(self, stage):
        """Wait until it watches the pods of the stage."""
        until(lambda: any(f"/{stage.namespace}/pods" in path for path in stage.cluster.open_watches))


def elsewhere(stage, job, monkeypatch, tmp_path):
    """Attach to the job on another machine: all that is known of it there lies on the cluster."""
    folder = tmp_path / f"machine-{len(os.listdir(tmp_path))}"
    monkeypatch.setenv(folders.STATE, str(folder))
    monkeypatch.setenv("NBTORCHJOB_BACKEND", "kubernetes")
    monkeypatch.setenv("NBTORCHJOB_NAMESPACE", stage.namespace)
    return api.attach(job.name)


def made(stage):
    """Give the names of the job objects and of the Services that we made; operators make others."""
    jobs = [item for path in COLLECTIONS if path.endswith("jobs") for item in stage.objects(path)]
    found = (
        [item for item in jobs if objects.CALL in (item["metadata"].get("annotations") or {})],
        [
            item
            for item in stage.objects("api/v1/{}/services")
            if objects.JOB in (item["metadata"].get("labels") or {})
        ],
    )
    return [sorted(item["metadata"]["name"] for item in items) for items in found]
