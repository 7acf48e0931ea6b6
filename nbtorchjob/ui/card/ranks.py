"""The ranks of a job side by side, and its nodes: a straggler or a hang stands out.

Each rank's reports of the newest round are compared with what is usual among all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from math import ceil
from statistics import median, median_high, median_low

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.state import JobState, Phase, Series
from nbtorchjob.state.progress import REPORT, counts, done, hang, pace, unit_of
from nbtorchjob.state.text import facts
from nbtorchjob.text.colours import of_rank, shade
from nbtorchjob.text.words import DOT, clip, count, duration, line, number, ranks
from nbtorchjob.text.words import ranks as names
from nbtorchjob.ui.card.tails import newest
from nbtorchjob.ui.elements import PHASES, PLAIN, SMALL, fold, grid, tag, text_line

_MOST = 16
_MAX_CELL = 48
_HEAD = ("node", "host", "ranks", "state", "restarts", "last line")


def rows(state: JobState) -> list[tuple[str, ...]]:
    """Return a head and a row for each node; nothing for a single node, or while none has a place yet."""
    nodes = sorted(state.nodes.values(), key=lambda n: n.index)
    # For nodes without a place, there is only the reason why they wait, shown elsewhere.
    if max(len(nodes), state.info.nodes[1]) < 2 or not any(node.host or node.ranks for node in nodes):
        return []
    table: list[tuple[str, ...]] = [_HEAD]
    for node in nodes[:_MOST]:
        in_place = max((workers.restart for workers in node.workers), default=0)
        again = sum(1 + life.again for life in node.lives.values()) - 1 + in_place
        had = ranks(node.ranks).partition(" ")[2]
        # When an elastic job continued without a node, others have its ranks now.
        lost = bool(had) and node not in state.members
        # The last line of its lowest rank; where no rank wrote anything, its pod's
        wrote = (newest(state.logs[rank]) for rank in node.ranks if rank in state.logs)
        output = (entry.text for entry in reversed(state.output) if entry.node == node.index)
        last_line = next((text for text in (*wrote, *output) if text), "")
        cells = (
            str(node.index),
            node.host,
            f"was {had}" if lost else had,
            facts.condition(node, state),
            str(max(0, again)),
            last_line,
        )
        table.append(tuple(line(cell, _MAX_CELL) for cell in cells))
    return table


def more(state: JobState) -> str:
    """Return how many nodes :func:`rows` leaves out, in words; empty where it has them all."""
    many = len(state.nodes) - _MOST
    return f"… and {count(many, 'more node')}" if many > 0 else ""


def node_table(state: JobState) -> str:
    """Return the nodes as a table."""
    table = rows(state)
    return grid(table, _MAX_CELL) + text_line(more(state)) if table else ""


_MOST_RANKS = 8192
_BY_NODE = 32  # with more ranks, each node has a row
_MOST_NODES, _FEW_NODES = 64, 10
_MOST_SMALL = 256  # cells in these rows
_MOST_CELLS = 64  # with more ranks, a cell stands for several and shows the worst
_SLOW = 1.5  # times the usual pace
_LATE_S = 3.0  # reports of two nodes may arrive a second or two apart
_SILENT_S = 10.0  # at least; 5 times the usual interval between reports, if that is more
_SILENT_FIRST_S = 60.0  # before any rank's second report
_MAX_NAMES = 80
_ROW = f"{PLAIN};display:flex;flex-wrap:wrap;align-items:center;gap:4px 10px"
_MOST_TOLD = 16  # ranks, or groups of them, that the legend describes

# The worst first: a cell's sign and background.
_LOOKS = {
    "awaited": ("?", shade(PHASES[Phase.FAILED], 0.85)),
    "failed": ("×", shade(PHASES[Phase.FAILED], 0.45)),
    "lost": ("∅", shade(PHASES[Phase.FAILED], 0.45)),
    "behind": ("↓", shade(PHASES[Phase.PENDING], 0.45)),
    "silent": ("…", "rgba(130,80,223,0.45)"),
    "slow": ("!", shade(PHASES[Phase.PENDING], 0.45)),
    "waiting": ("…", shade(PHASES[Phase.PENDING], 0.25)),
    "ended": ("–", "rgba(128,128,128,0.2)"),
}
_WORST = [*_LOOKS, ""]
_NOTHING = "rgba(128,128,128,0.2)"
# Shades of the other ranks, each up to a multiple of the usual pace.
_HEAT = ((0.9, 0.2), (1.15, 0.35), (_SLOW, 0.6))


class Pulse(FrozenDataclass):
    """One rank's reports; what isn't known is None. Times are in seconds."""

    rank: int
    at: float | None = None  # how many steps, epochs or reports it has done
    pace: float | None = None  # for one of these
    every: float | None = None  # between two reports
    silence: float | None = None  # since its newest report
    word: str = ""  # one of ``_LOOKS``, where something is wrong with it


class _Usual(FrozenDataclass):
    at: float
    pace: float
    silent: float  # a longer silence is unusual
    hung: bool  # all of them are silent


def rank_lines(state: JobState, now: float) -> list[str]:
    """Describe how far and how fast the ranks are, and which stand out; nothing unless two or more report."""
    pulses, unit = _pulses(state, now)
    return [_summary(pulses, unit), *_outliers(pulses, unit)] if pulses else []


def words(state: JobState, now: float) -> str:
    """Return :func:`rank_lines` as HTML: what stands out first."""
    summary, *outliers = rank_lines(state, now) or [""]
    return "".join(map(text_line, outliers)) + text_line(summary, SMALL)


def html(state: JobState, now: float) -> str:
    """Return the ranks as a strip of tiles, whose tooltips describe them, with what stands out in words.

    With many ranks, a tile stands for several of them; if they are on several nodes, each node has a row.
    """
    pulses, unit = _pulses(state, now)
    if not pulses:
        return ""
    usual, per = _usual(pulses), ceil(len(pulses) / _MOST_CELLS)
    groups = _groups(pulses, per)
    outliers = _outliers(pulses, unit)
    if outliers:
        summary = tag("b", escape("; ".join(outliers)))
    else:
        # How fast the ranks are if none stands out
        report = [pulse for pulse in pulses if pulse.at is not None]
        if len(report) < len(pulses):
            every = f"{len(report)} of {len(pulses)}"
        else:
            every = "both" if len(pulses) == 2 else f"all {len(pulses)}"
        pace = f" at {_seconds(usual.pace)} per {unit}" if usual.pace else ""
        summary = escape(f"{every} ranks report{pace}")
    if len(pulses) > _BY_NODE and len(state.members) > 1:
        # A row for each node, the worst first; with very many nodes, only the worst ten
        by_rank = {pulse.rank: pulse for pulse in pulses}
        nodes = [(node, [by_rank[rank] for rank in node.ranks if rank in by_rank]) for node in state.members]
        by_node = [(node, own_pulses) for node, own_pulses in nodes if own_pulses]
        by_node.sort(key=lambda pair: _WORST.index(_worst(pair[1])))
        shown = by_node if len(by_node) <= _MOST_NODES else by_node[:_FEW_NODES]
        per = ceil(sum(len(own_pulses) for _, own_pulses in shown) / _MOST_SMALL)
        rows = []
        for node, own_pulses in shown:
            label = DOT.join([f"node {node.index}", *_unusual_words(own_pulses)])
            cells = "".join(
                f'<b style="background-color:{_look(group, usual)[1]}"></b>'
                for group in _groups(own_pulses, per)
            )
            row = tag("span", escape(label), "flex:0 0 130px;font-size:11px") + cells
            rows.append(tag("div", row, "display:flex;gap:2px;align-items:center", cls="nbt-node"))
        more = by_node[len(shown) :]
        words = _unusual_words([pulse for _, own_pulses in more for pulse in own_pulses]) or ["as usual"]
        text = f"{len(more)} more nodes{DOT}{', '.join(words)}" if more else ""
        row = (tag("div", "".join(rows), PLAIN) + text_line(text)) + tag("div", summary, PLAIN)
    else:
        # Spaces between them let the strip wrap.
        tiles = []
        for group in groups:
            sign, ground = _look(group, usual)
            edge = f";border-bottom:2px solid {of_rank(group[0].rank)}" if len(group) == 1 else ""
            style = f"background-color:{ground}{edge}"
            tiles.append(f'<span title="{escape(_title(group, unit))}" style="{style}">{sign}</span>')
        strip = tag("span", " ".join(tiles), "font:12px monospace;line-height:1.7", cls="nbt-ranks")
        row = tag("div", f"{strip} {tag('span', summary)}", _ROW)
    return row + _legend(groups, unit, _summary(pulses, unit))


def _groups(pulses: Sequence[Pulse], per: int) -> list[Sequence[Pulse]]:
    return [pulses[first : first + per] for first in range(0, len(pulses), per)]


def _unusual_words(pulses: Sequence[Pulse]) -> list[str]:
    """Return how many of these ranks stand out, and how: ``3 slow``."""
    odd = Counter(pulse.word for pulse in pulses if pulse.word not in ("", "waiting"))
    return [f"{many} {word}" for word, many in odd.items()]


def unusual(state: JobState, now: float) -> list[int]:
    """Return the ranks that stand out."""
    return [pulse.rank for pulse in _pulses(state, now)[0] if pulse.word not in ("", "waiting")]


def _legend(groups: Sequence[Sequence[Pulse]], unit: str, in_all: str) -> str:
    """Return what the signs mean, and folded below that, each rank in words, those that stand out first."""
    odd = {pulse.word for group in groups for pulse in group}
    signs = [f"{sign} {word}" for word, (sign, _) in _LOOKS.items() if word in odd]
    paces = (
        ["faint green: as fast as usual", "strong: slower"]
        if any(pulse.word == "" for g in groups for pulse in g)
        else []
    )
    order = sorted(groups, key=lambda group: _WORST.index(_worst(group)))
    lines = [tag("div", escape(_title(group, unit))) for group in order[:_MOST_TOLD]]
    more = len(groups) - len(lines)
    rest = [tag("div", f"… and {more} more")] if more else []
    summary = tag("span", escape(DOT.join(["each rank", *signs, *paces])), SMALL)
    body = "".join([tag("div", escape(in_all)), *lines, *rest])
    return fold(summary, tag("div", body, f"{SMALL};padding-left:14px"))


def _pulses(state: JobState, now: float) -> tuple[list[Pulse], str]:
    if state.phase is Phase.SUCCEEDED or len(state.series) < 2 or state.world_size < 2:
        return [], ""
    if state.info.lab is not None:  # the cards of its turns show that
        return [], ""
    at = now if state.ended is None else state.ended
    unit = unit_of(state.series[min(state.series)])
    # In a bigger world, only ranks that report, as anybody can claim that a world is big.
    rank_numbers = range(state.world_size) if state.world_size <= _MOST_RANKS else sorted(state.series)
    pulses = []
    for rank in rank_numbers:
        series = state.series.get(rank, Series())
        recent = series.recent
        counted = counts(recent, unit)
        if series.round != state.round or not counted:
            pulses.append(Pulse(rank))
        else:
            every = pace(counts(recent, REPORT))
            reached = done(series, unit, state.counted_from_zero)
            pulses.append(Pulse(rank, reached, pace(counted), every, max(0.0, at - recent[-1].time)))
    # How each rank stands out; "" for one that doesn't
    ends, usual = _ends(state), _usual(pulses)
    diagnosis = hang(state, now)
    awaited = {*diagnosis.ranks} if diagnosis is not None and not diagnosis.slow else set()
    if awaited:  # all others wait for these, whatever they have reported
        words = {pulse.rank: "awaited" if pulse.rank in awaited else "waiting" for pulse in pulses}
    else:
        words = {pulse.rank: _pace(pulse, usual) for pulse in pulses}
    return [replace(pulse, word=ends.get(pulse.rank, words[pulse.rank])) for pulse in pulses], unit


def _ends(state: JobState) -> dict[int, str]:
    """Return what became of each rank that no longer runs in the newest round; "" where it completed."""
    ends: dict[int, str] = {}
    for node in state.members:
        if node.ended or node.left:
            if node.working and node.code == 0:
                end = ""
            else:  # if it exited with a code, its ranks' own failures say more
                end = "lost" if node.code is None or node.signal else "ended"
            ends |= dict.fromkeys(node.ranks, end)
    # A rank that communicates with a lost one fails because of that, or is ended by its own watchdog.
    lost = "lost" in ends.values()
    errors = [e.rank for e in state.errors if e.round == state.round and not (lost and e.error.lost_peer)]
    exits = [e.rank for e in state.exits if e.round == state.round and not lost]
    return {**ends, **dict.fromkeys([*errors, *exits], "failed")}


def _pace(pulse: Pulse, usual: _Usual) -> str:
    """Return how a rank that runs stands out by what it reports."""
    if pulse.at is None or pulse.silence is None:
        return ""
    lag = usual.at - pulse.at
    if pulse.silence > usual.silent:
        # If all are silent, the rank that they wait for is the one that got least far.
        return "behind" if usual.hung and lag >= 1 else "silent"
    if pulse.pace is None:  # a rank that has just restarted may still catch up
        return ""
    if pulse.pace > _SLOW * usual.pace:
        return "slow"
    return "behind" if lag >= 2 and lag * usual.pace > _LATE_S else ""


def _usual(pulses: Sequence[Pulse]) -> _Usual:
    ats = [pulse.at for pulse in pulses if pulse.at is not None]
    paces = [pulse.pace for pulse in pulses if pulse.pace is not None]
    every = [pulse.every for pulse in pulses if pulse.every is not None]
    silent = max(_SILENT_S, 5 * median(every)) if every else _SILENT_FIRST_S
    hung = all(pulse.silence is None or pulse.silence > silent for pulse in pulses)
    # With two ranks, one is the straggler: the other's pace is the usual one.
    return _Usual(median_high(ats or [0.0]), median_low(paces or [0.0]), silent, hung)


def _outliers(pulses: Sequence[Pulse], unit: str) -> list[str]:
    awaited, waiting = ([p.rank for p in pulses if p.word == word] for word in ("awaited", "waiting"))
    if awaited and waiting:
        wait = "waits" if len(waiting) == 1 else "wait"
        return [f"{clip(names(waiting), _MAX_NAMES)} {wait} for {clip(names(awaited), _MAX_NAMES)}"]
    lines, usual = [], _usual(pulses)
    for word in ("behind", "silent", "slow"):
        odd = [pulse for pulse in pulses if pulse.word == word]
        if not odd:
            continue
        if word == "behind":
            how = f"{_many(odd, unit)}, the others {number(usual.at)}"
        elif word == "silent":
            how = (
                f"no report for {_span([pulse.silence for pulse in odd], duration)}, after {_many(odd, unit)}"
            )
        else:
            paces = _span([pulse.pace for pulse in odd], _seconds)
            how = f"{paces} per {unit}, the others {_seconds(usual.pace)}"
        lines.append(f"{clip(names(pulse.rank for pulse in odd), _MAX_NAMES)} {word}: {how}")
    return lines


def _look(group: Sequence[Pulse], usual: _Usual) -> tuple[str, str]:
    """Return the sign and the background of the worst of some ranks."""
    if all(pulse.at is None for pulse in group):
        heat = _NOTHING
    else:
        slowest = max((pulse.pace for pulse in group if pulse.pace is not None), default=usual.pace)
        alpha = next(alpha for most, alpha in _HEAT if slowest <= most * usual.pace or most == _SLOW)
        heat = shade(PHASES[Phase.SUCCEEDED], alpha)
    return _LOOKS.get(_worst(group), ("\u00a0\u00a0", heat))


def _worst(group: Sequence[Pulse]) -> str:
    return min((pulse.word for pulse in group), key=_WORST.index)


def _title(group: Sequence[Pulse], unit: str) -> str:
    worst = _worst(group)
    return _summary(group, unit) + (DOT + worst if worst else "")


def _summary(group: Sequence[Pulse], unit: str) -> str:
    who = names(pulse.rank for pulse in group)
    if all(pulse.at is None for pulse in group):
        return f"{who}{DOT}no report in this round"
    parts = [who, _many(group, unit)]
    if any(pulse.pace is not None for pulse in group):
        parts.append(f"{_span([pulse.pace for pulse in group], _seconds)} per {unit}")
    parts.append(f"last report {_span([pulse.silence for pulse in group], duration)} ago")
    silent = sum(pulse.at is None for pulse in group)
    return DOT.join([*parts, *([f"{count(silent, 'rank')} without a report"] if silent else [])])


def _many(group: Sequence[Pulse], unit: str) -> str:
    many = _span([pulse.at for pulse in group], number)
    return f"{many} {unit}" if many == "1" else f"{many} {unit}s"


def _span(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    """Return the lowest and the highest known number: ``40 to 42``; or the one that they all are."""
    numbers = [value for value in values if value is not None]
    low, high = text(min(numbers)), text(max(numbers))
    return low if low == high else f"{low} to {high}"


def _seconds(pace: float) -> str:
    return f"{pace:.2g} s" if pace < 9.95 else duration(pace)
