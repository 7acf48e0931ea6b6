"""A job's state as one HTML card and as plain text: pure, so the same state gives the same card.

It is made of ``elements``. Whatever came from outside is cut, cleaned and escaped here.
"""

from __future__ import annotations

from html import escape

from nbtorchjob.state import JobState, Phase, Series
from nbtorchjob.text import attempts, facts, failures
from nbtorchjob.text.tracebacks import SourceLookup, frames_text
from nbtorchjob.text.words import DOT, LINE, clip, count, duration, fit, line
from nbtorchjob.ui import chart, metrics, nodes
from nbtorchjob.ui.elements import BOX, CARD, DIM, MONO, PLAIN, SCROLL, SMALL, fold, tag, titled, told
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
_NOTICES = 3
_MAX_LINE = 300  # characters of one notice
_EARLIER = "Earlier attempts:"

_DOTS = {
    Phase.SUBMITTED: "#808080",
    Phase.PENDING: "#bf8700",
    Phase.RUNNING: "#0969da",
    Phase.SUCCEEDED: "#2da44e",
    Phase.FAILED: "#d1242f",
    Phase.CANCELLED: "#808080",
}
_LAST = f"{MONO};white-space:pre;{DIM}"
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
        nodes.html(state),
        _failure(state, source or state.info.sources.get, raised=raised),
        titled(_EARLIER, attempts.past(state)),
    ]
    below = [
        *(told(line(notice.text, _MAX_LINE)) for notice in state.notices[-_NOTICES:]),
        told(f"Value: {value}" if value else facts.result(state)),
        told(facts.ships(state), SMALL),
    ]
    room = _CARD_BYTES - sum(len(part.encode()) for part in (*above, *below))
    parts = [*above, *_logs(state, room, expanded=expand_logs), *below]
    return tag("div", "\n".join(part for part in parts if part), CARD, cls="nbtorchjob")


def text(state: JobState, now: float, *, value: str = "") -> str:
    """Give the job in plain text for places that show no HTML: terminals, GitHub, nbconvert."""
    rank = _lead(state)
    log = text_tail(state.logs[rank], _TEXT_LINES) if rank in state.logs else []
    past = attempts.past(state)
    lines = [
        f"torchjob {facts.last_line(state, now)}",
        *attempts.pending(state, now),
        DOT.join(_metrics(state, now)),
        *failures.lines(state),
        *([_EARLIER] if past else []),
        *(f"  {each}" for each in past),
        *([f"Log of rank {rank}, last {count(len(log), 'line')}:"] if log else []),
        *(f"  {each}".rstrip() for each in log),
        *(line(notice.text, _MAX_LINE) for notice in state.notices[-_NOTICES:]),
        f"value: {line(value, _MAX_LINE)}" if value else facts.result(state),
    ]
    return "\n".join(each for each in lines if each)


def last_line(state: JobState, now: float) -> str:
    """Give the job in one line: name, phase, time, shape, and the metrics, the failure or what comes next."""
    failure = state.failure
    if failure is not None and state.phase is Phase.FAILED:
        rest = [facts.heading(failure, state)]
    elif state.next is not None:
        rest = [attempts.coming(state, now)]
    else:
        rest = metrics.told(_series(state), 4, counting=False)
    return DOT.join([f"torchjob {facts.last_line(state, now)}", *rest])


def _header(state: JobState, now: float) -> str:
    dot = tag("span", "\u25cf", f"color:{_DOTS[state.phase]}")
    phase = tag("b", facts.phase(state).lower())
    name = tag("b", escape(line(state.info.name, 80)))
    took = duration(state.elapsed(now))
    rest = (facts.where(state.info), took, facts.shape(state), facts.counts(state))
    more = tag("span", escape("".join(DOT + each for each in rest if each)), DIM)
    return tag("div", f"{dot} {phase}{DOT}{name}{more}") + "".join(map(told, attempts.pending(state, now)))


def _series(state: JobState) -> Series:
    return state.series.get(0, Series())


def _metrics(state: JobState, now: float) -> list[str]:
    """Give progress and the newest values while the job lives, all last values once it ended."""
    series = _series(state)
    if state.phase.terminal:
        return metrics.told(series, 16)
    progress = metrics.progress(series, now)
    newest = metrics.told(series, 8, counting=progress is None)
    parts = [*([str(progress)] if progress else []), *newest, metrics.rate(series)]
    return [part for part in parts if part]


def _reported(state: JobState, now: float) -> str:
    series = _series(state)
    progress = None if state.phase.terminal else metrics.progress(series)
    bar = ""
    if progress is not None:
        full = f'max="{progress.total:g}" value="{progress.done:g}"'
        bar = f'<progress {full} style="width:240px"></progress> '
    words = escape(DOT.join(_metrics(state, now)))
    return (tag("div", bar + words, PLAIN) if words else "") + _charts(series)


def _charts(series: Series) -> str:
    curves = metrics.curves(series)
    if not curves:
        return ""
    width, height = _CHARTS[len(curves)]
    drawn = (
        chart.curves({name: c.points}, width=width, height=height, x_label=c.label)
        for name, c in curves.items()
    )
    return tag("div", "\n".join(chart.img(svg) for svg in drawn), PLAIN)


def _failure(state: JobState, source: SourceLookup, *, raised: bool) -> str:
    failure, out = state.failure, []
    heading = facts.heading(failure, state) if failure is not None else ""
    if failure is not None and heading:
        head = tag("b", escape(heading))
        if failure.error is None:
            out.append(tag("div", head, "margin:6px 0 0"))
        else:
            lines = frames_text(failure.error, source).split("\n")
            shown = fit([escape(clip(each, LINE), quote=False) for each in lines], failures.MOST_BYTES)
            out.append(fold(head, shown, BOX, opened=not raised))
        out += [told(facts.cause(failure, state)), told(attempts.exhausted(state))]
        wrote = [escape(each, quote=False) for each in facts.output(state)]
        out.append(fold("what its pods wrote", wrote, BOX, opened=True) if wrote else "")
    return "\n".join(part for part in (*out, _beside(state)) if part)


def _beside(state: JobState) -> str:
    so_far = "Earlier failures:" if state.phase.terminal else "Failures so far:"
    return titled("Also:" if state.failure else so_far, facts.beside(state))


def _lead(state: JobState) -> int:
    """Give the rank whose log tells most: the one that failed first, else rank 0."""
    failure = state.attempts[-1].failure if state.next else state.failure
    blamed = failure.rank if failure else None
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
    return [*out, told(f"… and {count(more, 'more rank')}")] if more else out


def _log(rank: int, tail: Tail, *, opened: bool) -> str:
    if not tail.lines:
        return ""
    last = "" if opened else DOT + tag("span", escape(snippet(tail, 44), quote=False), _LAST)
    return fold(f"rank {rank}{DOT}{tail}{last}", tail.lines, SCROLL, opened=opened)
