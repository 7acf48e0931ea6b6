"""A job's state as one HTML card and as plain text: pure, so the same state gives the same card.

It is made of ``elements``. All text from outside is cut, cleaned and escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import TypeAlias

from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import JobState, Phase, Series
from nbtorchjob.state.facts.logs import LogTail
from nbtorchjob.state.progress import PERCENT, REPORT, progress
from nbtorchjob.state.text import attempts, facts, lifetime, swaps, usage
from nbtorchjob.state.text.lifetime import overdue, progress_line, rate, stillness
from nbtorchjob.state.text.tracebacks import ARROW, SourceLookup, pieces, summarised
from nbtorchjob.text.words import DOT, LINE, clip, count, duration, fit, line, number
from nbtorchjob.ui import card
from nbtorchjob.ui.card import chart, metrics, ranks, tails
from nbtorchjob.ui.card.tails import folds, text_tail
from nbtorchjob.ui.elements import (
    BOX,
    DIM,
    PLAIN,
    SMALL,
    action,
    fold,
    meant,
    pre,
    preformatted,
    prose,
    tag,
    text_line,
    titled,
)
from nbtorchjob.ui.record import Offers

# The card stays under 48 KiB of UTF-8: fixed parts are cut to size, the logs share the rest.
_CARD_BYTES = 46_000
_LOG_BYTES = 4_000  # at least; the strip of ranks gives way to it
_FEW_LOGS = 4  # with more ranks, only the unusual ones have their logs in the card
_TEXT_LINES = 10
_MAX_VALUE = 300  # characters
_MAX_SHORT = 80  # in the head
_MOST_TILES = 8  # of metrics, and of values
_MAX_TILE = 24  # characters of a value
NO_VALUE = "None"  # the value of a cell without one, which isn't worth a line
_EARLIER = "Earlier attempts:"
_NO_OFFERS: Offers = {}

# Pixels of one chart in a card of full width, by how many there are; a page scales it to its own width.
_CHARTS = {1: (760, 170), 2: (450, 160), 3: (300, 150), 4: (450, 140)}
_TILES = f"{PLAIN};display:flex;flex-wrap:wrap;gap:4px 20px"


def html(
    state: JobState,
    now: float,
    *,
    source: SourceLookup | None = None,
    expand_logs: bool = False,
    live: bool = False,
    value: str = "",
    offers: Offers = _NO_OFFERS,
) -> str:
    """Return the job's card; ``now`` is in seconds since the epoch.

    What a person needs first comes first: a note if somebody should act, the exception of a failed job, the
    figures of a running one. ``source`` finds the text of the notebook's own files, by default in
    ``state.info.sources``; with ``expand_logs`` every rank's log is open; ``live`` means that a cell waits
    for the job and redraws it; ``value`` is rank 0's in one line, once it has arrived (``text/words.py``);
    ``offers`` are what can be done with the job.
    """
    tone = card.tone(state, now)
    top = [
        _head(state, now, tone, value, offers, live=live),
        _note(state, now),
    ]
    folded = state.phase.terminal
    first = [
        *([] if tone is card.Tone.ACT else map(text_line, attempts.pending(state, now))),
        "" if folded else _tiles(state, now),
        _read(state, offers),
        _failure(state, source or state.info.sources.get),
    ]
    rows = [
        text_line(usage.matters(state)),
        ranks.node_table(state),
        titled(_EARLIER, attempts.past(state)),
    ]
    last = [
        *map(text_line, attempts.lab_lines(state, now)),
        *map(text_line, facts.notices(state)),
        text_line(facts.artifacts(state)),
        text_line(_value(state, "Value", value)),
        text_line(facts.annotated(state), SMALL),
        text_line(facts.ships(state), SMALL),
        _drawn(state, now, live=live),
    ]
    room = _CARD_BYTES - sum(len(part.encode()) for part in (card.frame(tone), *top, *first, *rows, *last))
    # Then the strip of ranks gets room, then charts, then their tooltips; the logs share the rest.
    side, room = _fitting(room - _LOG_BYTES, ranks.html(state, now), ranks.words(state, now))
    curves = metrics.curves(_series(state), attempts.turn_causes(state), swaps=swaps.marks(state))
    drawn = ""
    if curves:
        width, height = _CHARTS[len(curves)]
        charts = [
            (chart.curves({name: c.points}, width=width, height=height, x_label=c.label, marks=c.marks), c)
            for name, c in curves.items()
        ]
        read = metrics.html(charts) + metrics.table(curves)
        drawn, room = _fitting(room, read, metrics.plain(charts))
    if folded and drawn:
        drawn = fold(tag("span", "curves", SMALL), drawn)
    logs = _logs(state, now, room + _LOG_BYTES, expand=expand_logs)
    pictures = [drawn, side] if tone is card.Tone.RUNNING else [side, drawn]
    body = [*first, *pictures, *rows, *logs, *last]
    if state.phase is Phase.SUCCEEDED:
        body = [fold("details", "\n".join(filter(None, body)))]
    return card.frame(tone, *top, tag("div", "\n".join(filter(None, body)), card.BODY, cls="nbt-body"))


def _fitting(room: int, *ways: str) -> tuple[str, int]:
    """Return the first of several ways to draw something that fits, and the room that it leaves."""
    way = next((way for way in ways if len(way.encode()) <= room), "")
    return way, room - len(way.encode())


def _head(state: JobState, now: float, tone: card.Tone, value: str, offers: Offers, *, live: bool) -> str:
    """Return the head: what the job does, how long and where; once it succeeded, value and last figures."""
    took = facts.took(state, now)
    parts = [
        attempts.doing(state, now) or stillness(state, now),
        took,
        facts.shape(state),
        facts.counts(state),
    ]
    if state.phase is Phase.SUCCEEDED:
        parts = [f"in {took}", *metrics.summary(_series(state), 4, counting=False), facts.counts(state)]
    elif state.phase.terminal:
        parts[1] = f"after {took}"
    rest = escape(DOT.join(part for part in (*parts, facts.where(state.info)) if part))
    if state.phase is Phase.SUCCEEDED and value and value != NO_VALUE:
        rest += f" \u2192 {tag('b', escape(line(value, _MAX_SHORT)))}"
    current = None if state.phase.terminal else progress(state)
    return card.head(
        tone,
        facts.status(state, now),
        state.info.name,
        rest,
        tools=_actions(state, offers, live=live),
        progress=(current.done, current.total) if current is not None and current.total is not None else None,
    )


def _note(state: JobState, now: float) -> str:
    """Return what somebody should know or do, if the state calls for it."""
    lines = card.needs(state, now)
    if not lines:
        return ""
    # The verdict in one sentence, then what leads to it or out of it.
    divides = "; " if lines[0] == facts.hanging(state, now) else ": " if state.stopped else "\n"
    first, _, reason = lines[0].partition(divides)
    shown = [first, reason, *lines[1:]]
    return card.note(
        card.Tone.ACT, *(prose(line(part[:1].upper() + part[1:], LINE)) for part in shown if part)
    )


def _tiles(state: JobState, now: float) -> str:
    """Return how far a job is, how long it has left, its newest figures and its speed, a tile for each."""
    current, tiles, advances = progress(state), [], lifetime.advances(state)
    counting = current is None or current.unit == REPORT
    if current is not None and not counting:
        total = f" / {number(current.total)}" if current.total is not None else ""
        tiles.append(
            (current.unit, f"{number(current.done)}{total}" + (" %" if current.unit == PERCENT else ""))
        )
        left = current.left(now) if advances else None
        tiles += [("left", duration(left))] if left is not None and math.isfinite(left) else []
    values = metrics.newest(_series(state), counting=counting)
    tiles += values[:_MOST_TILES]
    if len(values) > _MOST_TILES:
        tiles.append(("more", count(len(values) - _MOST_TILES, "metric")))
    late = overdue(current, now) if current is not None and advances else ""
    noted = facts.status(state, now) == facts.STALLED
    if current is not None and advances and not late and (speed := rate(current)):
        tiles.append(("speed", speed))
    shown = [
        tag("span", f"{tag('span', escape(label), DIM)} {tag('b', escape(figure))}", cls="nbt-tile")
        for label, figure in tiles
    ]
    lines = ("" if noted else late, attempts.setback(state))
    return (tag("div", " ".join(shown), _TILES) if shown else "") + "".join(
        text_line(words, SMALL) for words in lines
    )


def _read(state: JobState, offers: Offers) -> str:
    """Return the plain values that a running job's code reads, and buttons that change them."""
    if state.phase is not Phase.RUNNING:
        return ""
    from nbtorchjob.swapping import code  # late, as it is slow to import: the command draws few jobs that run

    values = [*code.of(state).values.items()] if code.may_swap(state) else []
    if not values:
        return ""
    shown = [
        tag("span", f"{tag('span', escape(name), DIM)} {tag('b', escape(line(repr(value), _MAX_TILE)))}")
        for name, value in values[:_MOST_TILES]
    ]
    more = [tag("span", f"and {len(values) - _MOST_TILES} more", DIM)] if len(values) > _MOST_TILES else []
    edits = [(verb, offers[verb]) for verb in ("set", "swap") if verb in offers]
    job = meant(state.info)
    buttons = "".join(action(offer.label.capitalize(), f"nbtorchjob:{verb}", job) for verb, offer in edits)
    parts = [tag("span", "reads", DIM), *shown, *more, tag("span", buttons)]
    return tag("div", " ".join(parts), f"{_TILES};align-items:center", cls="nbt-reads")


