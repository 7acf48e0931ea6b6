"""The command ``nbtorchjob``: the verbs of ``%torchjob``, for the terminal beside a notebook and for CI."""

from __future__ import annotations

import gc
from collections.abc import Sequence


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line (by default the process's own), and return the exit code."""
    try:
        # The import may take a second, during which Ctrl-C may arrive. The imported objects stay alive:
        # searching them for garbage made a short command take a fifth longer.
        gc.disable()
        try:
            from nbtorchjob.frontends.cli import terminal
        finally:
            gc.enable()
        run = terminal.main
        if words is None:
            gc.freeze()  # so that they aren't searched at exit either
        return run(words)
    except KeyboardInterrupt:
        return 130
