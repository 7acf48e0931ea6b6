"""The command ``nbtorchjob``: the verbs of ``%torchjob``, for the terminal beside a notebook and for CI."""

from __future__ import annotations

import gc
from collections.abc import Sequence


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line (by default the process's own), and return the exit code."""
    try:
        # The import may take a second, in which a Ctrl-C may come. What it brings stays: to look through that
        # for garbage took a short command a fifth longer.
        gc.disable()
        try:
            from nbtorchjob.frontends.cli import terminal
        finally:
            gc.enable()
        run = terminal.main
        if words is None:
            gc.freeze()  # nor at its end
        return run(words)
    except KeyboardInterrupt:
        return 130
