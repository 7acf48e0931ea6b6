"""What to type next, in the syntax of the current front: a notebook's magics, or a terminal's command.

The syntax is global to the process, like a locale: a message uses it when it is made, and finished messages,
which may contain a user's text, are never rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Wording(NamedTuple):
    """What precedes a verb, what precedes the options of a cell or script, and what lists these options."""

    verb: str
    run: str
    options: str


MAGICS = Wording("%torchjob", "%%torchjob", "%torchjob")

_wording = MAGICS


@contextmanager
def worded(wording: Wording) -> Iterator[None]:
    """Use this wording for hints that are made meanwhile, in any thread."""
    global _wording
    before, _wording = _wording, wording
    try:
        yield
    finally:
        _wording = before


def hint(*words: str) -> str:
    """Return what to type for a verb and its words, such as ``%torchjob delete NAME``."""
    return " ".join((_wording.verb, *words))


def swap_hint(name: str) -> str:
    """Return what to type to change a running job's code, such as ``%%torchjob --swap NAME``."""
    return run_hint(f"--swap {name}") if _wording is MAGICS else hint("swap", name, "FILE")


def options_hint() -> str:
    """Return what to type to see all options."""
    return _wording.options


def run_hint(options: str) -> str:
    """Return what to type to run something with these options, such as ``%%torchjob --nnodes 2``."""
    return f"{_wording.run} {options}".rstrip()
