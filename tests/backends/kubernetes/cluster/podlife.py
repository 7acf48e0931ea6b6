"""The life of one pod: volumes, images, containers in sequence or in parallel, restarts and the end."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.backends.kubernetes.cluster.container import Container, Ended, never_located
from tests.backends.kubernetes.cluster.deletion import delete
from tests.backends.kubernetes.cluster.images import GATE
from tests.backends.kubernetes.cluster.logs import Log
from tests.backends.kubernetes.cluster.podstatus import INITIALIZING, WAITING, ContainerStatus, PodStatus
from tests.backends.kubernetes.cluster.readiness import RETRY_S, Node, Readiness
from tests.backends.kubernetes.cluster.resources import PODS, Object
from tests.backends.kubernetes.cluster.sandbox import Command, MissingVolume, Sandbox
from tests.backends.kubernetes.cluster.store import age, key_of

DEADLINE = "DeadlineExceeded"


class Over(Exception):
    """Raised when the pod must end, whatever it waits for."""


class Together:
    """A barrier for pods: they publish their ends together, whichever process ends first."""

    def __init__(self) -> None:
        self._left, self._all = 0, asyncio.Event()

    def add(self) -> None:
        """Expect one more pod."""
        self._left += 1

    async def wait(self) -> None:
        """Wait until all the pods have ended."""
        self._left -= 1
        if not self._left:
            self._all.set()
        await self._all.wait()


class PodLife:
    """One pod's run, from its binding to its last phase."""

    def __init__(self, node: Node, pod: Object) -> None:
        self._node, self._pod = node, pod
        folder, ahead_s = node.folder / pod["metadata"]["uid"], node.ahead_s(pod)
        self._sandbox = Sandbox(node.cache, node.network, pod, folder, ahead_s)
        self._inits = pod["spec"].get("initContainers") or []
        first = INITIALIZING if self._inits else WAITING
        mains = [
            ContainerStatus(container["name"], container["image"], dict(first))
            for container in pod["spec"]["containers"]
        ]
        inits = [ContainerStatus(init["name"], init["image"]) for init in self._inits]
        self._status = PodStatus(mains, inits, self._sandbox.address)
        self._readiness = Readiness(node, pod, self._sandbox, self._publish, self._pause)
        self._running: dict[str, Container] = {}
        self._logs: dict[str, list[Log]] = {}
        self._over = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._grace: int | None = None
        self._why = "", "", ""
        self._together: Together | None = None
        self._released = asyncio.Event()
        self._released.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def log(self, container: str, *, previous: bool) -> Log | None:
        """Return a container's log, or with `previous` that of its previous run; None if there is none."""
        lives = self._logs.get(container, [])
        index = -2 if previous else -1
        return lives[index] if len(lives) >= -index else None

    def running(self, container: str) -> Container | None:
        """Return the container if it runs, else None."""
        instance = self._running.get(container)
        return None if instance is None or instance.over.is_set() else instance

    async def run(self) -> None:
        """Run the pod until it ends."""
        self._sandbox.folder.mkdir(parents=True, exist_ok=True)
        self._publish()
        with contextlib.suppress(Over):
            await self._mount()
            self._status.sandbox = True
            self._publish()
            if await self._initialize():
                specs = zip(self._pod["spec"]["containers"], self._status.containers, strict=True)
                await asyncio.gather(*(self._keep(spec, status) for spec, status in specs))
        await self._finish()

    @property
    def gate(self) -> Path:
        """Return the FIFO from which the pod's program `gate` reads a line."""
        return self._sandbox.folder / "home" / GATE

    def end_with(self, others: Together) -> None:
        """Publish the end of a running container only once the other pods' containers have ended."""
        if self._running and self._together is None:
            others.add()
            self._together = others

    def hold(self) -> None:
        """Keep the pod's object until `let_go`."""
        self._released.clear()

    def let_go(self) -> None:
        """Allow the object's removal, once the pod has ended and is being deleted."""
        self._released.set()

    def end(self, grace: int) -> None:
        """End the pod: SIGTERM now, SIGKILL after `grace` seconds; only a shorter period replaces it."""
        if self._grace is None or grace < self._grace:
            self._grace = grace
            self._begin(self._terminate(grace))

    def kill(self, reason: str = "") -> None:
        """Kill the containers; without a reason, end the pod too."""
        if not reason:
            self._over.set()
        for container in self._running.values():
            container.kill(reason)

    def signal(self, number: int) -> None:
        """Send a signal to the first process of each container."""
        for container in self._running.values():
            container.signal(number)

    def fail(self, reason: str, message: str, disrupted: str = "") -> None:
        """End the pod as the kubelet does by itself: at a deadline within its grace period, else at once.

        `disrupted` is the reason of a DisruptionTarget condition; a kubelet adds it only with the last phase.
        """
        self._why = reason, message, disrupted
        late = reason == DEADLINE
        self._node.journal.tell(self._pod, reason, message, warning=not late)
        if late:
            self._begin(self._terminate(self._pod["spec"].get("terminationGracePeriodSeconds", 30)))
        else:
            self.kill()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _terminate(self, grace: int) -> None:
        self._over.set()
        for name, container in self._running.items():
            self._node.journal.tell(self._pod, "Killing", f"Stopping container {name}", container=name)
            container.signal(signal.SIGTERM)
        await asyncio.sleep(grace)
        for container in self._running.values():
            container.kill()

    async def _mount(self) -> None:
        while True:
            try:
                self._sandbox.mount()
                return
            except MissingVolume as missing:
                volume, why = missing.args
                text = f'MountVolume.SetUp failed for volume "{volume}" : {why}'
                self._node.journal.tell(self._pod, "FailedMount", text, warning=True)
            await self._pause(RETRY_S)

    async def _initialize(self) -> bool:
        """Run the init containers; return whether the others may start."""
        for spec, status in zip(self._inits, self._status.inits, strict=True):
            await self._keep(spec, status, forever=False)
            if (status.ended or {}).get("exitCode") != 0:
                return False
        return True

    async def _keep(self, spec: Object, status: ContainerStatus, *, forever: bool = True) -> None:
        """Run a container until its restart policy requires no further run."""
        policy = self._pod["spec"]["restartPolicy"]
        while True:
            command = await self._readiness.wait(spec, status)
            ended = await self._once(spec, status, command)
            status.state = ended.state()
            again = (policy == "Always" and forever) or (policy != "Never" and ended.code != 0)
            if self._over.is_set():
                raise Over
            if not again:
                self._status.final = forever or ended.code != 0
                if self._all_ended() or not forever:
                    self._publish()
                return
            await self._back_off(status)

    def _all_ended(self) -> bool:
        return all(container.ended for container in self._status.containers)

    async def _back_off(self, status: ContainerStatus) -> None:
        """Wait before a restart: not before the first, then twice as long each time."""
        self._publish()
        status.last = status.state
        if status.restarts:
            wait = self._node.restart_s * 2 ** min(status.restarts - 1, 5)
            await self._pause(wait / 2)
            pod = f"{self._pod['metadata']['name']}_{self._pod['metadata']['namespace']}({self._pod['metadata']['uid']})"
            text = f"back-off 10s restarting failed container={status.name} pod={pod}"
            status.state = {"waiting": {"reason": "CrashLoopBackOff", "message": text}}
            message = f"Back-off restarting failed container {status.name} in pod {pod}"
            self._node.journal.tell(self._pod, "BackOff", message, warning=True, container=status.name)
            self._publish()
            await self._pause(wait / 2)
        status.restarts += 1

    async def _once(self, spec: Object, status: ContainerStatus, command: Command | Ended) -> Ended:
        """Run the container once."""
        tell, name = self._node.journal.tell, spec["name"]
        if self._over.is_set():
            raise Over
        if isinstance(command, Ended):
            text = f"Error: {command.message}"
            tell(self._pod, "Failed", text, warning=True, container=name)
            return command
        tell(self._pod, "Created", "Container created", container=name)
        shared = self._pod["spec"].get("shareProcessNamespace")
        ahead_s = self._sandbox.ahead_s
        container = Container(spec, command, self._sandbox.folder, first=not shared, ahead_s=ahead_s)
        # The kubelet keeps one dead container: when the next one ends, it removes the one before.
        self._logs.setdefault(name, []).append(container.log)
        await container.start()
        self._running[name] = container
        self._idle.clear()
        if self._over.is_set():
            container.kill()
        tell(self._pod, "Started", "Container started", container=name)
        status.state = {"running": {"startedAt": container.started}}
        if spec in self._pod["spec"]["containers"]:
            self._status.phase = "Running"
            self._watch_deadline()
        self._publish()
        ended = await container.wait()
        if self._together is not None:
            together, self._together = self._together, None
            await together.wait()
        del self._running[name]
        if not self._running:
            self._idle.set()
        for old in self._logs[name][:-1]:
            for file in old.files:
                file.unlink(missing_ok=True)
        return ended

    def _watch_deadline(self) -> None:
        seconds = self._pod["spec"].get("activeDeadlineSeconds")
        if seconds is not None:
            text = "Pod was active on the node longer than the specified deadline"
            # Count from the status's start time: pods of the same second expire together.
            left = seconds - age(self._status.started)
            asyncio.get_running_loop().call_later(max(left, 0), self._expire, text)

    def _expire(self, text: str) -> None:
        if self._status.phase == "Running" and not self._over.is_set():
            self.fail(DEADLINE, text)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
            raise Over

    async def _finish(self) -> None:
        """Write the last phase; remove a pod that is being deleted."""
        deleted = self._grace is not None
        if not deleted and not self._over.is_set():
            await asyncio.sleep(self._node.settle_s)
        await self._idle.wait()
        self._node.cache.unregister(self._pod)
        unstarted = [container for container in self._status.containers if not container.ended]
        failed_init = any((init.ended or {}).get("exitCode") for init in self._status.inits)
        if not failed_init:
            for container in unstarted:
                # One that waits for a restart has ended; recorded for StartError, other ends are the same.
                container.state = container.last or never_located()
        codes = [(container.ended or {"exitCode": 1})["exitCode"] for container in self._status.containers]
        self._status.reason, self._status.message, self._status.disrupted = self._why
        failed = any(codes) or self._status.reason
        self._status.phase = "Failed" if failed else "Succeeded"
        self._publish()
        # The API server learns of the end first, and then of the deletion.
        await asyncio.sleep(self._node.settle_s)
        await self._released.wait()
        current = self._node.store.find(PODS, *key_of(self._pod))
        if current is not None and self._mine(current) and "deletionTimestamp" in current["metadata"]:
            delete(self._node.store, PODS, current, {"gracePeriodSeconds": 0})

    def _mine(self, pod: Object) -> bool:
        return bool(pod["metadata"]["uid"] == self._pod["metadata"]["uid"])

    def _publish(self) -> None:
        current = self._node.store.find(PODS, *key_of(self._pod))
        if current is not None and self._mine(current):
            shown = self._status.shown(current.get("status", {}))
            self._node.store.replace(PODS, current | {"status": shown}, status=True)
