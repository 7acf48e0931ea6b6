"""Kernels in separate processes, for tests to kill, and other machines on which a kernel may run."""

import os
import secrets
import signal
import subprocess
import sys

from nbtorchjob import api
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.machine import folders
from tests.backends.kubernetes.stage import JOBS, until
from tests.patience import LIMIT

METHODS = {"create": "POST", "patch": "PATCH"}


class Kernel:
    """Another kernel that follows a job, or runs another ``line`` of the command for it.

    With a ``step`` it is killed ``before`` or ``after`` it creates or patches an object of that plural
    ("" for any): ``("after", "create", "services")``.
    """

    def __init__(self, stage, job, step=None, line=("attach", "--quiet")):
        self._stage = stage
        user = f"kernel-{secrets.token_hex(3)}"
        stage.cluster.allow(user, stage.namespace, [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])
        config = stage.cluster.user(user)
        if step:
            when, verb, plural = step
            path = f"{stage.namespace}/{plural or '[a-z]+'}" + ("$" if verb == "create" else "/")
            stage.cluster.meanwhile(METHODS[verb], path, self._die, user=user, after=when == "after")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nbtorchjob", *line, job.name],
            env={**os.environ, "KUBECONFIG": str(config)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        """Kill the kernel, if it runs."""
        self._process.kill()
        self._process.wait()

    def _die(self):
        self.kill()
        raise ConnectionError("nobody waits for the answer")

    def dies(self):
        """Wait until the kernel has been killed at its step."""
        assert self._process.wait(LIMIT) == -signal.SIGKILL

    def follows(self):
        """Wait until the kernel watches the pods of the stage."""
        until(
            lambda: any(f"/{self._stage.namespace}/pods" in path for path in self._stage.cluster.open_watches)
        )


def elsewhere(stage, job, monkeypatch, tmp_path):
    """Attach to the job from another machine, which knows only what lies on the cluster."""
    folder = tmp_path / f"machine-{len(os.listdir(tmp_path))}"
    monkeypatch.setenv(folders.STATE, str(folder))
    monkeypatch.setenv("NBTORCHJOB_BACKEND", "kubernetes")
    monkeypatch.setenv("NBTORCHJOB_NAMESPACE", stage.namespace)
    return api.attach(job.name)


def made(stage):
    """Return the names of the job objects and of the Services that we made; operators make others."""
    jobs = [item for path in JOBS for item in stage.objects(path)]
    groups = (
        [item for item in jobs if labelling.CALL in (item["metadata"].get("annotations") or {})],
        [
            item
            for item in stage.objects("api/v1/{}/services")
            if labelling.JOB in (item["metadata"].get("labels") or {})
        ],
    )
    return [sorted(item["metadata"]["name"] for item in items) for items in groups]
