"""All that is known of one job, as text and as HTML: what ``%torchjob describe`` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path

from nbtorchjob.backends.base import TenderStatus
from nbtorchjob.spec.options import TABLE
from nbtorchjob.spec.overlay import POLICY, RETRY, value_at
from nbtorchjob.state import US, JobState, Phase, turns
from nbtorchjob.state.text import attempts, facts, lifetime, swaps, usage
from nbtorchjob.state.text.stacks import Stacks
from nbtorchjob.state.text.tracebacks import frame_place as place
from nbtorchjob.state.turns import Stage
from nbtorchjob.text.colours import to_text
from nbtorchjob.text.hints import hint
from nbtorchjob.text.words import LINE, clock, count, duration, line, number, ranks
from nbtorchjob.ui import elements
from nbtorchjob.ui.card import ranks as nodes
from nbtorchjob.ui.elements import MAX_CELL, Part

_HEAD = ("attempt", "started", "took", "used", "hosts", "why it ended")
_TURNS = ("sent at", "came to", "ranks", "whose", "what")
_STEPS = ("step", "took")
_MAX_ATTEMPTS = 50
_MAX_TURNS = 50
_MAX_LOGS = 10  # attempts whose last lines are shown
_MAX_HOSTS = 120
_MAX_VALUE = 80
_MAX_WHO = 200


def text(
    state: JobState, now: float, enforced: Mapping[str, str], folder: Path, tended: TenderStatus | None = None
) -> str:
    """Return the job in plain text.

    ``enforced`` is who enforces each run policy, by field; ``folder`` is the user's state directory.
    ``tended`` is who tends the job, None if it needs no tending.
    """
    heading = f"torchjob {facts.last_line(state, now)}"
    return elements.text(heading, parts(state, now, enforced, folder, tended))


def html(
    state: JobState, now: float, enforced: Mapping[str, str], folder: Path, tended: TenderStatus | None = None
) -> str:
    """Return the same as :func:`text`, as HTML that a sanitiser leaves whole."""
    return elements.html(facts.last_line(state, now), parts(state, now, enforced, folder, tended))


def parts(
    state: JobState, now: float, enforced: Mapping[str, str], folder: Path, tended: TenderStatus | None = None
) -> Iterator[Part]:
    """Yield the parts that aren't empty, in order; the arguments are those of :func:`text`."""
    description = facts.ships(state)
    annotation = facts.annotated(state)
    stacks = Stacks(state, asked=False, time=now)
    # Somebody else's job may contain anything, and a later version's more than this one knows.
    why = state.info.unreadable
    last_lines: list[Part] = []
    for attempt in state.attempts[-_MAX_LOGS:]:
        wrote = to_text("\n".join(attempt.lines)).split("\n") if attempt.lines else []
        last_lines.append(
            Part(f"Last lines of attempt {attempt.number}", wrote=[line(row, LINE) for row in wrote])
        )
    sections = (
        Part("Note and tags", sentences=[annotation] if annotation else []),
        Part("What runs", sentences=[description] if description else []),
        Part("What it runs with", sentences=[*facts.environment(state), *facts.origins(state)]),
        Part("What it has run", _turns(state, now), attempts.lab_lines(state, now)),
        Part("What was swapped", swaps.rows(state, now), wrote=swaps.diffs(state)),
        Part("Why it waits", sentences=attempts.pending(state, now)),
        Part(
            "Why it was stopped" if state.stopped_early else "Why it failed",
            wrote=attempts.lines(state) if state.failure else [],
        ),
        *_variables(state),
        Part(
            "Earlier failures" if state.phase.terminal else "Failures so far",
            sentences=[] if state.failure else facts.beside(state),
        ),
        Part(
            "Where its ranks are" if not state.phase.terminal else "Where its ranks were",
            wrote=stacks.lines if stacks.samples and state.phase is not Phase.SUCCEEDED else [],
        ),
        Part("Nodes", nodes.rows(state), [more] if (more := nodes.more(state)) else []),
        Part("What it uses", usage.rows(state), usage.notes(state)),
        Part("How it started", [_STEPS, *rows] if (rows := lifetime.steps(state)) else []),
        _attempts(state, now),
        *last_lines,
        Part(
            "Run policy",
            _policy_rows(state, enforced),
            [line(f"its spec can't be read ({why}): maybe another version wrote it", LINE)] if why else [],
        ),
        Part("Who looks after it", sentences=_tended(state, tended, now)),
        Part("When", sentences=lifetime.times(state, enforced, now)),
        Part("Where", sentences=[facts.where(state.info), *lifetime.stored(state, folder)]),
        Part("Data", sentences=lifetime.data(state)),
    )
    return (part for part in sections if part.rows or part.sentences or part.wrote)


