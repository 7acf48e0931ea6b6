"""A rank's error as IPython would draw it, with the lines of the notebook's own cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from nbtorchjob.runtime.facts.errors import Error, Frame
from nbtorchjob.text.words import clean

# A file name -> its label ("Cell In[3]") and its text, for the notebook's own code.
SourceLookup: TypeAlias = Callable[[str], "tuple[str, str] | None"]

_OURS = "nbtorchjob.runtime."  # a node's own errors, whose message says it all
_BEFORE = re.compile(r"^\[[^\]\n]*:\d+\]:?\s*|^NCCL error in: .*\nLast error:\s*(?=\S)", re.DOTALL)

CONTEXT = 2  # lines around the failing one: IPython's own number
_GUTTER = 7  # columns for the line number: IPython's own number
ARROW = "-" * (_GUTTER - 6)  # the failing line begins with this, however long its number is

_DIRECT = "The above exception was the direct cause of the following exception:"
_MEMBER = "The above exception is the first one of the following group:"
_DURING = "During handling of the above exception, another exception occurred:"


def frames_text(error: Error, source: SourceLookup | None = None) -> str:
    """Return the traceback, causes first, as Python prints a chain of exceptions.

    A frame in a file that ``source`` knows is drawn with the lines around it, any other with the
    one line that the node sent. Terminal sequences and control characters are removed.
    """
    return "\n".join(text for text, _ in pieces(error, source))


def pieces(error: Error, source: SourceLookup | None = None) -> Iterator[tuple[str, Frame | None]]:
    """Yield the same traceback in pieces, each with its frame, if it has one."""
    if error.cause is not None:
        yield from pieces(error.cause, source)
        relation = _MEMBER if error.member else _DIRECT if error.direct else _DURING
        yield f"\n{relation}\n", None
    for frame in error.frames:
        yield _frame(frame, source), frame
    from nbtorchjob.text.colours import to_text  # late: most states have no error

    message = to_text(error.message)
    if error.type.startswith(_OURS) and not error.frames and "\n" in message.strip():
        yield message.strip().partition("\n")[2], None  # the first line is the heading's (``summary``)
        return
    yield f"{clean(error.type)}: {message}" if message else clean(error.type), None
    yield from ((to_text(note), None) for note in error.notes)


def frame_place(frame: Frame, source: SourceLookup | None = None) -> str:
    """Return where a frame is: ``Cell In[3], line 5, in train``."""
    cell = source(frame.filename) if source else None
    where = "" if frame.name == "<module>" else f", in {clean(frame.name)}"
    if cell is not None:
        return f"{clean(cell[0])}, line {frame.lineno}{where}"
    return f"File {clean(frame.filename)}:{frame.lineno}{where}"


def summary(error: Error) -> str:
    """Return the last line of a traceback: the type, and the first line of the message.

    It leaves out where in its C++ code a library raised it (``[/pytorch/gloo/unbound_buffer.cc:81] ``). For
    NCCL it begins at the message's last error: the first line is the same for most errors.
    """
    from nbtorchjob.text.colours import to_text  # late, as above

    first = _BEFORE.sub("", to_text(error.message[:1000]).strip()).partition("\n")[0]
    type_name = clean(error.type)
    if first and type_name.startswith(_OURS):
        return first
    return f"{type_name}: {first}" if first else type_name


def summarised(error: Error) -> bool:
    """Whether :func:`summary` says everything."""
    more = error.frames or error.notes or error.cause
    return not more and error.type.startswith(_OURS) and "\n" not in error.message.strip()


def _frame(frame: Frame, source: SourceLookup | None) -> str:
    if not frame.filename:  # stands for the frames that were left out
        return f"    {clean(frame.name)}"
    cell = source(frame.filename) if source else None
    lines = cell[1].rstrip("\n").split("\n") if cell is not None else []
    if 1 <= frame.lineno <= len(lines):
        around = range(max(1, frame.lineno - CONTEXT), min(len(lines), frame.lineno + CONTEXT) + 1)
        shown = [_numbered(n, lines[n - 1], at=n == frame.lineno) for n in around]
        return "\n".join([frame_place(frame, source), *shown])
    head = frame_place(frame)
    return f"{head}\n{_numbered(frame.lineno, frame.line, at=True)}" if frame.line else head


def _numbered(lineno: int, line: str, *, at: bool) -> str:
    number = str(lineno)
    arrow = "-" * max(1, _GUTTER - 2 - len(number)) + "> "
    gutter = arrow + number if at else number.rjust(_GUTTER)
    return f"{gutter} {clean(line)}".rstrip()
