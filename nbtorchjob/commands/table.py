"""The verbs of ``%torchjob`` and of the command ``nbtorchjob``: a row each, with everything about it.

Magics, command, completion, help, the server's routes, a card's buttons and the page's commands are made
from these rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from nbtorchjob.backends import stacks
from nbtorchjob.backends.base import Backend
from nbtorchjob.commands import debugging, labs, running, verbs
from nbtorchjob.commands.front import Answers, Find, Front, Given
from nbtorchjob.errors import LineError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec import options
from nbtorchjob.spec.validation import Option, digits
from nbtorchjob.state import Phase
from nbtorchjob.text.hints import hint, run_hint
from nbtorchjob.ui.offers import ENDED, KEPT, LIVE, SUSPENDABLE, SUSPENDED, Offer, Offers

# Blanks end a word, so that a line without a call is refused at once, however many options it has.
_WORD = r"""(?:"[^"]*"|'[^']*'|[^\s"'])+"""
RUN = re.compile(
    rf"(?P<options>(?:-{_WORD}\s+(?:(?!-){_WORD}\s+)??)*?)(?P<call>[A-Za-z_][\w.]*\s*\(.*)", re.DOTALL
)

_MOST_OPTIONS = 3  # in a verb's usage

# How many words may follow a verb, by how its help writes them.
_MANY: Mapping[str, tuple[int, float]] = {
    "": (0, 0),
    "[NAME]": (0, 1),
    "NAME": (1, 1),
    "NAME...": (1, float("inf")),
    "NAME OTHER": (2, 2),
    "NAME FOLDER": (2, 2),
    "NAME [FOLDER]": (1, 2),
    "SHELL": (1, 1),
}


Doing: TypeAlias = Callable[[Given, Front], Any]
Answering: TypeAlias = Callable[[Given, Find], Answers]
Change: TypeAlias = Callable[[Backend, str], None]


class Verb(FrozenDataclass):
    """A verb's name, what may follow it, as the help writes it, and how it is done.

    One with ``any_option`` takes those of the option table, before its words. ``terminal`` are the
    command's options where these differ from a notebook's. A verb ``answers``, or ``waits`` for a job and
    may return its value. One with a ``change`` of a job that stays is a route of the server, too; one with
    an ``offer`` is a command of JupyterLab.
    """

    name: str
    words: str
    help: str
    options: tuple[Option, ...] = ()
    any_option: bool = False
    terminal: tuple[Option, ...] | None = None
    answers: Answering | None = None
    waits: Doing | None = None
    change: Change | None = None
    offer: Offer | None = None

    @property
    def takes_name(self) -> bool:
        """Whether a job's name may follow."""
        return "NAME" in self.words

    @property
    def usage(self) -> str:
        """What may follow, in a few words; more than a few options are left to the verb's help."""
        own = [f"[{' '.join(filter(None, (o.flags[0], o.metavar)))}]" for o in self.options]
        if self.any_option:
            return " ".join(filter(None, ("[options]", self.words, *own)))
        return " ".join(filter(None, (self.words, *(own if len(own) <= _MOST_OPTIONS else ["[options]"]))))

    def given(self, words: Sequence[str]) -> Given:
        """Sort the words after the verb; raises ``LineError``. The verb itself reads options of jobs."""
        if self.any_option:
            return Given([*words], {})
        known = {flag: option for option in self.options for flag in option.flags}
        found = Given([], {})
        rest = iter(words)
        for word in rest:
            if not word.startswith("-"):
                found.words.append(word)
                continue
            option = known.get(word.partition("=")[0])
            if option is None:
                there = ", ".join(known) or "none"
                raise LineError(f"{hint(self.name)}: unknown option {word}; there are {there}")
            value = _value(self.name, option, word, rest)
            before = found.options.get(option.key, [])
            found.options[option.key] = [*before, value] if option.repeated else value
        _check(self, found.words)
        return found

    def do(self, given: Given, front: Front) -> Any:
        """Do it, and have ``front`` show the outcome; return the line's value."""
        if self.waits is not None:
            return self.waits(given, front)
        if self.answers is not None:
            for answer in self.answers(given, front.find):
                front.show(answer)
        return None


