"""A namespace of our own on a cluster, and the actions of cases in it; nothing of it is left behind."""

from __future__ import annotations

import base64
import json
import os
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from nbtorchjob import Leaving, attempt, capture, leaving, submission
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.api.connection import Request
from nbtorchjob.backends.kubernetes.jobs import find
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects.reading import (
    ACCOUNTS,
    BESIDE,
    CLUSTER_QUEUES,
    HOSTS,
    KUEUE,
    LEASES,
    LOCAL_QUEUES,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICES,
    WORKLOAD_PRIORITIES,
    Api,
    Target,
)
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.backends.kubernetes.submit import attempts
from nbtorchjob.errors import NotFoundError
from nbtorchjob.job import Job
from nbtorchjob.machine import folders, loop
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from tests.cluster.door import Door, behind_a_door

if TYPE_CHECKING:
    from tests.backends.kubernetes.cluster import Emulator

T = TypeVar("T")
PREFIX = "nbtorchjob-cases-"
ALONE = "NBTORCHJOB_TEST_ALONE"
FLAVORS = Api(KUEUE, "v1beta2", "resourceflavors", "ResourceFlavor")
RBAC, ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
# Kinds of objects that cases create outside of their namespace; ``left`` lists those that remain.
_OUTSIDE = (NAMESPACES, CLUSTER_QUEUES, FLAVORS, WORKLOAD_PRIORITIES)
_APIS = {
    (api.group_version, api.kind): api
    for api in (
        *(kind.api for kind in KINDS.values()),
        *(*BESIDE.values(), SECRETS, ACCOUNTS, LOCAL_QUEUES, CLUSTER_QUEUES, FLAVORS, WORKLOAD_PRIORITIES),
        *(Api(RBAC, "v1", f"{kind.lower()}s", kind) for kind in ("Role", "RoleBinding")),
        *(Api(RBAC, "v1", f"{kind.lower()}s", kind) for kind in ("ClusterRole", "ClusterRoleBinding")),
        Api("apps", "v1", "deployments", "Deployment"),
        Api(ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
        Api(ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
    )
}
_ASKED_S = 60.0
_GRACE_S = 10  # of jobs with pods that ignore SIGTERM


class NotHere(Exception):
    """This cluster can't run a case; the text names what the case needs."""


class Site:
    """A namespace created for the cases, with an image that has torch; ``patience`` is in seconds.

    If the cluster is ours ``alone``, cases may change its hosts and queues, too. The emulator always is.
    """

    def __init__(
        self, namespace: str, image: str, patience: float, alone: bool, emulator: Emulator | None
    ) -> None:
        self.namespace, self.image, self.patience, self.emulator = namespace, image, patience, emulator
        self._kubeconfig = os.environ["KUBECONFIG"]
        self.kinds = _served(namespace)
        self.minor = _ask(_minor)
        self.undo = ExitStack()  # of the cases' changes outside of the namespace
        self._alone = alone or emulator is not None

    # A case's requirements of the cluster.

    def needs_to_be_alone(self, what: str) -> None:
        """Raise ``NotHere`` if others use the cluster."""
        if not self._alone:
            raise NotHere(f"{what}: set {ALONE}=1 where nobody else uses the cluster")

    def needs_emulator(self, what: str) -> Emulator:
        """Return the emulator; raise ``NotHere`` on any other cluster."""
        if self.emulator is None:
            raise NotHere(what)
        return self.emulator

    def needs_version(self, minor: int) -> None:
        """Raise ``NotHere`` on a Kubernetes before that minor version."""
        if self.minor < minor:
            raise NotHere(f"needs Kubernetes 1.{minor}, and this is 1.{self.minor}")

    # Jobs.

    def spec(
        self,
        launch: Any = None,
        name: str | None = None,
        retry: Any = None,
        grace: int | None = None,
        **asked: Any,
    ) -> JobSpec:
        """Return the spec of a job in this namespace."""
        small = {"memory": "1500Mi", "cpu": "400m", "image": self.image, "kind": self.kinds[0]}
        cluster = Cluster(**{**small, "namespace": self.namespace, **asked})
        spec = JobSpec(launch or Elastic(), "kubernetes", name=name, retry=retry, cluster=cluster)
        return spec if grace is None else replace(spec, grace=grace)

    def submit(self, cell: str, variables: dict[str, Any] | None = None, **asked: Any) -> Job[Any]:
        """Submit a cell, with ``leaving``, ``Leaving`` and ``attempt`` among its variables."""
        bindings = {"leaving": leaving, "Leaving": Leaving, "attempt": attempt, **(variables or {})}
        return submission.submit(capture.from_cell(cell, bindings), self.spec(**asked))

    def stubborn(self, cell: str, **asked: Any) -> Job[Any]:
        """Submit a cell that ignores SIGTERM, and wait until it prints that it has begun."""
        job = self.submit(cell, grace=_GRACE_S, **asked)
        self.begun(job)
        return job

    def until(self, condition: Callable[[], object], job: Job[Any]) -> None:
        """Wait for a condition; at the timeout, fail with the job's state."""
        end = time.monotonic() + self.patience
        while not condition():
            why = " ".join(wait.text for wait in job.state.waiting)
            assert time.monotonic() < end, f"{job.name} is {job.state.phase.value} {why}".rstrip()
            time.sleep(0.2)

    def begun(self, job: Job[Any], times: int = 1) -> None:
        """Follow a job until its cell has printed ``begun`` at least that many times."""
        job.wait(0)
        self.until(lambda: job.logs(0).count("begun") >= times, job)

    def environment(self, **variables: str | None) -> None:
        """Set environment variables of this process; ``None`` removes one."""
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    # Actions on jobs, hosts and queues.

    def evict(self, job: Job[Any]) -> None:
        """Evict a pod of a job, as a drain does."""
        (pod, *_) = self.pods(job)
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        if self.minor < 22:
            body["apiVersion"] = "policy/v1beta1"
        self._request("POST", Target(PODS, self.namespace, pod, "eviction"), body)

    def kill(self, job: Job[Any]) -> None:
        """Delete a job's pods without a grace period."""
        for pod in self.pods(job):
            self.remove(Target(PODS, self.namespace, pod), gracePeriodSeconds=0)

    @contextmanager
    def cordoned(self, job: Job[Any]) -> Iterator[None]:
        """Keep new pods off the host of a job's pod."""
        self.needs_to_be_alone("hosts are in no namespace")
        (host,) = {pod["spec"]["nodeName"] for pod in self._pods(job)}
        target = Target(HOSTS, None, host)

        def cordon(unschedulable: bool | None) -> None:
            _ask(lambda client: client.patch(target, {"spec": {"unschedulable": unschedulable}}))

        with ExitStack() as undone:
            undone.callback(cordon, None)
            cordon(True)
            yield

    @contextmanager
    def behind_a_door(self) -> Iterator[Door]:
        """Reach the cluster through a door; following a job has to be over before the block ends."""
        with behind_a_door(_kubeconfig()) as (path, door), _in_environment(KUBECONFIG=str(path)):
            find.forget()
            yield door
        find.forget()

    def queue(self, cpu: str) -> str:
        """Create a Kueue queue with that much CPU quota, and a priority; return the name of both."""
        if CLUSTER_QUEUES[:3] not in _ask_session(lambda cluster_session: cluster_session.served()):
            raise NotHere("needs Kueue")
        self.needs_to_be_alone("a ClusterQueue is in no namespace")
        name = f"{self.namespace}-{secrets.token_hex(2)}"
        # A queue never admits requests for a resource without a quota.
        quota = {"cpu": cpu, "memory": "64Gi"}
        resources = [{"name": key, "nominalQuota": value} for key, value in quota.items()]
        groups = [{"coveredResources": [*quota], "flavors": [{"name": name, "resources": resources}]}]
        spec = {
            "namespaceSelector": {},
            "resourceGroups": groups,
            "preemption": {"withinClusterQueue": "LowerPriority"},
        }
        for api_, more in (
            (FLAVORS, {}),
            (CLUSTER_QUEUES, {"spec": spec}),
            (WORKLOAD_PRIORITIES, {"value": 9}),
            (LOCAL_QUEUES, {"spec": {"clusterQueue": name}}),
        ):
            body = {"apiVersion": api_.group_version, "kind": api_.kind, "metadata": {"name": name}, **more}
            self.create(body)
        return name

    # Accounts.

    def account(self) -> tuple[str, Callable[[], str]]:
        """Create a ServiceAccount with all rights here; return its name, and an issuer of tokens."""
        name, space = f"user-{secrets.token_hex(3)}", self.namespace
        meta, rules = {"name": name}, [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
        self.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
        self.create({"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": meta, "rules": rules})
        who = [{"kind": "ServiceAccount", "name": name, "namespace": space}]
        role = {"apiGroup": RBAC, "kind": "Role", "name": name}
        binding = {"kind": "RoleBinding", "metadata": meta, "subjects": who, "roleRef": role}
        self.create({"apiVersion": f"{RBAC}/v1", **binding})

        def token() -> str:
            if self.emulator is not None:
                user = self.emulator.user(f"system:serviceaccount:{space}:{name}")
                return str(json.loads(user.read_text())["users"][0]["user"]["token"])
            body = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"audiences": []},
            }
            with _in_environment(KUBECONFIG=self._kubeconfig):  # not as the logged-in account
                answer = self._request("POST", Target(ACCOUNTS, space, name, "token"), body)
            return str(answer["status"]["token"])

        return name, token

    def expire(self, account: str) -> None:
        """Invalidate all tokens of an account."""
        with _in_environment(KUBECONFIG=self._kubeconfig):  # not as the logged-in account
            self.remove(Target(ACCOUNTS, self.namespace, account))
        if self.emulator is not None:
            self.emulator.expire_tokens(f"system:serviceaccount:{self.namespace}:{account}")

    @contextmanager
    def logged_in(self, token: Path) -> Iterator[None]:
        """Log in with the token in this file, which is read again whenever the server refuses the token."""
        with tempfile.TemporaryDirectory() as folder:
            login = Path(folder) / "login"
            kind = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"'
            login.write_text(
                f"""#!/bin/sh\nprintf '%s, "status": {{"token": "%s"}}}}' '{kind}' "$(cat '{token}')"\n"""
            )
            login.chmod(0o700)
            config = _kubeconfig()
            command = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(login)}
            user = {"exec": {**command, "interactiveMode": "Never"}}
            config["users"] = [{**entry, "user": user} for entry in config["users"]]
            path = Path(folder) / "config"
            path.write_text(yaml.safe_dump(config))
            with _in_environment(KUBECONFIG=str(path)):
                find.forget()
                yield
        find.forget()

    # Objects.

    def exported(self, job: Job[Any]) -> list[dict[str, Any]]:
        """Return the objects in a job's export, in the order to create them."""
        with tempfile.TemporaryDirectory() as folder:
            files = job.export(Path(folder) / "out")
            return [yaml.safe_load(file.read_text()) for file in files if file.suffix == ".yaml"]

    def create(self, body: dict[str, Any]) -> None:
        """Create an object; remove one outside of the namespace when the site ends."""
        api_ = _APIS[body["apiVersion"], body["kind"]]
        outside = api_ in _OUTSIDE or api_.kind.startswith(("Cluster", "ValidatingAdmission"))
        space = None if outside else self.namespace
        _ask(lambda client: client.create(api_, space, body))
        if space is None:
            self.undo.callback(self.remove, Target(api_, None, body["metadata"]["name"]))

    def remove(self, target: Target | dict[str, Any], **how: Any) -> None:
        """Delete an object, if it is there."""
        if not isinstance(target, Target):
            name = target["metadata"]["name"]
            target = Target(_APIS[target["apiVersion"], target["kind"]], self.namespace, name)
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", **how}
        self._request("DELETE", target, body)

    def objects(self, body: dict[str, Any]) -> list[Any]:
        """Return all objects of the same kind as this one."""
        return self._list(_APIS[body["apiVersion"], body["kind"]])

    def jobs(self, kind: str) -> list[str]:
        """Return the names of all job objects of a kind."""
        return [item["metadata"]["name"] for item in self._list(KINDS[kind].api)]

    def clear(self) -> None:
        """Remove the jobs that a case has left."""
        for kind in self.kinds:
            for name in self.jobs(kind):
                self.remove(Target(KINDS[kind].api, self.namespace, name))

    def held_leases(self) -> list[str]:
        """Return the holders of the Leases here."""
        return [item["spec"].get("holderIdentity") or "" for item in self._list(LEASES)]

    def left(self, begin: str) -> list[str]:
        """Return the names of Secrets, Services and pods here that start with ``begin``."""
        names = [item["metadata"]["name"] for api_ in (SECRETS, SERVICES, PODS) for item in self._list(api_)]
        return [name for name in names if name.startswith(begin)]

    def pods(self, job: Job[Any]) -> list[str]:
        """Return the names of a job's pods."""
        return [pod["metadata"]["name"] for pod in self._pods(job)]

    def _pods(self, job: Job[Any]) -> list[Any]:
        pods = self._list(PODS)
        return [pod for pod in pods if job.name in (pod["metadata"].get("labels") or {}).values()]

    def _list(self, api_: Api) -> list[Any]:
        return list(_ask(lambda client: client.list(api_, self.namespace)).items)

    def _request(self, method: str, target: Target, body: dict[str, Any]) -> dict[str, Any]:
        # The answer is a Status, which the client's own verbs don't accept.
        request = Request(method, target.path, body=body)
        verb = {"POST": "create", "DELETE": "delete"}[method]
        try:
            return _ask(lambda client: client._ask(verb, target, request))
        except NotFoundError:
            if method == "DELETE":  # the object is already gone
                return {}
            raise


