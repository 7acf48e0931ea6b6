"""Facts as lines of JSON, as nodes write them, and which of them are believed.

A fact comes from what runs in a job, which may be somebody else's: a fact whose numbers make no sense, or
that is too long, is ``Refused``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args

from nbtorchjob.runtime.facts import LONGEST_FACT
from nbtorchjob.runtime.facts.errors import MAX_FRAMES, MAX_NOTES, MAX_VARIABLES, Error, Frame
from nbtorchjob.runtime.facts.samples import GpuUse, RankSample, RankUse
from nbtorchjob.spec import built, checked
from nbtorchjob.state.facts.events import (
    ArtifactsReady,
    AttemptPaid,
    CheckoutTold,
    Displayed,
    EnvironmentTold,
    Event,
    FilesSeen,
    LabEnds,
    RankGoesOn,
    RankStops,
    Refused,
    Sampled,
    Stage,
    Swapped,
    TurnTaken,
    ValueReady,
    WorkersStarted,
)

T = TypeVar("T")

_TYPES: dict[str, type] = {type_.__name__: type_ for type_ in get_args(Event)}


def to_json(event: Event) -> dict[str, Any]:
    """Return the record that :func:`from_json` takes; not for the bytes of a log."""
    return {"event": type(event).__name__, **asdict(event)}


# Raised for JSON that isn't such a line, for text that isn't JSON, or for facts that contradict others.
UNREADABLE = (
    *(ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError),
    ArithmeticError,
)


class _Bound(NamedTuple):
    """The range of a field's numbers, and how many of them there may be."""

    most: float = math.inf
    least: float = 0
    items: int | None = None


# Bounds by field name: a fact beyond them would use up a reader's memory, or break a drawing.
_BOUNDS: Mapping[str, _Bound] = {
    **dict.fromkeys(("time", "since", "sent"), _Bound(1e11)),  # the year 5138
    **dict.fromkeys(("node", "rank", "peer", "index", "cores", "files"), _Bound(1 << 20)),
    **dict.fromkeys(("ranks", "nodes", "failed"), _Bound(1 << 20, items=4096)),  # of one node
    "world_size": _Bound(1 << 20, least=1),
    "attempt": _Bound(10**9, least=1),
    **dict.fromkeys(("run", "restart"), _Bound(10**9)),
    **dict.fromkeys(("round", "base"), _Bound(10**12)),  # in pods they count from the clock
    "seq": _Bound(10**15),
    "code": _Bound(1 << 32, least=-(1 << 31)),
    **dict.fromkeys(("pid", "lineno"), _Bound(1 << 32)),
    **dict.fromkeys(("signal", "left"), _Bound(1 << 31)),
    "seconds": _Bound(10**18),
    "timeout": _Bound(1e18),
    "percent": _Bound(100),
    "more": _Bound(1 << 30),
    **dict.fromkeys(("tasks", "running", "worked"), _Bound(1 << 22)),  # the kernel's own bound
    **dict.fromkeys(("cpu", "busy", "watched"), _Bound(1e15)),
    **dict.fromkeys(("size", "total", "sizes", "call"), _Bound(1 << 62)),
    **dict.fromkeys(("memory", "limit", "shm", "shm_limit", "resident"), _Bound(1 << 62)),
    **dict.fromkeys(("pushed", "changed", "packages", "samples", "uses"), _Bound(items=4096)),
    **dict.fromkeys(("gpus", "metrics", "names", "paid"), _Bound(items=1024)),
    "number": _Bound(10**9),
    "tags": _Bound(items=64),
    **dict.fromkeys(("distributions", "installed", "modules"), _Bound(items=8192)),
    "data": _Bound(items=16),
}
# Fields that must not be empty: readers take their first or least item, or look them up.
_NEEDED: Mapping[type, tuple[str, ...]] = {
    WorkersStarted: ("ranks",),
    TurnTaken: ("ranks", "nodes"),
    LabEnds: ("why",),
    RankStops: ("why",),
    RankGoesOn: ("how",),
    Swapped: ("id", "names"),
    Displayed: ("data",),
    Sampled: ("why",),
    ValueReady: ("ref",),
    ArtifactsReady: ("ref",),
    AttemptPaid: ("budget",),
    FilesSeen: ("what",),
    CheckoutTold: ("commit",),
    EnvironmentTold: ("python",),
}
# Fields that are lists in JSON, with the class of their items where these are objects.
_SEQUENCES: Mapping[str, type | None] = {
    **dict.fromkeys(("ranks", "nodes", "failed", "pushed", "modules", "packages", "changed", "tags")),
    "samples": RankSample,
    "uses": RankUse,
    "gpus": GpuUse,
    "paid": AttemptPaid,
}
_DEEPEST = 16  # exceptions in a chain of causes
_MOST_WHY = 160


