"""A pod's status, as a kubelet writes it."""

from dataclasses import dataclass, field

from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.store import now

WAITING: Object = {"waiting": {"reason": "ContainerCreating"}}
INITIALIZING: Object = {"waiting": {"reason": "PodInitializing"}}


@dataclass
class ContainerStatus:
    """The status of one container."""

    name: str
    image: str
    state: Object = field(default_factory=lambda: dict(WAITING))
    last: Object = field(default_factory=dict)
    restarts: int = 0

    @property
    def running(self) -> bool:
        """Return whether the container runs."""
        return "running" in self.state

    @property
    def ended(self) -> Object | None:
        """Return `terminated`, or None if the container hasn't ended."""
        return self.state.get("terminated")

    def shown(self) -> Object:
        """Return the status object."""
        details = next(iter(self.state.values()))
        shown = {
            "name": self.name,
            "state": self.state,
            "lastState": self.last,
            "ready": self.running,
            "restartCount": self.restarts,
            "image": self.image,
            "imageID": "" if "waiting" in self.state else f"sha256:{self.image}",
            "started": self.running,
        }
        return shown | ({"containerID": details["containerID"]} if details.get("containerID") else {})


@dataclass
class PodStatus:
    """A kubelet's view of a pod; it keeps `conditions` that others wrote."""

    containers: list[ContainerStatus]
    inits: list[ContainerStatus]
    address: str
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    disrupted: str = ""  # the reason of the DisruptionTarget condition
    sandbox: bool = False
    started: str = field(default_factory=now)

    def shown(self, before: Object) -> Object:
        """Return the status object that follows the one `before`."""
        status: Object = {
            "phase": self.phase,
            "conditions": self._conditions(before.get("conditions", [])),
            "hostIP": "127.0.0.1",
            "hostIPs": [{"ip": "127.0.0.1"}],
            "startTime": self.started,
            "containerStatuses": [container.shown() for container in self.containers],
            "qosClass": "BestEffort",
        }
        if self.sandbox:
            status |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        if self.inits:
            status["initContainerStatuses"] = [init.shown() for init in self.inits]
        cause = {"reason": self.reason, "message": self.message}
        return status | {name: text for name, text in cause.items() if text}

    def _conditions(self, before: list[Object]) -> list[Object]:
        over = self.phase in ("Succeeded", "Failed")
        waiting = [init.name for init in self.inits if (init.ended or {}).get("exitCode") != 0]
        ready = not over and all(container.running for container in self.containers)
        conditions = [
            _condition("PodReadyToStartContainers", yes=self.sandbox and not over),
            _condition("Initialized", yes=not waiting, **self._not_initialized(waiting)),
            _condition("Ready", yes=ready, **self._not_ready(ready)),
            _condition("ContainersReady", yes=ready, **self._not_ready(ready)),
            _condition("PodScheduled", yes=True),
        ]
        if self.disrupted:
            conditions.append(
                _condition("DisruptionTarget", yes=True, reason=self.disrupted, message=self.message)
            )
        predecessors = {condition["type"]: condition for condition in before}
        for condition in conditions:
            old = predecessors.get(condition["type"])
            if old and old["status"] == condition["status"]:
                condition["lastTransitionTime"] = old["lastTransitionTime"]
        foreign = [
            condition
            for condition in before
            if condition["type"] not in {entry["type"] for entry in conditions}
        ]
        return [*foreign, *conditions]

    def _outcome(self) -> str:
        """Return the reason of the conditions after the end, PodCompleted or PodFailed; "" before it."""
        ends = [container.ended for container in self.containers]
        if self.phase == "Succeeded" or all(end and end["exitCode"] == 0 for end in ends):
            return "PodCompleted"
        return "PodFailed" if self.phase == "Failed" or (self.final and all(ends)) else ""

    # True once no container will start again, a moment before the phase shows it.
    final: bool = False

    def _not_initialized(self, waiting: list[str]) -> dict[str, str]:
        if waiting:
            listed = " ".join(waiting)
            return {
                "reason": "ContainersNotInitialized",
                "message": f"containers with incomplete status: [{listed}]",
            }
        return {"reason": "PodCompleted"} if self._outcome() == "PodCompleted" else {}

    def _not_ready(self, ready: bool) -> dict[str, str]:
        if ready:
            return {}
        if outcome := self._outcome():
            return {"reason": outcome}
        listed = " ".join(container.name for container in self.containers if not container.running)
        return {"reason": "ContainersNotReady", "message": f"containers with unready status: [{listed}]"}


def _condition(kind: str, *, yes: bool, **details: str) -> Object:
    status = "True" if yes else "False"
    return {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": now()} | details
