"""The verbs that change a running job's code: ``swap``, ``set``, and a cell under ``--swap``."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from nbtorchjob.commands.front import Answer, Answers, Find, Front, ParsedArgs
from nbtorchjob.errors import LineError, SpecError, SwapError
from nbtorchjob.machine import interrupts
from nbtorchjob.machine.folders import working
from nbtorchjob.spec.options import CellOptions
from nbtorchjob.spec.overlay import pair
from nbtorchjob.text.hints import hint

if TYPE_CHECKING:
    from nbtorchjob.swapping import SwapAnswer

_WITHIN_S = 60.0
_UNKNOWN = "Interrupted: the job goes on, with the new code if all ranks have it by now; {} tells."


def cell(options: CellOptions, text: str, filename: str, front: Front) -> None:
    """Have a running job go on with what a cell defines."""
    from nbtorchjob import swapping  # late, as in what follows: most lines change nothing

    assert options.swap is not None
    job = front.find(options.swap)
    with interrupts.message(_UNKNOWN.format(hint("describe", job.name))):
        answer = swapping.swap_job(
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


def swap(args: ParsedArgs, find: Find) -> Answers:
    """Have a running job go on with what a file defines."""
    name, file = args.words
    path = Path(file)
    try:
        text = path.read_text()
    except (OSError, ValueError) as exc:
        raise LineError(f"{hint('swap')}: {path} can't be read ({exc})") from None
    yield _changed(args, find, name, _definitions(text, path), str(path.absolute()))


def set_(args: ParsedArgs, find: Find) -> Answers:
    """Give values of a running job's code other values."""
    from nbtorchjob import swapping

    name, *words = args.words
    text = swapping.values(dict(pair(word, hint("set", name)) for word in words))
    yield _changed(args, find, name, text, "<torchjob set>")


def _changed(args: ParsedArgs, find: Find, name: str, text: str, filename: str) -> Answer:
    from nbtorchjob import swapping

    options, job = args.options, find(name)
    with interrupts.message(_UNKNOWN.format(hint("describe", job.name))):
        answer = swapping.swap_job(
            job.info,
            text,
            {},
            filename=filename,
            root=working(),
            or_back=options.get("or-back", False),
            within=within(options.get("within")),
        )
    return _answer(answer)


def _answer(answer: SwapAnswer) -> Answer:
    data = {"name": answer.job, "names": dict(answer.names), "call": answer.call, "point": answer.point}
    return Answer(str(answer), {**data, "step": answer.step})


def within(text: str | None) -> float:
    """Return the seconds that ranks have to come to one call; raises ``SpecError``."""
    try:
        seconds = _WITHIN_S if text is None else float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise SpecError("within", text, "a number of seconds, at most a day")
    return seconds


def _definitions(text: str, path: Path) -> str:
    """Return a script without what it does only where it is run."""
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
            lines[statement.lineno - 1 : statement.end_lineno] = [""] * (
                statement.end_lineno - statement.lineno + 1
            )
    return "\n".join(lines)
