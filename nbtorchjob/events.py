"""The facts a backend reports about one job. It concludes nothing from them: ``state.py`` does.

Times are seconds since the epoch. A *round* is one life of the worker group: it grows with every
restart and with every change of membership, where torch's restart count (the *attempt*) grows
only with the former (torch 2.13, ``torch.distributed.elastic.agent``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from nbtorchjob.runtime.errors import Error


@dataclass(frozen=True)
class NodeStarted:
    """A node's agent runs."""

    time: float
    node: int
    host: str
    pid: int


@dataclass(frozen=True)
class NodeExited:
    """A node's agent ended: with an exit ``code``, or by a ``signal``."""

    time: float
    node: int
    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class NodeFailed:
    """A node's agent gave up by itself, and is about to exit with ``code`` (``runtime/exits.py``)."""

    time: float
    node: int
    code: int
    error: Error


@dataclass(frozen=True)
class WorkersStarted:
    """A node started its workers for one round; ``ranks`` are the global ranks it has there."""

    time: float
    node: int
    attempt: int
    round: int
    ranks: tuple[int, ...]
    world_size: int


@dataclass(frozen=True)
class RankFailed:
    """An exception left the user's code on a rank."""

    time: float
    node: int
    rank: int
    attempt: int
    round: int
    error: Error


@dataclass(frozen=True)
class RankExited:
    """A worker process ended by itself without having said why: ``os._exit`` or a signal."""

    time: float
    node: int
    rank: int
    attempt: int
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
    | NodeFailed
    | WorkersStarted
    | RankFailed
    | RankExited
    | Reported
    | LogChunk
    | ValueReady
    | Notice
    | CancelRequested
    | DeadlineExceeded
    | Lost
    | Closed
)

_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}


def from_json(record: dict[str, Any]) -> Event:
    """Rebuild an event from the line a node wrote (``runtime/emit.py``)."""
    fields = dict(record)
    kind = _KINDS[fields.pop("event")]
    if "error" in fields:
        fields["error"] = Error.from_json(fields["error"])
    if "ranks" in fields:
        fields["ranks"] = tuple(fields["ranks"])
    known = {field.name for field in dataclasses.fields(kind)}
    event: Event = kind(**{k: v for k, v in fields.items() if k in known})
    return event
