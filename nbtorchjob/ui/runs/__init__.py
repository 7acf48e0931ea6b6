"""A group's runs as one HTML card and as plain text, and their parameters side by side (pure)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any, TypeVar

from nbtorchjob.state import JobState, Phase, Series, runs
from nbtorchjob.state.facts.series import as_float
from nbtorchjob.state.progress import measures
from nbtorchjob.state.runs import STOPPED
from nbtorchjob.state.text import facts
from nbtorchjob.text import words
from nbtorchjob.text.colours import shade
from nbtorchjob.text.hints import hint
from nbtorchjob.text.words import DOT, count, duration, line
from nbtorchjob.ui import card
from nbtorchjob.ui.card import chart, metrics
from nbtorchjob.ui.card.chart import DARK, LIGHT
from nbtorchjob.ui.elements import DIM, PHASES, PLAIN, SMALL, action, meant, tag, text_line
from nbtorchjob.ui.record import CALLED, counted, phase, word

T = TypeVar("T")  # of the items that are spread

# If there are more runs than fit, those that say most have a row: by phase, in this order.
_TELLING = (Phase.FAILED, Phase.RUNNING, Phase.SUCCEEDED, Phase.CANCELLED, Phase.PENDING, Phase.SUBMITTED)
_STOPPED_EARLY = (130, 80, 160)
_COLOURS = {**{member.value: colour for member, colour in PHASES.items()}, STOPPED: _STOPPED_EARLY}
_FAINT = ("PENDING", "SUBMITTED")
_MOST_ROWS, _MOST_LINES = 60, 30
_MOST_CURVES, _MOST_CHARTS = 6, 2
_MOST_METRICS, _MOST_GIVEN = 4, 6
_MAX_CELL, _MAX_TEXT = 40, 80
_WIDTHS = {1: 720, 2: 450}  # px of a chart, by how many there are: two stand side by side in most cards
_AXIS = 72  # px of a chart's width that its legend can't use: the numbers at the left, the x axis' name


def elapsed(states: Sequence[JobState], now: float) -> float:
    """Return how long the group has taken, from its submission to its last run's end."""
    end = now if any(state.ended is None for state in states) else max(s.ended or 0.0 for s in states)
    return max(0.0, end - min(state.info.created for state in states))


def html(name: str, states: Sequence[JobState], now: float, *, live: bool = False) -> str:
    """Return a group's card; ``live`` means that a cell waits for it."""
    phases = [word(state) for state in states]
    group_phase = phase(phases)
    rest = (count(len(states), "run"), counted(phases), duration(elapsed(states, now)))
    details = escape(DOT.join((*rest, facts.where(states[0].info))))
    tone = card.of_phase(group_phase)
    left = len(states) - min(len(states), _MOST_ROWS)
    more_words = [f"and {count(left, 'more run')}: runs.frame() has all of them"] if left else []
    if not live and any(not state.phase.terminal for state in states):
        stops = " and stops some early" if states[0].info.early else ""
        more_words.append(f"{hint('attach', name)} follows them{stops}, {hint('cancel', name)} ends them")
    # A bar in which each phase has its share of the runs
    shares, many = [], Counter(phases)
    for key, called in CALLED.items():
        if many[key]:
            faint = ";opacity:0.35" if key in _FAINT else ""
            style = f"flex:{many[key]} 1 0;background-color:{shade(_COLOURS[key])}{faint}"
            shares.append(f'<div class="{_tone(key)}" style="{style}" title="{many[key]:,} {called}"></div>')
    style = f"{PLAIN};display:flex;height:8px;border-radius:4px;overflow:hidden"
    parts = [
        tag("div", "".join(shares), style, cls="nbt-share"),
        metrics.beside(_charts(states)),
        parallel_axes(states, _metric(states)),
        _table(states, now),
        text_line(DOT.join(more_words), SMALL),
    ]
    body = tag("div", "\n".join(part for part in parts if part), card.BODY, cls="nbt-body")
    return card.frame(tone, card.head(tone, group_phase.value, name, details), body)