def _turns(state: JobState, now: float) -> list[tuple[str, ...]]:
    """Return a head and a row for each of a lab's newest turns."""
    if state.info.lab is None:
        return []
    lab_turns = turns.turns(state)
    waiting = [turn.number for turn in lab_turns if not turn.over]
    turn_rows = []
    for turn in lab_turns[-_MAX_TURNS:]:
        before = waiting.index(turn.number) if turn.stage is Stage.WAITS else 0
        at = f" behind {count(before, turn.word)}" if before else f" on {turn.where}" if turn.where else ""
        row = (
            turn.name,
            clock(turn.fact.time, now),
            turn.stage.value + at,
            ranks(turn.fact.ranks).partition(" ")[2],
            line(turn.fact.by, _MAX_HOSTS),
            line(turn.fact.text.strip() or turn.fact.label, _MAX_VALUE),
        )
        turn_rows.append(row)
    return [(turns.what_of(state.info), *_TURNS), *turn_rows] if turn_rows else []


def _variables(state: JobState) -> Iterator[Part]:
    """Yield the variables of the frames that failed, the innermost frame first."""
    error = state.failure.error if state.failure else None
    while error is not None:
        for frame in reversed(error.frames):
            variable_rows = [
                (line(name, _MAX_VALUE), line(value, MAX_CELL)) for name, value in frame.variables
            ]
            where = line(place(frame, state.info.sources.get), MAX_CELL)
            yield Part(
                f"Variables of {where}", [("variable", "was"), *variable_rows] if variable_rows else []
            )
        error = error.cause


def _attempts(state: JobState, now: float) -> Part:
    shown = state.attempts[-_MAX_ATTEMPTS:]
    attempt_rows = [
        (
            str(attempt.number),
            clock(attempt.start, now) if attempt.start is not None else "",
            attempts.span(attempt, None if state.phase.terminal else now),
            attempts.use(attempt, state),
            line(", ".join(attempt.hosts), _MAX_HOSTS),
            attempts.reason(attempt, state),
        )
        for attempt in shown
    ]
    more = len(state.attempts) - len(shown)
    notes = [f"and {count(more, 'earlier one')}"] if more else []
    return Part("Attempts", [_HEAD, *attempt_rows] if attempt_rows else [], notes)


def _policy_rows(state: JobState, enforced: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return a head and a row for each policy that the job was given."""
    if state.info.unreadable:
        return []
    spec = state.info.jobspec
    paused = state.info.retry_owner in ("", US)  # an operator that owns the retries has pauses of its own
    options = [o for o in TABLE if o.home in (POLICY, RETRY) and (o.name != "backoff" or paused)]
    settings = [(o, value_at(o, spec)) for o in options]
    option_rows = []
    for o, value in settings:
        if value is not None and value is not False and value != ():
            if isinstance(value, tuple):
                values = line(", ".join(value), _MAX_VALUE)
            else:
                if isinstance(value, float):
                    value = number(value)
                text = value.value if isinstance(value, Enum) else "on" if value is True else value
                values = line(f"{text} {o.unit}".rstrip(), _MAX_VALUE)
            option_rows.append((o.flags[-1], values, line(enforced.get(o.name, ""), _MAX_WHO)))
    return [("option", "value", "enforced by"), *option_rows] if option_rows else []


def _tended(state: JobState, tended: TenderStatus | None, now: float) -> list[str]:
    if tended is None or state.phase.terminal:
        return []
    if not tended.who:
        ways = f"{hint('attach', state.info.name)}, or nbtorchjob tend"
        return [
            line(f"nobody: what nbtorchjob enforces is on hold until somebody looks after it ({ways})", LINE)
        ]
    beat = f", last heard from {duration(max(0.0, now - tended.beat))} ago" if now - tended.beat > 1 else ""
    return [line(f"{tended.who}, since {clock(tended.since, now)}{beat}", LINE)]
