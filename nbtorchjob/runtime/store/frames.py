"""The output of a node on a cluster, as lines of its container's log.

The host reads them with ``Parser``, except for the ranks' output: that is most of it, and read in batches
with ``HEAD``.

    0.1763737000.512 text       rank 0, round 1763737000, at byte 512 of that round's log
    fact.0 {"event": …}         an event (``nbtorchjob/state/facts/events.py``), at byte 0 of its JSON
    value.0.1763737000.0 AbC=   base64 of the file with rank 0's value, at byte 0 of it
    value.1.2.0 AbC=            or with node 1's artifacts of attempt 2, as the fact after them says
    anything else               the node itself: Python's own errors, pip

The character after the number says how a piece of a log or of a fact ended, so that its bytes come
out as they went in: " " a newline, "+" nothing, "<" a carriage return and a newline, "-" a carriage
return; and "!", "#", ">" and "=" mean the same for a rank's stderr. containerd keeps every byte of
a line, even NUL and invalid UTF-8, except a carriage return right before the newline; and it stores lines
above 16 KiB in pieces.
"""

from __future__ import annotations

import binascii
import hmac
import json
import re
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Union

from nbtorchjob.runtime.facts import LONGEST_FACT
from nbtorchjob.runtime.objects.wire import WireError, sign

LONGEST = 8192  # bytes of text in one line
_VALUE_BYTES = 9000  # 12,000 in base64

_MARKS = {b" ": b"!", b"+": b"#", b"<": b">", b"-": b"="}  # for a piece of stdout, and the same for stderr
STDERR = frozenset(_MARKS.values())
_ENDS = {b" ": b"\n", b"+": b"", b"<": b"\r\n", b"-": b"\r"}
_ENDS.update([(_MARKS[mark], end) for mark, end in _ENDS.items()])
# Precedes a piece of a log: its rank and round, its first byte, and by a mark, its end and its stream.
HEAD = rb"(\d{1,9}\.\d{1,12})\.(\d{1,18})([ +<\-!#>=])"
_log = re.compile(HEAD).match
_fact = re.compile(rb"fact\.(\d{1,9})([ +])").match
_value = re.compile(rb"value\.(\d{1,9})\.(\d{1,12})\.(\d{1,18}) ").match


class LogPiece(NamedTuple):
    """Bytes of a rank's log, at ``offset`` in the log of that round."""

    rank: int
    round: int
    offset: int
    data: bytes
    stderr: bool = False


class Fact(NamedTuple):
    """An event as a node wrote it."""

    record: Dict[str, Any]


class ValuePart(NamedTuple):
    """Bytes of a rank's value file; or of a node's artifacts: ``rank`` is the node, ``round`` the attempt."""

    rank: int
    round: int
    offset: int
    data: bytes


class Output(NamedTuple):
    """A line that no rank wrote."""

    text: str


Frame = Union[LogPiece, Fact, ValuePart, Output]


def log(rank: int, round_: int, offset: int, data: bytes, *, stderr: bool = False) -> bytes:
    """Return the lines for ``data``, which lies at ``offset`` in a rank's log of one round."""
    head = b"%d.%d." % (rank, round_)
    newline = _MARKS[b" "] if stderr else b" "
    out: List[bytes] = []
    *whole, rest = data.split(b"\n")
    for text in whole:
        size = len(text)
        if size <= LONGEST and text[-1:] != b"\r":
            out.append(b"%s%d%s%s\n" % (head, offset, newline, text))
            offset += size + 1
        else:
            offset = _odd(head, offset, text, True, stderr, out)
    _odd(head, offset, rest, False, stderr, out)
    return b"".join(out)


def _odd(head: bytes, offset: int, text: bytes, newline: bool, stderr: bool, out: List[bytes]) -> int:
    """Add the lines for a text that is long, unfinished, or ends in carriage returns."""
    for piece, mark in _pieces(text, newline):
        out.append(b"%s%d%s%s\n" % (head, offset, _MARKS[mark] if stderr else mark, piece))
        offset += len(piece) + len(_ENDS[mark])
    return offset


