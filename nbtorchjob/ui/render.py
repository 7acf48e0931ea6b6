"""A job's state as one HTML card and as plain text: pure, so the same state gives the same card.

The card must survive JupyterLab's sanitiser in an untrusted notebook (4.4, sanitizer.ts): tags with
a meaning of their own, and inline styles without ``var()``, ids or scripts. Text keeps the page's
colour, so that it reads in any theme. Whatever came from outside is cut, cleaned and escaped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nbtorchjob.state import JobState, Phase, Series
from nbtorchjob.text import facts, failures
from nbtorchjob.text.tracebacks import SourceLookup, frames_text
from nbtorchjob.text.words import DOT, LINE, clip, count, duration, fit, line, ranks
from nbtorchjob.ui import chart, metrics
from nbtorchjob.ui.tails import Tail, html_tail, snippet, text_tail

# The card stays under 48 KiB of UTF-8: what is fixed is cut to size, the logs share what is left.
_CARD_BYTES = 47_000
_LEAD_BYTES = 9_000
_OTHER_BYTES = 3_000
_FRAME_BYTES = 720  # what one rank's log takes around its lines, at most
_LEAD_LINES = 30
_OTHER_LINES = 12
_TEXT_LINES = 10
_MAX_RANKS = 16
_MAX_NODES = 16
_NOTICES = 3
_MAX_LINE = 300  # characters of one notice

_DOTS = {
    Phase.SUBMITTED: "#808080",
    Phase.PENDING: "#bf8700",
    Phase.RUNNING: "#0969da",
    Phase.SUCCEEDED: "#2da44e",
    Phase.FAILED: "#d1242f",
    Phase.CANCELLED: "#808080",
}
_LINE = "rgba(128,128,128,0.4)"
_CARD = f"border:1px solid {_LINE};border-radius:4px;padding:8px 12px;max-width:960px"
_BOX = "margin:4px 0;padding:6px 8px;background-color:rgba(128,128,128,0.12)"
# Laid out from its end, a box that is too small shows the newest lines.
_SCROLL = f"{_BOX};display:flex;flex-direction:column-reverse;max-height:260px;overflow:auto"
# nbconvert's page shows a pre in the font of its text, and a log's columns out of line.
_MONO = "font:12px monospace"
_PRE = f"margin:0;flex-shrink:0;background:transparent;white-space:pre-wrap;overflow-wrap:break-word;{_MONO}"
_DIM = "opacity:0.7"
_SMALL = f"margin:4px 0;font-size:12px;{_DIM}"
_LAST = f"{_MONO};white-space:pre;{_DIM}"
# Pixels of one chart, by how many there are.
_CHARTS = {1: (560, 170), 2: (420, 160), 3: (280, 140), 4: (420, 140)}


def html(
    state: JobState,
    now: float,
    *,
    source: SourceLookup | None = None,
    expand_logs: bool = False,
    raised: bool = False,
    value: str = "",
) -> str:
    """Give the job's card; ``now`` is in seconds since the epoch.

    ``source`` finds the text of the notebook's own files, by default in ``state.info.sources``;
    with ``expand_logs`` every rank's log is open; ``raised`` says that an exception with the same
    traceback stands below, so that the card's own is folded; ``value`` is rank 0's in a line, once
    it is home (``text/values.py``).
    """
    above = [
        _header(state, now),
        _reported(state, now),
        _nodes(state),
        _failure(state, source or state.info.sources.get, raised=raised),
    ]
    below = [
        *(_line(line(notice.text, _MAX_LINE)) for notice in state.notices[-_NOTICES:]),
        _line(f"Value: {value}" if value else facts.result(state)),
        _line(facts.ships(state), _SMALL),
    ]
    room = _CARD_BYTES - sum(len(part.encode()) for part in (*above, *below))
    parts = [*above, *_logs(state, room, expanded=expand_logs), *below]
    return _tag("div", "\n".join(part for part in parts if part), _CARD, cls="nbtorchjob")


def text(state: JobState, now: float, *, value: str = "") -> str:
    """Give the job in plain text for places that show no HTML: terminals, GitHub, nbconvert."""
    rank = _lead(state)
    log = text_tail(state.logs[rank], _TEXT_LINES) if rank in state.logs else []
    lines = [
        f"torchjob {facts.last_line(state, now)}",
        facts.reforming(state),
        *facts.waiting(state),
        DOT.join(_metrics(state, now)),
        *failures.lines(state),
        *([f"Log of rank {rank}, last {count(len(log), 'line')}:"] if log else []),
        *(f"  {each}".rstrip() for each in log),
        *(line(notice.text, _MAX_LINE) for notice in state.notices[-_NOTICES:]),
        f"value: {line(value, _MAX_LINE)}" if value else facts.result(state),
    ]
    return "\n".join(each for each in lines if each)


def last_line(state: JobState, now: float) -> str:
    """Give the job in one line: name, phase, time, shape, and the metrics or the failure."""
    failure = state.failure
    if failure is not None and state.phase is Phase.FAILED:
        rest = [facts.heading(failure, state)]
    else:
        rest = metrics.told(_series(state), 4, counting=False)
    return DOT.join([f"torchjob {facts.last_line(state, now)}", *rest])


def _tag(name: str, body: str, style: str = "", *, cls: str = "") -> str:
    attributes = (f' class="{cls}"' if cls else "") + (f' style="{style}"' if style else "")
    return f"<{name}{attributes}>{body}</{name}>"


def _line(told: str, style: str = "margin:4px 0") -> str:
    return _tag("div", escape(line(told, LINE)), style) if told else ""


def _header(state: JobState, now: float) -> str:
    dot = _tag("span", "\u25cf", f"color:{_DOTS[state.phase]}")
    phase = _tag("b", facts.phase(state).lower())
    name = _tag("b", escape(line(state.info.name, 80)))
    took = duration(state.elapsed(now))
    rest = (facts.where(state.info), took, facts.shape(state), facts.attempt(state))
    more = _tag("span", escape("".join(DOT + each for each in rest if each)), _DIM)
    told = (facts.reforming(state), *facts.waiting(state))
    return _tag("div", f"{dot} {phase}{DOT}{name}{more}") + "".join(map(_line, told))


def _series(state: JobState) -> Series:
    return state.series.get(0, Series())


def _metrics(state: JobState, now: float) -> list[str]:
    """Give progress and the newest values while the job lives, all last values once it ended."""
    series = _series(state)
    if state.phase.terminal:
        return metrics.told(series, 16)
    progress = metrics.progress(series, now)
    told = metrics.told(series, 8, counting=progress is None)
    parts = [*([str(progress)] if progress else []), *told, metrics.rate(series)]
    return [part for part in parts if part]


def _reported(state: JobState, now: float) -> str:
    series = _series(state)
    progress = None if state.phase.terminal else metrics.progress(series)
    bar = ""
    if progress is not None:
        full = f'max="{progress.total:g}" value="{progress.done:g}"'
        bar = f'<progress {full} style="width:240px"></progress> '
    words = escape(DOT.join(_metrics(state, now)))
    return (_tag("div", bar + words, "margin:4px 0") if words else "") + _charts(series)


def _charts(series: Series) -> str:
    curves = metrics.curves(series)
    if not curves:
        return ""
    width, height = _CHARTS[len(curves)]
    drawn = (
        chart.curves({name: c.points}, width=width, height=height, x_label=c.label)
        for name, c in curves.items()
    )
    return _tag("div", "\n".join(chart.img(svg) for svg in drawn), "margin:4px 0")


def _nodes(state: JobState) -> str:
    nodes = sorted(state.nodes.values(), key=lambda n: n.index)
    # Of nodes that were nowhere yet, the lines above tell all there is.
    if max(len(nodes), state.info.nodes[1]) < 2 or not any(node.host or node.ranks for node in nodes):
        return ""
    body = [_row("th", ("node", "host", "ranks", "state"))]
    for node in nodes[:_MAX_NODES]:
        had = ranks(node.ranks).partition(" ")[2]
        body.append(_row("td", (str(node.index), node.host, had, facts.condition(node, state))))
    many = len(nodes) - _MAX_NODES
    more = _line(f"… and {count(many, 'more node')}") if many > 0 else ""
    table = _tag("table", "".join(body), "border-collapse:collapse;margin:4px 0")
    return table + more


def _row(cell: str, texts: tuple[str, ...]) -> str:
    return _tag("tr", "".join(_tag(cell, escape(line(each, 48)), "text-align:left") for each in texts))


def _failure(state: JobState, source: SourceLookup, *, raised: bool) -> str:
    failure, out = state.failure, []
    heading = facts.heading(failure, state) if failure is not None else ""
    if failure is not None and heading:
        head = _tag("b", escape(heading))
        if failure.error is None:
            out.append(_tag("div", head, "margin:6px 0 0"))
        else:
            lines = frames_text(failure.error, source).split("\n")
            shown = fit([escape(clip(each, LINE), quote=False) for each in lines], failures.MOST_BYTES)
            out.append(_fold(head, shown, _BOX, opened=not raised))
        out.append(_line(facts.cause(failure, state)))
        wrote = [escape(each, quote=False) for each in facts.output(state)]
        out.append(_fold("what its pods wrote", wrote, _BOX, opened=True) if wrote else "")
    return "\n".join(part for part in (*out, _beside(state)) if part)


def _beside(state: JobState) -> str:
    others = facts.beside(state)
    if not others:
        return ""
    so_far = "Earlier failures:" if state.phase.terminal else "Failures so far:"
    title = _tag("div", "Also:" if state.failure else so_far, "margin:4px 0 0")
    return title + _tag("ul", "".join(_tag("li", escape(each)) for each in others), "margin:0 0 4px")


def _fold(summary: str, lines: Sequence[str], box: str, *, opened: bool) -> str:
    body = _tag("div", _tag("pre", "\n".join(lines), _PRE), box)
    head = f'<details style="margin:4px 0"{" open" if opened else ""}>'
    return f"{head}{_tag('summary', summary)}{body}</details>"


def _lead(state: JobState) -> int:
    """Give the rank whose log tells most: the one that failed first, else rank 0."""
    blamed = state.failure.rank if state.failure else None
    return blamed if blamed in state.logs and blamed is not None else 0


def _logs(state: JobState, room: int, *, expanded: bool) -> list[str]:
    lead = _lead(state)
    # A log that ends with the traceback above would only tell it again.
    telling = state.phase is not Phase.SUCCEEDED and not (state.failure and state.failure.error)
    order = sorted(state.logs, key=lambda rank: (rank != lead, rank))
    shown = order[:_MAX_RANKS]
    room -= _FRAME_BYTES * len(shown)
    first = min(_LEAD_BYTES, room // 2)
    other = min(_OTHER_BYTES, (room - first) // max(1, len(shown) - 1))
    out = []
    for rank in shown:
        lines, most = (_LEAD_LINES, first) if rank == lead else (_OTHER_LINES, other)
        opened = expanded or (rank == lead and telling)
        out.append(_log(rank, html_tail(state.logs[rank], lines, most), opened=opened))
    more = len(order) - len(shown)
    return [*out, _line(f"… and {count(more, 'more rank')}")] if more else out


def _log(rank: int, tail: Tail, *, opened: bool) -> str:
    if not tail.lines:
        return ""
    last = "" if opened else DOT + _tag("span", escape(snippet(tail, 44), quote=False), _LAST)
    return _fold(f"rank {rank}{DOT}{tail}{last}", tail.lines, _SCROLL, opened=opened)
