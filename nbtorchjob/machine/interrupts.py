"""Ctrl-C, or the notebook's stop button: a message in place of the interrupted frames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

NOTHING = "Interrupted: nothing was submitted."


class Interrupted(KeyboardInterrupt):
    """Somebody stopped it; the message describes what there is now."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@contextmanager
def message(text: str) -> Iterator[None]:
    """Give an interrupt that comes meanwhile this message, unless it has one already."""
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted(text) from None
