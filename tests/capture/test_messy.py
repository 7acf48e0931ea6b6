"""A messy notebook: each cell means the same on a rank as plainly, or an error or a note states why not."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

from nbtorchjob.capture import from_cell, pickling
from nbtorchjob.errors import CaptureError
from tests.capture.messy import BEFORE, Notebook
from tests.capture.portrait import portrait
from tests.capture.ranks import Ranks, plainly

_NOWHERE = re.compile(r"name '(\w+)' \(line \d+\) is neither")
_STAYS = re.compile(r"can't take '(\w+)' along: .*(?:generator|itertools|iterator)")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def test_a_messy_notebook_of_200_cells(ranks, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", type(sys)("__main__"))
    assert run(ranks, seed=1, cells=200) == []


def run(ranks: Ranks, seed: int, cells: int) -> list[str]:
    """Run ``cells`` cells on a rank and plainly; return the differences without an error or a note."""
    namespace = vars(sys.modules["__main__"])
    exec(BEFORE, namespace)
    notebook = Notebook(seed, namespace)
    differences = []
    for number in range(cells):
        cell = notebook.cell()
        wrong = compare(cell, namespace, ranks, f"<cell {number}>")
        differences += [f"seed {seed}, cell {number}: {wrong}\n{cell}"] if wrong else []
    return differences


def compare(cell: str, namespace: dict[str, Any], ranks: Ranks, filename: str) -> str:
    try:
        call = from_cell(cell, namespace, filename=filename)
    except CaptureError as exc:
        _, _, error = plainly(cell, namespace)
        named, stays = _NOWHERE.match(str(exc)), _STAYS.match(str(exc))
        if (named and error) or (stays and stays[1] in cell):
            return ""
        return f"refused: {exc}; plainly: {error}"
    names = sorted({ship.name for ship in call.ships} | call.sets)
    before = dict(namespace)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about parts that can't come back: the comparison handles them
        (value, space), printed, error = ranks.run(call, names)
    outcome = value, space, printed, error
    value, printed, error = plainly(cell, namespace)
    # Names that the cell could set but didn't needn't have come along.
    names = [name for name in names if name in space or namespace.get(name) is not before.get(name)]
    space = {name: _whole(namespace[name]) for name in names if name in namespace}
    rank_outcome, plain_outcome = _seen(*outcome, before), _seen(_whole(value), space, printed, error, before)
    if plain_outcome == rank_outcome or call.notes or error.startswith("RecursionError"):
        return ""
    return f"plainly {plain_outcome}\non a rank {rank_outcome}"


def _seen(value: Any, space: dict[str, Any], printed: str, error: str, before: dict[str, Any]) -> list[str]:
    return [portrait([value, space], before), _ADDRESS.sub("", printed), _ADDRESS.sub("", error)]


def _whole(value: Any) -> Any:
    return "what stays here" if pickling.fails(value) else value
