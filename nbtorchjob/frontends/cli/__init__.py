"""The command ``nbtorchjob``: the verbs of ``%torchjob``, for the terminal beside a notebook and for CI."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line (by default the process's own), and return the exit code."""
    try:
        from nbtorchjob.frontends.cli import dispatch  # takes most of a second, in which a Ctrl-C may come

        return dispatch.main(words)
    except KeyboardInterrupt:
        return 130
