"""The machine behind the emulator: a thread with an event loop for the API server and all components."""

import asyncio
import functools
import json
import secrets
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tests.backends.kubernetes.cluster.access import ADMIN, Access
from tests.backends.kubernetes.cluster.admission import Admission
from tests.backends.kubernetes.cluster.controllers import CONTROLLERS, run_controllers
from tests.backends.kubernetes.cluster.controllers.trainerstatus import StatusServer
from tests.backends.kubernetes.cluster.deletion import Collector
from tests.backends.kubernetes.cluster.execution import ExecEndpoint
from tests.backends.kubernetes.cluster.faults import Faults
from tests.backends.kubernetes.cluster.furniture import fill, furnish, namespace
from tests.backends.kubernetes.cluster.inside import InsideClient
from tests.backends.kubernetes.cluster.kubelet import Kubelet
from tests.backends.kubernetes.cluster.logserver import LogEndpoint
from tests.backends.kubernetes.cluster.resources import CRDS, GANGS, OPERATORS, Object, Resource, served
from tests.backends.kubernetes.cluster.scheduler import Scheduler
from tests.backends.kubernetes.cluster.server import AS, Server
from tests.backends.kubernetes.cluster.store import Change, Store
from tests.backends.kubernetes.cluster.verbs import Verbs
from tests.backends.kubernetes.cluster.visibility import Visibility
from tests.backends.kubernetes.cluster.watches import Watches

T = TypeVar("T")

# An operator's kind needs its definitions beside the checkout, which a stranger's clone doesn't have.
KINDS = tuple(kind for kind in CONTROLLERS if kind not in OPERATORS or CRDS.is_dir())
WORKLOADS = "EnableWorkloadWithJob"


class Machine:
    """A Kubernetes 1.36 of one node of `cpus`, with the operators of `kinds`; Emulator has methods for tests.

    The kind `"kueue"` adds queues. The server also serves the resources `more`, which no controller handles.
    `gates` are the gates that are on: Trainer's TrainJobStatus, the Job controller's EnableWorkloadWithJob.
    `backoff_s` is the first back-off before a new pod, `restart_s` that before a container's second restart,
    both 10 s in a real cluster; `settle_s` is the time from the end of a pod's containers to its last phase.
    """

    def __init__(
        self,
        *,
        kinds: Iterable[str] = KINDS,
        more: Iterable[Resource] = (),
        cpus: int = 64,
        gates: Iterable[str] = (),
        backoff_s: float = 0.5,
        # Enough time, on a busy machine, to stop a container that failed twice before it restarts.
        restart_s: float = 2.0,
        settle_s: float = 0.05,
    ) -> None:
        self.kinds = tuple(kinds)
        self._gates = {*gates}
        self._backoff_s = backoff_s
        self._folder = Path(tempfile.mkdtemp(prefix="emulator-"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="emulator", daemon=True)
        self._store, self._faults = Store(), Faults()
        self._access = Access(self._store)
        self._scheduler = Scheduler(self._store, cpus)
        self._kubelet = Kubelet(self._store, self._folder, restart_s=restart_s, settle_s=settle_s)
        self._collector = Collector(self._store)
        self._store.hooks.append(functools.partial(fill, self._store))
        self._changes: dict[str, list[Change]] = defaultdict(list)
        self._store.hooks.append(self._note)
        self._watches = Watches(self._store, self._faults)
        log = LogEndpoint(self._store, self._faults, self._kubelet.find_log)
        execution = ExecEndpoint(self._store, self._access, self._faults, self._kubelet.find_container)
        streams = {"watch": self._watches.serve, "log": log.serve, "exec": execution.serve}
        streams["pendingworkloads"] = Visibility(self._store).serve
        verbs = Verbs(self._store, Admission(self._store, queues="kueue" in self.kinds), streams)
        grouped = GANGS if WORKLOADS in self._gates else ()
        self._server = Server(
            [*served(self.kinds), *grouped, *more], self._access, self._faults, verbs.handle
        )
        self._inside = InsideClient(self._server, verbs, self._store)
        self._controllers: asyncio.Task[None] | None = None
        self.kubeconfig = self._folder / "admin.kubeconfig"

    def _begin(self) -> None:
        self._thread.start()
        self._run(self._start)
        token = self._token(ADMIN)
        self.admin_url = f"{self.url}{AS}{token}"
        self.kubeconfig.write_text(json.dumps(kubeconfig(self.url, ADMIN, token)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._stop)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _note(self, change: Change) -> None:
        self._changes[change.object["metadata"].get("namespace", "")].append(change)

    @property
    def url(self) -> str:
        """Return the server's address."""
        return f"http://127.0.0.1:{self._server.port}"

    def _do(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function on the cluster's own thread."""
        answer: Future[T] = Future()

        # Tests ask for objects fifty times a second: a task for each would take three times as long.
        def call() -> None:
            try:
                answer.set_result(function(*args))
            except BaseException as error:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(call)
        return answer.result()

    def _run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        return asyncio.run_coroutine_threadsafe(function(*args), self._loop).result()

    def _token(self, user: str) -> str:
        token = secrets.token_hex(8)
        self._do(self._access.tokens.__setitem__, token, user)
        return token

    def _add(self, resource: Resource, obj: Object) -> Object:
        return self._store.create(resource, self._store.prepare(resource, obj))

    async def _start(self) -> None:
        furnish(self._store, self._server.resources, self.kinds, self._scheduler.node())
        for name in ("default", "kube-system"):
            namespace(self._store, name)
        await self._server.start()
        server = StatusServer(self._inside, self._folder) if "TrainJobStatus" in self._gates else None
        running = run_controllers(
            self._inside,
            self.kinds,
            backoff_s=self._backoff_s,
            status_server=server,
            grouped=WORKLOADS in self._gates,
        )
        self._controllers = asyncio.get_running_loop().create_task(running)

    async def _stop(self) -> None:
        if self._controllers is not None:
            self._controllers.cancel()
            await asyncio.wait([self._controllers])
        await self._kubelet.stop()
        await self._server.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        # An error in a controller leaves jobs hanging: raise it, so that nobody has to guess.
        if self._controllers is not None and not self._controllers.cancelled():
            self._controllers.result()


def kubeconfig(url: str, user: str, token: str) -> Object:
    """Return a kubeconfig of one user."""
    context = {"cluster": "emulator", "user": user, "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "emulator", "cluster": {"server": url}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "emulator", "context": context}],
        "current-context": "emulator",
    }
