"""Durations, sizes, numbers and ranks, in the words a person reads."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Sequence

from nbtorchjob.text import spans
from nbtorchjob.text.terminal import CONTROLS

DOT = " · "
LINE = 400  # characters shown of a line
TIMES = "\u00d7"

_CONTROL = re.compile(f"[{CONTROLS}]")


def duration(seconds: float) -> str:
    """Return a time of so many seconds: ``4.2 s``, ``42 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = whole // 60
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def about(seconds: float) -> str:
    """Return a rounded time: ``42 s``, ``2 min``, ``2 h 05 min``."""
    return f"{int(seconds // 60)} min" if 60 <= seconds < 3600 else duration(seconds)


def clock(at: float, now: float) -> str:
    """Return a time (seconds since the epoch) in local time: ``14:05:02``, with its date on another day."""
    try:
        there, here = time.localtime(at), time.localtime(now)
    except (OverflowError, ValueError, OSError):  # a deadline may be any number of seconds
        return "an unknown time"
    same = there[:3] == here[:3]
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M:%S", there)


def size(count: int) -> str:
    """Return so many bytes, in powers of 1000: ``812 B``, ``1.2 MB``, ``450 kB``."""
    number, unit = float(count), "B"
    for bigger in ("kB", "MB", "GB", "TB"):
        if number < 999.5:
            break
        number, unit = number / 1000, bigger
    return f"{number:.1f} {unit}" if unit != "B" and number < 9.95 else f"{number:.0f} {unit}"


def number(value: float) -> str:
    """Return a metric's value with four significant digits; whole numbers below 1e9 in full."""
    if not math.isfinite(value):
        return str(float(value))
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def count(many: int, noun: str) -> str:
    """Return ``1 rank`` or ``3 ranks``."""
    return f"{many} {noun}" if many == 1 else f"{many} {noun}s"


def ranks(numbers: Iterable[int]) -> str:
    """Name ranks with runs as ranges: ``rank 2``, ``ranks 1-3, 7``."""
    text = spans.spell(numbers, ", ")
    return f"rank {text}" if text.isdigit() else f"ranks {text}"


def clean(text: str) -> str:
    """Return one line's text without any character that would act instead of being shown."""
    return _CONTROL.sub(" ", text)


def clip(text: str, most: int) -> str:
    """Cut text to ``most`` characters; the last one is "…" if something was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def elide(text: str, most: int) -> str:
    """Cut the middle of text, to ``most`` characters: a chain of causes is most telling at its ends."""
    head = most // 2
    return text if len(text) <= most else f"{text[:head]}…{text[head + 1 - most :]}"


def line(text: str, most: int) -> str:
    """Return untrusted text as one clean line of at most ``most`` characters."""
    return clip(clean(text[: most + 1]), most)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of equally many texts as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(text.ljust(wide) for text, wide in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]


def fit(lines: list[str], room: int) -> list[str]:
    """Keep what fits in ``room`` UTF-8 bytes: a third from the start, the rest from the end."""
    sizes = [len(each.encode()) + 1 for each in lines]
    if sum(sizes) <= room:
        return lines
    head = _fitting(sizes, room // 3)
    tail = _fitting(sizes[:head:-1], room - room // 3)
    dropped = len(lines) - head - tail
    return [*lines[:head], f"[… {count(dropped, 'line')} …]", *lines[len(lines) - tail :]]


def _fitting(sizes: list[int], room: int) -> int:
    for index, each in enumerate(sizes):
        room -= each
        if room < 0:
            return index
    return len(sizes)
