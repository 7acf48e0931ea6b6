"""Where the names that a cell reads come from: the notebook, Python itself, or nowhere."""

from __future__ import annotations

import builtins
import difflib
from collections.abc import Container
from typing import Any

from nbtorchjob.capture.cells import Cell, Read
from nbtorchjob.errors import CaptureError

_HISTORY = ("In", "Out", "_ih", "_oh", "_dh")
# Names that a notebook gives and a rank doesn't have, with what to do.
_NOTEBOOK_ONLY = {
    "get_ipython": "use plain Python",
    "display": "print it, or give it back as the cell's last expression",
    "input": "a rank has no keyboard: set a variable in the notebook",
    "exit": "use sys.exit",
    "quit": "use sys.exit",
    **dict.fromkeys(_HISTORY, "put what you need into a variable of its own"),
}


def captured(
    cell: Cell, namespace: dict[str, Any], former: Container[str] = ()
) -> tuple[list[str], list[str]]:
    """Give the names that the cell takes from the notebook, in the order of their first use, and notes.

    ``former`` are names that former cells set on their ranks.
    Raises ``CaptureError`` for one that is nowhere, or that only means something in a notebook.
    """
    names: dict[str, None] = {}
    notes: dict[str, None] = {}
    for read in cell.reads:
        settled = read.guarded or read.name in cell.sets
        if _notebook_only(read.name, namespace):
            if not settled:
                raise CaptureError(
                    f"{read.name!r} (line {read.line}) works in the notebook only: "
                    f"{_NOTEBOOK_ONLY[read.name]}"
                )
        elif read.name in namespace:
            names[read.name] = None
        elif not (settled or cell.star or hasattr(builtins, read.name)):
            if not cell.computes:
                if read.name in former:
                    raise CaptureError(
                        f"name {read.name!r} (line {read.line}) was set by a former %%torchjob cell, "
                        "on its ranks, and stayed there: set it in this cell, or in the notebook"
                    )
                raise _undefined(read, {*namespace, *cell.sets, *dir(builtins)})
            notes[f"{read.name} (line {read.line}): only exec() or the like in the cell can set it"] = None
    texts = sorted(name for name in cell.texts & namespace.keys() if not _notebook_only(name, namespace))
    return list(dict.fromkeys((*names, *texts))), list(notes)


def _notebook_only(name: str, namespace: dict[str, Any]) -> bool:
    if name not in _NOTEBOOK_ONLY or name not in namespace:
        return name in _NOTEBOOK_ONLY
    if name in _HISTORY:
        return "get_ipython" in namespace
    value = namespace[name]
    home = getattr(value, "__module__", None) or type(value).__module__
    return str(home).startswith(("IPython.", "ipykernel."))


def _undefined(read: Read, known: set[str]) -> CaptureError:
    near = difflib.get_close_matches(read.name, sorted(known), 1)
    hint = f": did you mean {near[0]!r}?" if near else ": set it in one of them"
    where = f"name {read.name!r} (line {read.line})"
    return CaptureError(f"{where} is neither defined in the notebook nor in the cell{hint}")
