"""Tab completion in bash, zsh and fish: a few lines for each, which ask the command itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nbtorchjob.commands import completion
from nbtorchjob.errors import LineError
from nbtorchjob.frontends.cli.commands import CELLS_ONLY, COMMANDS, SHELLS

ASKED = "__complete"  # the verb that the shells ask with: the words so far, the last one unfinished

# Where nothing is offered, each falls back on file names: a script's, a folder's.
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
    """Return what a shell sources; raises ``LineError`` for a shell that isn't known."""
    (shell,) = COMMANDS["completion"].parse(words).words
    if shell not in _SCRIPTS:
        raise LineError(f"nbtorchjob completion: unknown shell {shell!r}; available: {', '.join(SHELLS)}")
    return _SCRIPTS[shell]


def candidates(words: Sequence[str]) -> Iterable[str]:
    """Return what the last of ``words`` could become."""
    *before, word = words or [""]
    if "--" in before:
        return []
    if before == ["completion"]:
        return [shell for shell in SHELLS if shell.startswith(word)]
    completions = completion.of_verbs(before, word, COMMANDS)
    without = {"-o", *(f"--{key}" for key in CELLS_ONLY)}
    return [candidate for candidate in completions if candidate not in without]
