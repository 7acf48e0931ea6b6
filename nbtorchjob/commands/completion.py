"""Tab completion of options, their values, verbs and job names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbtorchjob import api
from nbtorchjob.commands.table import VERBS, Verb
from nbtorchjob.spec import options

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext

_LINE = re.compile(r"\s*(%%?)torchjob\s(.*)", re.DOTALL)


def matcher(context: CompletionContext) -> dict[str, Any]:
    """Complete a ``%torchjob`` or ``%%torchjob`` line (IPython's matcher API, version 2)."""
    from IPython.core.completer import SimpleCompletion  # not needed in a terminal

    texts = of_line(context.line_with_cursor[: context.cursor_position])
    completions = [SimpleCompletion(text=text, type="param") for text in texts]
    return {"completions": completions, "suppress": bool(texts)}


def of_line(line: str) -> list[str]:
    """Return the completions at the end of a line of the notebook; none unless it is one of the magic's."""
    magic = _LINE.fullmatch(line)
    return list(candidates(magic[2], cell=magic[1] == "%%")) if magic is not None else []


def candidates(text: str, *, cell: bool) -> Iterable[str]:
    """Return the completions at the end of ``text``, the line after the magic's name."""
    before, _, word = text.rpartition(" ")
    return of_options(before.split(), word) if cell else of_verbs(before.split(), word)


def of_verbs(before: Sequence[str], word: str, verbs: Mapping[str, Verb] = VERBS) -> Iterable[str]:
    """Return the completions of ``word`` after the words ``before``, the first of which is a verb."""
    if not before:
        return [verb for verb in verbs if verb.startswith(word)]
    verb = verbs.get(before[0], Verb("", "", ""))
    valued = {flag: option for option in verb.options if option.takes != "switch" for flag in option.flags}
    if before[-1] in valued:
        return _of_term(valued[before[-1]].metavar, word)
    of_jobs = verb.any_option and options.has_value(before[-1])
    if verb.takes_name and not word.startswith("-") and not of_jobs:
        following = zip(before[1:], before, strict=False)
        alone = [
            term
            for term, last in following
            if not (term.startswith("-") or last in valued or (verb.any_option and options.has_value(last)))
        ]
        terms = verb.words.split()
        many = terms[-1].rstrip("]").endswith("...")
        term = terms[len(alone)] if len(alone) < len(terms) else terms[-1] if many else ""
        return _of_term(term.strip("[]."), word)
    own = [flag for o in verb.options for flag in o.flags if word.startswith("-") and flag.startswith(word)]
    return [*own, *(of_options(before, word) if verb.any_option else ())]


def _of_term(term: str, word: str) -> list[str]:
    """Return the completions of a term of a verb's usage: jobs, files or folders; none for any other."""
    if term in ("NAME", "OTHER"):
        return [name for name in reversed(api.job_names()) if name.startswith(word)]
    if term in ("FILE", "FOLDER"):
        return [path for path in _paths(word) if term == "FILE" or path.endswith("/")]
    return []


def _paths(word: str) -> list[str]:
    _, _, begin = word.rpartition("/")
    lead = word[: len(word) - len(begin)]
    try:
        names = sorted(
            f"{entry.name}/" if entry.is_dir() else entry.name for entry in os.scandir(lead or ".")
        )
    except OSError:
        return []
    shown = (name for name in names if name.startswith(begin) and (begin or not name.startswith(".")))
    return [f"{lead}{name}" for name in shown]


def of_options(before: Sequence[str], word: str) -> Iterable[str]:
    """Return the completions of ``word`` to options of jobs, or to the last option's values."""
    if "--" in before:  # what follows is for the cell
        return []
    if before and options.takes_path(before[-1]):
        return _paths(word)
    values = options.choices(before[-1]) if before else ()
    if values:
        return [value for value in values if value.startswith(word)]
    return [flag for flag in options.flags() if word.startswith("-") and flag.startswith(word)]
