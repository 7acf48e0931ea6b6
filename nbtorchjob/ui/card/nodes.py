"""The nodes of a job: where each is, its ranks, its condition, its newest message."""

from __future__ import annotations

from nbtorchjob.state import JobState, Node
from nbtorchjob.state.text import facts
from nbtorchjob.text.words import count, line, ranks
from nbtorchjob.ui.card.tails import newest
from nbtorchjob.ui.elements import grid, told

_MOST = 16
_MAX_CELL = 48
_HEAD = ("node", "host", "ranks", "state", "restarts", "last line")


def rows(state: JobState) -> list[tuple[str, ...]]:
    """Return a row for each node below a head; nothing for one node, or while none has a place yet."""
    nodes = sorted(state.nodes.values(), key=lambda n: n.index)
    # For nodes without a place, the reason why they wait is all there is.
    if max(len(nodes), state.info.nodes[1]) < 2 or not any(node.host or node.ranks for node in nodes):
        return []
    return [_HEAD, *(_row(node, state) for node in nodes[:_MOST])]


def _row(node: Node, state: JobState) -> tuple[str, ...]:
    again = sum(1 + life.again for life in node.lives.values()) - 1
    had = ranks(node.ranks).partition(" ")[2]
    # When an elastic job continued without a node, others have its ranks now.
    lost = bool(had) and node not in state.members
    cells = (
        str(node.index),
        node.host,
        f"was {had}" if lost else had,
        facts.condition(node, state),
        str(max(0, again)),
    )
    return tuple(line(cell, _MAX_CELL) for cell in (*cells, _last_line(node, state)))


def _last_line(node: Node, state: JobState) -> str:
    """Return the last line of its lowest rank; where no rank wrote anything, its pod's."""
    wrote = (newest(state.logs[rank]) for rank in node.ranks if rank in state.logs)
    output = (each.text for each in reversed(state.output) if each.node == node.index)
    return next((text for text in (*wrote, *output) if text), "")


def more(state: JobState) -> str:
    """Return how many nodes :func:`rows` leaves out, in words; empty where it has them all."""
    many = len(state.nodes) - _MOST
    return f"… and {count(many, 'more node')}" if many > 0 else ""


def html(state: JobState) -> str:
    """Return the nodes as a table."""
    found = rows(state)
    return grid(found, _MAX_CELL) + told(more(state)) if found else ""
