"""What a rank told of its profile beside torch's own trace becomes a part of that.

torch would record ``record_function``'s ranges and gloo's collectives itself, which isn't safe where a
profile ends at any moment (``runtime/profiler``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nbtorchjob.state.spans import Span

_CATEGORY = "user_annotation"  # torch's own, of both


def marked(trace: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trace with what the rank ``told`` (``runtime/profiler``) as events of it.

    Raises ``LookupError``, ``TypeError`` or ``ValueError`` where that isn't what a rank tells.
    """
    base, pid = int(trace.get("baseTimeNanoseconds", 0)), int(told["pid"])
    events = [_event(name, span, base, pid, pid) for name, span in _spans(told["ranges"])]
    rows: list[int] = []  # until when each is taken
    for name, span in sorted(_spans(told["collectives"]), key=lambda each: each[1]):
        row = next((number for number, until in enumerate(rows) if until <= span[0]), len(rows))
        rows[row : row + 1] = [span[1]]
        events.append(_event(name, span, base, pid, row + 1))
    names = [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": row + 1, "args": {"name": f"gloo {row + 1}"}}
        for row in range(len(rows))
    ]
    return {**trace, "traceEvents": [*trace["traceEvents"], *names, *events]}


def _spans(told: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Span]]:
    for name, began, ended in told:
        yield str(name), (int(began), int(ended))


def _event(name: str, span: Span, base: int, pid: int, thread: int) -> dict[str, Any]:
    start, end = ((at - base) / 1000 for at in span)
    times = {"ts": start, "dur": end - start}
    return {"ph": "X", "cat": _CATEGORY, "name": name, "pid": pid, "tid": thread, **times}
