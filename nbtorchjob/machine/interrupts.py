"""Ctrl-C, or the notebook's stop button: what is told of it in place of the frames that it came in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

NOTHING = "Interrupted: nothing was submitted."


class Interrupted(KeyboardInterrupt):
    """Somebody stopped it; the message says what there is now."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@contextmanager
def told(text: str) -> Iterator[None]:
    """Have an interrupt that comes meanwhile say this, unless it says something already."""
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted(text) from None