def _pieces(text: bytes, newline: bool) -> Iterator[Tuple[bytes, bytes]]:
    while len(text) > LONGEST:
        yield from _pieces(text[:LONGEST], False)
        text = text[LONGEST:]
    piece = text.rstrip(b"\r")
    marks = [b"-"] * (len(text) - len(piece))
    if newline:
        marks[-1:] = [b"<" if marks else b" "]
    elif piece and not marks:
        marks = [b"+"]
    for mark in marks:
        yield piece, mark
        piece = b""


def ended(text: bytes, mark: bytes) -> bytes:
    """Return a piece of a log with the end that ``mark`` stands for."""
    return text + _ENDS[mark]


def fact(line: bytes) -> bytes:
    """Return the lines for an event, which is a line of JSON in ASCII (``runtime/facts``)."""
    out: List[bytes] = []
    line = line.rstrip()
    for at in range(0, len(line), LONGEST):
        mark = b"+" if at + LONGEST < len(line) else b" "
        out.append(b"fact.%d%s%s\n" % (at, mark, line[at : at + LONGEST]))
    return b"".join(out)


def value(rank: int, round_: int, data: bytes) -> Iterator[bytes]:
    """Yield a line for each part of the file with a rank's value, or a node's artifacts of an attempt."""
    for at in range(0, len(data), _VALUE_BYTES):
        text = binascii.b2a_base64(data[at : at + _VALUE_BYTES])
        yield b"value.%d.%d.%d %s" % (rank, round_, at, text)


def output(line: bytes) -> bytes:
    """Return the line for one of the node's own; a space is put before one that looks like another frame."""
    looks = _log(line) or _fact(line) or _value(line)
    return (b" " if looks else b"") + line.rstrip(b"\r\n") + b"\n"


class Parser:
    """Reads one container's log, line by line."""

    def __init__(self) -> None:
        self._begun = b""  # a fact whose end hasn't come

    def feed(self, line: bytes) -> Optional[Frame]:
        """Return what a line says, or None for a part of a fact that goes on.

        ``line`` comes without its newline. A damaged line is returned as ``Output``.
        """
        match = _log(line)
        if match:
            log_, offset, mark = match.groups()
            rank, round_ = map(int, log_.split(b"."))
            return LogPiece(rank, round_, int(offset), ended(line[match.end() :], mark), mark in STDERR)
        match = _fact(line)
        if match:
            return self._fact(int(match.group(1)), line[match.end() :], match.group(2) == b"+", line)
        match = _value(line)
        if match:
            try:
                data = binascii.a2b_base64(line[match.end() :])
                return ValuePart(int(match.group(1)), int(match.group(2)), int(match.group(3)), data)
            except binascii.Error:
                pass
        return Output(line.decode(errors="replace"))

    def _fact(self, offset: int, text: bytes, more: bool, line: bytes) -> Optional[Frame]:
        # Parts may come again after an interruption; a missing one spoils the rest of its fact.
        prefix = self._begun[:offset]
        self._begun = b""
        if len(prefix) == offset and offset + len(text) <= LONGEST_FACT:
            if more:
                self._begun = prefix + text
                return None
            try:
                record = json.loads((prefix + text).decode())
                if isinstance(record, dict):
                    return Fact(record)
            except ValueError:
                pass
        return Output(line.decode(errors="replace"))


def collect(parts: Iterable[ValuePart], digest: str, key: bytes) -> bytes:
    """Return the file that consists of ``parts``, of one rank and round, in any order and with repetitions.

    ``digest`` is the HMAC-SHA256 of the whole file in hex (``store/__init__.py``). Raises ``WireError`` if
    a part is missing, damaged, or not written with this job's key.
    """
    out = bytearray()
    for part in sorted(parts, key=lambda part: part.offset):
        if part.offset > len(out):
            raise WireError("bytes %d to %d of it didn't arrive" % (len(out), part.offset))
        out[part.offset : part.offset + len(part.data)] = part.data
    if not hmac.compare_digest(sign(bytes(out), key).hex(), digest):
        raise WireError("what arrived (%d bytes) isn't what this job's rank sent" % len(out))
    return bytes(out)
