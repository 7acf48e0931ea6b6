"""Every error that a user may meet: its signs, its message, what to do (``docs/errors.md``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from docs._generate import markdown, refusals
from docs._generate.markdown import code
from nbtorchjob import errors
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.frontends.cli.commands import EXITS
from nbtorchjob.runtime.facts import exits
from nbtorchjob.state import Budget, Failure
from nbtorchjob.state.attempts import budget
from nbtorchjob.state.failure import Cause, Reason, of_agent, table
from nbtorchjob.state.failure.table import Row

_INTRO = """# Errors

This page is generated from the tables that the code reads. Each message is one line: what was wrong, what
was seen, what to do. [failures.md](failures.md) explains attempts and budgets.

## Exceptions

All are in `nbtorchjob.errors`; those that a program may want to catch are in `nbtorchjob` too.
"""
_CAUSES = """
## Why a job failed, or waits

The first row of a table that fits counts; text that fits no row is shown as it is. In a sign, `…` stands
for anything; in a message, for what was seen. *Paid from* is the budget of the next attempt, if the job has
one. An exception that is a `RecoverableError`, or that `--retry-on` names, is always paid from `--retries`.
"""


def _by_operator(row: Row) -> Sequence[Row]:
    """Return the rows that a word of ours stands for: each kind's operator has its own."""
    if row.word != table.PODS_REFUSED:
        return [row]
    refusals = [kind.complaints.refusals for kind in KINDS.values()]
    return [
        replace(row, word=reason, hint=f"{why[0].upper()}{why[1:]}.")
        for each in refusals
        for reason, why in each.items()
    ]


_PARTS: Mapping[str, tuple[str, Sequence[Row]]] = {
    "A rank raised": ("exception", table.ERRORS),
    "A rank raised, in a line like that": ("exception", table.LINES),
    "A rank raised, but only because another one was gone": ("exception", table.PEERS),
    "A rank ended without an exception": ("exit code", table.RANK_CODES),
    "A signal ended a rank or a node": ("signal", table.SIGNALS),
    "A node ended": ("exit code", table.CODES),
    "A node can't install packages": ("exit code, exception", table.NODE_ERRORS),
    "A node's machine refused what its ranks need": ("exception", table.SHORTAGES),
    "A node's agent gave up": ("exception", table.AGENT_ERRORS),
    "A pod ended": ("reason", table.ENDS),
    "A pod was taken away": ("reason", table.TAKEN),
    "The job's operator says": ("reason", table.VERDICTS),
    "Something doesn't run yet": ("reason", [each for row in table.WAITS for each in _by_operator(row)]),
}
_APART = re.compile(r"\|(?![^(]*\))")
# Named groups, an optional module, classes of characters, any characters.
_ANYTHING = re.compile(
    r"\(\?P<\w+>(?:[^()\\]|\\.)*\)|\(\?:\.\*\\\.\)\?|\\[wd][+*]?|\[[^]]*\][+*]\??|\.[*+]\??"
)
_PAID = {Budget.FAILURES: code("--retries"), Budget.PREEMPTIONS: code("--preemptions"), None: "nothing"}
_CODES = """
## Exit codes of a node

A node is one agent: a process on this machine, the main container of a pod on a cluster.
"""
_NODE_CODES = (
    exits.USER_ERROR,
    exits.CONFIG_ERROR,
    exits.RECOVERABLE_ERROR,
    exits.INFRASTRUCTURE_ERROR,
    exits.CANCELLED,
    exits.LEFT,
)
_EXITS = """
## Exit codes of the command

These are the exit codes of `nbtorchjob` in a terminal ([cli.md](cli.md)).
"""
_REFUSALS = """
## What a cluster refuses

The examples are for a user `ann` and a job `train` in the namespace `ml`. If a permission is missing, the
Role and the RoleBinding to request follow below the line.
"""


def page() -> str:
    """Return the page, as Markdown."""
    parts = [_INTRO, markdown.table(("exception", "is a", "raised when"), _exceptions()), _CAUSES]
    for title, (sign, rows) in _PARTS.items():
        heads = (sign, "with", "cause", "what is said", "what to do", "paid from")
        parts += [f"### {title}\n", markdown.table(heads, map(_row, rows)), ""]
    parts += [_CODES.lstrip(), markdown.table(("code", "means"), _codes())]
    parts += [_EXITS, markdown.table(("code", "means"), _exits()), _REFUSALS]
    return "\n".join(
        [*parts, markdown.table(("status", "the server's answer", "what is said"), refusals.rows()), ""]
    )


def _exceptions() -> Iterator[Sequence[str]]:
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.NBTorchJobError):
            bases = ", ".join(code(base.__name__) for base in kind.__bases__)
            yield code(name), bases, (kind.__doc__ or "").partition("\n")[0]


def _row(row: Row) -> Sequence[str]:
    grace = f" (after {row.grace_s:g} s)" if row.grace_s else ""
    said = "the exception" if row.line == "{word}" else re.sub(r"\{\w+\}", "…", row.line)
    paid = _PAID[budget(Failure(Reason(row.cause, row.line, crash=row.crash), 0.0))]
    waits = row.cause is Cause.WAIT
    return _signs(row.word), _signs(row.text), row.cause.value + grace, said, row.hint, "" if waits else paid


def _signs(pattern: str) -> str:
    """Return what a pattern matches in readable form, with the choices between bars apart."""
    if pattern in (".*", ".+"):
        return "any other"
    return ", ".join(code(_plain(each)) for each in _APART.split(pattern) if each)


def _plain(pattern: str) -> str:
    seen = _ANYTHING.sub("…", pattern.replace(r"\b", ""))
    return re.sub(r"…+", "…", re.sub(r"\\(.)", r"\1", seen).replace("(?:", "("))


def _codes() -> Iterator[Sequence[str]]:
    yield code(str(exits.OK)), "all its ranks returned"
    for number in _NODE_CODES:
        yield code(str(number)), of_agent(number).line
    yield code("128 + N"), "the signal of that number ended it"


def _exits() -> Iterator[Sequence[str]]:
    return ((code(str(number)), means) for number, means in EXITS.items())
