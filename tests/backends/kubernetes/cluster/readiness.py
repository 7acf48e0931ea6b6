"""The requirements of a container's start: its image and its environment."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.backends.kubernetes.cluster.container import Ended, not_started
from tests.backends.kubernetes.cluster.images import Images, PullFailure
from tests.backends.kubernetes.cluster.journal import Journal
from tests.backends.kubernetes.cluster.kubeletcache import KubeletCache
from tests.backends.kubernetes.cluster.network import Network
from tests.backends.kubernetes.cluster.podstatus import ContainerStatus
from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.sandbox import Command, MissingEnvironment, Sandbox
from tests.backends.kubernetes.cluster.store import Store

# The interval between attempts; a real kubelet waits seconds to minutes.
RETRY_S = 0.2


@dataclass(frozen=True)
class Node:
    """A node's shared state. `restart_s`: wait before the second restart; `settle_s`: from end to phase."""

    store: Store
    cache: KubeletCache
    images: Images
    network: Network
    journal: Journal
    folder: Path
    restart_s: float
    settle_s: float
    # By name pattern, the seconds by which the clocks of matching pods are ahead: as if on separate hosts.
    clocks: dict[str, float] = field(default_factory=dict)

    def ahead_s(self, pod: Object) -> float:
        """Return the seconds by which the clock of a pod's host is ahead."""
        name = pod["metadata"]["name"]
        return next((ahead for pattern, ahead in self.clocks.items() if re.search(pattern, name)), 0.0)


class Readiness:
    """The waits of one pod's containers. `publish` writes the pod's status, `pause` waits while it lives."""

    def __init__(
        self,
        node: Node,
        pod: Object,
        sandbox: Sandbox,
        publish: Callable[[], None],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._node, self._pod, self._sandbox = node, pod, sandbox
        self._publish, self._pause = publish, pause

    async def wait(self, spec: Object, status: ContainerStatus) -> Command | Ended:
        """Wait for image and environment; return the command, or the end of a container that can't start."""
        path = await self._image(spec, status)
        while True:
            try:
                _check_user(self._pod, spec)
                return self._sandbox.command(spec, path)
            except (FileNotFoundError, PermissionError) as error:
                return not_started(str(error))
            except MissingEnvironment as missing:
                waiting = {"reason": "CreateContainerConfigError", "message": str(missing)}
                self._waits(status, waiting, "Failed", f"Error: {missing}")
            await self._pause(RETRY_S)

    async def _image(self, spec: Object, status: ContainerStatus) -> str:
        tell, name, image = self._node.journal.tell, spec["name"], spec["image"]
        while True:
            try:
                path = self._node.images.find(spec)
            except PullFailure as failure:
                if failure.reason == "ErrImagePull":
                    tell(self._pod, "Pulling", f'Pulling image "{image}"', container=name)
                    text = f'Failed to pull image "{image}": {failure.message}'
                else:
                    text = failure.message
                tell(self._pod, failure.event, text, warning=True, container=name)
                message = f"Error: {failure.reason}"
                self._waits(status, {"reason": failure.reason, "message": failure.message}, "Failed", message)
                await self._pause(RETRY_S)
                if failure.reason == "ErrImagePull":
                    tell(self._pod, "BackOff", f'Back-off pulling image "{image}"', container=name)
                    text = f'Back-off pulling image "{image}": ErrImagePull: {failure.message}'
                    waiting = {"reason": "ImagePullBackOff", "message": text}
                    self._waits(status, waiting, "Failed", "Error: ImagePullBackOff")
                    await self._pause(RETRY_S)
            else:
                tell(self._pod, "Pulled", await self._pulled(image, name), container=name)
                return path

    async def _pulled(self, image: str, container: str) -> str:
        """Wait for an image that is still being pulled; return the message of the Pulled event."""
        pulling = self._node.images.pulling
        if image not in pulling:
            return f'Container image "{image}" already present on machine and can be accessed by the pod'
        self._node.journal.tell(self._pod, "Pulling", f'Pulling image "{image}"', container=container)
        while image in pulling:
            await self._pause(RETRY_S)
        return f'Successfully pulled image "{image}" in 1m2s (1m2s including waiting). Image size: 9 bytes.'

    def _waits(self, status: ContainerStatus, waiting: Object, reason: str, text: str) -> None:
        status.state = {"waiting": waiting}
        self._node.journal.tell(self._pod, reason, text, warning=True, container=status.name)
        self._publish()


def _check_user(pod: Object, container: Object) -> None:
    """Refuse to run a container as root under runAsNonRoot: images of this cluster name no user."""
    meta = pod["metadata"]
    context = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
    if context.get("runAsNonRoot") and not context.get("runAsUser"):
        shown = f'pod: "{meta["name"]}_{meta["namespace"]}({meta["uid"]})", container: {container["name"]}'
        raise MissingEnvironment(f"container has runAsNonRoot and image will run as root ({shown})")
