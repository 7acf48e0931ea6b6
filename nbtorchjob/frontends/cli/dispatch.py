"""The command itself: which verb does the work, and the exit code that results.

``nbtorchjob tend``: looks after jobs until it is told to end, and says on stderr what it does.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from nbtorchjob.backends import tended
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
from nbtorchjob.frontends.cli import completion, output
from nbtorchjob.frontends.cli.commands import command, help_of, overview
from nbtorchjob.frontends.cli.terminal import Terminal, parted
from nbtorchjob.machine.folders import state_dir
from nbtorchjob.text import hints

LOG = "nbtorchjob.tending"


def tend(options: Mapping[str, Any]) -> None:
    """Look after jobs until SIGTERM or Ctrl-C; or print what has a cluster do it."""
    if "manifests" in options:
        output.answer(tended().tenders(options.get("namespace", ()), options.get("image")))
        return
    listen = _address(options.get("listen"))
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    _log()
    tending = tended().tend(
        "nbtorchjob tend", options.get("namespace", ()), everyone="everyone" in options, listen=listen
    )
    output.beside(f"tending jobs; health and metrics at {listen}")
    stopped.wait()
    if tending is not None:
        tending.stop()


def _address(listen: str | None) -> str:
    """Return where it says how it is; raises ``LineError`` for what more than this machine could ask."""
    if listen is None:
        return str(state_dir() / f"tend-{os.getpid()}.sock")
    host, _, port = listen.rpartition(":")
    if port.isdigit() and host not in ("127.0.0.1", "localhost", "[::1]"):
        raise LineError(
            f"nbtorchjob tend: --listen expects a local address such as 127.0.0.1:PORT, got {listen!r}"
        )
    return listen.replace("[::1]", "::1")


def _log() -> None:
    log = logging.getLogger(LOG)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


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
    with hints.worded(_COMMAND):
        return _answered(list(sys.argv[1:] if words is None else words))


def _answered(words: list[str]) -> int:
    try:
        output.encodable()
        return _do(words)
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


def _do(words: list[str]) -> int:
    name, *rest = words or [""]
    if name in ("help", *HELP):
        output.answer(help_of(command(rest[0])) if rest else overview())
    elif name == "--version":
        from importlib import metadata  # slow to import, and seldom needed

        output.answer(metadata.version("nbtorchjob"))
    elif not name:
        output.beside(overview())
        return 2
    elif name == completion.ASKED:
        output.answer("\n".join(completion.candidates(rest)))
    else:
        return _verb(name, rest)
    return 0


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
        output.answer(completion.script(words))
        return 0
    if verb.name == "tend":
        # late: it is seldom asked for

        tend(verb.parse(words).options)
        return 0
    front = Terminal(json=json)
    verb.do(verb.parse(words), front)
    return 0 if front.good else 1
