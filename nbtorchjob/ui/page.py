"""Jobs as data for a page to lay out (pure): one in full, and some held against each other.

A page is a heading and parts; a part is a title, and what is below it: a table (``head`` and ``rows``),
sentences (``said``), lines as they were written (``wrote``), code in spans (``ui/code``), charts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import KEYS, magic_line
from nbtorchjob.spec.overlay import value_at
from nbtorchjob.state import JobState, Series
from nbtorchjob.state.text import facts, rounds, usage
from nbtorchjob.text.words import LINE, clock, duration, line
from nbtorchjob.ui import code
from nbtorchjob.ui.card import chart, describe, metrics

Page: TypeAlias = dict[str, Any]

MOST = 8  # jobs that are compared at once
_MOST_CHARTS = 12
_WIDTH, _HEIGHT = 720, 240  # px of a chart
_CHAR = 6.2  # px, as a chart guesses
_MOST_OPTIONS = 60


def description(state: JobState, now: float, enforced: Mapping[str, str], folder: Path) -> Page:
    """Return all that is known of a job; the arguments are those of ``describe.text``."""
    info = state.info
    about = [
        ("name", info.name),
        ("what", info.label),
        ("notebook", info.notebook),
        ("submitted", clock(info.created, now)),
        ("size", facts.shape(state)),
    ]
    found = [
        _part("Job", rows=[(name, line(text, LINE)) for name, text in about if text]),
        *(
            _part(each.title, each.rows[0] if each.rows else (), each.rows[1:], each.said, wrote=each.wrote)
            for each in describe.parts(state, now, enforced, folder)
        ),
        *(
            _part(title, charts=[chart.curves(found, width=_WIDTH, height=_HEIGHT, x_label="minutes")])
            for title, found in usage.courses(state)
        ),
        *([] if info.unreadable else [_part("Options", spans=[("", _command(info.asked))])]),
        *(_part(f"Code of {label}", spans=code.spans(text)) for label, text in _sources(state)),
    ]
    return {"heading": facts.last_line(state, now), "parts": found}


def comparison(states: Sequence[JobState], now: float) -> Page:
    """Return the curves of some jobs, a chart a metric, and how their options and their code differ."""
    names = _names(states)
    first, others = states[0], list(zip(names[1:], states[1:], strict=True))
    found = [
        _part("Jobs", ("", "job", "state", "took", "size", "newest values"), _summaries(states, now)),
        *_metrics(states, names),
        _options(states, names),
        *(_changes(first, names[0], other, name) for name, other in others),
    ]
    return {"heading": f"{len(states)} jobs compared", "parts": found}


def _part(
    title: str,
    head: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
    said: Sequence[str] = (),
    *,
    wrote: Sequence[str] = (),
    spans: Sequence[code.Span] = (),
    charts: Sequence[chart.Chart] = (),
) -> dict[str, Any]:
    return {
        "title": title,
        "head": [*head],
        "rows": [[*row] for row in rows],
        "said": [*said],
        "wrote": [*wrote],
        "code": [[*span] for span in spans],
        "charts": [
            {"svg": each.svg, "title": each.title, "width": each.width, "height": each.height}
            for each in charts
        ],
    }


def _command(spec: JobSpec) -> str:
    return f"%%torchjob {magic_line(spec)}".rstrip()


def _sources(state: JobState) -> list[tuple[str, str]]:
    """Return the cells whose code travelled by what they are called, the one that was run first."""
    found = [(label, text) for label, text in state.info.sources.values()]
    found.sort(key=lambda each: [int(digits) for digits in re.findall(r"\d{1,9}", each[0])])
    # Where the magic stood in the cell that was run there is an empty line.
    found.sort(key=lambda each: not each[1].startswith("\n"))
    return [(line(label, LINE), text.strip("\n") + "\n") for label, text in found]


def _names(states: Sequence[JobState]) -> list[str]:
    """Return what each job is called in charts and tables: a number, as names may be alike, and its name."""
    most = max(8, int((_WIDTH - 120) / len(states) / _CHAR) - 5)
    return [line(f"{number} {state.info.name}", most) for number, state in enumerate(states, 1)]


def _summaries(states: Sequence[JobState], now: float) -> list[tuple[str, ...]]:
    return [
        (
            str(number),
            line(state.info.name, LINE),
            facts.status(state, now).lower(),
            duration(state.elapsed(now)),
            facts.shape(state),
            ", ".join(metrics.told(_series(state), 4, counting=False)),
        )
        for number, state in enumerate(states, 1)
    ]


def _series(state: JobState) -> Series:
    return state.series.get(0, Series())


def _metrics(states: Sequence[JobState], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a chart for each metric that one of them reported, with a line for each job."""
    found = [metrics.curves(_series(state), rounds.turns(state), _MOST_CHARTS) for state in states]
    known = list(dict.fromkeys(metric for curves in found for metric in curves))[:_MOST_CHARTS]
    if not known:
        return [_part("Metrics", said=["None of them reported a metric that changed."])]
    return [_part(line(metric, LINE), charts=[_chart(metric, found, names)]) for metric in known]


def _chart(metric: str, found: Sequence[Mapping[str, metrics.Curve]], names: Sequence[str]) -> chart.Chart:
    nothing = metrics.Curve("", ())
    curves = [curves.get(metric, nothing) for curves in found]
    series = {name: curve.points for name, curve in zip(names, curves, strict=True)}  # each keeps its colour
    along = next(curve.label for curve in curves if curve.label)
    return chart.curves(series, width=_WIDTH, height=_HEIGHT, x_label=along)


def _options(states: Sequence[JobState], names: Sequence[str]) -> dict[str, Any]:
    unread = [name for name, state in zip(names, states, strict=True) if state.info.unreadable]
    if unread:
        return _part("Options that differ", said=[f"The spec of {', '.join(unread)} can't be read."])
    specs = [state.info.asked for state in states]
    values = {o.flags[-1]: [_value(value_at(o, spec)) for spec in specs] for o in KEYS.values()}
    rows = [(flag, *found) for flag, found in values.items() if len(set(found)) > 1][:_MOST_OPTIONS]
    # A name is different each time.
    rows = [row for row in rows if row[0] != "--name"]
    if not rows:
        return _part("Options that differ", said=["None: they were submitted with the same options."])
    return _part("Options that differ", ("option", *names), rows)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return line(" ".join(f"{name}={each}" for name, each in value.items()), LINE)
    if isinstance(value, tuple):
        return line(" ".join(map(str, value)), LINE)
    return "" if value is None else line(str(getattr(value, "value", value)), LINE)


def _changes(first: JobState, name: str, other: JobState, its: str) -> dict[str, Any]:
    title = f"Code: what {its} changed in {name}"
    old, new = ("\n".join(text for _, text in _sources(state)) for state in (first, other))
    if not old or not new:
        return _part(title, said=["The code of one of them isn't known here."])
    spans = code.difference(old, new, name, its)
    return _part(title, said=[] if spans else ["Nothing: they ran the same code."], spans=spans)
