"""The command's verbs, those of ``%torchjob`` and a few of its own: words, options, help and completion.

Tab completion in bash, zsh and fish is a few lines each, which call the command itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nbtorchjob.commands import completion, running, table
from nbtorchjob.commands.table import JSON, VERBS, Verb
from nbtorchjob.errors import LineError
from nbtorchjob.spec import option
from nbtorchjob.text.words import columns

SHELLS = ("bash", "zsh", "fish")
# Options for a notebook's cell; a command has arguments and stdout instead.
CELLS_ONLY = ("arg", "out", "push", "pull", "swap", "or-back", "within")

_RUN = replace(
    VERBS["run"],
    words="SCRIPT.py:FUNCTION [-- ARG...]",
    help="run a script's function as a job",
)
_MAP = replace(
    VERBS["run"],
    name="map",
    words="SCRIPT.py:FUNCTION [-- ARG...]",
    help="run a function once per --each value",
    waits=running.map_,
)
_TEND = Verb(
    "tend",
    "",
    "retry and clean up cluster jobs, unattended",
    (
        option(
            "--namespace NS", "NAMESPACE or CONTEXT/NAMESPACE; all with your jobs by default", takes="texts"
        ),
        option("--everyone", "include other users' jobs"),
        option("--listen AT", "HOST:PORT or socket of /healthz and /metrics"),
        option("--manifests", "print manifests that run it in the cluster"),
        option("--kustomize FOLDER", "write these manifests as a kustomize base"),
        option("--image IMAGE", "the image for --manifests and --kustomize"),
    ),
)
_MCP = Verb("mcp", "", "offer verbs to agents, as an MCP server on stdin and stdout")
_COMPLETION = Verb("completion", "|".join(SHELLS), "print a shell's completion script")


COMMANDS: Mapping[str, Verb] = {
    **{
        name: replace(verb, options=(*verb.options, JSON) if verb.terminal is None else verb.terminal)
        for name, verb in {**VERBS, "run": _RUN, "map": _MAP}.items()
    },
    "tend": _TEND,
    "mcp": _MCP,
    "completion": _COMPLETION,
}

_MORE_HELP = """\
Without NAME, the newest job is used. With --json, output is JSON, one document per line.
See `nbtorchjob VERB --help` for a verb and `nbtorchjob run --help` for all job options."""

EXITS: Mapping[int, str] = {
    0: "done",
    1: "the job failed, or what was requested isn't there, is incomplete or failed, maybe for some names",
    2: "invalid usage, or the call can't be captured; nothing was sent",
    3: "no such job",
    4: "the cluster or this machine is unreachable or refuses the request",
    130: "interrupted: the job keeps running; a second Ctrl-C within five seconds cancels it",
    141: "stdout was closed; the job keeps running",
}


def command(word: str) -> Verb:
    """Return the verb that a word stands for; raises ``LineError`` with similar ones."""
    return table.named(word, COMMANDS)


def overview() -> str:
    """Describe every verb and the exit codes."""
    # Nearly all take --json: it is mentioned once.
    usages = {name: verb.usage.replace(f" [{JSON.flags[0]}]", "") for name, verb in COMMANDS.items()}
    rows = columns([(f"  {name} {usages[name]}", verb.help) for name, verb in COMMANDS.items()])
    codes = [f"  {code:>3}  {means}" for code, means in EXITS.items()]
    parts = [["nbtorchjob VERB ...", *rows], [_MORE_HELP], ["Exit codes:", *codes]]
    return "\n\n".join(map("\n".join, parts))


def help_of(verb: Verb) -> str:
    """Describe one verb and its options."""
    return table.help_of(verb, _ARGUMENTS if verb.name in ("run", "map") else "", without=CELLS_ONLY)


_ARGUMENTS = """\
The script is loaded like a notebook: its functions and the values that they read are sent, and code under
`if __name__ == "__main__"` isn't run. Words after `--` are the function's arguments: `0.1 --lr 3 --fast`
calls f(0.1, lr=3, fast=True); a word that isn't a Python literal is a string. Rank 0's log goes to stdout
(with --json, to stderr); the job's status goes to stderr."""


ASKED = "__complete"  # the verb that the shells call with the words so far, the last one unfinished

# Without candidates, all of them fall back on file names: a script's, a folder's.
_SCRIPTS = {
    "bash": r"""_nbtorchjob() {
    local word
    COMPREPLY=()
    while IFS= read -r word; do
        [[ -n $word ]] && COMPREPLY+=("$word")
    done < <(nbtorchjob __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _nbtorchjob nbtorchjob""",
    "zsh": r"""#compdef nbtorchjob
_nbtorchjob() {
    local -a found
    found=(${(f)"$(nbtorchjob __complete "${(@)words[2,$CURRENT]}" 2>/dev/null)"})
    (( $#found )) && compadd -a found || _files
}
compdef _nbtorchjob nbtorchjob""",
    "fish": r"""function __nbtorchjob_complete
    set -l before (commandline -opc)
    nbtorchjob __complete $before[2..-1] (commandline -ct | string collect --allow-empty) 2>/dev/null
end
complete -c nbtorchjob -a '(__nbtorchjob_complete)'""",
}


def script(words: Sequence[str]) -> str:
    """Return the script for a shell to source; raises ``LineError`` for an unknown shell."""
    (shell,) = COMMANDS["completion"].parse(words).words
    if shell not in _SCRIPTS:
        raise LineError(f"nbtorchjob completion: unknown shell {shell!r}; available: {', '.join(SHELLS)}")
    return _SCRIPTS[shell]


def candidates(words: Sequence[str]) -> Iterable[str]:
    """Return the completions of the last of ``words``."""
    *before, word = words or [""]
    if "--" in before:
        return []
    if before == ["completion"]:
        return [shell for shell in SHELLS if shell.startswith(word)]
    completions = completion.of_verbs(before, word, COMMANDS)
    without = {"-o", *(f"--{key}" for key in CELLS_ONLY)}
    return [candidate for candidate in completions if candidate not in without]
