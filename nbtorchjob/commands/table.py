"""The verbs of ``%torchjob`` and of the command ``nbtorchjob``: one row per verb, with everything about it.

Magics, command, completion, help, the server's routes, a card's buttons and the page's commands are made
from these rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from nbtorchjob.backends.base import Backend, Queues, Suspends, able
from nbtorchjob.commands import connecting, labs, running, swapping, verbs
from nbtorchjob.commands.front import Answers, Find, Front, ParsedArgs
from nbtorchjob.errors import LineError, SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec import Option, digits, option, options
from nbtorchjob.state import Phase
from nbtorchjob.text.hints import hint, run_hint
from nbtorchjob.ui.record import (
    CURVES,
    ENDED,
    KEPT,
    LIVE,
    RESUMABLE,
    RUNS,
    SUSPENDABLE,
    SUSPENDED,
    WAITING,
    Offer,
    Offers,
)

# Blanks end a word, so that a line without a call is refused at once, however many options it has.
_WORD = r"""(?:"[^"]*"|'[^']*'|[^\s"'])+"""
RUN = re.compile(
    rf"(?P<options>(?:-{_WORD}\s+(?:(?!-){_WORD}\s+)??)*?)(?P<call>[A-Za-z_][\w.]*\s*\(.*)", re.DOTALL
)

_MOST_OPTIONS = 3  # in a verb's usage

# How many words may follow a verb, by how its help writes them.
_MANY: Mapping[str, tuple[int, float]] = {
    "": (0, 0),
    "[WORD...]": (0, float("inf")),
    "NAME [TEXT...]": (1, float("inf")),
    "NAME [TAG...]": (1, float("inf")),
    "[NAME]": (0, 1),
    "NAME": (1, 1),
    "NAME...": (1, float("inf")),
    "NAME OTHER": (2, 2),
    "NAME FOLDER": (2, 2),
    "NAME [FOLDER]": (1, 2),
    "NAME [PATH]": (1, 2),
    "NAME PATH [FOLDER]": (2, 3),
    "NAME [PORT[:RANK]]": (1, 2),
    "bash|zsh|fish": (1, 1),
    "NAME [FILE]": (1, 2),
    "NAME K=V...": (2, float("inf")),
}


Doing: TypeAlias = Callable[[ParsedArgs, Front], Any]
Answering: TypeAlias = Callable[[ParsedArgs, Find], Answers]
Change: TypeAlias = Callable[[Backend, str], None]