def text(state: JobState, now: float, *, live: bool = False, value: str = "") -> str:
    """Return the job in plain text for places that show no HTML: terminals, GitHub, nbconvert."""
    rank = _lead(state)
    tail = state.logs.get(rank, LogTail())
    log = text_tail(tail.newest if state.turns else tail, _TEXT_LINES)
    if state.failure and state.failure.error and state.failure.rank == rank:
        begins = [at for at, line in enumerate(log) if line.startswith("Traceback (most recent call last):")]
        log = log[: (begins[0] if begins else len(log) if len(log) < _TEXT_LINES else 0)]
    past = attempts.past(state)
    # Progress and the newest values while the job lives, all last values once it has ended
    series = _series(state)
    current = progress(state)
    most = 16 if state.phase.terminal else 8
    newest = metrics.summary(series, most, counting=current is None or current.unit == REPORT)
    lines = [
        f"torchjob {facts.last_line(state, now)}",
        *attempts.pending(state, now),
        DOT.join([part for part in (progress_line(state, now), *newest) if part]),
        attempts.setback(state),
        *ranks.rank_lines(state, now),
        usage.matters(state),
        *attempts.lines(state),
        *([_EARLIER] if past else []),
        *(f"  {row}" for row in past),
        *([f"Log of rank {rank}, last {count(len(log), 'line')}:"] if log else []),
        *(f"  {row}".rstrip() for row in log),
        *attempts.lab_lines(state, now),
        *facts.notices(state),
        _value(state, "value", value),
        facts.artifacts(state),
        DOT.join(lifetime.outlook(state, now, waited_for=live)),
    ]
    return "\n".join(row for row in lines if row)


