"""Durations, sizes, numbers, ranks and values as human-readable text."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nbtorchjob.text import CONTROLS

_SPANS = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*")


class SpansError(ValueError):
    """The text doesn't name numbers."""


def parse(text: str) -> tuple[int, ...]:
    """Return the numbers in a text such as ``0,2-4``, sorted, each once; raises ``SpansError``."""
    text = re.sub(r"\s*([,-])\s*", r"\1", text.strip())
    if not _SPANS.fullmatch(text):
        raise SpansError(text)
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (span := range(int(first), int(last or first) + 1)):
            raise SpansError(part)
        numbers.update(span)
    return tuple(sorted(numbers))


def spell(numbers: Iterable[int], comma: str = ",") -> str:
    """Return the numbers as text, smallest first, with consecutive ones as spans: ``0,2-4``."""
    spans: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return comma.join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


DOT = " · "
LINE = 400  # characters shown of a line
TIMES = "\u00d7"

_CONTROL = re.compile(f"[{CONTROLS}]")


def duration(seconds: float) -> str:
    """Return a number of seconds as text: ``4.2 s``, ``42 s``, ``3 min 20 s``, ``2 h 05 min``."""
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


def clock(at: float, now: float | None = None) -> str:
    """Return a time (seconds since the epoch) in local time: ``14:05:02``, with its date on another day.

    Without ``now``, which is for what may be read at any time, it always has its date.
    """
    try:
        moment, today = time.localtime(at), time.localtime(now) if now is not None else None
    except (OverflowError, ValueError, OSError):  # a deadline may be any number of seconds
        return "an unknown time"
    same = today is not None and moment[:3] == today[:3]
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M:%S", moment)


def size(count: int) -> str:
    """Return a number of bytes as text, in powers of 1000: ``812 B``, ``1.2 MB``, ``450 kB``."""
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
    return f"{value:.0f}" if 9999.5 <= abs(value) < 1e9 else f"{value:.4g}"


def count(many: int, noun: str) -> str:
    """Return ``1 rank`` or ``3 ranks``."""
    return f"{many} {noun}" if many == 1 else f"{many} {noun}s"


def some(names: Sequence[str], most: int) -> str:
    """Name the first ones, and how many more there are: ``a, b and 3 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def ranks(numbers: Iterable[int]) -> str:
    """Name ranks, consecutive ones as spans: ``rank 2``, ``ranks 1-3, 7``."""
    text = spell(numbers, ", ")
    return f"rank {text}" if text.isdigit() else f"ranks {text}"


def clean(text: str) -> str:
    """Return one line's text without any character that would act instead of being shown."""
    return _CONTROL.sub(" ", text)


def clip(text: str, most: int) -> str:
    """Cut text to ``most`` characters; the last one is "…" if something was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def elide(text: str, most: int) -> str:
    """Cut text in the middle, to ``most`` characters: the ends of a chain of causes say the most."""
    head = most // 2
    return text if len(text) <= most else f"{text[:head]}…{text[head + 1 - most :]}"


def line(text: str, most: int) -> str:
    """Return untrusted text as one clean line of at most ``most`` characters."""
    return clip(clean(text[: most + 1]), most)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows with equal numbers of texts as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(text.ljust(wide) for text, wide in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]


def fit(lines: list[str], room: int) -> list[str]:
    """Keep what fits in ``room`` UTF-8 bytes: a third from the start, the rest from the end."""
    sizes = [len(text.encode()) + 1 for text in lines]
    if sum(sizes) <= room:
        return lines
    head = _fitting(sizes, room // 3)
    tail = _fitting(sizes[:head:-1], room - room // 3)
    dropped = len(lines) - head - tail
    return [*lines[:head], f"[… {count(dropped, 'line')} …]", *lines[len(lines) - tail :]]


def _fitting(sizes: list[int], room: int) -> int:
    for index, line_size in enumerate(sizes):
        room -= line_size
        if room < 0:
            return index
    return len(sizes)


_MOST = 160  # characters
_ITEMS = 6
_DEPTH = 3


def short(value: Any) -> str:
    """Return one line that describes ``value``: ``{'loss': 0.12, 'weights': OrderedDict of 8}``."""
    return line(_form(value, _DEPTH), _MOST)


def _form(value: Any, depth: int) -> str:
    try:
        shape = getattr(value, "shape", None)
        if shape is not None and getattr(value, "dtype", None) is not None and tuple(shape):
            dtype = str(value.dtype).rpartition(".")[2]
            return f"{type(value).__name__} {dtype} {tuple(shape)}"
        if isinstance(value, Mapping):
            if type(value) is not dict or len(value) > _ITEMS or not depth:
                return f"{type(value).__name__} of {len(value)}"
            return "{" + ", ".join(f"{k!r}: {_form(v, depth - 1)}" for k, v in value.items()) + "}"
        if isinstance(value, (list, tuple, set, frozenset)):
            if len(value) > _ITEMS or not depth:
                return f"{type(value).__name__} of {len(value)}"
            items = [_form(item, depth - 1) for item in value]
            if isinstance(value, list):
                return "[" + ", ".join(items) + "]"
            if isinstance(value, tuple):
                return "(" + ", ".join(items) + ("," if len(items) == 1 else "") + ")"
            return f"{type(value).__name__} of {len(value)}"
        return line(repr(value), _MOST)
    except Exception as exc:  # a user's __repr__ or property may raise anything
        return f"<{type(value).__name__} whose repr raises {type(exc).__name__}>"
