"""What the command writes: answers to stdout, everything else to stderr, logs as they are."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TextIO

from nbtorchjob.errors import (
    ClusterError,
    JobFailedError,
    NBTorchJobError,
    PartialFailureError,
    UnwritableError,
)
from nbtorchjob.text import Filter, shown, shows, words

_DEEPEST = 100  # levels: JSON's own writer takes some more before it gives up
_log = Filter()  # knows what a log has left open on a terminal
_MOST_BITS = 14_283  # of a number: Python writes no number of more than 4,300 digits


def encodable() -> None:
    """Write "?" for characters that the locale's encoding lacks: a "×" would otherwise end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def answer(text: str) -> None:
    """Write lines to stdout."""
    _write(sys.stdout, f"{text}\n")


def data(document: Any) -> None:
    """Write a JSON document to stdout, on a line of its own."""
    answer(json.dumps(plain(document), allow_nan=False))


def beside(text: str) -> None:
    """Write lines to stderr; failures are ignored, as nobody is there to read them."""
    with _unread():
        _write(sys.stderr, f"{text}\n")


def log(piece: bytes) -> None:
    """Write a log's bytes to stdout."""
    _write_bytes(sys.stdout, piece)


def log_beside(piece: bytes) -> None:
    """Write a log's bytes to stderr; failures are ignored, as above."""
    with _unread():
        _write_bytes(sys.stderr, piece)


@contextmanager
def _unread() -> Iterator[None]:
    """Ignore that stderr can't be written: the answer on stdout may still have a reader."""
    try:
        yield
    except UnwritableError:
        pass
    except BrokenPipeError:
        nowhere(sys.stderr)


def settle() -> None:
    """Close what a log has left open on a terminal: a colour, half a character."""
    with suppress(UnwritableError, BrokenPipeError):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and shows(stream) and (rest := _log.end()):
                _write(stream, rest)


def error(exc: NBTorchJobError) -> None:
    """Write an error to stderr; for a failed job, the job's own traceback."""
    asks = exc.grant.splitlines() if isinstance(exc, ClusterError) else []  # to request from an administrator
    messages = str(exc).splitlines() if isinstance(exc, PartialFailureError) else [str(exc)]
    for message in messages:
        is_attributed = isinstance(exc, JobFailedError) or message.startswith("nbtorchjob ")
        beside("\n".join([message if is_attributed else f"nbtorchjob: {message}", *asks]))


def nowhere(stream: TextIO) -> None:
    """Redirect a broken stream to the null device; Python would otherwise complain about it at exit."""
    with suppress(OSError):  # a stream without a descriptor, such as io.StringIO
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def aside() -> Iterator[None]:
    """Redirect stdout to stderr meanwhile, for Python, libraries and child processes."""
    if sys.stdout is None:  # its descriptor may belong to another file by now
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    try:
        with open(os.devnull, "wb") as nothing, redirect_stdout(sys.stderr):
            os.dup2(nothing.fileno() if sys.stderr is None else 2, 1)
            yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def text(value: Any) -> str:
    """Return a value as ``print`` shows it; if it can't be shown, a line that describes it."""
    try:
        return str(value)
    except Exception:  # a user's __str__ may raise anything, and Python's raises for 5,000 digits
        return words.short(value)


def plain(value: Any, within: tuple[int, ...] = ()) -> Any:
    """Return a value for JSON; numbers that JSON lacks become null, other objects a line of text.

    ``within`` are the ids of its containers: an object that contains itself becomes a line of text, too.
    """
    if id(value) in within or len(within) > _DEEPEST:
        return words.short(value)
    within = (*within, id(value))
    with suppress(Exception):  # a user's object may raise anything
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return value if value.bit_length() <= _MOST_BITS else None
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, Mapping):
            names = [text(name) for name in value]
            if len({*names}) < len(names):  # 1 and "1" would share a name, and one of their items be lost
                names = [repr(name) for name in value]
            items = [plain(item, within) for item in value.values()]
            return dict(zip(names, items, strict=True))
        if isinstance(value, list | tuple | set | frozenset):
            return [plain(item, within) for item in value]
        if hasattr(value, "tolist"):  # arrays and tensors
            return plain(value.tolist(), within)
    return words.short(value)


# A stream is None where the shell has closed it (``>&-``).
def _write(stream: TextIO | None, text: str) -> None:
    if stream is not None:
        with _handle_errors(stream):
            stream.write((_log.end() if shows(stream) else "") + shown(text, stream))
            stream.flush()


def _write_bytes(stream: TextIO | None, piece: bytes) -> None:
    if stream is not None:
        with _handle_errors(stream):
            if shows(stream):
                stream.write(_log.feed(piece))
                stream.flush()
                return
            stream.flush()
            stream.buffer.write(piece)
            stream.buffer.flush()


@contextmanager
def _handle_errors(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as exc:
        nowhere(stream)
        raise UnwritableError(
            f"the output can't be written ({exc.strerror}): redirect it elsewhere"
        ) from None
