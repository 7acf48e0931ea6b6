"""The corpus: cells, the code that the notebook ran before each, and whether a rank gives the same result.

The files in ``cells/`` hold, for each: ``#%% title``, the code before, ``#>``, the cell. After the title
stands how a rank's result differs: ``| refused: why`` before anything starts, ``| note: what differs``,
``| said: what might``, ``| lost: why`` no value arrives. It ends in (3.12) if the cell needs that Python.
"""

from __future__ import annotations

import itertools
import linecache
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from nbtorchjob.capture import from_cell
from nbtorchjob.errors import CaptureError, ResultError
from tests.capture.portrait import portrait
from tests.capture.ranks import Ranks, plainly

_numbers = itertools.count()


class Example(NamedTuple):
    """A cell of the corpus; ``words`` is a pattern for the expected message."""

    title: str
    before: str
    cell: str
    outcome: str  # "", "refused", "note", "said" or "lost"
    words: str

    @property
    def since(self) -> tuple[int, ...]:
        """The first version of Python that can run the cell."""
        match = re.search(r"\(3\.(\d+)\)$", self.title)
        return (3, int(match[1]) if match else 10)


def corpus() -> list[Example]:
    """Read the cells, in the order of their files."""
    examples = []
    for path in sorted(Path(__file__).with_name("cells").glob("*.txt")):
        for text in path.read_text().split("#%% ")[1:]:
            head, _, body = text.partition("\n")
            title, _, verdict = head.partition(" | ")
            outcome, _, words = verdict.partition(": ")
            before, arrow, cell = body.rpartition("#>\n")
            assert arrow, f"{path.name}: {title} has no cell"
            examples.append(Example(f"{path.stem}: {title}", before, cell.strip("\n"), outcome, words))
    return examples


def define(text: str, namespace: dict[str, Any]) -> None:
    """Run a cell as a notebook does, and keep its text for tracebacks."""
    filename = f"<before {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec", 0, True), namespace)


def difference(example: Example, ranks: Ranks) -> str:
    """Run a cell on a rank and in ``__main__``; return how the outcome differs from the expected one."""
    namespace = vars(sys.modules["__main__"])
    define(example.before, namespace)
    try:
        call = from_cell(example.cell, namespace)
    except CaptureError as exc:
        return (
            "" if example.outcome == "refused" and re.search(example.words, str(exc)) else f"refused: {exc}"
        )
    if example.outcome == "refused":
        return "it wasn't refused"
    before = dict(namespace)
    try:
        value, printed, error = ranks.run(call)
    except ResultError as exc:
        return "" if example.outcome == "lost" and re.search(example.words, str(exc)) else f"lost: {exc}"
    job = (portrait(value, before), printed, error)
    value, printed, error = plainly(example.cell, namespace)
    plain = (portrait(value, before), printed, error)
    noted = (
        [note for note in call.notes if re.search(example.words, note)] if example.words else not call.notes
    )
    if not noted:
        return f"notes: {call.notes}"
    return "" if (job == plain) != (example.outcome == "note") else f"on a rank {job}, plainly {plain}"