def text(name: str, states: Sequence[JobState], now: float) -> str:
    """Return the same in plain text, for places that show no HTML."""
    phases = [word(state) for state in states]
    group_phase = phase(phases)
    how = "in" if group_phase is Phase.SUCCEEDED else "after" if group_phase.terminal else "for"
    took = f"{group_phase.value.lower()} {how} {duration(elapsed(states, now))}"
    shown = _chosen(states, _MOST_LINES)
    left = len(states) - len(shown)
    columns = _columns(states)
    best = _best(states)
    rows = [["run", *columns[0], *columns[1], "phase", "seconds"]]
    for state in shown:
        rows.append(_cells(state, columns, now))
        rows[-1][-2] += BEST if state is best else ""
    head = DOT.join((took, count(len(states), "run"), counted(phases)))
    titles, *cells = words.columns(rows)
    lines = [f"torchjob {name} {head}", titles]
    for state, row in zip(shown, cells, strict=True):
        why = _why(state)
        lines += [row, f"     {why}"] if why else [row]
    return "\n".join([*lines, *([f"and {count(left, 'more run')}"] if left else [])])


def _tone(word: str) -> str:
    """Return the class that gives a run the colour of its state."""
    return card.of_phase(Phase(word)).value if word != STOPPED else card.Tone.QUIET.value


def _columns(states: Sequence[JobState]) -> tuple[list[str], list[str]]:
    """Return the columns of parameters, those that vary first, and of metrics."""
    return runs.varied(states)[:_MOST_GIVEN], _metrics(states)


def _metrics(states: Sequence[JobState]) -> list[str]:
    names = Counter(name for state in states for name in measures(runs.metrics(state)))
    return [name for name, _ in names.most_common(_MOST_METRICS)]


def _metric(states: Sequence[JobState]) -> str:
    """Return the metric that stands for a run; "" if none is reported."""
    return next(iter(_metrics(states)), "")


def _chosen(states: Sequence[JobState], most: int) -> list[JobState]:
    """Return the runs that have a row: all, or the best one and the most telling ones, in order."""
    if len(states) <= most:
        return [*states]
    best, losses = _best(states), _losses(states)

    def place(state: JobState) -> tuple[bool, int, float, int]:
        loss = losses.get(state.info.id, math.inf)
        return state is not best, _TELLING.index(state.phase), loss, state.info.number

    return sorted(sorted(states, key=place)[:most], key=lambda state: state.info.number)


def _cells(state: JobState, columns: tuple[list[str], list[str]], now: float) -> list[str]:
    parameters, names = columns
    reported = runs.metrics(state)
    took = runs.seconds(state, now)
    waits = [wait.text for wait in state.waiting]
    status = facts.status(state, now).lower()
    status = f"{status} {waits[0]}" if waits else status
    numbers = [words.number(reported[name]) if name in reported else "" for name in names]
    return [
        str(state.info.number),
        *(_as_text(state.info.given.get(name)) for name in parameters),
        *numbers,
        status,
        "" if took is None else f"{took:.1f}",
    ]


