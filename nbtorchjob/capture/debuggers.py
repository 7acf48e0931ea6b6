"""Debuggers need somebody at a keyboard, whom a rank lacks: refused by name before anything starts."""

from __future__ import annotations

import dis
import os
from types import CodeType
from weakref import WeakSet

from nbtorchjob.errors import CaptureError

_READS = ("LOAD_NAME", "LOAD_GLOBAL")
_FINDS = ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", *_READS)
_harmless: WeakSet[CodeType] = WeakSet()


def refuse(code: CodeType) -> None:
    """Raise ``CaptureError`` where ``code`` stops in a debugger.

    With PYTHONBREAKPOINT set ``breakpoint()`` may be anything, and nothing where that is 0.
    """
    if code in _harmless:
        return
    asks = "breakpoint" if not os.environ.get("PYTHONBREAKPOINT") else ""
    line = code.co_firstlineno
    for each in dis.get_instructions(code):
        line = getattr(each, "line_number", None) or each.starts_line or line
        if isinstance(each.argval, CodeType):
            refuse(each.argval)
        elif (each.opname in _READS and each.argval == asks) or (
            each.opname in _FINDS and each.argval == "set_trace"
        ):
            raise CaptureError(
                f"{each.argval}() (line {line}) waits at a keyboard, which a rank doesn't have: "
                "take it out, or call the function in the notebook itself"
            )
    if asks:
        _harmless.add(code)
