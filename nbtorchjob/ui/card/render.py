"""A job's state as one HTML card and as plain text: pure, so the same state gives the same card.

It is made of ``elements``. Whatever comes from outside is cut, cleaned and escaped here.
"""

from __future__ import annotations

from html import escape

from nbtorchjob.state import JobState, Phase, Series
from nbtorchjob.state.logs import LogTail
from nbtorchjob.state.progress import REPORT, progress
from nbtorchjob.state.text import attempts, facts, failures, labs, lifetime, rounds, usage
from nbtorchjob.state.text.progress import progress_line, stillness
from nbtorchjob.state.text.tracebacks import SourceLookup, summarised
from nbtorchjob.text.colours import shade
from nbtorchjob.text.words import DOT, count, duration, line
from nbtorchjob.ui.card import chart, metrics, nodes, ranks, readings, tails, traceback
from nbtorchjob.ui.card.tails import folds, text_tail
from nbtorchjob.ui.elements import (
    BOX,
    CARD,
    DIM,
    PHASES,
    PLAIN,
    SMALL,
    STALLED,
    action,
    fold,
    pre,
    tag,
    titled,
    told,
)
from nbtorchjob.ui.offers import Offers

# The card stays under 48 KiB of UTF-8: fixed parts are cut to size, the logs share the rest.
_CARD_BYTES = 46_000
_LOG_BYTES = 4_000  # at least; the strip of ranks gives way to it
_TEXT_LINES = 10
_MAX_VALUE = 300  # characters
NO_VALUE = "None"  # of a value: what a cell without one gives, which isn't worth a line
_EARLIER = "Earlier attempts:"
_NO_OFFERS: Offers = {}

# Pixels of one chart, by how many there are: in a window of 800 a row is 758, and 796 on a screen of 1280
# with the sidebar open.
_CHARTS = {1: (560, 170), 2: (370, 160), 3: (240, 140), 4: (370, 140)}


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

    ``source`` finds the text of the notebook's own files, by default in ``state.info.sources``;
    with ``expand_logs`` every rank's log is open; ``live`` means that a cell waits for the job and redraws
    it; ``value`` is rank 0's in one line, once it has arrived (``text/values.py``); ``offers`` are what can
    be done with the job.
    """
    curves = metrics.curves(_series(state), rounds.turns(state))
    charts = [(_chart(name, curve, len(curves)), curve) for name, curve in curves.items()]
    images = tag("div", "\n".join(each.img for each, _ in charts), PLAIN) if charts else ""
    head = [
        *(_header(state, now), _drawn(state, now, live=live), _reported(state, now)),
        *(images, ranks.html(state, now), told(usage.matters(state))),
    ]
    above = [
        nodes.html(state),
        _failure(state, source or state.info.sources.get),
        titled(_EARLIER, attempts.past(state)),
    ]
    below = [
        *map(told, labs.lines(state, now)),
        *map(told, facts.notices(state)),
        told(_value(state, "Value", value)),
        told(facts.artifacts(state)),
        told(facts.ships(state), SMALL),
        _actions(state, offers, live=live),
    ]
    room = _CARD_BYTES - sum(len(part.encode()) for part in (*head, *above, *below))
    read = readings.html(charts) + readings.table(curves) if charts else ""
    for at, more, instead in ((3, read, images), (5, ranks.strip(state, now), "")):
        grows = len(more.encode()) - len(instead.encode())
        if more and grows < room - _LOG_BYTES:
            head[at : at + 1] = [more]
            room -= grows
    lead = _lead(state)
    # A lab's rounds are its turns: of what they wrote the newest is of use.
    logs = {rank: tail.newest if state.turns else tail for rank, tail in state.logs.items()}
    opened = state.logs.keys() if expand_logs else _opened(state, lead)
    # A traceback is told once: that log ends with it.
    blamed = state.failure if state.failure and state.failure.error else None
    silent = {lead} if blamed and blamed.rank == lead else set()
    parts = [*head, *above, *folds(logs, lead, room, opened, silent), *below]
    return tag("div", "\n".join(part for part in parts if part), CARD, cls="nbtorchjob")


def text(state: JobState, now: float, *, live: bool = False, value: str = "") -> str:
    """Return the job in plain text for places that show no HTML: terminals, GitHub, nbconvert."""
    rank = _lead(state)
    tail = state.logs.get(rank, LogTail())
    log = text_tail(tail.newest if state.turns else tail, _TEXT_LINES)
    if state.failure and state.failure.error and state.failure.rank == rank:
        log = log[: _traceback(log)]
    past = attempts.past(state)
    lines = [
        f"torchjob {facts.last_line(state, now)}",
        *attempts.pending(state, now),
        DOT.join(_metrics(state, now)),
        *ranks.told(state, now),
        usage.matters(state),
        *failures.lines(state),
        *([_EARLIER] if past else []),
        *(f"  {each}" for each in past),
        *([f"Log of rank {rank}, last {count(len(log), 'line')}:"] if log else []),
        *(f"  {each}".rstrip() for each in log),
        *labs.lines(state, now),
        *facts.notices(state),
        _value(state, "value", value),
        facts.artifacts(state),
        DOT.join(lifetime.outlook(state, now, waited_for=live)),
    ]
    return "\n".join(each for each in lines if each)


def _traceback(log: list[str]) -> int:
    """Return where the traceback begins with which the log of a rank that failed ends."""
    begins = [at for at, line in enumerate(log) if line.startswith("Traceback (most recent call last):")]
    return begins[0] if begins else len(log) if len(log) < _TEXT_LINES else 0


def _value(state: JobState, label: str, value: str) -> str:
    if value == NO_VALUE:
        return ""
    return f"{label}: {line(value, _MAX_VALUE)}" if value else facts.result(state)


def printed(state: JobState) -> str:
    """Return rank 0's output, and a line for each other rank that printed anything."""
    name = line(state.info.name, 80)
    lines = tails.others(state.logs, name)
    told = tails.printed(state.logs.get(state.info.speaker, LogTail()), name)
    return told + "".join(f"{each}\n" for each in lines)