def from_json(record: dict[str, Any]) -> Event:
    """Rebuild an event from the line that a node wrote (``runtime/facts``).

    Raises one of ``UNREADABLE``, also for numbers that make no sense, such as a time that isn't finite.
    """
    values = dict(record)
    type_ = _TYPES[values.pop("event")]
    if "error" in values:
        # An error without a time of its own would be a different one each time it is read.
        values["error"] = _sane_error(Error.from_json({"time": values["time"], **values["error"]}))
    sequences, ranges = _bounded(type_)
    for name, part in sequences:
        if name in values:
            items = values[name]
            values[name] = tuple(
                items if part is None else (_sane_parts(built(part, item)) for item in items)
            )
    if "stage" in values:
        values["stage"] = Stage(values["stage"])
    field_values = checked(type_, values)
    for name, least, most in ranges:
        value: Any = field_values.get(name)
        # Most are numbers: checking those here takes half the time, and a wide job reports 100,000 facts.
        if not (type(value) in (int, float) and least <= value <= most):
            sane(name, value)
    for name in _NEEDED.get(type_, ()):
        if name in field_values and not field_values[name]:
            raise ValueError(f"its {name} is empty")
    event: Event = type_(**field_values)
    return event


@cache
def _bounded(type_: type) -> tuple[list[tuple[str, type | None]], list[tuple[str, float, float]]]:
    """Return the fields of a type of fact that are sequences, and those whose numbers have bounds."""
    names = [item.name for item in fields(type_)]
    bounds = [(name, _BOUNDS[name]) for name in names if name in _BOUNDS]
    return (
        [(name, _SEQUENCES[name]) for name in names if name in _SEQUENCES],
        [(name, bound.least, bound.most) for name, bound in bounds],
    )


def believed(record: Any, line: bytes = b"") -> Event | None:
    """Return a record's event: ``Refused`` if it can't be one, None for an event of a later version.

    ``line`` is the record as it was written, where that is known.
    """
    name = record.get("event") if isinstance(record, dict) else None
    if not isinstance(name, str) or name not in _TYPES:
        return None
    try:
        return from_json(record)
    except UNREADABLE as exc:
        return _refused(line, f"{name}: {exc or type(exc).__name__}")


_decode = json.JSONDecoder().raw_decode  # ``loads`` looks for the encoding first, and twice for white space


def read(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events in lines of JSON, as :func:`believed` returns them.

    Half a line, written when a disk was full, is skipped: ``runtime/facts`` goes on with a whole one.
    """
    for line in lines:
        event: Event | None = None
        if len(line) > LONGEST_FACT:
            event = _refused(line, f"a line of more than {LONGEST_FACT:,} bytes")
        else:
            try:
                text = str(line, "utf-8", "surrogatepass").strip()
                record, end = _decode(text)
            except (ValueError, RecursionError):
                continue
            event = believed(record, line) if end == len(text) else None
        if event is not None:
            yield event


def _refused(line: bytes, why: str) -> Refused:
    why = why[:_MOST_WHY]
    return Refused(hashlib.sha256(line or why.encode(errors="replace")).hexdigest()[:16], why)


def sane(name: str, value: T) -> T:
    """Return the value of a fact's field; raises ``ValueError`` for a number that makes no sense."""
    bound = _BOUNDS.get(name)
    if bound is None or value is None:
        return value
    numbers: Iterable[Any] = _numbers(value) if isinstance(value, tuple) else (value,)
    for number in numbers if bound.most < math.inf else ():
        if not bound.least <= number <= bound.most:  # also true of NaN
            raise ValueError(f"its {name} is {number!r:.40}")
    if bound.items is not None and isinstance(value, tuple | Mapping) and len(value) > bound.items:
        raise ValueError(f"it has {len(value):,} {name}")
    return value


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for number in value:
            yield from _numbers(number)
    else:
        yield value


def _sane_parts(record: T) -> T:
    """Return a dataclass after checking its numbers and those of its parts; raises ``ValueError``."""
    for name, value in vars(record).items():
        sane(name, value)
        for part in value if isinstance(value, tuple) else ():
            if is_dataclass(part):
                _sane_parts(part)
    return record


def _sane_error(error: Error, depth: int = 0) -> Error:
    """Return an error after checking the types of its parts; raises one of ``UNREADABLE``."""
    checked(Error, vars(error))
    sane("time", error.time)
    if len(error.frames) > MAX_FRAMES + 1 or len(error.notes) > MAX_NOTES or depth > _DEEPEST:
        raise ValueError("its error is longer than allowed")
    for frame in error.frames:
        checked(Frame, vars(frame))
    if error.cause is not None:
        _sane_error(error.cause, depth + 1)
    if depth == 0 and error.variables_size > MAX_VARIABLES:
        raise ValueError("its variables are longer than allowed")
    return error
