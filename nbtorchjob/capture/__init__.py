"""A cell or a function becomes a call that can travel.

The names here are imported on first use: listing jobs captures nothing, and needn't wait for the picklers,
which take a quarter of the command's startup.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbtorchjob.capture.call import (
        asked_for,
        asked_for_call,
        captured,
        from_cell,
        from_cells,
        from_expression,
        from_function,
        ships_line,
    )
    from nbtorchjob.capture.cells.lookup import RankNames, asked_for_by
    from nbtorchjob.capture.model import Call, Part, Ship
    from nbtorchjob.capture.modules import LocalFile, Need, of_notebook
    from nbtorchjob.capture.report import digest

PYTHON = "{}.{}".format(*sys.version_info[:2])  # whose bytecode travels

__all__ = [
    "PYTHON",
    "Call",
    "LocalFile",
    "Need",
    "Part",
    "RankNames",
    "Ship",
    "asked_for",
    "asked_for_by",
    "asked_for_call",
    "captured",
    "digest",
    "from_cell",
    "from_cells",
    "from_expression",
    "from_function",
    "of_notebook",
    "ships_line",
]

_HOMES = {
    "LocalFile": "modules",
    "Call": "model",
    "Part": "model",
    "Ship": "model",
    "RankNames": "cells.lookup",
    "asked_for_by": "cells.lookup",
    "Need": "modules",
    "of_notebook": "modules",
    "digest": "report",
}  # all others: ``call``

if not TYPE_CHECKING:  # a type checker would otherwise accept any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'call')}"), name)