def _value(state: JobState, label: str, value: str) -> str:
    if value == NO_VALUE:
        return ""
    return f"{label}: {line(value, _MAX_VALUE)}" if value else facts.result(state)


def printed(state: JobState, *, deleted: bool = False) -> str:
    """Return rank 0's output, and a note on each other rank that printed anything."""
    name = line(state.info.name, 80)
    lines = tails.others(state.logs, name, deleted=deleted)
    own = tails.printed(state.logs.get(state.info.speaker, LogTail()), name, deleted=deleted)
    return own + "".join(f"{row}\n" for row in lines)


def last_line(state: JobState, now: float) -> str:
    """Return the job in one line: name, phase, time, shape, and its metrics or next step."""
    rest: list[str] = []
    if state.phase is Phase.FAILED:
        pass  # the error that follows says why
    elif state.next is not None:
        rest = [attempts.coming(state, now)]
    else:
        rest = metrics.summary(_series(state), 4, counting=False)
    return DOT.join([f"torchjob {facts.last_line(state, now)}", *rest])


def _drawn(state: JobState, now: float, *, live: bool) -> str:
    """Note when the card was drawn, and what can be done; ``live.js`` replaces the latter with buttons."""
    when, *ways = lifetime.outlook(state, now, waited_for=live) or [""]
    instead = tag("span", escape(DOT.join(["", *ways])))
    cls = "nbtorchjob-drawn nbtorchjob-waited-for" if live else "nbtorchjob-drawn"
    return tag("div", tag("time", when) + instead, SMALL, cls=cls) if when else ""


def _series(state: JobState) -> Series:
    return state.spoken


def _failure(state: JobState, source: SourceLookup) -> str:
    failure, out = state.failure, []
    heading = facts.heading(failure, state) if failure is not None else ""
    if failure is not None and heading:
        head = tag("b", escape(heading))
        if failure.error is None or summarised(failure.error):
            out.append(tag("div", head, "margin:6px 0 0"))
        else:
            out.append(fold(head, traceback_html(failure.error, source, heading), opened=True))
        out += [text_line(facts.cause(failure, state)), text_line(attempts.exhausted(state))]
        wrote = [escape(row, quote=False) for row in facts.output(state)]
        out.append(fold("what its pods wrote", pre(wrote, BOX), opened=True) if wrote else "")
    so_far = "Earlier failures:" if state.phase.terminal else "Failures so far:"
    out.append(titled("Also:" if failure else so_far, facts.beside(state)))
    return "\n".join(part for part in out if part)