class Verb(FrozenDataclass):
    """A verb's name, what may follow it, as the help writes it, and how it is carried out.

    One with ``any_option`` takes all of the option table's options, before its words. ``terminal`` are the
    command's options if they differ from a notebook's. A verb ``answers``, or ``waits`` for a job and may
    return its value. One with a ``change`` that keeps the job is a route of the server, too; one with an
    ``offer`` is a command of JupyterLab.
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

    def parse(self, words: Sequence[str]) -> ParsedArgs:
        """Separate the words after the verb from its own options. Raises ``LineError``.

        With ``any_option`` all of them remain words: the verb parses the options of jobs itself.
        """
        if self.any_option:
            return ParsedArgs([*words], {})
        by_flag = {flag: declared for declared in self.options for flag in declared.flags}
        parsed = ParsedArgs([], {})
        rest = iter(words)
        for word in rest:
            if not word.startswith("-"):
                parsed.words.append(word)
                continue
            if word == "--":  # a note or a path may begin with "-"
                parsed.words.extend(rest)
                break
            declared = by_flag.get(word.partition("=")[0])
            if declared is None:
                available = ", ".join(by_flag) or "none"
                raise LineError(f"{hint(self.name)}: unknown option {word}; available: {available}")
            flag, equals, text = word.partition("=")
            if declared.takes == "switch":
                if equals:
                    raise LineError(f"{hint(self.name)}: {flag} takes no value, got {text!r}")
                value: str | int | None = True
            else:
                value = text if equals else next(rest, "")
                number = digits(value)
                if not value or (declared.takes == "int" and number is None):
                    description = "a whole number" if declared.takes == "int" else declared.metavar
                    raise LineError(f"{hint(self.name)}: {flag} expects {description}, got {value!r}")
                value = number if declared.takes == "int" else value
            before = parsed.options.get(declared.key, [])
            parsed.options[declared.key] = [*before, value] if declared.repeated else value
        fewest, most = _MANY[self.words]
        if not (fewest <= len(parsed.words) <= most):
            command, words_shown = hint(self.name), repr(" ".join(parsed.words))
            if not most:
                raise LineError(f"{command} takes no arguments, got {words_shown}")
            if most == 1 and self.takes_name:
                raise LineError(f"{command} takes one job, got {words_shown}")
            if not parsed.words and self.takes_name:
                raise LineError(f"{command} expects a job; {hint('list')} lists them")
            raise LineError(f"{command} expects {self.words}, got {words_shown}")
        names = parsed.words[: None if self.words in ("NAME...", "NAME OTHER") else 1]
        if self.takes_name and "" in names:  # from an unset variable; to ``find`` it means the newest job
            raise LineError(f"{hint(self.name)} expects a job, got ''; {hint('list')} lists them")
        return parsed

    def do(self, args: ParsedArgs, front: Front) -> Any:
        """Carry out the verb, and let ``front`` show the outcome; return the line's value."""
        try:
            if self.waits is not None:
                return self.waits(args, front)
            if self.answers is not None:
                for answer in self.answers(args, front.find):
                    front.show(answer)
        except SpecError as exc:  # it names the parameter in Python, the line's user has given an option
            flags = [o.flags[-1] for o in self.options if o.key == exc.field and o.key in args.options]
            raise exc.about(flags[0]) if flags else exc from None
        return None


