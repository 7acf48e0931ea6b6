"""The facts a backend reports about one job. It concludes nothing from them: ``state.py`` does.

Times are seconds since the epoch. A *round* is one life of the worker group: it grows with every
restart and with every change of membership, where torch's count of *restarts* in place grows
only with the former (torch 2.13, ``torch.distributed.elastic.agent``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias, get_args

from nbtorchjob.fits import checked
from nbtorchjob.runtime.errors import Error


@dataclass(frozen=True)
class NodeStarted:
    """A node's agent runs.

    On a cluster ``pod`` is the uid of the pod that the node lives in, and ``run`` counts the lives of
    its container, which the kubelet may start again in place (``restartPolicy: OnFailure``).
    ``attempt`` counts from 1 where attempts are numbered (``JobInfo.keeper``), else it is 1; on this
    machine a pod is the node's process in one attempt.
    """

    time: float
    node: int
    host: str
    pid: int = 0
    pod: str = ""
    run: int = 0
    attempt: int = 1


@dataclass(frozen=True)
class NodeExited:
    """A node's agent ended: with an exit ``code``, by a ``signal``, or nobody knows how.

    A container tells a signal as code 128 + signal, and then both are set. ``reason`` and ``text`` are
    the cluster's own words for it: the container's (``OOMKilled``) or its pod's (``Evicted``).
    """

    time: float
    node: int
    code: int | None = None
    signal: int | None = None
    pod: str = ""
    reason: str = ""
    text: str = ""
    run: int = 0


@dataclass(frozen=True)
class NodeDisrupted:
    """Somebody takes a node's pod away, whatever its process does about it.

    ``reason`` is that of the pod's ``DisruptionTarget`` condition, or ``DELETED`` for a pod that was
    just deleted: by a person, or by its operator, which cleans up that way.
    """

    time: float
    node: int
    pod: str
    reason: str
    text: str = ""


DELETED = "Deleted"


@dataclass(frozen=True)
class NodeGone:
    """A node's pod no longer exists; how it ended may never be known."""

    time: float
    node: int
    pod: str


class Stage(IntEnum):
    """How far something had come that has to wait; a later stage replaces an earlier one."""

    QUEUED = 0  # there is no pod yet, or nobody looks for its place
    PLACING = 1  # no host has been found
    STARTING = 2  # image, volumes, container
    RESTARTING = 3  # between two runs of one container


@dataclass(frozen=True)
class Waiting:
    """A node, or the whole job where ``node`` is None, doesn't run yet; ``text`` says why.

    ``reason`` is the cluster's own word for what is wrong; "" where nothing is.
    """

    time: float
    text: str
    node: int | None = None
    pod: str = ""
    reason: str = ""
    stage: Stage = Stage.QUEUED
    attempt: int = 1  # as that of ``NodeStarted``
    run: int = 0  # the one that ended, where it is between two


@dataclass(frozen=True)
class NodeOutput:
    """A line that a node's pod wrote, but no rank: Python's own errors, what pip says."""

    time: float
    node: int
    pod: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """What the job's operator concluded.

    ``every_node`` is False where one node that ended well is enough for it, as it is for an elastic
    PyTorchJob (training-operator 1.9): that node may have been evicted and have ended politely.
    ``attempt`` is the one it is about, as that of ``NodeStarted``.
    """

    time: float
    succeeded: bool
    reason: str = ""
    text: str = ""
    every_node: bool = True
    attempt: int = 1


@dataclass(frozen=True)
class AttemptBegan:
    """An attempt after the first was started; its nodes may come later."""

    time: float
    attempt: int


@dataclass(frozen=True)
class Suspended:
    """Somebody took the job's nodes away for a while, or gave them back."""

    time: float
    suspended: bool


@dataclass(frozen=True)
class Removed:
    """The job's object no longer exists."""

    time: float


@dataclass(frozen=True)
class NodeFailed:
    """A node's agent gave up by itself, and is about to exit with ``code`` (``runtime/exits.py``)."""

    time: float
    node: int
    code: int
    error: Error
    pod: str = ""


@dataclass(frozen=True)
class WorkersStarted:
    """A node started its workers for one round; ``ranks`` are the global ranks it has there."""

    time: float
    node: int
    restart: int
    round: int
    ranks: tuple[int, ...]
    world_size: int
    pod: str = ""  # as that of ``NodeStarted``, where it is known


@dataclass(frozen=True)
class RankFailed:
    """An exception left the user's code on a rank."""

    time: float
    node: int
    rank: int
    restart: int
    round: int
    error: Error


@dataclass(frozen=True)
class RankExited:
    """A worker process ended by itself without having said why: ``os._exit`` or a signal."""

    time: float
    node: int
    rank: int
    restart: int
    round: int
    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class Reported:
    """One ``report(...)`` of a rank; ``seq`` counts them within the rank's round, from 0."""

    time: float
    rank: int
    round: int
    seq: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class LogChunk:
    """Bytes of a rank's log, at ``offset`` in the log of that round."""

    rank: int
    round: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class ValueReady:
    """A rank's value lies at ``ref`` (for the backend's ``fetch``), ``size`` bytes long."""

    time: float
    rank: int
    round: int
    ref: str
    size: int


@dataclass(frozen=True)
class Notice:
    """Something worth a line in the cell that changes nothing."""

    time: float
    text: str


@dataclass(frozen=True)
class CancelRequested:
    """Somebody asked for the job's end."""

    time: float


@dataclass(frozen=True)
class DeadlineExceeded:
    """The job ran longer than its ``active_deadline_seconds``."""

    time: float
    seconds: int


@dataclass(frozen=True)
class Lost:
    """The backend can't say how the job ended, and ``reason`` says why it can't."""

    time: float
    reason: str


@dataclass(frozen=True)
class Closed:
    """Every process of the job has ended; no further fact will come."""

    time: float


Event: TypeAlias = (
    NodeStarted
    | NodeExited
    | NodeDisrupted
    | NodeGone
    | NodeFailed
    | NodeOutput
    | Waiting
    | WorkersStarted
    | RankFailed
    | RankExited
    | Reported
    | LogChunk
    | ValueReady
    | Notice
    | CancelRequested
    | DeadlineExceeded
    | Verdict
    | AttemptBegan
    | Suspended
    | Removed
    | Lost
    | Closed
)

_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}


def to_json(event: Event) -> dict[str, Any]:
    """Give what :func:`from_json` takes; not for the bytes of a log."""
    return {"event": type(event).__name__, **dataclasses.asdict(event)}


# What is raised for JSON that is no such line, or for text that isn't JSON.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def from_json(record: dict[str, Any]) -> Event:
    """Rebuild an event from the line a node wrote (``runtime/emit.py``); raises one of ``UNREADABLE``."""
    fields = dict(record)
    kind = _KINDS[fields.pop("event")]
    if "error" in fields:
        fields["error"] = Error.from_json(fields["error"])
    if "ranks" in fields:
        fields["ranks"] = tuple(fields["ranks"])
    if "stage" in fields:
        fields["stage"] = Stage(fields["stage"])
    event: Event = kind(**checked(kind, fields))
    return event