def _actions(state: JobState, offers: Offers, *, live: bool) -> str:
    """Return buttons for what can be done with the job now, where something handles them."""
    job = meant(state.info)
    card_offers = {
        verb: offer for verb, offer in offers.items() if offer.on_card and offer.on_card(state, live)
    }
    # What most people want to do comes first, if it is offered.
    first = "start" if state.blocked else "retry" if state.phase is Phase.FAILED else "stacks"
    card_offers = dict(sorted(card_offers.items(), key=lambda item: item[0] != first))
    shown = []
    for verb, offer in card_offers.items():
        initial, *rest = offer.label.split(" ")
        words = (word if word[1:] != word[1:].lower() else word.lower() for word in rest)
        shown.append(action(" ".join([initial, *words]), f"nbtorchjob:{verb}", job))
    if offers and state.blocked is not None:
        holder = state.blocked.holder
        shown.insert(0, action(f"Cancel {holder}", "nbtorchjob:cancel", {"id": f"local:{holder}"}))
    return "".join(shown)


def _logs(state: JobState, now: float, room: int, *, expand: bool) -> list[str]:
    """Return the ends of the ranks' logs, folded, the most telling one first."""
    lead = _lead(state)
    # A lab's rounds are its turns: only the newest one's output is of use.
    logs = {rank: tail.newest if state.turns else tail for rank, tail in state.logs.items()}
    unusual = {lead, state.info.speaker, *ranks.unusual(state, now), *(e.rank for e in state.errors)}
    few = logs if expand or len(logs) <= _FEW_LOGS else {r: tail for r, tail in logs.items() if r in unusual}
    telling = state.phase is not Phase.SUCCEEDED and not (state.failure and state.failure.error)
    opened = logs.keys() if expand else {lead} if telling else set()
    # A traceback is shown once: that log ends with it.
    blamed = state.failure if state.failure and state.failure.error else None
    silent = {lead} if blamed and blamed.rank == lead else set()
    return folds(few, lead, room, opened, silent, total=len(logs))


def _lead(state: JobState) -> int:
    """Return the rank with the most telling log: the one that failed first, else rank 0."""
    failure = state.attempts[-1].failure if state.next else state.failure
    blamed = failure.rank if failure else None
    return blamed if blamed in state.logs and blamed is not None else state.info.speaker


Variables: TypeAlias = Sequence[tuple[str, str]]

_MOST_BYTES = 6_000  # of all frames' variables; the innermost frames' come first
_MAX_NAMES = 60
_INDENTED = "padding-left:16px"


def traceback_html(error: Error, source: SourceLookup, heading: str = "") -> str:
    """Return the traceback in a box; the middle of a long one is left out.

    Its last line is left out, too, if the ``heading`` above it says the same.
    """
    lines: list[str] = []
    variables: dict[int, Variables] = {}  # by the last line of their frame
    parts = [*pieces(error, source)]
    if len(parts) > 1 and heading.endswith(parts[-1][0]):
        parts.pop()
    for text, frame in parts:
        for row in text.split("\n"):
            shown_row = escape(clip(row, LINE), quote=False)
            lines.append(tag("span", shown_row, cls="nbt-line") if row.startswith(ARROW) else shown_row)
        if frame is not None and frame.variables:
            variables[len(lines) - 1] = frame.variables
    shown = fit(lines, attempts.MOST_BYTES)
    out, begin = [], 0
    # The variables by the line that they follow, now that some lines in the middle may be left out
    if len(shown) == len(lines):
        moved = {**variables}
    else:
        gap = len(lines) - len(shown)
        head = next(at for at, row in enumerate(shown) if row != lines[at])
        kept = {at: row for at, row in variables.items() if at < head}
        moved = kept | {at - gap: row for at, row in variables.items() if at > head + gap}
    room, folds = _MOST_BYTES, {}
    for at in sorted(moved, reverse=True):
        rows = [*_fitting_lines(moved[at], room)]
        room -= sum(len(row.encode()) for row in rows)
        if rows:
            more = len(moved[at]) - len(rows)
            rest = [f"… and {more} more: describe lists them"] if more else []
            names = line(", ".join(name for name, _ in moved[at]), _MAX_NAMES)
            summary = tag("span", escape(f"{count(len(moved[at]), 'variable')}: {names}"), SMALL)
            folds[at] = fold(summary, tag("div", preformatted([*rows, *rest]), _INDENTED), opened=False)
    for at, drawn in sorted(folds.items()):
        out += [preformatted(shown[begin : at + 1]), drawn]
        begin = at + 1
    return tag("div", "".join([*out, preformatted(shown[begin:])]), BOX)


def _fitting_lines(variables: Variables, room: int) -> Iterator[str]:
    for name, value in variables:
        row = f"<b>{escape(line(name, LINE))}</b> = {escape(line(value, LINE), quote=False)}"
        room -= len(row.encode())
        if room < 0:
            return
        yield row