@contextmanager
def site(
    kubeconfig: str, image: str, patience: float, *, alone: bool = False, emulator: Emulator | None = None
) -> Iterator[Site]:
    """Yield a new namespace on the cluster of a kubeconfig; delete it afterwards."""
    name = f"{PREFIX}{secrets.token_hex(3)}"
    with (
        tempfile.TemporaryDirectory() as folder,
        _in_environment(KUBECONFIG=kubeconfig, **{folders.STATE: folder}),
    ):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        _ask(lambda client: client.create(NAMESPACES, None, body))
        try:
            case_site = Site(name, image, patience, alone, emulator)
            with case_site.undo:
                yield case_site
        finally:
            _ask(lambda client: client.delete(Target(NAMESPACES, None, name)))


def left(kubeconfig: str, patience: float) -> list[str]:
    """Return the objects that cases have left outside of namespaces, and namespaces that don't end."""
    with _in_environment(KUBECONFIG=kubeconfig):
        served = {*_ask_session(lambda cluster_session: cluster_session.served()), NAMESPACES[:3]}
        end = time.monotonic() + patience
        while True:
            names = [name for api_ in _OUTSIDE if api_[:3] in served for name in _names(api_)]
            leftovers = [name for name in names if PREFIX in name]
            if not leftovers or time.monotonic() > end:
                return leftovers
            time.sleep(0.5)


