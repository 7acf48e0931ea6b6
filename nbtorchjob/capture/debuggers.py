"""Whether code may stop in a debugger: its ranks are made ready for that (``runtime/debugger``)."""

from __future__ import annotations

import dis
from types import CodeType

_READS = ("LOAD_NAME", "LOAD_GLOBAL")
_FINDS = ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", *_READS)
_TEXTS = (b"breakpoint(", b"set_trace(")


def stops(code: CodeType) -> bool:
    """Whether ``code``, or code that it defines, asks for a debugger by name."""
    for each in dis.get_instructions(code):
        if isinstance(each.argval, CodeType):
            if stops(each.argval):
                return True
        elif (each.opname in _READS and each.argval == "breakpoint") or (
            each.opname in _FINDS and each.argval == "set_trace"
        ):
            return True
    return False


def file_stops(source: bytes) -> bool:
    """Whether a file's text looks as if its code did; a comment is taken for code."""
    return any(text in source for text in _TEXTS)
