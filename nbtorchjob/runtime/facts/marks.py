"""The index of a rank's log: when and to which stream each byte was written.

It stands beside the log, so that the log itself stays what was printed: a line "OFFSET SECONDS" in
`<log>.times` says that all before that byte, down to the line before, was written by then to stdout, and
"OFFSET SECONDS 2" the same of stderr. What has no such line yet was written when the log's file was last
changed. In a log that has ended that is what a process wrote last that a signal ended: it counts as stderr.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

TIMES = ".times"  # what the name of a log's file has behind it where its index is
UNMARKED_S = 1.5  # for how long the index of a process that runs may lag behind its log


class Mark(NamedTuple):
    """What a log has before ``offset``, down to the mark before, was written by ``time`` to one stream."""

    offset: int
    time: float
    stderr: bool = False


def written(mark: Mark) -> bytes:
    """Return the line of an index that says it."""
    return b"%d %.3f%s\n" % (mark.offset, mark.time, b" 2" if mark.stderr else b"")


def read_mark(line: bytes) -> Optional[Mark]:
    """Return what a line of a log's index says, None for one that is damaged."""
    offset, _, rest = line.partition(b" ")
    at, _, stream = rest.partition(b" ")
    try:
        return Mark(int(offset), float(at), bool(stream)) if stream in (b"", b"2") else None
    except ValueError:  # half a line from when the disk was full
        return None
