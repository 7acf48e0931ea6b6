"""A namespace of our own on a cluster, and what cases do there; nothing of it is left behind."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from nbtorchjob import Leaving, attempt, capture, leaving, submission
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.api.connection import Request
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects.paths import (
    BESIDE,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICES,
    Api,
    Target,
)
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.backends.kubernetes.submit import runtimes
from nbtorchjob.job import Job
from nbtorchjob.machine import folders, loop
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec

T = TypeVar("T")
_ASKED_S = 60.0


class Site:
    """A namespace that was made for this, with an image that has torch; ``patience`` is in seconds."""

    def __init__(self, namespace: str, image: str, patience: float) -> None:
        self.namespace, self.image, self.patience = namespace, image, patience
        self.kinds = _served(namespace)

    def spec(self, launch: Any = None, name: str | None = None, retry: Any = None, **asked: Any) -> JobSpec:
        """Return the spec of a job here."""
        small = {"memory": "1500Mi", "cpu": "400m", "image": self.image, "kind": self.kinds[0]}
        cluster = Cluster(**{**small, "namespace": self.namespace, **asked})
        return JobSpec(launch or Elastic(), "kubernetes", name=name, retry=retry, cluster=cluster)

    def submit(self, cell: str, variables: dict[str, Any] | None = None, **asked: Any) -> Job[Any]:
        """Submit a cell, which has ``leaving``, ``Leaving`` and ``attempt``."""
        known = {"leaving": leaving, "Leaving": Leaving, "attempt": attempt, **(variables or {})}
        return submission.submit(capture.from_cell(cell, known), self.spec(**asked))

    def until(self, condition: Callable[[], object], job: Job[Any]) -> None:
        """Wait for a condition; what is known of the job is said where it doesn't come."""
        end = time.monotonic() + self.patience
        while not condition():
            assert time.monotonic() < end, f"it didn't come to that; {job.name} is {job.state.phase.value}"
            time.sleep(0.2)

    def begun(self, job: Job[Any]) -> None:
        """Wait until a job's cell has said that it has begun."""
        self.until(lambda: "begun" in job.logs(0), job)

    def environment(self, **variables: str | None) -> None:
        """Set variables of this process, or take them away."""
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    def left(self, begin: str) -> list[str]:
        """Return those names of Secrets, Services and pods here that begin so."""
        found = [item["metadata"]["name"] for api_ in (SECRETS, SERVICES, PODS) for item in self._list(api_)]
        return [name for name in found if name.startswith(begin)]

    def evict(self, job: Job[Any]) -> None:
        """Evict a pod of a job, as a drain does."""
        (pod, *_) = self.pods(job)
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        target = Target(PODS, self.namespace, pod, "eviction")
        # What comes back is a Status, which ``Client.create`` takes for no answer.
        _ask(lambda client: client._ask("create", target, Request("POST", target.path, body=body)))

    def kill(self, job: Job[Any]) -> None:
        """Delete a job's pods with no time to end."""
        for pod in self.pods(job):
            self._delete(Target(PODS, self.namespace, pod), gracePeriodSeconds=0)

    def _delete(self, target: Target, **how: Any) -> None:
        request = Request("DELETE", target.path, body={"apiVersion": "v1", "kind": "DeleteOptions", **how})
        _ask(lambda client: client._ask("delete", target, request))

    def exported(self, job: Job[Any]) -> list[dict[str, Any]]:
        """Return the objects that a job's export holds, in the order to create them."""
        with tempfile.TemporaryDirectory() as folder:
            files = job.export(Path(folder) / "out")
            return [yaml.safe_load(file.read_text()) for file in files if file.suffix == ".yaml"]

    def create(self, body: dict[str, Any]) -> None:
        """Create an object."""
        _ask(lambda client: client.create(_api(body), self.namespace, body))

    def remove(self, body: dict[str, Any]) -> None:
        """Delete an object, if it is there."""
        target = Target(_api(body), self.namespace, body["metadata"]["name"])
        _ask(lambda client: client.delete(target))

    def objects(self, body: dict[str, Any]) -> list[Any]:
        """Return all objects of the same kind as this one."""
        return self._list(_api(body))

    def pods(self, job: Job[Any]) -> list[str]:
        """Return the names of a job's pods."""
        pods = [pod["metadata"] for pod in self._list(PODS)]
        return [pod["name"] for pod in pods if job.name in (pod.get("labels") or {}).values()]

    def _list(self, api_: Api) -> list[Any]:
        return list(_ask(lambda client: client.list(api_, self.namespace)).items)


@contextmanager
def site(kubeconfig: str, image: str, patience: float) -> Iterator[Site]:
    """Make a namespace on the cluster that a kubeconfig leads to; nothing of it is left."""
    name = f"nbtorchjob-cases-{secrets.token_hex(3)}"
    before = {key: os.environ.get(key) for key in ("KUBECONFIG", folders.STATE)}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({"KUBECONFIG": kubeconfig, folders.STATE: folder})
        try:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            _ask(lambda client: client.create(NAMESPACES, None, body))
            try:
                yield Site(name, image, patience)
            finally:
                _ask(lambda client: client.delete(Target(NAMESPACES, None, name)))
        finally:
            for key, value in before.items():
                os.environ.pop(key, None)
                if value is not None:
                    os.environ[key] = value


def _api(body: dict[str, Any]) -> Api:
    apis = [kind.api for kind in KINDS.values()]
    same = [api_ for api_ in apis if (api_.group_version, api_.kind) == (body["apiVersion"], body["kind"])]
    return same[0] if same else {**BESIDE, SECRETS.kind: SECRETS}[body["kind"]]


def _served(namespace: str) -> list[str]:
    async def ask() -> list[str]:
        here = await session(None)
        found = []
        for kind in await here.kinds():
            known = kind.runtimes
            # Without a runtime for torch a TrainJob can't be made.
            if known is None or known.default.name in await runtimes.names(here.client, known, namespace):
                found.append(kind.name)
        return sorted(found)

    return loop.start(ask()).result(_ASKED_S)


def _ask(question: Callable[[Client], Awaitable[T]]) -> T:
    async def asked() -> T:
        return await question((await session(None)).client)

    return loop.start(asked()).result(_ASKED_S)