def _as_text(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else line(str(value), _MAX_TEXT)


def _why(state: JobState) -> str:
    """Return one line on why a run failed or was stopped early; "" for other runs."""
    if state.failure is None or not (state.phase is Phase.FAILED or state.stopped_early):
        return ""
    return line(facts.heading(state.failure, state) or state.failure.reason.line, 160)


def _best(states: Sequence[JobState]) -> JobState | None:
    """Return the run with the best last value of the first metric; None if it isn't known what is better."""
    losses = _losses(states)
    candidates = [state for state in states if state.info.id in losses and word(state) in _RANKED]
    return min(candidates, key=lambda state: losses[state.info.id]) if len(candidates) > 1 else None


def _losses(states: Sequence[JobState]) -> dict[str, float]:
    """Return each run's last value of the first metric, by id; negated if the largest is the best.

    Runs without a finite value are left out, and all runs if it isn't known what is better.
    """
    name = _metric(states)
    early = states[0].info.stops_early if states else None
    if early is not None and early.halve == name:
        largest = name in early.largest
    elif any(part in name.lower() for part in (*_LARGEST, *_SMALLEST)):
        largest = not any(part in name.lower() for part in _SMALLEST)
    else:
        return {}
    values = {state.info.id: runs.metrics(state).get(name, math.nan) for state in states}
    return {id_: -value if largest else value for id_, value in values.items() if math.isfinite(value)}


def _table(states: Sequence[JobState], now: float) -> str:
    best, colours = _best(states), _coloured(states)
    shown = sorted(_chosen(states, _MOST_ROWS), key=lambda state: state is not best)
    columns = _columns(states)
    names = ("run", *columns[0], *columns[1], "phase", "s")
    sparks = _sparklines(shown, _metric(states))
    table = [_cells(state, columns, now) for state in shown]
    # Columns in which every value is a number are aligned right.
    numeric = [all(map(_is_number, filter(None, column))) for column in zip(*table, strict=True)]
    aligned = [_CELL if at == 0 or not right else _RIGHT for at, right in enumerate(numeric)]
    header = "".join(
        tag("th", escape(line(cell, _MAX_CELL)), style) for cell, style in zip(names, aligned, strict=True)
    )
    if sparks:
        header += tag("th", escape(line(_metric(states), _MAX_CELL)), _CELL)
    body = []
    for state, cells in zip(shown, table, strict=True):
        key = word(state)
        colour = f"{_CELL};border-left:3px solid {shade(_COLOURS[key])}"
        swatch = _swatch(colours.get(state.info.id))
        logs = action("Logs", "nbtorchjob:logs", meant(state.info), of=state.name)
        cells[-2] = cells[-2].capitalize() + (BEST if state is best else "")
        rest = zip(cells[1:], aligned[1:], strict=True)
        row = [
            tag("td", escape(cells[0]) + swatch + f" {logs}", colour, cls=f"nbt-run-of {_tone(key)}"),
            *(tag("td", escape(line(cell, _MAX_CELL)), style) for cell, style in rest),
        ]
        if sparks:
            row.append(tag("td", sparks[state.info.id], _CELL, cls="nbt-spark"))
        body.append(tag("tr", "".join(row), "font-weight:600" if state is best else ""))
        why = _why(state)
        if why:
            span = len(names) - 1 + bool(sparks)
            wide = f'<td></td><td colspan="{span}" style="{_CELL};{DIM}">{escape(why)}</td>'
            body.append(f'<tr class="nbtorchjob-why">{wide}</tr>')
    style = f"border-collapse:collapse;width:100%;{PLAIN}"
    opening = f'<table class="nbtorchjob-sorts" cellpadding="4" style="{style}">'
    markup = f"{opening}<thead>{tag('tr', header)}</thead><tbody>{''.join(body)}</tbody></table>"
    return tag("div", markup, "overflow-x:auto")


def _sparklines(states: Sequence[JobState], metric: str) -> dict[str, str]:
    """Return the course of a metric in each run, by id, all on one scale; empty if no run has one."""
    series: dict[str, list[float]] = {}
    for state in states:
        # As many values of the metric as a sparkline shows, evenly over all that were reported
        if not state.series:
            series[state.info.id] = []
        else:
            course = [as_float(p.metrics[metric]) for p in _series(state).points if metric in p.metrics]
            finite_values = [chart.bounded(value) for value in course if math.isfinite(value)]
            series[state.info.id] = _spread(finite_values, _SPARKS)
    values = [value for course in series.values() for value in course]
    if not any(len(course) > 1 for course in series.values()):
        return {}
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return {
        id_: "".join(_BLOCKS[round((value - low) / span * (len(_BLOCKS) - 1))] for value in course)
        for id_, course in series.items()
    }


def _spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most ``most`` of the items, evenly over all, with the first and the last."""
    many = min(most, len(items))
    return [items[round(at * (len(items) - 1) / max(1, many - 1))] for at in range(many)]


_BLOCKS, _SPARKS = "▁▂▃▄▅▆▇█", 10
_CELL, _RIGHT = "text-align:left", "text-align:right"
BEST = f"{DOT}\u2605 best"
# Parts of names of metrics: those for which the largest is best, and the smallest.
_LARGEST = ("acc", "f1", "auc", "score", "bleu", "reward")
_SMALLEST = ("loss", "err", "perplexity", "ppl", "mse", "mae")
_RANKED = (Phase.SUCCEEDED.value, Phase.RUNNING.value)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return True


def _swatch(number: int | None) -> str:
    """Return the colour of a run's curves; nothing for one that isn't drawn."""
    if number is None:
        return ""
    line_ = "display:inline-block;width:12px;height:3px;margin-left:6px;vertical-align:middle"
    light, dark = LIGHT.lines[number], DARK.lines[number]
    # As in the charts, which follow the page's colour scheme; older browsers know only the first colour.
    return tag("span", "", f"{line_};background-color:{light};background-color:light-dark({light},{dark})")


def _coloured(states: Sequence[JobState]) -> dict[str, int]:
    """Return the few runs that are drawn, by id, each with the number of its colour in all charts."""
    few: list[int] = []
    for name in _metrics(states)[:1]:
        last = {at: last[name] for at, state in enumerate(states) if name in (last := runs.metrics(state))}
        order = sorted(last, key=lambda at: last[at] if math.isfinite(last[at]) else math.inf)
        few = _spread(order, _MOST_CURVES)
    return {states[at].info.id: number for number, at in enumerate(sorted(few))}


def _charts(states: Sequence[JobState]) -> list[str]:
    """Return charts of the runs' curves over each other for a metric or two, labelled by what varies."""
    colours = _coloured(states)
    few = [state for state in states if state.info.id in colours]
    drawn: list[tuple[str, str, dict[str, metrics.Curve]]] = []  # metric, title, and curves by run
    for metric in _metrics(states):
        by_run = {state.info.id: metrics.curves(_series(state), {}).get(metric) for state in few}
        curves = {key: curve for key, curve in by_run.items() if curve is not None}
        drawn += [(metric, *titled) for titled in metrics.by_axis(metric, curves).items()]
    drawn = drawn[:_MOST_CHARTS]
    width = _WIDTHS.get(len(drawn), 0)
    legend = dict(zip(colours, _legend(few, states, width), strict=True))
    charts: list[str] = []
    for metric, title, curves in drawn:
        told_by = sum(metric in runs.metrics(state) for state in states)
        plot = chart.curves(
            {legend[key]: curve.points for key, curve in curves.items()},
            width=width,
            height=200,
            x_label=next(iter(curves.values())).label,
            colours=[colours[key] for key in curves],
        )
        which = _which(len(curves), told_by, _MOST_CURVES)
        subtitle = escape(f" {DOT} {which} by {line(', '.join(_varying(states)), _MAX_CELL)}")
        caption = tag("div", tag("b", escape(line(title, _MAX_CELL))) + subtitle, SMALL)
        charts.append(caption + plot.img)
    return charts


def _which(drawn: int, of: int, most: int) -> str:
    """Say how many runs are drawn; with more than ``most``, these are spread over the values of all."""
    if drawn == of:
        return count(of, "run")
    return f"{drawn} of {of:,} runs{', lowest to highest,' if of > most else ''}"


def _series(state: JobState) -> Series:
    return state.series[min(state.series)]


def _legend(some: Sequence[JobState], states: Sequence[JobState], width: int) -> list[str]:
    """Return labels that tell runs apart: ``lr=0.1``, or shorter ones or just numbers if that doesn't fit."""
    names = _varying(states)
    rows = [[_as_text(state.info.given.get(name)) for name in names] for state in some]
    long = [
        ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True)) for values in rows
    ]
    numbered = [f"run {state.info.number}" for state in some]
    for legend in (long, [", ".join(values) for values in rows], numbered):
        if chart.legend_width(legend) <= width - _AXIS and len({*legend}) == len(legend):
            return legend
    return [str(state.info.number) for state in some]


