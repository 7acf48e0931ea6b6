"""The kubelet: runs the pods bound to the node, and reports their status."""

import asyncio
from pathlib import Path

from tests.backends.kubernetes.cluster.container import Container
from tests.backends.kubernetes.cluster.images import Images
from tests.backends.kubernetes.cluster.journal import Journal
from tests.backends.kubernetes.cluster.kubeletcache import KubeletCache
from tests.backends.kubernetes.cluster.logs import Log
from tests.backends.kubernetes.cluster.network import Network
from tests.backends.kubernetes.cluster.podlife import PodLife
from tests.backends.kubernetes.cluster.readiness import Node
from tests.backends.kubernetes.cluster.resources import PODS
from tests.backends.kubernetes.cluster.store import Change, Store


class Kubelet:
    """A kubelet with one task per pod; logs stay readable as long as the pod's object exists."""

    def __init__(self, store: Store, folder: Path, *, restart_s: float, settle_s: float) -> None:
        self.images = Images()
        self.cache = KubeletCache(store)
        journal = Journal(store, "kubelet")
        self._node = Node(
            store,
            self.cache,
            self.images,
            Network(),
            journal,
            folder / "pods",
            restart_s=restart_s,
            settle_s=settle_s,
        )
        self.clocks = self._node.clocks
        self.pods: dict[str, PodLife] = {}
        self._errors: list[BaseException] = []
        self._tasks: set[asyncio.Task[None]] = set()
        store.hooks.append(self._notice)

    def find_log(self, uid: str, container: str, previous: bool) -> Log | None:
        """Return the log of a container's current or previous life."""
        life = self.pods.get(uid)
        return life.log(container, previous=previous) if life else None

    def find_container(self, uid: str, container: str) -> Container | None:
        """Return a running container."""
        life = self.pods.get(uid)
        return life.running(container) if life else None

    async def stop(self) -> None:
        """Kill every pod."""
        for life in self.pods.values():
            life.kill()
            life.let_go()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)
        # An error in a pod's task leaves a job hanging: raise it, so that nobody has to guess.
        if self._errors:
            raise self._errors[0]

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._errors.append(error)

    def _notice(self, change: Change) -> None:
        if change.resource != PODS or not change.object["spec"].get("nodeName"):
            return
        uid = change.object["metadata"]["uid"]
        if change.type == "DELETED":
            if uid in self.pods:
                self.pods.pop(uid).kill()
        elif uid not in self.pods and change.object["status"].get("phase") == "Pending":
            life = self.pods[uid] = PodLife(self._node, change.object)
            self.cache.register(change.object)
            task = asyncio.get_running_loop().create_task(life.run())
            self._tasks.add(task)
            task.add_done_callback(self._end)
        elif uid in self.pods and "deletionTimestamp" in change.object["metadata"]:
            self.pods[uid].end(change.object["metadata"]["deletionGracePeriodSeconds"])
