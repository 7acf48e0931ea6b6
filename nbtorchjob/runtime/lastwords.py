"""The first failure of a node in its container's termination message, where the API server keeps it.

The kubelet keeps 4096 bytes of it, the last ones if there are more, so it is cut here, and stays JSON.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Optional, Tuple

from .errors import Error

TERMINATION_LOG = "NBTORCHJOB_TERMINATION_LOG"
MOST = 4096  # bytes
_FAILURES = ("RankFailed", "RankExited", "NodeFailed")


class LastWords:
    """Keeps the file up to date: a node may be killed before it knows that it ends."""

    def __init__(self, path: Optional[str]) -> None:
        self._path = path
        self._first: Optional[Dict[str, Any]] = None

    def note(self, record: Dict[str, Any]) -> None:
        """Take in an event; what failed before the workers were started again is past."""
        if record.get("event") == "WorkersStarted":
            if self._first is not None:
                self._write(None)
        elif record.get("event") in _FAILURES and _before(record, self._first):
            self._write(record)

    def _write(self, record: Optional[Dict[str, Any]]) -> None:
        self._first = record
        if self._path:
            try:
                # In place: the file is a mount of its own.
                with open(self._path, "wb") as file:
                    file.write(cut(record) if record else b"")
            except OSError:  # there is no such file here; the event itself says it all
                self._path = None


def _before(record: Dict[str, Any], other: Optional[Dict[str, Any]]) -> bool:
    return other is None or _order(record) < _order(other)


def _order(record: Dict[str, Any]) -> Tuple[bool, float]:
    # A rank whose peer died fails too, and may say so first.
    error = record.get("error")
    return error is not None and Error.from_json(error).lost_peer, record.get("time", 0.0)


# Frames (the innermost, without their variables), characters of a message, and exceptions behind it: ever
# less of each.
_CUTS = ((60, 16_384, 8), (16, 2000, 2), (6, 1000, 1), (3, 600, 0), (1, 300, 0))


def cut(record: Dict[str, Any]) -> bytes:
    """Return a failure as JSON of at most ``MOST`` bytes, with as much of its error as fits."""
    for frames, message, causes in _CUTS:
        error = _shortened(record.get("error"), frames, message, causes)
        raw = json.dumps({**record, "error": error} if error else record).encode()
        if len(raw) <= MOST:
            return raw
    return json.dumps({name: record[name] for name in record if name != "error"}).encode()


def _shortened(error: Any, frames: int, message: int, causes: int) -> Any:
    if not error:
        return None
    text = error["message"]
    return {
        **error,
        "frames": [{**frame, "variables": ()} for frame in list(error["frames"])[-frames:]],
        "message": text if len(text) <= message else text[:message] + " […]",
        "notes": error["notes"] if causes else [],
        "cause": _shortened(error["cause"], frames, message, causes - 1) if causes else None,
    }
