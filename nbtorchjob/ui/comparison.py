"""Jobs compared: where they differ and how, their code included (pure)."""

from __future__ import annotations

import difflib
import io
import keyword
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from html import escape
from itertools import accumulate, islice, takewhile
from typing import Any, TypeAlias

from nbtorchjob.environment.interpreter import reference
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec.options import KEYS
from nbtorchjob.spec.overlay import value_at
from nbtorchjob.state import JobState
from nbtorchjob.state.info import SAMPLED
from nbtorchjob.state.progress import latest
from nbtorchjob.state.text import attempts, swaps, usage
from nbtorchjob.text.words import LINE, duration, line, number, short, some
from nbtorchjob.ui import elements
from nbtorchjob.ui.card import chart, metrics
from nbtorchjob.ui.elements import MAX_CELL, SMALL, Part, tag

_MOST_ROWS = 200  # of an aspect
_MOST_METRICS = 12
_MOST_CHARTS = 12
_BESIDE = 2  # charts in a row
_WIDTH, _HEIGHT = 720, 240  # px of a chart
_MOST_NAMES = 6
_DIGITS = 8  # of a digest
_NONE = "–"
_MAX_WHAT = 80
_SETTING = re.compile(r"# (\w+\.\w+) = (.+)")


class Aspect(FrozenDataclass):
    """One respect in which jobs may differ.

    ``rows`` has each job's value of whatever isn't the same in all of them; ``changes`` turn the first job's
    code into each later job's, as the lines of a unified diff. ``alike`` says that there is neither, and
    ``unknown`` why that isn't known, for all of it or some.
    """

    key: str
    title: str
    column: str
    alike: str
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    changes: tuple[tuple[str, ...], ...] = ()
    unknown: str = ""

    @property
    def differs(self) -> bool:
        """Whether the jobs are known to differ in it."""
        return bool(self.rows) or any(self.changes)

    def table(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the rows below their head; nothing where there are none."""
        shown = [(name, *map(_cell, values)) for name, values in [*self.rows.items()][:_MOST_ROWS]]
        return [(self.column, *names), *shown] if shown else []

    def sentences(self) -> list[str]:
        """Return sentences about what the rows and changes don't show."""
        more = len(self.rows) - _MOST_ROWS
        sentences = [f"and {more} more"] if more > 0 else []
        if not self.differs and not self.unknown:
            sentences.append(self.alike)
        return [*sentences, line(self.unknown, LINE)] if self.unknown else sentences


_Compared: TypeAlias = Callable[[Sequence[JobState], Sequence[str]], Aspect]
_ASPECTS: list[_Compared] = []


def _aspect(compared: _Compared) -> _Compared:
    """Register a respect in which jobs are compared, after those above it."""
    _ASPECTS.append(compared)
    return compared


def aspects(states: Sequence[JobState], names: Sequence[str]) -> list[Aspect]:
    """Return how jobs compare in each respect; ``names`` are the jobs' names."""
    return [compared(states, names) for compared in _ASPECTS]


def text(respects: Sequence[Aspect], names: Sequence[str], outcomes: Sequence[Mapping[str, Any]]) -> str:
    """Return how jobs differ in plain text; ``outcomes`` has the :func:`outcome` of each."""
    return elements.text(heading(respects, names), _parts(respects, names, outcomes))


def html(
    respects: Sequence[Aspect],
    names: Sequence[str],
    outcomes: Sequence[Mapping[str, Any]],
    drawn: Mapping[str, chart.Chart],
) -> str:
    """Return the same as :func:`text`, below charts, as HTML that a sanitiser leaves whole."""
    titles = (tag("div", tag("b", escape(line(metric, LINE))), SMALL) for metric in drawn)
    captioned = [title + picture.img for title, picture in zip(titles, drawn.values(), strict=True)]
    top = "".join(metrics.beside(captioned[at : at + _BESIDE]) for at in range(0, len(captioned), _BESIDE))
    return elements.html(heading(respects, names), _parts(respects, names, outcomes), top)


def charts(states: Sequence[JobState], names: Sequence[str]) -> dict[str, chart.Chart]:
    """Return a chart for each metric that one of the jobs reported, with a line for each that did.

    If some count steps and others don't, each of these axes has a chart of its own.
    """
    per_job = [
        metrics.curves(state.spoken, attempts.turn_causes(state), _MOST_CHARTS, swaps.marks(state))
        for state in states
    ]
    lines: dict[str, dict[int, metrics.Curve]] = {}
    for metric in dict.fromkeys(metric for curves in per_job for metric in curves):
        of_metric = {at: curves[metric] for at, curves in enumerate(per_job) if metric in curves}
        lines.update(metrics.by_axis(metric, of_metric))
    return {
        title: chart.curves(
            {names[at]: curve.points for at, curve in curves.items()},
            width=_WIDTH,
            height=_HEIGHT,
            x_label=next(iter(curves.values())).label,
            colours=[*curves],  # a job has the same one in all charts
        )
        for title, curves in islice(lines.items(), _MOST_CHARTS)
    }


def data(
    respects: Sequence[Aspect], states: Sequence[JobState], outcomes: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the same as plain data: what differs in each aspect, by key, and why some isn't known."""
    tables: dict[str, Any] = {
        aspect.key: {name: [*row] for name, row in aspect.rows.items()} for aspect in respects
    }
    changes = ["\n".join(lines) for aspect in respects for lines in aspect.changes]
    return {
        "jobs": [state.info.id for state in states],
        "alike": not any(aspect.differs or aspect.unknown for aspect in respects),
        **tables,
        "changes": changes,
        "unknown": {aspect.key: aspect.unknown for aspect in respects if aspect.unknown},
        "results": [*outcomes],
    }


def heading(respects: Sequence[Aspect], names: Sequence[str]) -> str:
    """Return one line that says in which respects jobs differ, or that they don't."""
    who = " and ".join(names) if names[0] != names[-1] else f"{names[0]} and itself"
    differ = [aspect.title.lower() for aspect in respects if aspect.differs]
    same = [aspect.title.lower() for aspect in respects if not aspect.differs and not aspect.unknown]
    if differ:
        return f"{who} differ in {_listed(differ)}" + (f"; alike: {_listed(same)}" if same else "")
    return f"{who} are alike in {_listed(same)}" if same else f"{who}: it isn't known whether they differ"


def outcome(state: JobState, now: float, value: Any = None) -> dict[str, Any]:
    """Return a job's outcome so far, as plain data; ``value`` is its call's, None if it isn't there."""
    metrics = latest(state.spoken)
    return {
        "phase": state.phase.value,
        "failure": state.failure.reason.line if state.failure else "",
        "value": value,
        "seconds": round(state.elapsed(now) - state.waited(now), 3),
        "attempts": len(state.attempts),
        "restarts": state.restarts,
        "metrics": dict(metrics),
    }


def _listed(titles: Sequence[str]) -> str:
    *most, last = titles
    return f"{', '.join(most)} and {last}" if most else last


def _parts(
    respects: Sequence[Aspect], names: Sequence[str], outcomes: Sequence[Mapping[str, Any]]
) -> Iterator[Part]:
    for aspect in respects:
        if aspect.differs:
            wrote = [line(text, LINE) for lines in aspect.changes for text in lines]
            yield Part(aspect.title, aspect.table(names), aspect.sentences(), wrote)
    if unknown := [aspect.unknown for aspect in respects if aspect.unknown and not aspect.differs]:
        yield Part("Not compared", sentences=unknown)
    metrics = list(dict.fromkeys(name for result in outcomes for name in result["metrics"]))[:_MOST_METRICS]
    rows = [
        ("state", *(result["phase"].lower() for result in outcomes)),
        ("why", *(result["failure"] for result in outcomes)),
        ("value", *("" if (value := result["value"]) is None else short(value) for result in outcomes)),
    ]
    for name in metrics:
        values = [result["metrics"].get(name) for result in outcomes]
        rows.append((name, *("" if value is None else number(value) for value in values)))
    rows += [
        ("took", *(duration(result["seconds"]) for result in outcomes)),
        ("attempts", *(str(result["attempts"]) for result in outcomes)),
        ("restarts", *(str(result["restarts"] or "") for result in outcomes)),
    ]
    yield Part("Results", [("", *names), *(tuple(map(_cell, row)) for row in rows if any(row[1:]))])


def _cell(text: str) -> str:
    return line(text, MAX_CELL) or _NONE


@_aspect
def _options(states: Sequence[JobState], names: Sequence[str]) -> Aspect:
    aspect = Aspect("options", "Options", "option", "None: they were submitted with the same options.")
    unread = [name for name, state in zip(names, states, strict=True) if state.info.unreadable]
    if unread:
        return replace(aspect, unknown=f"The spec of {some(unread, _MOST_NAMES)} can't be read.")
    rows = {}
    for o in KEYS.values():
        texts = []
        for value in (value_at(o, state.info.jobspec) for state in states):
            if isinstance(value, Mapping):
                texts.append(" ".join(f"{name}={item}" for name, item in value.items()))
            elif isinstance(value, tuple):
                texts.append(" ".join(map(str, value)))
            else:
                texts.append("" if value is None else str(getattr(value, "value", value)))
        if _differ(texts) and o.flags[-1] != "--name":  # the name differs each time
            rows[o.flags[-1]] = tuple(texts)
    return replace(aspect, rows=rows)


def _differ(row: Sequence[Any]) -> bool:
    return any(cell != row[0] for cell in row)


@_aspect
def _code(states: Sequence[JobState], names: Sequence[str]) -> Aspect:
    from nbtorchjob.swapping import code  # late, as it is slow to import

    aspect = Aspect("code", "Code", "what", "Nothing: they ran the same code.")
    texts: list[str] = []  # with what was swapped in
    for state in states:
        labels = {label for label, _ in swaps.begun_with(state.info)}
        own = "\n".join(text for label, text in cells(state) if label not in labels)
        texts.append(code.as_swapped(own, _swap_texts(state)) if own else "")
    first, *others = texts
    unknown = [name for name, text in zip(names, texts, strict=True) if not text]
    changes = [
        tuple(difflib.unified_diff(first.splitlines(), source.splitlines(), names[0], name, lineterm=""))
        if first and source
        else ()
        for name, source in zip(names[1:], others, strict=True)
    ]
    calls = tuple(state.info.label for state in states)
    # For names that were swapped in any of the jobs: what each job has, where that differs
    jobs = [code.of(state) for state in states]
    swapped_names = dict.fromkeys(name for job in jobs for name in job.swapped)
    rows = {name: [job.defined(name) for job in jobs] for name in swapped_names}
    settings = [_settings(state) for state in states]
    for path in dict.fromkeys(path for values in settings for path in values):
        rows[path] = [(values.get(path, ""), values.get(path, code.AS_SUBMITTED)) for values in settings]
    differ = {name: row for name, row in rows.items() if _differ([text for text, _ in row])}
    return replace(
        aspect,
        rows={
            **({"call": calls} if _differ(calls) else {}),
            **{name: tuple(words for _, words in row) for name, row in differ.items()},
        },
        changes=tuple(changes),
        unknown=f"The code of {some(list(dict.fromkeys(unknown)), _MOST_NAMES)} isn't known here."
        if unknown
        else "",
    )


def _settings(state: JobState) -> dict[str, str]:
    """Return the values of optimizers that were set, from the comments below a swap's text."""
    values: dict[str, str] = {}
    for text in _swap_texts(state):
        for match in takewhile(bool, map(_SETTING.fullmatch, reversed(text.split("\n")))):
            assert match is not None
            values[match[1]] = match[2]
    return values


def _swap_texts(state: JobState) -> list[str]:
    """Return the texts of the swaps that a job's code results from."""
    begun_with = [text for _, text in swaps.begun_with(state.info)]
    return [*begun_with, *(swap.text for swap in swaps.as_swapped(state))]


@_aspect
def _captured(states: Sequence[JobState], names: Sequence[str]) -> Aspect:
    aspect = Aspect("captured", "Captured data", "name", "Nothing: they captured the same data.")
    unknown = [name for name, state in zip(names, states, strict=True) if state.info.captured is None]
    if unknown:
        return replace(
            aspect,
            unknown=f"The captured data of {some([*dict.fromkeys(unknown)], _MOST_NAMES)} isn't known here.",
        )
    kept = [state.info.captured or {} for state in states]
    rows, sampled, untold = {}, [], []
    for name in dict.fromkeys(name for record in kept for name in record):
        values = [record.get(name, ("", "")) for record in kept]
        digests = [digest for _, digest in values]
        if _differ(values):
            # Each job's value, with digests if only these differ
            descriptions = [line(description, _MAX_WHAT) for description, _ in values]
            if len(set(descriptions)) == len(descriptions):
                rows[name] = tuple(descriptions)
            else:
                rows[name] = tuple(
                    f"{description} ({digest[:_DIGITS]})" if digest else description
                    for description, (_, digest) in zip(descriptions, values, strict=True)
                )
        elif not all(digests):
            untold.append(name)
        elif digests[0].startswith(SAMPLED):
            sampled.append(name)
    notes = [f"Alike, as far as samples show: {some(sampled, _MOST_NAMES)}."] if sampled else []
    notes += [f"No digest is kept for {some(untold, _MOST_NAMES)}."] if untold else []
    return replace(aspect, rows=rows, unknown=" ".join(notes))


@_aspect
def _packages(states: Sequence[JobState], names: Sequence[str]) -> Aspect:
    aspect = Aspect("packages", "Packages", "package", "None: they could import the same.")
    tables: list[dict[str, str]] = []
    for fact in (state.importable for state in states):
        if fact is None:
            tables.append({})
            continue
        versions = {**fact.distributions, **fact.installed}
        for name in fact.origins.keys() & versions.keys():
            versions[name] += f" ({line(' '.join(reference(fact.origins[name])).strip(), _MAX_WHAT)})"
        tables.append({"Python": fact.python, "platform": fact.platform, **versions})
    for state, table in zip(states, tables, strict=True):
        if table:
            table["image"] = state.image
    unknown = [name for name, table in zip(names, tables, strict=True) if not table]
    if unknown:
        return replace(
            aspect,
            unknown=f"The packages of {some(list(dict.fromkeys(unknown)), _MOST_NAMES)} aren't known.",
        )
    every = dict.fromkeys(
        ["image", "Python", "platform", *sorted({name for table in tables for name in table})]
    )
    rows = {name: tuple(table.get(name, "") for table in tables) for name in every}
    return replace(aspect, rows={name: row for name, row in rows.items() if _differ(row)})


@_aspect
def _hosts(states: Sequence[JobState], names: Sequence[str]) -> Aspect:
    aspect = Aspect("hosts", "Hosts", "", "None: their nodes were of the same kinds.")
    hosts: set[tuple[str, ...]] = set()
    for state in states:
        starts = (life.start for node in state.nodes.values() for life in node.lives.values())
        hosts.add(tuple(sorted({start.host for start in starts if start is not None})))
    if len(hosts) == 1 and () not in hosts:
        return aspect
    kinds = [usage.kinds(state) for state in states]
    unknown = [name for name, hosts in zip(names, kinds, strict=True) if not hosts]
    if unknown:  # nodes report their kind after some seconds
        return replace(aspect, unknown=f"The host kinds of {some(unknown, _MOST_NAMES)} aren't known.")
    row = tuple(" and ".join(hosts) for hosts in kinds)
    return replace(aspect, rows={"kind": row} if _differ(row) else {})


# A kind ("keyword", "string", …; "" for plain text), and the text.
Span: TypeAlias = tuple[str, str]

_KINDS = {tokenize.COMMENT: "comment", tokenize.NUMBER: "number", tokenize.STRING: "string"}
# Python 3.12 splits f-strings into tokens; before, these kinds don't exist.
_KINDS |= {
    getattr(tokenize, name): "string"
    for name in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")
    if hasattr(tokenize, name)
}
_DIFF = {"+": "added", "-": "removed", "@": "hunk"}


def spans(text: str) -> list[Span]:
    """Return the code as spans, which join to the same text; what isn't Python is plain."""
    coloured, at, defines = [], 0, False
    lines = [0, *accumulate(len(source_line) + 1 for source_line in text.split("\n"))]
    with suppress(tokenize.TokenError, SyntaxError):  # a magic, a line for the shell
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            (row, column), (last, last_column) = token.start, token.end
            kind = _KINDS.get(token.type, "")
            if token.type == tokenize.NAME:
                kind = "def" if defines else "keyword" if keyword.iskeyword(token.string) else ""
                defines = token.string in ("def", "class")
            if kind and last <= len(lines) and lines[row - 1] + column >= at:
                start, end = lines[row - 1] + column, lines[last - 1] + last_column
                coloured += [("", text[at:start]), (kind, text[start:end])]
                at = end
    return [span for span in (*coloured, ("", text[at:])) if span[1]]


def changes(lines: Iterable[str]) -> list[Span]:
    """Return the lines of a unified diff as spans."""
    return [(_DIFF.get(line[:1], ""), f"{line}\n") for line in lines]


def cells(state: JobState) -> list[tuple[str, str]]:
    """Return label and text of each cell whose code was sent; the cell that was run comes first."""
    labelled = [(label, text) for label, text in state.info.sources.values()]
    labelled.sort(key=lambda pair: [int(digits) for digits in re.findall(r"\d{1,9}", pair[0])])
    # In the cell that was run, an empty line replaces the magic.
    labelled.sort(key=lambda pair: not pair[1].startswith("\n"))
    return [(line(label, LINE), text.strip("\n") + "\n") for label, text in labelled]
