"""A cell or a function becomes a call that can travel."""

from nbtorchjob.capture.call import Call, from_cell, from_expression, from_function, ships_line
from nbtorchjob.capture.modules import LocalFile
from nbtorchjob.capture.report import Ship

__all__ = [
    "Call",
    "LocalFile",
    "Ship",
    "from_cell",
    "from_expression",
    "from_function",
    "ships_line",
]
