"""The verbs ``debug`` (pdb on a rank) and ``release`` (of held ranks)."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nbtorchjob.commands.front import Answer, Answers, Find, Front, ParsedArgs
from nbtorchjob.errors import AskError, LineError
from nbtorchjob.machine import interrupts
from nbtorchjob.state.events import FAILURE, STEPS
from nbtorchjob.text.hints import hint
from nbtorchjob.text.terminal import coloured
from nbtorchjob.text.words import ranks

if TYPE_CHECKING:
    from nbtorchjob.backends.talk import Session

_FIRST_S = 30.0  # for a rank to say anything at all
_NEXT_S = 3.0  # for one that goes on to stop again
_EVER_S = 7 * 86400.0
_DELIMITERS = " \t\n`~!@#$%^&*()-=+[{]}\\|;:'\",<>/?"  # pdb's words: a dot is part of one


def debug(args: ParsedArgs, front: Front) -> None:
    """Debug a stopped rank with pdb."""
    job = front.find(args.name)
    where = "a notebook" if hasattr(sys.modules.get("__main__"), "get_ipython") else "a terminal"
    with job.debugger(args.options.get("rank"), f"{getpass.getuser()} in {where}") as session:
        stop = session.stop
        again = hint("debug", job.name, "--rank", str(stop.rank))
        stays = f"rank {stop.rank} stays stopped: {again} returns to it"
        if stop.why == FAILURE:
            stays += f", {hint('release', job.name)} releases it"
        with interrupts.message(f"Left the debugger: {stays}."):
            ending = _typed(session, stays, {file: label for file, (label, _) in job.info.sources.items()})
    front.say(ending)


def release(args: ParsedArgs, find: Find) -> Answers:
    """Release ranks held by ``--hold``."""
    for name in args.words:
        job = find(name)
        released = job.release()
        outcome = f"released {ranks(released)}" if released else "no rank was still held"
        yield Answer(f"{job.name}: {outcome}", {"name": job.name, "released": released})


def _typed(session: Session, stays: str, labels: Mapping[str, str]) -> str:
    """Hold the conversation, in which files are called by their ``labels``; return why it is over."""
    patience = _FIRST_S
    while True:
        try:
            message = session.hear(patience)
        except TimeoutError:
            return "The rank continues."
        except AskError as exc:
            if patience == _FIRST_S:
                raise
            return f"Left the debugger: {exc}."  # the job may be over, or a connection cut
        if message is None:
            return "The rank has ended."
        if "trouble" in message:
            raise AskError(str(message["trouble"]))
        if "out" in message:
            text = str(message["out"])
            for file, label in labels.items():
                text = text.replace(file, label)
            sys.stdout.write(coloured(text, sys.stdout))
            sys.stdout.flush()
        elif "prompt" in message:
            with session.kept(), _completing(session):
                line = _read(coloured(str(message["prompt"]), sys.stdout))
            if line is None:
                return f"Left the debugger: {stays}."
            session.say(line)
            patience = _EVER_S
        elif "goes" in message:
            patience = _EVER_S if message["goes"] == STEPS else _NEXT_S
        elif "left" in message:
            return f"{message['left']}." if message["left"] else f"Left the debugger: {stays}."


def _read(prompt: str) -> str | None:
    """Return a line that is typed; None at the end of what can be."""
    try:
        return input(prompt)
    except EOFError:
        return None
    except RuntimeError as exc:  # a kernel's, where a notebook is run without anybody
        raise LineError(f"{hint('debug')} needs an interactive session: {exc}") from exc


@contextmanager
def _completing(session: Session) -> Iterator[None]:
    """Have the terminal's Tab complete as the rank does."""
    try:
        import readline  # late: a kernel has no terminal, and some Pythons have none of it
    except ImportError:
        yield
        return
    completions: list[str] = []

    def complete(text: str, number: int) -> str | None:
        if number == 0:
            completions[:] = session.complete(
                readline.get_line_buffer(), readline.get_begidx(), readline.get_endidx()
            )
        return completions[number] if number < len(completions) else None

    before = readline.get_completer(), readline.get_completer_delims()
    readline.parse_and_bind("tab: complete")
    readline.set_completer(complete)
    readline.set_completer_delims(_DELIMITERS)
    try:
        yield
    finally:
        readline.set_completer(before[0])
        readline.set_completer_delims(before[1])
