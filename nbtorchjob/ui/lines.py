"""The verbs of ``%torchjob`` and of the command ``nbtorchjob``, and the line behind one, taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nbtorchjob.errors import LineError
from nbtorchjob.fields import Option, digits

# Blanks end a word, so that a line without a call is refused at once, however many options it has.
_WORD = r"""(?:"[^"]*"|'[^']*'|[^\s"'])+"""
RUN = re.compile(
    rf"(?P<options>(?:-{_WORD}\s+(?:(?!-){_WORD}\s+)??)*?)(?P<call>[A-Za-z_][\w.]*\s*\(.*)", re.DOTALL
)

# How many words may stand behind a verb, by how its help writes them.
_MANY: Mapping[str, tuple[int, float]] = {
    "": (0, 0),
    "[NAME]": (0, 1),
    "NAME...": (1, float("inf")),
    "NAME FOLDER": (2, 2),
    "SHELL": (1, 1),
}


@dataclass(frozen=True)
class Verb:
    """What may stand behind a verb: its words, as the help writes them, and its few options.

    One with ``any_option`` takes those of the option table, in front of its words.
    """

    words: str
    help: str
    options: tuple[Option, ...] = ()
    any_option: bool = False

    @property
    def takes_name(self) -> bool:
        """Whether a job's name may follow."""
        return "NAME" in self.words

    @property
    def usage(self) -> str:
        """What may follow, in a few words."""
        own = (f"[{' '.join(filter(None, (o.flags[0], o.metavar)))}]" for o in self.options)
        return " ".join(filter(None, ("[options]" if self.any_option else "", self.words, *own)))


class Given(NamedTuple):
    """A verb's words, and its options by their long names; those that weren't given aren't there."""

    words: list[str]
    options: dict[str, Any]


_OUT = Option(("-o", "--out"), "the variable that takes the value", metavar="VAR")
DETACH = Option(("-d", "--detach"), "don't wait for the job", kind="switch")
TRUST = Option(
    ("--trust",), "unpickle what another person's job left: that runs their code, as you", kind="switch"
)

VERBS: Mapping[str, Verb] = {
    "run": Verb("f(x, lr=0.1)", "submit one call", any_option=True),
    "list": Verb(
        "",
        "all jobs; with --all other users' on the cluster too",
        (Option(("--all",), "other users' on the cluster too", kind="switch"),),
    ),
    "status": Verb("[NAME]", "how one job stands"),
    "describe": Verb("[NAME]", "all that is known of it: attempts, budgets, policies, where it is kept"),
    "logs": Verb(
        "[NAME]",
        "a rank's log, by default rank 0's; with --tail N its end",
        (
            Option(("--rank",), "whose", kind="int", metavar="N"),
            Option(("--tail",), "so many last lines", kind="int", metavar="N"),
        ),
    ),
    "attach": Verb(
        "[NAME]",
        "follow a job again, and take its value",
        (_OUT, DETACH, TRUST),
    ),
    "retry": Verb(
        "[NAME]",
        "run what an ended job ran once more, as a new job, and take its value",
        (_OUT, DETACH, TRUST),
    ),
    "result": Verb("[NAME]", "the value of a job that has ended", (_OUT, TRUST)),
    "cancel": Verb("NAME...", "end jobs; their records stay"),
    "delete": Verb("NAME...", "end jobs, and remove their records, logs and values"),
    "suspend": Verb("NAME...", "take jobs' nodes away, and keep the jobs"),
    "resume": Verb("NAME...", "start suspended jobs' nodes again"),
    "export": Verb("NAME FOLDER", "write what `kubectl apply -f FOLDER` runs without a notebook"),
    "gc": Verb(
        "",
        "ended jobs and what belongs to none; with --yes they are removed",
        (Option(("--yes",), "remove what is listed", kind="switch"),),
    ),
    "doctor": Verb("", "look at all that a job with these options would need", any_option=True),
    "config": Verb("[NAME]", "a job's options; without NAME those of new jobs, in a notebook a form"),
}


def given(name: str, words: Sequence[str], verb: Verb | None = None) -> Given:
    """Sort the words behind the verb ``name``, by default one of ``VERBS``; raises ``LineError``."""
    verb = verb or VERBS[name]
    known = {flag: option for option in verb.options for flag in option.flags}
    found = Given([], {})
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            found.words.append(word)
            continue
        option = known.get(word.partition("=")[0])
        if option is None:
            raise LineError(
                f"%torchjob {name}: unknown option {word}; there are {', '.join(known) or 'none'}"
            )
        found.options[option.key] = _value(name, option, word, rest)
    _check(name, verb, found.words)
    return found


def _value(name: str, option: Option, word: str, rest: Iterator[str]) -> Any:
    flag, equals, text = word.partition("=")
    if option.kind == "switch":
        if equals:
            raise LineError(f"%torchjob {name}: {flag} takes no value, got {text!r}")
        return True
    value = text if equals else next(rest, "")
    number = digits(value)
    if not value or (option.kind == "int" and number is None):
        what = "a whole number" if option.kind == "int" else option.metavar
        raise LineError(f"%torchjob {name}: {flag} needs a value, {what}: got {value!r}")
    return number if option.kind == "int" else value


def _check(name: str, verb: Verb, words: Sequence[str]) -> None:
    fewest, most = _MANY[verb.words]
    if fewest <= len(words) <= most:
        return
    told = repr(" ".join(words))
    if not most:
        raise LineError(f"%torchjob {name} takes nothing more, got {told}")
    if most == 1 and verb.takes_name:
        raise LineError(f"%torchjob {name}: one job at a time, got {told}")
    if not words and verb.takes_name:
        raise LineError(f"%torchjob {name}: which job? See %torchjob list")
    raise LineError(f"%torchjob {name} {verb.words}: got {told}")
