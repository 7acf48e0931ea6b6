"""A point in time, as people write it: how long ago, or when."""

from __future__ import annotations

import re
from datetime import datetime

from nbtorchjob.errors import SpecError

_AGO = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def read(name: str, text: str, now: float) -> float:
    """Read "10m" (before ``now``) or an ISO 8601 time, the zone this machine's; raises ``SpecError``."""
    if ago := _AGO.fullmatch(text):
        return now - float(ago[1]) * _SECONDS[ago[2]]
    try:
        # Python 3.10 doesn't read "Z".
        return datetime.fromisoformat(re.sub("Z$", "+00:00", text)).timestamp()
    except (ValueError, OverflowError) as exc:
        raise SpecError(name, text, "how long ago (30s, 10m, 2h, 1d), or a time (2026-03-01T14:30)") from exc