def _names(api_: Api) -> list[str]:
    return [
        f"{api_} {item['metadata']['name']}" for item in _ask(lambda client: client.list(api_, None)).items
    ]


def _kubeconfig() -> dict[str, Any]:
    """Return the kubeconfig in use with its current context alone, and without relative paths."""
    path = Path(os.environ["KUBECONFIG"])
    config = yaml.safe_load(path.read_text())
    named = config["current-context"]
    [context] = [entry for entry in config["contexts"] if entry["name"] == named]
    for plural, singular in (("clusters", "cluster"), ("users", "user")):
        config[plural] = [entry for entry in config[plural] if entry["name"] == context["context"][singular]]
    [cluster] = [entry["cluster"] for entry in config["clusters"]]
    if authority := cluster.pop("certificate-authority", None):
        data = (path.parent / authority).read_bytes()
        cluster["certificate-authority-data"] = base64.b64encode(data).decode()
    return {**json.loads(json.dumps(config)), "contexts": [context]}


@contextmanager
def _in_environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _served(namespace: str) -> list[str]:
    async def ask() -> list[str]:
        cluster_session = await session(None)
        kinds = []
        for kind in await cluster_session.kinds():
            runtimes = kind.runtimes
            # Without a runtime for torch a TrainJob can't be created.
            if runtimes is None or runtimes.default.name in await attempts.names(
                cluster_session.client, runtimes, namespace
            ):
                kinds.append(kind.name)
        return sorted(kinds)

    return loop.start(ask()).result(_ASKED_S)


async def _minor(client: Client) -> int:
    return await (await session(None)).minor()


def _ask_session(question: Callable[[Any], Awaitable[T]]) -> T:
    async def asked() -> T:
        return await question(await session(None))

    return loop.start(asked()).result(_ASKED_S)


def _ask(question: Callable[[Client], Awaitable[T]]) -> T:
    return _ask_session(lambda cluster_session: question(cluster_session.client))