_OUT = Option(("-o", "--out"), "the variable to store the value in", metavar="VAR")
_DETACH = Option(("-d", "--detach"), "don't wait for the job", takes="switch")
_TRUST = Option(
    ("--trust",), "unpickle values from another user's job; this runs their code as you", takes="switch"
)
_GENTLY = Option(("--gently",), "give ranks that call leaving() the time to save", takes="switch")
_RANK = Option(("--rank",), "which rank; 0 by default", takes="int", metavar="N")
_STOPPED = Option(("--rank",), "which rank, where several are stopped", takes="int", metavar="N")
_SECONDS = Option(("--seconds",), "for how long, up to 60; 3 by default", metavar="N")
_MEMORY = Option(
    ("--memory",), "what its accelerator's memory holds instead, as torch's snapshot", takes="switch"
)
_FOLDER = Option(("--folder",), "where to write the file; the current folder by default", metavar="FOLDER")
_TAIL = Option(("--tail",), "only the last N lines", takes="int", metavar="N")
_TIMESTAMPS = Option(("--timestamps",), "when each line was written in front of it", takes="switch")
_SINCE = Option(("--since",), "only lines written since then: 10m (ago), or 2026-03-01T14:30", metavar="WHEN")
_UNTIL = Option(("--until",), "only lines written until then", metavar="WHEN")
_GREP = Option(("--grep",), "only lines in which this regular expression is found", metavar="REGEX")
_EVERY_RANK = Option(("--all-ranks",), "all ranks' lines, in the order of their times", takes="switch")
_NODE = Option(
    ("--node",), "lines of this node's ranks, in the order of their times", takes="int", metavar="N"
)
_ATTEMPT = Option(
    ("--attempt",), "those of this attempt; of the newest that left any by default", takes="int", metavar="N"
)
_ZIP = Option(("--zip",), "write all ranks' whole logs to this new file instead", metavar="FILE")
_LOGS = (_RANK, _NODE, _EVERY_RANK, _TAIL, _SINCE, _UNTIL, _GREP, _TIMESTAMPS, _ZIP)
_FOLLOW = Option(("-f", "--follow"), "keep following until the job ends", takes="switch")
_QUIET = Option(("--quiet",), "print only the value, no log or status", takes="switch")
JSON = Option(("--json",), "print JSON, one document per line", takes="switch")
_ROWS = (
    Verb(
        "run",
        "f(x, lr=0.1)",
        "run one function call as a job",
        any_option=True,
        terminal=(JSON,),
        waits=running.run,
    ),
    Verb(
        "list",
        "",
        "list jobs",
        (Option(("--all",), "include other users' jobs on the cluster", takes="switch"),),
        answers=verbs.list_,
    ),
    Verb(
        "status",
        "[NAME]",
        "show a job's status",
        answers=lambda given, find: verbs.status(given, find, OFFERS),
    ),
    Verb(
        "describe",
        "[NAME]",
        "show a job's details: attempts, budgets, policies, location",
        answers=verbs.describe,
        offer=Offer(
            "Describe", "Describe Torch Job…", "Show all that is known of this job", icon="info", rank=40
        ),
    ),
    Verb(
        "diff",
        "NAME OTHER",
        "tell two jobs apart: their options, code, data, packages and results",
        answers=verbs.diff,
    ),
    Verb(
        "lock",
        "[NAME]",
        "print what a job's ranks could import, as requirements for pip",
        answers=verbs.lock,
    ),
    Verb(
        "stacks",
        "[NAME]",
        "show what each rank of a job does now, and whom the others wait for",
        answers=verbs.stacks,
        change=stacks.look,
        offer=Offer(
            "Stacks",
            "Show Stacks of Torch Job…",
            "Ask where each rank of this job is now, and whom the others wait for",
            icon="search",
            rank=45,
            when={"phase": ["RUNNING"]},
            on_card=lambda state, _live: state.phase is Phase.RUNNING,
        ),
    ),
    Verb(
        "profile",
        "[NAME]",
        "profile a rank of a running job, and show where its time went",
        (_SECONDS, _RANK, _MEMORY, _FOLDER),
        answers=verbs.profile,
    ),
    Verb(
        "debug",
        "[NAME]",
        "look at a rank that is stopped, with pdb",
        (_STOPPED,),
        waits=debugging.debug,
    ),
    Verb(
        "release",
        "NAME...",
        "let go of ranks that --hold holds where they failed",
        answers=debugging.release,
    ),
    Verb(
        "logs",
        "[NAME]",
        "print a rank's log, or all ranks'",
        _LOGS,
        terminal=(*_LOGS, _FOLLOW),
        waits=running.logs,
        offer=Offer(
            "Open Logs",
            "Open Logs of Torch Job…",
            "Show what this job’s ranks write",
            icon="list",
            rank=10,
            on_card=lambda _state, _live: True,
        ),
    ),
    Verb(
        "artifacts",
        "NAME [FOLDER]",
        "list what ranks left below artifacts_dir(), or copy it into a folder",
        (_ATTEMPT,),
        answers=verbs.artifacts,
    ),
    Verb(
        "attach",
        "[NAME]",
        "follow a job, then return its value",
        (_OUT, _DETACH, _TRUST),
        terminal=(_QUIET, JSON, _TRUST),
        waits=running.attach,
        offer=Offer(
            "Attach",
            "Attach to Torch Job…",
            "Follow this job in a new cell of the active notebook",
            icon="link",
            rank=20,
            on_card=lambda state, live: not state.phase.terminal and not live,
        ),
    ),
    Verb(
        "retry",
        "[NAME]",
        "run an ended job again as a new job, then return its value",
        (_OUT, _DETACH, _TRUST),
        terminal=(_DETACH, _QUIET, JSON, _TRUST),
        waits=running.retry,
        offer=Offer(
            "Retry",
            "Retry Torch Job…",
            "Run what this job ran once more, as a new job",
            icon="undo",
            rank=90,
            when=ENDED,
            on_card=lambda state, _live: (
                state.phase.terminal and state.phase is not Phase.SUCCEEDED and not state.info.of_lab
            ),
        ),
    ),
    Verb(
        "result",
        "[NAME]",
        "return the value of a job that has ended",
        (_OUT, _TRUST),
        terminal=(JSON, _TRUST),
        waits=running.result,
    ),
    Verb(
        "cancel",
        "NAME...",
        "cancel jobs; their records are kept",
        (_GENTLY,),
        answers=verbs.cancel,
        change=lambda backend, name: backend.cancel(name),
        offer=Offer(
            "Cancel",
            "Cancel Torch Job…",
            "End this job; its record and logs stay",
            icon="stop",
            rank=80,
            when=LIVE,
            warning="Its ranks are ended. Its record and logs stay.",
            done="told to end",
        ),
    ),
    Verb(
        "delete",
        "NAME...",
        "cancel jobs and delete their records, logs, values and artifacts",
        answers=verbs.delete,
        offer=Offer(
            "Delete",
            "Delete Torch Job…",
            "End this job, and remove its record, logs and value",
            icon="delete",
            rank=100,
            warning="It is ended, and its record, logs and value are removed for good.",
            warning_ended="Its record, logs and value are removed for good.",
        ),
    ),
    Verb(
        "suspend",
        "NAME...",
        "remove jobs' nodes but keep the jobs",
        answers=verbs.suspend,
        change=lambda backend, name: backend.suspend(name),
        offer=Offer(
            "Suspend",
            "Suspend Torch Job…",
            "Take this job’s nodes away, and keep the job",
            icon="pause",
            rank=60,
            when=SUSPENDABLE,
        ),
    ),
    Verb(
        "resume",
        "NAME...",
        "restart suspended jobs",
        answers=verbs.resume,
        change=lambda backend, name: backend.resume(name),
        offer=Offer(
            "Resume",
            "Resume Torch Job…",
            "Start this suspended job’s nodes again",
            icon="run",
            rank=70,
            when=SUSPENDED,
        ),
    ),
    Verb(
        "end",
        "NAME...",
        "end labs, once what they have taken is run",
        answers=labs.end,
        change=labs.ended,
        offer=Offer(
            "End",
            "End Torch Lab…",
            "End this lab once what it has taken is run",
            icon="stop",
            rank=55,
            when=KEPT,
            warning="What the lab’s ranks hold will be gone.",
        ),
    ),
    Verb(
        "promote",
        "NAME",
        "run what was run on a lab as one detached job of its own",
        (Option((labs.CELLS,), "which of its cells; all that ended well by default", metavar="1,3-5"),),
        any_option=True,
        waits=labs.promote,
    ),
    Verb(
        "export",
        "NAME FOLDER",
        "write manifests for `kubectl apply -f FOLDER`",
        answers=verbs.export,
    ),
    Verb(
        "gc",
        "",
        "list ended jobs and leftovers; with --yes, remove them",
        (Option(("--yes",), "remove them", takes="switch"),),
        answers=verbs.gc,
    ),
    Verb(
        "doctor",
        "",
        "check everything that a job with these options needs",
        (Option((verbs.PROBE,), "ask the image what it has, by a job of seconds", takes="switch"),),
        any_option=True,
        answers=verbs.doctor,
    ),
    Verb(
        "config",
        "[NAME]",
        "show a job's options, or the defaults for new jobs",
        answers=verbs.config,
    ),
)
VERBS: Mapping[str, Verb] = {verb.name: verb for verb in _ROWS}
# What pages offer, in the order of a job's menu; the rows of ``labextension/src/commands/table.ts``.
OFFERS: Offers = dict(
    sorted(((verb.name, verb.offer) for verb in _ROWS if verb.offer is not None), key=lambda row: row[1].rank)
)
HELP = ("-h", "--help")  # anywhere before --; in a verb's place also as a word
# Other tools' names of a verb: accepted where the verb changes nothing, else only pointed to.
_ALIASES = {"ls": "list", "ps": "list"}
_MEANT = {
    "kill": "cancel",
    "stop": "cancel",
    "rm": "delete",
    "submit": "run",
    "rerun": "retry",
    "show": "status",
    "follow": "attach",
    "wait": "attach",
}
# The changes to a job that stays, as the server offers them.
CHANGES: Mapping[str, Change] = {verb.name: verb.change for verb in _ROWS if verb.change is not None}


