"""Spans of time, from when until when in ns, as lists that are in order and don't overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[int, int]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return such a list that covers what these cover."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def length(spans: Iterable[Span]) -> int:
    """Return how long they are together."""
    return sum(end - start for start, end in spans)


def without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return what of ``spans`` no other covers."""
    found, first = [], 0
    for start, end in spans:
        while first < len(others) and others[first][1] <= start:
            first += 1
        at = start
        for other in others[first:]:
            if other[0] >= end:
                break
            if other[0] > at:
                found.append((at, other[0]))
            at = max(at, other[1])
        if at < end:
            found.append((at, end))
    return found


def common(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return what both cover."""
    return without(spans, without(spans, others))
