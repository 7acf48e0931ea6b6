"""The cluster as tests use it: methods that arrange it, that inspect it, and that cause faults."""

import json
import os
import re
import secrets
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.backends.kubernetes.cluster import podsecurity
from tests.backends.kubernetes.cluster.access import ADMIN, Attempt
from tests.backends.kubernetes.cluster.controllers.client import Client, collection
from tests.backends.kubernetes.cluster.faults import Moment, Trouble
from tests.backends.kubernetes.cluster.furniture import namespace
from tests.backends.kubernetes.cluster.machine import KINDS as KINDS
from tests.backends.kubernetes.cluster.machine import Machine, T, kubeconfig
from tests.backends.kubernetes.cluster.podlife import PodLife, Together
from tests.backends.kubernetes.cluster.resources import BINDINGS, PODS, QUOTAS, ROLES, Object
from tests.backends.kubernetes.cluster.scheduler import NODE
from tests.backends.kubernetes.cluster.store import Change
from tests.backends.kubernetes.cluster.verbs import EVICTED, evict


class Emulator(Machine):
    """A cluster; `with Emulator() as cluster:` starts and ends it."""

    def __enter__(self) -> "Emulator":
        self._begin()
        return self

    # Arrangements.

    def namespace(self, name: str, security: str = "") -> str:
        """Create a namespace, with its default objects and a Pod Security level; return its name."""
        self._do(namespace, self._store, name, {podsecurity.LABEL: security} if security else {})
        return name

    def user(self, name: str) -> Path:
        """Return a kubeconfig for a user, with a new token; users other than `admin` have no rights yet."""
        token = self._token(name)
        path = self._folder / f"{name}-{token}.kubeconfig"
        path.write_text(json.dumps(kubeconfig(self.url, name, token)))
        return path

    def kubectl_config(self) -> Path:
        """Return an administrator's kubeconfig for kubectl (`create --validate=false`: no OpenAPI)."""
        path = self._folder / "kubectl.kubeconfig"
        path.write_text(json.dumps(kubeconfig(self.admin_url, ADMIN, "in the path")))
        return path

    def collection(self, body: Object) -> str:
        """Return the path of the collection to which an object belongs."""
        version, kind, space = body["apiVersion"], body["kind"], body["metadata"].get("namespace", "")
        resources = [
            resource
            for resource in self._server.resources
            if (resource.api_version, resource.kind) == (version, kind)
        ]
        return collection(version, resources[0].plural, space)

    def request(self, method: str, path: str, body: Object | None = None) -> Object:
        """Send a request as administrator (PATCH merges); return the answer, or raise urllib's HTTPError."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.admin_url + path, data, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request) as response:
            answer: Object = json.load(response)
        return answer

    def converse(self, talk: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Return the result of ``talk`` with a client that needs no connection, like the operators'."""
        return self._run(talk, self._inside)

    def expire_tokens(self, name: str) -> None:
        """Forget every token of a user: 401 from now on."""
        kept = {token: user for token, user in self._access.tokens.items() if user != name}
        self._do(setattr, self._access, "tokens", kept)

    def allow(self, user: str, namespace: str, rules: list[Object]) -> None:
        """Bind a Role with these rules to the user in a namespace."""
        group = "rbac.authorization.k8s.io"
        meta = {"name": f"{user}-{secrets.token_hex(3)}", "namespace": namespace}
        role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": rules}
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "subjects": [{"kind": "User", "name": user, "apiGroup": group}],
            "roleRef": {"kind": "Role", "name": meta["name"], "apiGroup": group},
        }
        self._do(self._add, ROLES, role)
        self._do(self._add, BINDINGS, binding)

    def quota(self, namespace: str, **hard: str) -> None:
        """Set a quota named `team`, such as `pods="1"`."""
        spec = {"hard": hard}
        meta = {"name": "team", "namespace": namespace}
        self._do(
            self._add,
            QUOTAS,
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec},
        )

    # Inspection.

    def objects(self, path: str) -> list[Object]:
        """Return a namespaced collection's objects, by its path; without a request, so tests can poll."""
        base, _, rest = path.strip("/").partition("/namespaces/")
        namespace, _, plural = rest.partition("/")
        version = base.removeprefix("apis/").removeprefix("api/")
        resource = self._server.resource(version, plural)
        return self._do(self._store.list, resource, namespace) if resource else []

    @property
    def requests(self) -> list[tuple[str, str]]:
        """Return method and path of every request so far."""
        return list(self._server.requests)

    def attempts(self, user: str) -> list[Attempt]:
        """Return a user's attempts, refused ones included."""
        return list(self._access.attempts[user])

    @property
    def open_watches(self) -> list[str]:
        """Return the paths of the watches that are open."""
        return list(self._watches.open)

    def history(self, namespace: str) -> list[Change]:
        """Return all changes in a namespace, in order."""
        return list(self._changes[namespace])

    # Faults.

    def cut(self, path: str = "") -> int:
        """Break open watches and followed logs with a path that matches the pattern; return how many."""
        return self._do(self._faults.cut, path)

    def trouble(self, code: int, path: str = "", *, times: int = 1, method: str = "") -> None:
        """Answer the next requests to matching paths with this status code."""
        self._do(self._faults.troubles.append, Trouble(method, re.compile(path), code, times))

    @contextmanager
    def slow_logs(self, seconds: float) -> Iterator[None]:
        """Make each 256 KiB piece of a log take this many seconds."""
        self._faults.piece_s = seconds
        try:
            yield
        finally:
            self._faults.piece_s = 0.0

    def meanwhile(
        self, method: str, path: str, act: Callable[[], None], *, user: str = "", after: bool = False
    ) -> None:
        """Call ``act`` before the next such request is carried out, or after that, before it is answered.

        If ``act`` raises ConnectionError, the request goes no further.
        """
        self._do(self._faults.moments.append, Moment(user, method, re.compile(path), after, act))

    def expire_watches(self, plural: str) -> None:
        """Forget the history of a resource: watches of it end with 410."""
        for resource in self._server.resources:
            if resource.plural == plural:
                self._do(self._store.expire, resource)

    def stop_server(self) -> None:
        """Close the port and break all connections; pods run on."""
        self._run(self._server.stop)

    def start_server(self) -> None:
        """Listen again on the same port."""
        self._run(self._server.start)

    def evict(self, namespace: str, *pods: str, why: tuple[str, str] = EVICTED) -> None:
        """Evict pods; ``why`` is the (reason, message) of their condition DisruptionTarget."""
        self._each(pods, lambda pod: evict(self._store, self._store.get(PODS, namespace, pod), *why))

    def taint(self, *keys: str) -> None:
        """Set the host's taints to exactly these, with the effect NoSchedule."""
        taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
        self.request("PATCH", f"/api/v1/nodes/{NODE}", {"spec": {"taints": taints}})

    def oom_kill(self, namespace: str, *pods: str) -> None:
        """Kill the pods' containers as the kernel's OOM killer does."""
        self._each(pods, lambda pod: self._life(namespace, pod).kill("OOMKilled"))

    def signal(self, namespace: str, pod: str, number: int) -> None:
        """Send a signal to the first process of the pod's containers, from outside."""
        self._each((pod,), lambda name: self._life(namespace, name).signal(number))

    def fail_pods(self, namespace: str, *pods: str, why: tuple[str, str], disrupted: str = "") -> None:
        """End pods as the kubelet does by itself, with a reason and message: `Evicted` for their usage, say.

        With `disrupted`, the reason of a DisruptionTarget condition, it is the host's fault: it runs short.
        """
        together = Together()

        def fail(pod: str) -> None:
            life = self._life(namespace, pod)
            life.end_with(together)
            life.fail(*why, disrupted)

        self._each(pods, fail)

    def kill_pods(self, namespace: str, *pods: str) -> None:
        """Kill pods that are being ended, as at the end of their grace period."""
        self._each(pods, lambda pod: self._life(namespace, pod).kill())

    # Progress of pods that wait for the test, by uid; a pod that is already gone is skipped.

    def at_gate(self, pod: str) -> bool:
        """Return whether a process of the pod has come to the program `gate`, which ends on `open_gate`."""
        return any(life.gate.exists() for life in self._lives(pod))

    def open_gate(self, pod: str) -> bool:
        """End the `gate` that runs in the pod; return whether one did."""
        for life in self._lives(pod):
            try:
                gate = os.open(life.gate, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                return False  # no process has come there yet
            try:
                os.write(gate, b"\n")
            except BrokenPipeError:
                return False  # the process has just been killed
            finally:
                os.close(gate)
            return True
        return False

    def end_together(self, *pods: str) -> None:
        """Hide the ends of the pods' containers until all have ended; keep the pods until `let_go`."""

        def bind() -> None:
            together = Together()
            for life in self._lives(*pods):
                life.end_with(together)
                life.hold()

        self._do(bind)

    def end_grace(self, pod: str) -> None:
        """Kill a pod that is being deleted, as at the end of its grace period."""
        for life in self._lives(pod):
            self._do(life.kill)

    def let_go(self, pod: str) -> None:
        """Remove a pod that is to be deleted, once it has ended."""
        for life in self._lives(pod):
            self._do(life.let_go)

    def rotate_log(self, namespace: str, pod: str, container: str) -> None:
        """Start a new file of a container's log."""
        log = self._life(namespace, pod).log(container, previous=False)
        assert log is not None
        self._do(log.rotate)

    def lag_kubelet(self, seconds: float) -> None:
        """Delay changes of Secrets and ConfigMaps on their way to the host that runs the pods."""
        self._kubelet.cache.lag_s = seconds

    def lag_watches(self, seconds: float, plural: str = "") -> None:
        """Delay clients' watches, or those of one resource; the operators' aren't delayed."""
        self._watches.lag_s[plural] = seconds

    def skew_clocks(self, pods: str, seconds: float) -> None:
        """Set the clock ahead on the host of pods that start from now on and match the pattern."""
        self._kubelet.clocks[pods] = seconds

    def slow_collection(self, seconds: float) -> None:
        """Delay the removal of objects that have lost their owner."""
        self._collector.lag_s = seconds

    def hold_pulls(self, image: str) -> None:
        """Make pulls of an image go on until `finish_pulls`."""
        self._do(self._kubelet.images.pulling.add, image)

    def finish_pulls(self, image: str) -> None:
        """Let the pulls of an image finish."""
        self._do(self._kubelet.images.pulling.discard, image)

    def fail_pulls(self, image: str, message: str = "403 Forbidden") -> None:
        """Make pulls of an image fail from now on."""
        self._do(self._kubelet.images.failing.__setitem__, image, message)

    def allow_pulls(self, image: str) -> None:
        """Let pulls of an image succeed again."""
        self._do(self._kubelet.images.failing.pop, image, None)

    def hold(
        self, pods: str, message: str = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    ) -> None:
        """Stop the scheduling of pods with a name that matches the pattern."""
        self._do(self._scheduler.held.__setitem__, pods, message)

    def release(self, pods: str) -> None:
        """Schedule the pods that `hold` stopped."""
        self._do(self._scheduler.held.pop, pods, None)
        self._do(self._scheduler.look)

    def _each(self, pods: tuple[str, ...], function: Callable[[str], None]) -> None:
        """Call ``function`` for all pods at once: no controller sees the first before the last."""

        def strike() -> None:
            for pod in pods:
                function(pod)

        self._do(strike)

    def _lives(self, *pods: str) -> list[PodLife]:
        return [self._kubelet.pods[uid] for uid in pods if uid in self._kubelet.pods]

    def _life(self, namespace: str, pod: str) -> PodLife:
        return self._kubelet.pods[self._store.get(PODS, namespace, pod)["metadata"]["uid"]]
