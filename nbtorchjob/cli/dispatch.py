"""The command itself: which verb does the work, and what comes of it as an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from nbtorchjob import verbs
from nbtorchjob.cli import completion, jobs, output
from nbtorchjob.cli.commands import JSON, command, help_of, overview
from nbtorchjob.errors import (
    CaptureError,
    JobFailedError,
    JobNotFoundError,
    LineError,
    NBTorchJobError,
    ResultError,
    SpecError,
)

_HELP = {"-h", "--help"}
_REFUSED = 4
_INTERRUPTED, _BROKEN_PIPE = 130, 141  # as a shell tells of SIGINT and SIGPIPE

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

_OWN: Mapping[str, Callable[..., None]] = {
    "run": jobs.run,
    "attach": jobs.attach,
    "retry": jobs.retry,
    "result": jobs.result,
    "logs": jobs.logs,
}


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says (without ``words`` the process's own), and give the exit code."""
    try:
        output.encodable()
        return _do(list(sys.argv[1:] if words is None else words))
    except BrokenPipeError:
        output.nowhere(sys.stdout)
        return _BROKEN_PIPE
    except KeyboardInterrupt as exc:
        jobs.say(str(exc) or "Interrupted.")
        return _INTERRUPTED
    except NBTorchJobError as exc:
        output.error(exc)
        return next(code for kind, code in _CODES.items() if isinstance(exc, kind))
    except OSError as exc:
        output.beside(f"nbtorchjob: {exc}")
        return _REFUSED
    finally:
        output.settle()


def _do(words: list[str]) -> int:
    name, *rest = words or [""]
    if name in _HELP:
        output.answer(overview())
    elif name == "--version":
        from importlib import metadata  # slow to import, and seldom wanted

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
    ahead, _ = jobs.parted(words)
    if _HELP.intersection(ahead):
        output.answer(help_of(name))
        return 0
    json = JSON in verb.options and "--json" in ahead
    if json:
        words.remove("--json")
    if name == "completion":
        output.answer(completion.script(words))
    elif name in _OWN:
        _OWN[name](words, json=json)
    else:
        return _answered(verbs.VERBS[name](words, jobs.find), json=json)
    return 0


def _answered(answers: verbs.Answers, *, json: bool) -> int:
    good = True
    for each in answers:
        good &= each.good
        if each.aside:
            jobs.say(each.text)
        elif json:
            output.data(each.data)
        elif each.text:
            output.answer(output.worded(each.text))
    return 0 if good else 1
