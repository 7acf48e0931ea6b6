"""The verbs that change a running job's code: ``swap``, ``set``, and a cell under ``--swap``."""

from __future__ import annotations

import ast
import sys
import tokenize
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtorchjob.backends.base import Backend
from nbtorchjob.commands.front import (
    Answer,
    Answers,
    EditedCell,
    Find,
    Front,
    ParsedArgs,
    edited,
    keep_edited,
)
from nbtorchjob.errors import LineError, SpecError, SwapError
from nbtorchjob.machine import interrupts
from nbtorchjob.machine.folders import working
from nbtorchjob.spec.options import CellOptions
from nbtorchjob.spec.overlay import pair
from nbtorchjob.state import Phase
from nbtorchjob.text.hints import hint, swap_hint

if TYPE_CHECKING:
    from nbtorchjob.job import Job
    from nbtorchjob.swapping.sending import SwapAnswer

_WITHIN_S = 60.0
_UNKNOWN = "Interrupted: the job goes on, with the new code if all ranks have it by now; {} tells."


def cell(options: CellOptions, text: str, filename: str, front: Front) -> None:
    """Swap what a cell defines into a running job."""
    from nbtorchjob.swapping import sending  # late, as below: most lines change nothing

    assert options.swap is not None
    job = front.find(options.swap)
    with interrupts.message(_UNKNOWN.format(hint("describe", job.name))):
        answer = sending.swap_job(
            job.info,
            text,
            front.namespace(),
            filename=filename,
            root=working(),
            origin=front.origin,
            or_back=options.or_back,
            within=within(options.within),
            say=front.say,
        )
    front.show(_answer(answer))


def choice(running: Job[Any], edited: EditedCell, again: str) -> Answer:
    """Offer choices for an edited cell whose job runs its former text; ``again`` as in ``sending.choice``."""
    from nbtorchjob.ui.card import sending

    keep_edited(running, edited)
    html = sending.choice(running.state, edited.text, again)
    name = running.name
    note = f"Note: {name} still runs this cell's earlier code: {swap_hint(name)} changes its code as it runs"
    return Answer(note, html=html)


def swap(args: ParsedArgs, find: Find) -> Answers:
    """Swap what a file defines into a running job, or else the job's own cell after an edit."""
    name, *files = args.words
    if not files:
        job = find(name)
        cell = edited(job)
        if cell is None:
            raise LineError(
                f"{hint('swap', job.name)}: expected a FILE, as no edited cell of the job was run"
            )
        text, filename, front = cell
        yield _swapped(args, job, text, front.namespace(), filename, origin=front.origin)
        return
    (file,) = files
    path = Path(file)
    try:
        with tokenize.open(path) as opened:  # obeys a coding comment, as Python does
            text = opened.read()
    except (OSError, ValueError, SyntaxError) as exc:
        why = getattr(exc, "strerror", None) or exc
        raise LineError(f"{hint('swap')}: {path} can't be read ({why})") from None
    folder = path.absolute().parent
    sys.path.insert(0, str(folder))  # as when Python runs the file: modules beside it come along
    try:
        definitions = _without_main(text, path)
        answer = _swapped(args, find(name), definitions, {}, str(path.absolute()), root=folder)
    finally:
        sys.path.remove(str(folder))
    yield answer


def _without_main(text: str, path: Path) -> str:
    """Return a script without its ``if __name__`` blocks; the other lines keep their numbers."""
    try:
        tree = ast.parse(text, str(path))
    except SyntaxError as exc:
        raise SwapError(f"{path}, line {exc.lineno}: {exc.msg}") from None
    lines = text.split("\n")
    for statement in tree.body:
        named = isinstance(statement, ast.If) and any(
            isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
        )
        if named and statement.end_lineno is not None:
            for number in range(statement.lineno, statement.end_lineno + 1):
                lines[number - 1] = ""
    return "\n".join(lines)


def set_(args: ParsedArgs, find: Find) -> Answers:
    """Set values that a running job's code reads."""
    from nbtorchjob.swapping import sending

    name, *words = args.words
    text, settings = sending.values(dict(pair(word, hint("set", name)) for word in words))
    yield _swapped(args, find(name), text, {}, "<torchjob set>", settings=settings)


def values(backend: Backend, address: str) -> list[tuple[str, str]]:
    """Return the plain values that a running job's code reads, by name, as texts."""
    from nbtorchjob.swapping import code

    state = backend.snapshot(address)
    plain_values = code.of(state).values if state.phase is Phase.RUNNING else {}
    return [(name, repr(value)) for name, value in plain_values.items()]


def set_values(backend: Backend, address: str, words: Sequence[str], seconds: float) -> str:
    """Set values that a running job's code reads, within ``seconds``; return the answer in words."""
    from nbtorchjob.swapping import sending

    text, settings = sending.values(dict(pair(word, "set") for word in words))
    state = backend.snapshot(address)
    return str(sending.swap(backend, state, text, {}, settings=settings, within=seconds))


def _swapped(
    args: ParsedArgs,
    job: Job[Any],
    text: str,
    namespace: dict[str, Any],
    filename: str,
    *,
    root: Path | None = None,
    **more: Any,
) -> Answer:
    from nbtorchjob.swapping import sending

    options = args.options
    with interrupts.message(_UNKNOWN.format(hint("describe", job.name))):
        answer = sending.swap_job(
            job.info,
            text,
            namespace,
            filename=filename,
            root=root or working(),
            or_back=options.get("or-back", False),
            within=within(options.get("within")),
            **more,
        )
    return _answer(answer)


def _answer(answer: SwapAnswer) -> Answer:
    data = {"name": answer.job, "names": dict(answer.names), "call": answer.call, "point": answer.point}
    more = {"step": answer.step, "compiled": answer.compiled, "unkept": answer.unkept}
    return Answer(str(answer), {**data, **more})


def within(text: str | None) -> float:
    """Return how many seconds ranks have to reach one call; raises ``SpecError``."""
    try:
        seconds = _WITHIN_S if text is None else float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise SpecError("within", text, "a number of seconds, at most a day")
    return seconds
