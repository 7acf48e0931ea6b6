"""How Kubernetes objects are read, whatever their kind: times and conditions (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nbtorchjob.spec.validation import digits
from nbtorchjob.state import events as ev

Object = Mapping[str, Any]


def seconds(stamp: str | None) -> float:
    """Return an RFC 3339 time as seconds since the epoch; 0 for none, which Kubernetes may write, too."""
    try:
        # Python 3.10 reads neither "Z" nor fractions other than of three or six digits.
        return datetime.fromisoformat(_plain(stamp)).timestamp() if stamp else 0.0
    except ValueError:  # whatever answers in an API server's place
        return 0.0


def _plain(stamp: str) -> str:
    whole, _, digits = stamp.rstrip("Z").partition(".")
    return f"{whole}.{digits[:6]:0<6}+00:00" if digits else f"{whole}+00:00"


def meta(obj: Object) -> Object:
    """Return an object's metadata."""
    metadata: Object = obj.get("metadata") or {}
    return metadata


def status(obj: Object) -> Object:
    """Return an object's status; empty before one was written."""
    value: Object = obj.get("status") or {}
    return value


def created(obj: Object) -> float:
    """When the object was created."""
    return seconds(meta(obj).get("creationTimestamp"))


def deleted(obj: Object) -> float | None:
    """When the object's deletion was requested: its deletionTimestamp is a grace period later."""
    stamp = meta(obj).get("deletionTimestamp")
    return seconds(stamp) - (meta(obj).get("deletionGracePeriodSeconds") or 0) if stamp else None


def ended(pod: Object) -> bool:
    """Whether all containers of a pod have ended, and none begins again."""
    return status(pod).get("phase") in ("Succeeded", "Failed")


def index(text: object) -> int | None:
    """Return the number of a node, as an operator writes it; None for what others may write."""
    number = digits(text)
    return number if number is not None and number >= 0 else None


def condition(obj: Object, kind: str, state: str = "True") -> Object | None:
    """Return the condition of that type if its status is ``state``."""
    for candidate in status(obj).get("conditions") or ():
        if candidate.get("type") == kind and candidate.get("status") == state:
            match: Object = candidate
            return match
    return None


def since(condition: Object) -> float:
    """When a condition last changed its status."""
    return seconds(condition.get("lastTransitionTime"))


def job_facts(obj: Object, good: str, bad: str, *, every_node: bool = True) -> list[ev.Event]:
    """Return the facts in a job's conditions; ``good`` and ``bad`` are the types that end it."""
    events: list[ev.Event] = []
    for kind in (bad, good):
        ended = condition(obj, kind)
        if ended is not None and not events:
            reason, text = ended.get("reason", ""), ended.get("message", "")
            events.append(ev.Verdict(since(ended), kind == good, reason, text, every_node))
    asked = deleted(obj)
    if asked is not None and not events:
        events.append(ev.CancelRequested(asked))
    for state in ("True", "False"):
        paused = condition(obj, "Suspended", state)
        if paused is not None:
            events.append(ev.Suspended(since(paused), state == "True"))
    return events
