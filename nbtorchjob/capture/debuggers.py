"""Whether code may stop in a debugger: its ranks are made ready for that (``runtime/debugger``)."""

from __future__ import annotations

import dis
from types import CodeType

_READS = ("LOAD_NAME", "LOAD_GLOBAL")
_FINDS = ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", *_READS)
_NAMES = {"breakpoint", "set_trace"}
_TEXTS = (b"breakpoint(", b"set_trace(")


def stops(code: CodeType) -> bool:
    """Whether ``code``, or code that it defines, asks for a debugger by name."""
    # Hardly any code has such a name, and to take it apart costs a hundred times as much as to see that.
    if not _NAMES.isdisjoint(code.co_names) and any(_asks(each) for each in dis.get_instructions(code)):
        return True
    return any(stops(each) for each in code.co_consts if isinstance(each, CodeType))


def _asks(each: dis.Instruction) -> bool:
    return (each.opname in _READS and each.argval == "breakpoint") or (
        each.opname in _FINDS and each.argval == "set_trace"
    )


def file_stops(source: bytes) -> bool:
    """Whether a file's text looks as if its code did; a comment is taken for code."""
    return any(text in source for text in _TEXTS)
