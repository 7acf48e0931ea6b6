"""The command itself: which verb does the work, and the exit code that results."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from nbtorchjob.commands.table import HELP, JSON
from nbtorchjob.errors import (
    CaptureError,
    JobFailedError,
    JobNotFoundError,
    LineError,
    NBTorchJobError,
    ResultError,
    SpecError,
)
from nbtorchjob.frontends.cli import commands, output
from nbtorchjob.frontends.cli.commands import command, help_of, overview
from nbtorchjob.frontends.cli.terminal import Terminal, parted
from nbtorchjob.machine import processes
from nbtorchjob.spec.options import by_flag
from nbtorchjob.text import hints

_COMMAND = hints.Wording("nbtorchjob", "nbtorchjob run SCRIPT.py:FUNCTION", "nbtorchjob run --help")
_REFUSED = 4
_INTERRUPTED, _BROKEN_PIPE = 130, 141  # a shell's codes for SIGINT and SIGPIPE

# The first that fits counts.
_CODES: Mapping[type[NBTorchJobError], int] = {
    JobFailedError: 1,
    ResultError: 1,
    LineError: 2,
    SpecError: 2,
    CaptureError: 2,
    JobNotFoundError: 3,
    NBTorchJobError: _REFUSED,
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line (by default the process's own), and return the exit code."""
    if words is None:
        processes.raise_open_files()
    with hints.worded(_COMMAND):
        words = list(sys.argv[1:] if words is None else words)
        try:
            output.encodable()
            name, *rest = words or [""]
            if name in ("help", *HELP):
                output.answer(help_of(command(rest[0])) if rest else overview())
            elif name == "--version":
                from importlib import metadata  # slow to import, and seldom needed

                output.answer(metadata.version("nbtorchjob"))
            elif not name:
                output.beside(overview())
                return 2
            elif name == commands.ASKED:
                output.answer("\n".join(commands.candidates(rest)))
            else:
                return _verb(name, rest)
            return 0
        except KeyboardInterrupt as exc:
            Terminal().say(str(exc) or "Interrupted.")
            return _INTERRUPTED
        except NBTorchJobError as exc:  # first: a job's may be of any type that its rank raised
            output.error(exc)
            return next(code for type_, code in _CODES.items() if isinstance(exc, type_))
        except BrokenPipeError:
            output.nowhere(sys.stdout)
            return _BROKEN_PIPE
        except OSError as exc:
            output.beside(f"nbtorchjob: {exc}")
            return _REFUSED
        finally:
            output.settle()


def _verb(name: str, words: list[str]) -> int:
    verb = command(name)
    ahead, _ = parted(words)
    if {*HELP}.intersection(ahead):
        output.answer(help_of(verb))
        return 0
    json = JSON in verb.options and "--json" in ahead
    if json:
        words.remove("--json")
    if verb.name == "completion":
        output.answer(commands.script(words))
        return 0
    if verb.name == "tend":
        from nbtorchjob.frontends.cli import tending  # late: it is seldom asked for

        tending.tend(verb.parse(words).options)
        return 0
    if verb.name == "mcp":
        from nbtorchjob.frontends.cli import agents  # late, as above

        verb.parse(words)
        agents.serve()
        return 0
    front = Terminal(json=json)
    with by_flag():
        verb.do(verb.parse(words), front)
    return 0 if front.good else 1