_OUT = option("-o, --out VAR", "the variable that receives the value")
_DETACH = option("-d, --detach", "return without waiting for the job")
_TRUST = option("--trust", "unpickle another user's values, running their code")
_GENTLY = option("--gently", "let ranks save first, through leaving()")
_RANK = option("--rank N", "which rank; 0 by default", takes="int")
_STOPPED = option("--rank N", "which rank, if several are stopped", takes="int")
_SECONDS = option("--seconds N", "duration, up to 60 s; 3 by default")
_MEMORY = option("--memory", "record accelerator memory, as a torch snapshot")
_FOLDER = option("--folder FOLDER", "where to write the file; . by default")
_TAIL = option("--tail N", "only the last N lines", takes="int")
_TIMESTAMPS = option("--timestamps", "prefix each line with its time")
_SINCE = option("--since WHEN", "only lines since then: 10m or 2026-03-01T14:30")
_UNTIL = option("--until WHEN", "only lines until then")
_GREP = option("--grep REGEX", "only lines that match this regular expression")
_EVERY_RANK = option("--all-ranks", "all ranks' lines, sorted by time")
_NODE = option("--node N", "lines of this node's ranks, by time", takes="int")
_ATTEMPT = option("--attempt N", "artifacts of this attempt; the newest by default", takes="int")
_OF_NODE = option("--node N", "the file of this node; the first that has it by default", takes="int")
_SYNC = option("--sync FOLDER", "keep a folder in step with them until the job ends")
_LOCAL_PORT = option("--local-port N", "the port here; the same number, if free, by default", takes="int")
_END_BOARD = option("--end", "end the job's TensorBoard")
_END = option("--end", "close it; without a port, all of the job's")
_STDOUT = option("--stdout", "only what was written to stdout")
_STDERR = option("--stderr", "only what was written to stderr")
_OR_BACK = option("--or-back", "put the old code back if the new one's first call fails")
_WITHIN = option("--within SECONDS", "time for all ranks to reach one call; 60 by default")
_CLEAR = option("--clear", "remove the note")
_REMOVE = option("--remove", "remove these tags")
_ZIP = option("--zip FILE", "write all ranks' whole logs to FILE")
_LOGS = (_RANK, _NODE, _EVERY_RANK, _STDOUT, _STDERR, _TAIL, _SINCE, _UNTIL, _GREP, _TIMESTAMPS, _ZIP)
_FOLLOW = option("-f, --follow", "follow the log until the job ends")
_QUIET = option("--quiet", "print only the value, no log or status")
JSON = option("--json", "print JSON, one document per line")
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
        "[WORD...]",
        "list jobs, or those in which these words occur",
        (option("--all", "include other users' jobs on the cluster"),),
        answers=verbs.list_,
    ),
    Verb(
        "status",
        "[NAME]",
        "show a job's status",
        answers=lambda args, find: verbs.status(args, find, OFFERS),
    ),
    Verb(
        "describe",
        "[NAME]",
        "show a job's details: attempts, budgets, policies, location",
        answers=verbs.describe,
        offer=Offer(
            "Describe", "Describe Torch Job…", "Show everything known about this job", icon="info", rank=40
        ),
    ),
    Verb(
        "note",
        "NAME [TEXT...]",
        "put a note on a job, or show it",
        (_CLEAR,),
        answers=verbs.note,
        offer=Offer(
            "Note and Tags",
            "Note and Tags of Torch Job…",
            "Add a note and tags to this job, to find it again",
            icon="tag",
            rank=42,
        ),
    ),
    Verb(
        "tag",
        "NAME [TAG...]",
        "tag a job, or show its tags",
        (_REMOVE,),
        answers=verbs.tag,
    ),
    Verb(
        "diff",
        "NAME OTHER",
        "compare two jobs",
        answers=verbs.diff,
    ),
    Verb(
        "lock",
        "[NAME]",
        "print the ranks' packages as pip requirements",
        answers=verbs.lock,
    ),
    Verb(
        "stacks",
        "[NAME]",
        "show each rank's stack, and the blocking rank",
        answers=verbs.stacks,
        change=verbs.sample,
        offer=Offer(
            "Stacks",
            "Show Stacks of Torch Job…",
            "Show where each rank of this job is now, and which one blocks the others",
            icon="search",
            rank=45,
            when=RUNS,
            on_card=lambda state, _live: state.phase is Phase.RUNNING,
        ),
    ),
    Verb(
        "profile",
        "[NAME]",
        "profile a rank of a running job",
        (_SECONDS, _RANK, _MEMORY, _FOLDER),
        answers=verbs.profile,
    ),
    Verb(
        "debug",
        "[NAME]",
        "debug a stopped rank with pdb",
        (_STOPPED,),
        waits=connecting.debug,
    ),
    Verb(
        "release",
        "NAME...",
        "release ranks held by --hold",
        answers=connecting.release,
    ),
    Verb(
        "swap",
        "NAME [FILE]",
        "change a running job's code to a file's, or an edited cell's",
        (_OR_BACK, _WITHIN),
        answers=swapping.swap,
        offer=Offer(
            "Swap Code…",
            "Swap Code of Torch Job…",
            "Change this job’s code as it runs, in a new cell of the active notebook",
            icon="edit",
            rank=48,
            when=RUNS,
        ),
    ),
    Verb(
        "set",
        "NAME K=V...",
        "change values that a running job's code reads",
        (_OR_BACK, _WITHIN),
        answers=swapping.set_,
        offer=Offer(
            "Set Values…",
            "Set Values of Torch Job…",
            "Change values that this job’s code reads, on all ranks at one step",
            icon="settings",
            rank=47,
            when=RUNS,
        ),
    ),
    Verb(
        "logs",
        "[NAME]",
        "print a rank's log, or all ranks' logs",
        _LOGS,
        terminal=(*_LOGS, _FOLLOW),
        waits=running.logs,
        offer=Offer(
            "Open Logs",
            "Open Logs of Torch Job…",
            "Show what this job’s ranks write",
            icon="list",
            rank=10,
            on_card=lambda state, _live: state.first_start is not None,
        ),
    ),
    Verb(
        "artifacts",
        "NAME [FOLDER]",
        "list a job's artifacts, or copy them",
        (_ATTEMPT,),
        answers=verbs.artifacts,
    ),
    Verb(
        "files",
        "NAME [PATH]",
        "list the files that ranks have written so far",
        (_SYNC,),
        answers=verbs.files,
        offer=Offer(
            "Browse Files",
            "Browse Files of Torch Job…",
            "Show what this job’s ranks have written, and open it",
            icon="folder",
            rank=16,
        ),
    ),
    Verb(
        "get",
        "NAME PATH [FOLDER]",
        "copy a file that ranks have written, or a folder",
        (_OF_NODE,),
        answers=verbs.get,
    ),
    Verb(
        "forward",
        "NAME [PORT[:RANK]]",
        "reach a port of a rank, at a port of this machine",
        (_LOCAL_PORT, _END),
        waits=connecting.forward,
    ),
    Verb(
        "tensorboard",
        "NAME [PATH]",
        "show a job in TensorBoard, while it runs and after",
        (_END_BOARD,),
        waits=connecting.tensorboard,
        offer=Offer(
            "Open in TensorBoard",
            "Open Torch Job in TensorBoard…",
            "Show this job’s curves in TensorBoard, in a new cell of the notebook",
            icon="launch",
            rank=18,
            when=CURVES,
            on_card=lambda state, _live: bool(state.shows_curves),
        ),
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
        "run an ended job again, as a new job",
        (_OUT, _DETACH, _TRUST),
        terminal=(_DETACH, _QUIET, JSON, _TRUST),
        waits=running.retry,
        offer=Offer(
            "Retry",
            "Retry Torch Job…",
            "Run this job again, as a new job",
            icon="undo",
            rank=90,
            when=ENDED,
            on_card=lambda state, _live: (
                state.phase.terminal and state.phase is not Phase.SUCCEEDED and not state.info.of_lab
            ),
        ),
    ),
    Verb(
        "continue",
        "[NAME]",
        "run an ended job again, from its checkpoints",
        (_OUT, _DETACH, _TRUST),
        terminal=(_DETACH, _QUIET, JSON, _TRUST),
        waits=running.continue_,
        offer=Offer(
            "Resume From Checkpoint",
            "Resume Torch Job From Checkpoint…",
            "Run this job again, as a new job that finds its checkpoints",
            icon="fastForward",
            rank=92,
            when=RESUMABLE,
            on_card=lambda state, _live: state.phase is not Phase.SUCCEEDED and bool(state.resumable),
        ),
    ),
    Verb(
        "result",
        "[NAME]",
        "return the value of an ended job",
        (_OUT, _TRUST),
        terminal=(JSON, _TRUST),
        waits=running.result,
    ),
    Verb(
        "cancel",
        "NAME...",
        "cancel jobs, keeping their records",
        (_GENTLY,),
        answers=verbs.cancel,
        change=lambda backend, name: backend.cancel(name),
        offer=Offer(
            "Cancel",
            "Cancel Torch Job…",
            "End this job; its record and logs are kept",
            icon="stop",
            rank=80,
            when=LIVE,
            warning="This ends its ranks. Its record and logs are kept.",
            done="told to end",
        ),
    ),
    Verb(
        "delete",
        "NAME...",
        "delete jobs with their logs, values and artifacts",
        answers=verbs.delete,
        offer=Offer(
            "Delete",
            "Delete Torch Job…",
            "End this job, and remove its record, logs and value",
            icon="delete",
            rank=100,
            warning="This ends it, and removes its record, logs and value for good.",
            warning_ended="This removes its record, logs and value for good.",
        ),
    ),
    Verb(
        "suspend",
        "NAME...",
        "suspend jobs: remove their nodes",
        answers=verbs.suspend,
        change=lambda backend, name: able(backend, Suspends, "suspend", name).suspend(name),
        offer=Offer(
            "Suspend",
            "Suspend Torch Job…",
            "Remove this job’s nodes, but keep the job",
            icon="pause",
            rank=60,
            when=SUSPENDABLE,
        ),
    ),
    Verb(
        "resume",
        "NAME...",
        "resume suspended jobs",
        answers=verbs.resume,
        change=lambda backend, name: able(backend, Suspends, "resume", name).resume(name),
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
        "start",
        "NAME...",
        "start waiting jobs beside the running ones",
        answers=verbs.start,
        change=lambda backend, name: able(backend, Queues, "start", name).start(name),
        offer=Offer(
            "Run Beside It",
            "Start Waiting Torch Job…",
            "Start this job now, alongside those it is waiting for",
            icon="run",
            rank=50,
            when=WAITING,
            on_card=lambda state, _live: any(wait.holder and not wait.exclusive for wait in state.waiting),
        ),
    ),
    Verb(
        "end",
        "NAME...",
        "end labs and pools, once they have run what was sent",
        answers=labs.end,
        change=labs.ended,
        offer=Offer(
            "End",
            "End Torch Lab…",
            "End this lab once it has run everything sent to it",
            icon="stop",
            rank=55,
            when=KEPT,
            warning="What the lab’s ranks hold will be lost.",
        ),
    ),
    Verb(
        "pool",
        "NAME",
        "keep pods warm, in which jobs start at once",
        any_option=True,
        waits=labs.pool,
    ),
    Verb(
        "promote",
        "NAME",
        "rerun a lab's cells as one detached job",
        (option(f"{labs.CELLS} 1,3-5", "which cells; all that succeeded by default"),),
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
        "list ended jobs and leftovers, or remove them",
        (option("--yes", "remove them"),),
        answers=verbs.gc,
    ),
    Verb(
        "doctor",
        "",
        "check everything that a job with these options needs",
        (option(verbs.PROBE, "inspect the image with a short job"),),
        any_option=True,
        answers=verbs.doctor,
    ),
    Verb(
        "config",
        "[NAME]",
        "show a job's options, or the defaults",
        answers=verbs.config,
    ),
)
VERBS: Mapping[str, Verb] = {verb.name: verb for verb in _ROWS}
# What pages offer, in the order of a job's menu; the rows of ``labextension/src/commands/table.ts``.
OFFERS: Offers = dict(
    sorted(((verb.name, verb.offer) for verb in _ROWS if verb.offer is not None), key=lambda row: row[1].rank)
)
HELP = ("-h", "--help")  # anywhere before --; in a verb's place also as a word
# Other tools' names for a verb: accepted if the verb changes nothing, else only suggested.
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
# The changes that keep the job, as the server offers them.
CHANGES: Mapping[str, Change] = {verb.name: verb.change for verb in _ROWS if verb.change is not None}


