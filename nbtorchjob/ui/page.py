"""Jobs as data for a page to lay out (pure): one in full, and several compared.

A page is a heading and parts; a part is a title, and what is below it: a table (``head`` and ``rows``),
sentences (``said``), lines as they were written (``wrote``), code in spans (``ui/comparison``), charts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from nbtorchjob.backends.base import TenderStatus
from nbtorchjob.spec.options import magic_line
from nbtorchjob.state import JobState
from nbtorchjob.state.text import facts, usage
from nbtorchjob.text.words import LINE, clock, line
from nbtorchjob.ui import comparison as code
from nbtorchjob.ui.card import chart, describe, metrics
from nbtorchjob.ui.comparison import aspects

Page: TypeAlias = dict[str, Any]

MOST = 8  # jobs that are compared at once
_WIDTH, _HEIGHT = 720, 240  # px of a chart
_CHAR = 6.2  # px, as a chart guesses


def description(
    state: JobState, now: float, enforced: Mapping[str, str], folder: Path, tended: TenderStatus | None = None
) -> Page:
    """Return all that is known of a job; the arguments are those of ``describe.text``."""
    info = state.info
    about = [
        ("name", info.name),
        ("what", info.full_label),
        ("notebook", info.notebook),
        ("submitted", clock(info.created, now)),
        ("size", facts.shape(state)),
    ]
    parts = [
        _part("Job", rows=[(name, line(text, LINE)) for name, text in about if text]),
        *(
            _part(
                part.title, part.rows[0] if part.rows else (), part.rows[1:], part.sentences, wrote=part.wrote
            )
            for part in describe.parts(state, now, enforced, folder, tended)
        ),
        *(
            _part(title, charts=[chart.curves(parts, width=_WIDTH, height=_HEIGHT, x_label="minutes")])
            for title, parts in usage.courses(state)
        ),
        *(
            []
            if info.unreadable
            else [_part("Options", spans=[("", f"%%torchjob {magic_line(info.jobspec)}".rstrip())])]
        ),
        *(_part(f"Code of {label}", spans=code.spans(text)) for label, text in code.cells(state)),
    ]
    return {"heading": facts.last_line(state, now), "parts": parts}


def comparison(states: Sequence[JobState], now: float) -> Page:
    """Return the curves of several jobs, one chart per metric, and the respects in which they differ."""
    most = max(8, int((_WIDTH - 120) / len(states) / _CHAR) - 5)
    names = [line(f"{number} {state.info.name}", most) for number, state in enumerate(states, 1)]
    rows = [
        (
            str(number),
            line(state.info.name, LINE),
            facts.status(state, now).lower(),
            facts.took(state, now),
            facts.shape(state),
            ", ".join(metrics.summary(state.spoken, 4, counting=False)),
        )
        for number, state in enumerate(states, 1)
    ]
    charts = [
        _part(line(metric, LINE), charts=[picture]) for metric, picture in code.charts(states, names).items()
    ] or [_part("Metrics", sentences=["None of them reported a metric that changed."])]
    parts = [_part("Jobs", ("", "job", "state", "took", "size", "newest values"), rows), *charts]
    for aspect in aspects(states, names):
        table = aspect.table(names)
        parts.append(_part(aspect.title, table[0] if table else (), table[1:], aspect.sentences()))
        for name, changed in zip(names[1:], aspect.changes, strict=False):
            if changed:
                spans = code.changes(changed)
                parts.append(_part(f"What {name} changed in {names[0]}", spans=spans))
    return {"heading": f"{len(states)} jobs compared", "parts": parts}


def _part(
    title: str,
    head: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
    sentences: Sequence[str] = (),
    *,
    wrote: Sequence[str] = (),
    spans: Sequence[code.Span] = (),
    charts: Sequence[chart.Chart] = (),
) -> dict[str, Any]:
    return {
        "title": title,
        "head": [*head],
        "rows": [[*row] for row in rows],
        "said": [*sentences],
        "wrote": [*wrote],
        "code": [[*span] for span in spans],
        "charts": [
            {"svg": item.svg, "title": item.title, "width": item.width, "height": item.height}
            for item in charts
        ],
    }