def last_line(state: JobState, now: float) -> str:
    """Return the job in one line: name, phase, time, shape, and its metrics or next step."""
    rest: list[str] = []
    if state.phase is Phase.FAILED:
        pass  # the error that follows says why
    elif state.next is not None:
        rest = [attempts.coming(state, now)]
    else:
        rest = metrics.told(_series(state), 4, counting=False)
    return DOT.join([f"torchjob {facts.last_line(state, now)}", *rest])


def _header(state: JobState, now: float) -> str:
    status = facts.status(state, now)
    colour = STALLED if status in (facts.STALLED, facts.LEAVING, facts.DEBUGGING) else PHASES[state.phase]
    dot = tag("span", "\u25cf", f"color:{shade(colour)}")
    phase = tag("b", status.lower())
    name = tag("b", escape(line(state.info.name, 80)))
    took = duration(state.elapsed(now))
    rest = (
        labs.doing(state, now) or stillness(state, now),
        facts.where(state.info),
        took,
        facts.shape(state),
        facts.counts(state),
    )
    more = tag("span", escape("".join(DOT + each for each in rest if each)), DIM)
    return tag("div", f"{dot} {phase}{DOT}{name}{more}") + "".join(map(told, attempts.pending(state, now)))


def _drawn(state: JobState, now: float, *, live: bool) -> str:
    """Note when the card was drawn, and what can be done; ``live.js`` replaces the latter by buttons."""
    when, *ways = lifetime.outlook(state, now, waited_for=live) or [""]
    instead = tag("span", escape(DOT.join(["", *ways])))
    cls = "nbtorchjob-drawn nbtorchjob-waited-for" if live else "nbtorchjob-drawn"
    return tag("div", when + instead, SMALL, cls=cls) if when else ""


def _series(state: JobState) -> Series:
    return state.spoken


def _metrics(state: JobState, now: float) -> list[str]:
    """Return progress and the newest values while the job lives, all last values once it has ended."""
    series = _series(state)
    found = progress(state)
    most = 16 if state.phase.terminal else 8
    newest = metrics.told(series, most, counting=found is None or found.unit == REPORT)
    return [part for part in (progress_line(state, now), *newest) if part]


def _reported(state: JobState, now: float) -> str:
    found = None if state.phase.terminal else progress(state)
    bar = ""
    if found is not None and found.total is not None:
        full = f'max="{found.total:g}" value="{found.done:g}"'
        bar = f'<progress {full} style="width:160px"></progress> '
    words = escape(DOT.join(_metrics(state, now)))
    return tag("div", bar + words, PLAIN) if words else ""


def _chart(name: str, curve: metrics.Curve, beside: int) -> chart.Chart:
    width, height = _CHARTS[beside]
    return chart.curves(
        {name: curve.points}, width=width, height=height, x_label=curve.label, marks=curve.marks
    )


def _failure(state: JobState, source: SourceLookup) -> str:
    failure, out = state.failure, []
    heading = facts.heading(failure, state) if failure is not None else ""
    if failure is not None and heading:
        head = tag("b", escape(heading))
        if failure.error is None or summarised(failure.error):
            out.append(tag("div", head, "margin:6px 0 0"))
        else:
            out.append(fold(head, traceback.html(failure.error, source), opened=True))
        out += [told(facts.cause(failure, state)), told(attempts.exhausted(state))]
        wrote = [escape(each, quote=False) for each in facts.output(state)]
        out.append(fold("what its pods wrote", pre(wrote, BOX), opened=True) if wrote else "")
    so_far = "Earlier failures:" if state.phase.terminal else "Failures so far:"
    out.append(titled("Also:" if failure else so_far, facts.beside(state)))
    return "\n".join(part for part in out if part)


def _actions(state: JobState, offers: Offers, *, live: bool) -> str:
    """Return what can be done with the job as it stands, where somebody is there to do it."""
    job = {"id": state.info.id}
    there = {verb: offer for verb, offer in offers.items() if offer.on_card and offer.on_card(state, live)}
    # In sentence case, like the rest of the card; the page's commands are in title case.
    shown = [action(offer.label.capitalize(), f"nbtorchjob:{verb}", job) for verb, offer in there.items()]
    return tag("div", "".join(shown)) if shown else ""


def _lead(state: JobState) -> int:
    """Return the rank with the most telling log: the one that failed first, else rank 0."""
    failure = state.attempts[-1].failure if state.next else state.failure
    blamed = failure.rank if failure else None
    return blamed if blamed in state.logs and blamed is not None else state.info.speaker


def _opened(state: JobState, lead: int) -> set[int]:
    """Return whose logs are unfolded: the most telling one, unless it ends with the traceback above."""
    telling = state.phase is not Phase.SUCCEEDED and not (state.failure and state.failure.error)
    return {lead} if telling else set()
