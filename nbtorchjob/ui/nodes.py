"""The nodes of a job: where each is, which ranks it has, how it does."""

from __future__ import annotations

from nbtorchjob.state import JobState
from nbtorchjob.text import facts
from nbtorchjob.text.words import count, line, ranks
from nbtorchjob.ui.elements import grid, told

_MOST = 16
_MAX_CELL = 48


def rows(state: JobState) -> list[tuple[str, ...]]:
    """Give a row a node below a head; nothing for one node, or as long as none is anywhere."""
    nodes = sorted(state.nodes.values(), key=lambda n: n.index)
    # Of nodes that were nowhere yet, what they wait for tells all there is.
    if max(len(nodes), state.info.nodes[1]) < 2 or not any(node.host or node.ranks for node in nodes):
        return []
    found: list[tuple[str, ...]] = [("node", "host", "ranks", "state")]
    for node in nodes[:_MOST]:
        had = ranks(node.ranks).partition(" ")[2]
        cells = (str(node.index), node.host, had, facts.condition(node, state))
        found.append(tuple(line(cell, _MAX_CELL) for cell in cells))
    return found


def more(state: JobState) -> str:
    """Say how many nodes :func:`rows` leaves out; empty where it has them all."""
    many = len(state.nodes) - _MOST
    return f"… and {count(many, 'more node')}" if many > 0 else ""


def html(state: JobState) -> str:
    """Give the nodes as a table."""
    found = rows(state)
    return grid(found, _MAX_CELL) + told(more(state)) if found else ""
