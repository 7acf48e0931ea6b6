"""The command ``nbtorchjob``: the verbs of ``%torchjob``, for the terminal beside a notebook and for CI."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line (by default the process's own), and return the exit code."""
    try:
        run = _imported()
        if words is None:
            gc.freeze()  # nor at its end
        return run(words)
    except KeyboardInterrupt:
        return 130


def _imported() -> Callable[[Sequence[str] | None], int]:
    """Import what does the work, and return it. That may take a second, in which a Ctrl-C may come."""
    gc.disable()  # what is imported stays: to look through it for garbage took a short command a fifth longer
    try:
        from nbtorchjob.frontends.cli import dispatch
    finally:
        gc.enable()
    return dispatch.main
