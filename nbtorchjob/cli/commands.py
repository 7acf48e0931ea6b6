"""The command's verbs, those of ``%torchjob`` and a few of its own: what stands behind each, and the help."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace

from nbtorchjob import options
from nbtorchjob.errors import LineError
from nbtorchjob.fields import Option
from nbtorchjob.text.words import columns
from nbtorchjob.ui.lines import DETACH, TRUST, VERBS, Verb

JSON = Option(("--json",), "answer in JSON, a document a line", kind="switch")
FOLLOW = Option(("-f", "--follow"), "go on until the job has ended", kind="switch")
QUIET = Option(("--quiet",), "no log and no status: the value alone", kind="switch")
SHELLS = ("bash", "zsh", "fish")
# What a line says of a notebook's cell; a command has arguments, and a shell that keeps its output.
CELLS_ONLY = ("arg", "out")

_RUN = Verb(
    "SCRIPT.py:FUNCTION [-- ARG...]",
    "run a script's function on every rank, and print rank 0's value",
    (JSON,),
    any_option=True,
)
_MORE: Mapping[str, tuple[Option, ...]] = {
    "logs": (*VERBS["logs"].options, FOLLOW),
    "attach": (QUIET, JSON, TRUST),
    "retry": (DETACH, QUIET, JSON, TRUST),
    "result": (JSON, TRUST),
}

COMMANDS: Mapping[str, Verb] = {
    **{name: replace(verb, options=_MORE.get(name, (*verb.options, JSON))) for name, verb in VERBS.items()},
    "run": _RUN,
    "completion": Verb("SHELL", f"what completes the command in {', '.join(SHELLS)}: source it"),
}

_MORE_HELP = """\
Without NAME the newest job is meant. With --json answers are JSON, a document a line.
`nbtorchjob VERB --help` says more of a verb, `nbtorchjob run --help` all options of jobs."""

EXITS: Mapping[int, str] = {
    0: "done",
    1: "the job failed or its value can't be had; something is missing (doctor) or was kept (gc)",
    2: "not understood, or it can't travel: nothing was sent",
    3: "there is no such job",
    4: "the cluster, or this machine, can't be reached or refuses",
    130: "interrupted: the job goes on. A second Ctrl-C within five seconds cancels it",
    141: "who read the output is gone; the job goes on",
}


def command(name: str) -> Verb:
    """Give the verb of that name; raises ``LineError`` with near ones."""
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(COMMANDS)}"
        raise LineError(f"{name}: there is no such verb; {hint}")
    return COMMANDS[name]


def overview() -> str:
    """Describe every verb and the exit codes."""
    # Nearly all take --json: that is said once.
    usages = {name: verb.usage.replace(f" [{JSON.flags[0]}]", "") for name, verb in COMMANDS.items()}
    rows = columns([(f"  {name} {usages[name]}", verb.help) for name, verb in COMMANDS.items()])
    codes = [f"  {code:>3}  {means}" for code, means in EXITS.items()]
    parts = [["nbtorchjob VERB ...", *rows], [_MORE_HELP], ["Exit codes:", *codes]]
    return "\n\n".join(map("\n".join, parts))


def help_of(name: str) -> str:
    """Describe one verb and its options."""
    verb = COMMANDS[name]
    parts = [f"nbtorchjob {name} {verb.usage}\n\n  {verb.help}"]
    parts += ["\n".join(options.help_line(o) for o in verb.options)] if verb.options else []
    if name == "run":
        parts.append(_ARGUMENTS)
    if verb.any_option:
        parts.append(options.help_text(without=CELLS_ONLY))
    return "\n\n".join(parts)


_ARGUMENTS = """\
The script is loaded as a notebook is: its functions and what they read travel by value, and what stands
below `if __name__ == "__main__"` isn't run. Words behind `--` are the function's arguments: `0.1 --lr 3
--fast` calls it as f(0.1, lr=3, fast=True); what is no Python literal is text. Rank 0's log goes to
stdout, with --json to stderr; how the job stands goes to stderr."""
