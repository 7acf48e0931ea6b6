"""What the runs of a group are given: pickled apart from the call, which they share; and as it is shown."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nbtorchjob.capture import pickling, unpicklable
from nbtorchjob.errors import CaptureError
from nbtorchjob.runtime import sources
from nbtorchjob.text import values, words

_MOST_BYTES = 16 * 1024  # each run's record holds its own, and a list of a cluster's jobs carries them all
_MOST_TEXT = 80


def pickled(given: Mapping[str, Any], *, sourced: bool = False) -> bytes:
    """Pickle what one run is given; raises ``CaptureError`` for what can't travel, or is too big.

    What is ``sourced`` has the sources of its code along, for another Python.
    """
    try:
        found = pickling.dump({"given": dict(given)})
    except Exception as exc:  # whatever an object's own code raises while it is pickled
        raise unpicklable.explain(dict(given), exc) from exc
    code = found.seen.code.table() if sourced else {"places": []}
    data = (sources.front(code) if code["places"] else b"") + found.data
    size = len(data) + sum(view.nbytes for view in found.buffers)
    if found.buffers or size > _MOST_BYTES:
        raise CaptureError(
            f"{', '.join(given)}: what one run is given takes {words.size(size)}, and may take "
            f"{words.size(_MOST_BYTES)}: make a variable of all of it, and vary the index into that"
        )
    return data


def modules(given: Mapping[str, Any]) -> frozenset[str]:
    """Return the modules that the values refer to; none where they can't travel, which is told later."""
    try:
        return frozenset(pickling.dump({"given": dict(given)}).seen.modules)
    except Exception:
        return frozenset()


def shown(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one run is given as plain data: numbers, short texts, and of all else a description."""
    return {name: _shown(value) for name, value in given.items()}


def _shown(value: Any) -> Any:
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # numpy's numbers, and torch's
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    return words.clip(value if isinstance(value, str) else values.short(value), _MOST_TEXT)


def said(given: Mapping[str, Any]) -> str:
    """Return ``lr=0.1, seed=0`` of what is shown."""
    return ", ".join(f"{name}={value}" for name, value in given.items())


def check_read(given: Iterable[str], known: Iterable[str], sets: Iterable[str], what: str) -> None:
    """Raise ``CaptureError`` for a name that isn't among those that a cell reads."""
    known = [*known]
    for name in given:
        if name in known:
            continue
        if name in sets:
            raise CaptureError(f"--each {name}: {what} sets {name} itself: remove that line")
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else "each run would do the same"
        raise CaptureError(f"--each {name}: {what} doesn't read {name}: {hint}")


def check_taken(fn: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ``CaptureError`` where a function doesn't take what it is given, or needs more."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # one of C's
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as exc:
        name = getattr(getattr(fn, "func", fn), "__name__", "the function")
        raise CaptureError(f"{name}({said(shown(kwargs))}): {exc}; it is {name}{signature}") from None
