"""``debug``: pdb on a rank, typed here. ``release``: let go of those that are held."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nbtorchjob.commands.front import Answer, Answers, Find, Front, Given
from nbtorchjob.errors import AskError, LineError
from nbtorchjob.machine import interrupts
from nbtorchjob.state.events import FAILURE, STEPS
from nbtorchjob.text.hints import hint
from nbtorchjob.text.terminal import safe
from nbtorchjob.text.words import ranks

if TYPE_CHECKING:
    from nbtorchjob.backends.talk import Session

_FIRST_S = 30.0  # for a rank to say anything at all
_NEXT_S = 3.0  # for one that goes on to stop again
_EVER_S = 7 * 86400.0
_DELIMITERS = " \t\n`~!@#$%^&*()-=+[{]}\\|;:'\",<>/?"  # pdb's words: a dot is part of one


def debug(given: Given, front: Front) -> None:
    """Talk with pdb on a rank that is stopped."""
    job = front.find(given.name)
    with job.debugger(given.options.get("rank"), _who()) as session:
        stop = session.stop
        stays = (
            f"rank {stop.rank} stays stopped: {hint('debug', job.name, '--rank', str(stop.rank))} comes back"
        )
        if stop.why == FAILURE:
            stays += f", {hint('release', job.name)} lets go of it"
        with interrupts.told(f"Left the debugger: {stays}."):
            said = _typed(session, stays, {file: label for file, (label, _) in job.info.sources.items()})
    front.say(said)


def release(given: Given, find: Find) -> Answers:
    """Let go of ranks that are held where they failed."""
    for name in given.words:
        job = find(name)
        released = job.release()
        told = f"released {ranks(released)}" if released else "no rank was held any more"
        yield Answer(f"{job.name}: {told}", {"name": job.name, "released": released})


def _who() -> str:
    where = "a notebook" if hasattr(sys.modules.get("__main__"), "get_ipython") else "a terminal"
    return f"{getpass.getuser()} in {where}"


def _typed(session: Session, stays: str, labels: Mapping[str, str]) -> str:
    """Hold the conversation, in which files are called by their ``labels``; return why it is over."""
    patience = _FIRST_S
    while True:
        try:
            said = session.hear(patience)
        except TimeoutError:
            return "It goes on."
        except AskError as exc:
            if patience == _FIRST_S:
                raise
            return f"Left the debugger: {exc}."  # the job may be over, or a connection cut
        if said is None:
            return "The rank has ended."
        if "trouble" in said:
            raise AskError(str(said["trouble"]))
        if "out" in said:
            _write(_labelled(str(said["out"]), labels))
        elif "prompt" in said:
            with session.kept(), _completing(session):
                line = _read(safe(str(said["prompt"])))
            if line is None:
                return f"Left the debugger: {stays}."
            session.say(line)
            patience = _EVER_S
        elif "goes" in said:
            patience = _EVER_S if said["goes"] == STEPS else _NEXT_S
        elif "left" in said:
            return f"{said['left']}." if said["left"] else f"Left the debugger: {stays}."


def _labelled(text: str, labels: Mapping[str, str]) -> str:
    for file, label in labels.items():
        text = text.replace(file, label)
    return text


def _write(text: str) -> None:
    sys.stdout.write(safe(text))
    sys.stdout.flush()


def _read(prompt: str) -> str | None:
    """Return a line that is typed; None at the end of what can be."""
    try:
        return input(prompt)
    except EOFError:
        return None
    except RuntimeError as exc:  # a kernel's, where a notebook is run without anybody
        raise LineError(f"{hint('debug')}: nobody is there to type: {exc}") from exc


@contextmanager
def _completing(session: Session) -> Iterator[None]:
    """Have the terminal's Tab complete as the rank does."""
    try:
        import readline  # late: a kernel has no terminal, and some Pythons have none of it
    except ImportError:
        yield
        return
    found: list[str] = []

    def complete(text: str, number: int) -> str | None:
        if number == 0:
            found[:] = session.complete(
                readline.get_line_buffer(), readline.get_begidx(), readline.get_endidx()
            )
        return found[number] if number < len(found) else None

    before = readline.get_completer(), readline.get_completer_delims()
    readline.parse_and_bind("tab: complete")
    readline.set_completer(complete)
    readline.set_completer_delims(_DELIMITERS)
    try:
        yield
    finally:
        readline.set_completer(before[0])
        readline.set_completer_delims(before[1])