def named(word: str, verbs: Mapping[str, Verb] = VERBS) -> Verb:
    """Return the verb that ``word`` stands for; raises ``LineError`` with similar ones."""
    name = _ALIASES.get(word, word)
    if name in verbs:
        return verbs[name]
    if word.startswith("-"):
        raise LineError(
            f"{hint()} {word}: expected a verb first; to run with options: {run_hint(f'{word} …')}"
        )
    import difflib  # late: a verb that is known needs none

    near = [_MEANT[word]] if word in _MEANT else difflib.get_close_matches(word, verbs, n=2, cutoff=0.5)
    others = f"did you mean {' or '.join(near)}?" if near else f"available: {', '.join(verbs)}"
    raise LineError(f"{hint()} {word}: unknown command; {others}")


def help_of(verb: Verb, more: str = "", *, without: Sequence[str] = ()) -> str:
    """Describe one verb and its options; ``more`` comes at the end."""
    parts = [f"{hint(verb.name, verb.usage)}\n\n  {verb.help}"]
    own = ["\n".join(options.help_line(o) for o in verb.options)] if verb.options else []
    if verb.any_option:
        own = [f"Options of this command:\n{lines}" for lines in own]
        own = [options.help_text(without=without, more=own)]
    return "\n\n".join([*parts, *own, *([more] if more else [])])
