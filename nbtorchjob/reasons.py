"""What a cluster says of its pods, in words: whose fault it is, and what to do about it.

The reasons are those of Kubernetes 1.36 and containerd 2.1; which of them mean what was recorded on
real clusters. A reason that isn't known here is shown as it is.
"""

from __future__ import annotations

from signal import SIGTERM

from nbtorchjob import events as ev
from nbtorchjob import failure
from nbtorchjob.failure import Cause, Reason

DEADLINE_EXCEEDED = "DeadlineExceeded"
INIT_FAILED = "InitContainerFailed"  # our word: the cluster has none

_AGAIN = "Nothing is wrong with the code: run it again; with --max-restarts it starts again by itself."
_PYTHON = "Is there a python in the image?"
_PULL = "Check --image, and that the cluster may pull it (--image-pull-secret)."

# What a container's or pod's reason adds to an exit code; the others only repeat it.
_SAY_NOTHING = ("", "Completed", "Error")
_MEMORY = "Raise --memory, or use a smaller batch or fewer ranks."
_ENDS: dict[str, Reason] = {
    "OOMKilled": Reason(Cause.USER, "used more memory than its limit (OOMKilled)", _MEMORY),
    "StartError": Reason(Cause.CONFIG, "its container can't start", _PYTHON),
    "ContainerCannotRun": Reason(Cause.CONFIG, "its container can't start", _PYTHON),
    # Also of every pod that is deleted before its container started.
    "ContainerStatusUnknown": Reason(Cause.INFRA, "its container was lost", _AGAIN),
    "Evicted": Reason(Cause.INFRA, "evicted by its host", _AGAIN),
    "Preempting": Reason(Cause.INFRA, "preempted by its host for a critical pod", _AGAIN),
    "Terminated": Reason(Cause.INFRA, "its host is shutting down", _AGAIN),
    "Shutdown": Reason(Cause.INFRA, "its host is shutting down", _AGAIN),
    "NodeShutdown": Reason(Cause.INFRA, "its host is shutting down", _AGAIN),
    "NodeLost": Reason(Cause.INFRA, "its host was lost", _AGAIN),
    DEADLINE_EXCEEDED: Reason(Cause.DEADLINE, "ran longer than its pod's deadline", "Raise the deadline."),
    INIT_FAILED: Reason(Cause.CONFIG, "failed before its start", "See the init container's log."),
}
_DISRUPTIONS: dict[str, str] = {
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "DeletionByTaintManager": "taken from a host that was lost or tainted",
    "EvictionByEvictionAPI": "evicted, as when a host is drained",
    "DeletionByPodGC": "lost with its host, which no longer exists",
    "TerminationByKubelet": "ended by a host that ran short of something or shuts down",
    ev.DELETED: "its pod was deleted",
}
_MOUNT = "Check that the Secret, ConfigMap or claim it names exists in the namespace."
# Why something waits that won't end by itself.
_STUCK: dict[str, str] = {
    "ErrImagePull": _PULL,
    "ImagePullBackOff": _PULL,
    "InvalidImageName": "Check the spelling of --image.",
    "ErrImageNeverPull": "The pull policy is Never, and the host doesn't have the image.",
    "CreateContainerConfigError": _MOUNT,
    "CreateContainerError": "The container runtime refuses the container: see its message.",
    "RunContainerError": _PYTHON,
    "FailedMount": _MOUNT,
    "FailedAttachVolume": _MOUNT,
    "FailedCreateService": "Give the job a shorter --name.",
    "TrainJobResourcesCreationFailed": "The runtime and this job don't fit together.",
    "JobCreationFailed": "The runtime and this job don't fit together.",
    "PodGroupError": "Volcano's own webhook refuses: ask an administrator.",
}


def tells(event: ev.NodeExited) -> bool:
    """Whether the cluster said more of an end than the exit code does."""
    return event.reason not in _SAY_NOTHING


def of_end(event: ev.NodeExited) -> Reason:
    """Say why a node ended that ended badly."""
    if tells(event):
        return _of_reason(event.reason, event.text)
    if event.pod and event.signal == SIGTERM:
        return Reason(Cause.USER, "ended by SIGTERM", "Nothing took its pod away: it came from within.")
    reason = failure.of_signal(event.signal) if event.signal else _of_code(event.code)
    return reason if reason.hint or not event.text else Reason(reason.cause, reason.line, _words(event.text))


def _of_reason(reason: str, text: str) -> Reason:
    known = _ENDS.get(reason)
    if known is None:  # OutOfcpu, NodeAffinity, UnexpectedAdmissionError, TopologyAffinityError, …
        return Reason(Cause.INFRA, f"its host refused it ({reason}): {text}".rstrip(": "), _AGAIN)
    line = f"{known.line}: {text}".rstrip(": ") if reason != "OOMKilled" else known.line
    if reason == "Evicted" and "exceed" in text and "limit" in text:
        hint = "It used more of it than it may: write less, or ask for more."
        return Reason(Cause.USER, line, hint)
    return Reason(known.cause, line, known.hint)


def _of_code(code: int | None) -> Reason:
    if code is None:
        return Reason(Cause.INFRA, "ended, and nobody saw how", _AGAIN)
    if code in (126, 127):
        return Reason(Cause.CONFIG, f"its command can't be run (exit code {code})")
    known = failure.of_agent(code)
    return known if known.cause is not Cause.UNKNOWN else Reason(Cause.USER, f"exited with code {code}")


def _words(text: str) -> str:
    return f"Its last words: {text.strip()}"


def of_disruption(event: ev.NodeDisrupted) -> Reason:
    """Say why a node's pod was taken away."""
    line = _DISRUPTIONS.get(event.reason, f"its pod was taken away ({event.reason})")
    return Reason(Cause.INFRA, line, _AGAIN)


def of_waiting(event: ev.Waiting) -> Reason | None:
    """Say whose fault it is that something waits; None where waiting is all there is to do."""
    if "429" in event.text and event.reason in ("ErrImagePull", "ImagePullBackOff"):
        return Reason(Cause.INFRA, event.text, "The registry limits how often it is asked: wait.")
    if event.stage is ev.Stage.RESTARTING and event.reason in _ENDS:
        return Reason(_ENDS[event.reason].cause, event.text, _ENDS[event.reason].hint)
    hint = _STUCK.get(event.reason)
    return Reason(Cause.CONFIG, event.text, hint) if hint is not None else None