def _varying(states: Sequence[JobState]) -> list[str]:
    """Return the names whose values differ, or the first one if none do."""
    names = runs.varied(states)
    return [n for n in names if len({repr(state.info.given.get(n)) for state in states}) > 1] or names[:1]


_FEWEST, _MOST = 3, 6  # parameters that vary: with fewer, the curves show as much
_MOST_PARALLEL = 300


def parallel_axes(states: Sequence[JobState], metric: str) -> str:
    """Return runs on parallel axes as a picture; nothing if few parameters vary, or nothing was reported."""
    names = _varying(states)[:_MOST]
    values = [(state, runs.metrics(state).get(metric, math.nan)) for state in states]
    finite_values = [(state, value) for state, value in values if math.isfinite(value)]
    if len(names) < _FEWEST or len(finite_values) < 2:
        return ""
    drawn = _spread(sorted(finite_values, key=lambda item: item[1]), _MOST_PARALLEL)
    drawn.sort(key=lambda item: item[0].info.number)
    title = f"{metric} of {_which(len(drawn), len(finite_values), _MOST_PARALLEL)} by {', '.join(names)}"
    columns = [(name, [state.info.given.get(name) for state, _ in drawn]) for name in names]
    return tag("div", chart.parallel([*columns, (metric, [value for _, value in drawn])], title), PLAIN)