def named(word: str, verbs: Mapping[str, Verb] = VERBS) -> Verb:
    """Return the verb that ``word`` stands for; raises ``LineError`` with near ones."""
    name = _ALIASES.get(word, word)
    if name in verbs:
        return verbs[name]
    if word.startswith("-"):
        raise LineError(f"{hint()} {word}: a verb comes first; to run with options: {run_hint(f'{word} …')}")
    import difflib  # late: a verb that is known needs none

    near = [_MEANT[word]] if word in _MEANT else difflib.get_close_matches(word, verbs, n=2, cutoff=0.5)
    others = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(verbs)}"
    raise LineError(f"{hint()} {word}: no such verb; {others}")


def help_of(verb: Verb, more: str = "", *, without: Sequence[str] = ()) -> str:
    """Describe one verb and its options; ``more`` comes before the options of all jobs."""
    parts = [f"{hint(verb.name, verb.usage)}\n\n  {verb.help}"]
    parts += ["\n".join(options.help_line(o) for o in verb.options)] if verb.options else []
    parts += [more] if more else []
    parts += [options.help_text(without=without)] if verb.any_option else []
    return "\n\n".join(parts)


def _value(name: str, option: Option, word: str, rest: Iterator[str]) -> Any:
    flag, equals, text = word.partition("=")
    if option.takes == "switch":
        if equals:
            raise LineError(f"{hint(name)}: {flag} takes no value, got {text!r}")
        return True
    value = text if equals else next(rest, "")
    number = digits(value)
    if not value or (option.takes == "int" and number is None):
        what = "a whole number" if option.takes == "int" else option.metavar
        raise LineError(f"{hint(name)}: {flag} needs a value, {what}: got {value!r}")
    return number if option.takes == "int" else value


def _check(verb: Verb, words: Sequence[str]) -> None:
    fewest, most = _MANY[verb.words]
    if fewest <= len(words) <= most:
        return
    name, told = verb.name, repr(" ".join(words))
    if not most:
        raise LineError(f"{hint(name)} takes no arguments, got {told}")
    if most == 1 and verb.takes_name:
        raise LineError(f"{hint(name)}: one job at a time, got {told}")
    if not words and verb.takes_name:
        raise LineError(f"{hint(name)}: which job? See {hint('list')}")
    raise LineError(f"{hint(name, verb.words)}: got {told}")
