"""The verbs of labs: to end one, and to make a job of what was run on it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbtorchjob import api, capture
from nbtorchjob.backends.base import Backend
from nbtorchjob.commands.front import Answer, Answers, Asked, Find, Front, Given
from nbtorchjob.commands.running import submit
from nbtorchjob.errors import AskError, LineError, SpecError
from nbtorchjob.machine import interrupts
from nbtorchjob.machine.folders import working
from nbtorchjob.runtime.lab.lead import TEXT
from nbtorchjob.spec import options
from nbtorchjob.spec.options import CellOptions
from nbtorchjob.state import JobState, turns
from nbtorchjob.state.info import MARK
from nbtorchjob.state.turns import Stage, Turn
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint
from nbtorchjob.ui.record import record

if TYPE_CHECKING:
    from nbtorchjob.labs import Lab

CELLS = "--cells"
_NO_CODE = (turns.KEEP, turns.PULL)  # cells of ours, which do nothing that is worth doing again


def end(given: Given, find: Find) -> Answers:
    """End labs, once what they have taken is run."""
    for name in given.words:
        lab = _lab(find, name)
        if lab.state.phase.terminal:
            yield Answer(f"{lab.name} has ended already", record(lab.state, time.time()))
            continue
        _end(lab)
        state = lab.state
        found = turns.running(state)
        behind = f" once {found.whose} is over" if found is not None else ""
        yield Answer(f"{lab.name} ends{behind}", record(state, time.time()))


def ended(backend: Backend, name: str) -> None:
    """End a lab; raises ``SpecError`` for a job that is none."""
    info = backend.info(name)
    if info.lab is None:
        raise SpecError("end", info.name, f"a lab: {hint('cancel', info.name)} ends a job")
    from nbtorchjob.labs import Lab  # late: most lines name no lab

    _end(Lab(backend, info))


def _end(lab: Lab) -> None:
    state = lab.state
    if not state.phase.terminal and turns.lead(state) is None:
        raise AskError(f"{lab.name} hasn't started: {hint('cancel', lab.name)} ends it")
    lab.end()


def promote(given: Given, front: Front) -> Any:
    """Make one job of the cells that were run on a lab."""
    with interrupts.told(interrupts.NOTHING):
        name, cells, line = _parted(given.words)
        lab = _lab(front.find, name)
        state = lab.state
        chosen = _chosen(state, cells)
        base = replace(lab.info.asked, lab=False, name=None)
        spec, asked = options.parse(line, base)
        _refuse(asked)
        for note in asked.notes:
            front.say(f"Note: {note}")
        parts = [capture.Part(turn.taken.text, turn.taken.filename, _some(turn, state)) for turn in chosen]
        label = f"{lab.name}, {_spelled([turn.number for turn in chosen])}"
        call = capture.from_cells(parts, front.namespace(), label, root=working())
        call = replace(call, promoted=lab.name)
        if asked.dry_run:
            front.show(Answer("\n".join(_listed(chosen, state))))
    made = Asked(call, spec, replace(asked, detach=True), front.origin(call))
    return submit(made, front)


def _parted(given: Sequence[str]) -> tuple[str, tuple[int, ...], str]:
    """Return the lab's name, which cells, and the options of the job."""
    cells: tuple[int, ...] = ()
    rest = []
    words_ = iter(given)
    for word in words_:
        flag, equals, value = word.partition("=")
        if flag == CELLS:
            spelled = value if equals else next(words_, "")
            try:
                cells = words.parse(spelled)
            except words.SpansError:
                told = f"--cells needs cells, such as 1,3-5: got {spelled!r}"
                raise LineError(f"{hint('promote')}: {told}") from None
        else:
            rest.append(word)
    alone, options_ = options.apart(rest)
    if len(alone) != 1:
        raise LineError(f"{hint('promote', 'NAME')}: one lab at a time, got {' '.join(alone)!r}")
    return alone[0], cells, shlex.join(options_)


def _chosen(state: JobState, cells: Sequence[int]) -> list[Turn]:
    """Return the turns that are meant; raises ``LineError`` for what can't be repeated, by its name."""
    known = turns.turns(state)
    if cells:
        by_number = {turn.number: turn for turn in known}
        absent = [each for each in cells if each not in by_number]
        if absent:
            there = f"cells 1 to {len(known)}" if len(known) > 1 else words.count(len(known), "cell")
            raise LineError(f"{hint('promote')}: {state.name} has no cell {absent[0]}: it has {there}")
        found = [by_number[each] for each in cells]
        bad = [turn for turn in found if turn.stage is not Stage.DONE]
        if bad:
            how = {Stage.FAILED: "failed", Stage.LOST: "came to no end"}.get(bad[0].stage, "isn't over")
            raise LineError(f"{hint('promote')}: {bad[0].name} {how}")
    else:
        found = [t for t in known if t.stage is Stage.DONE and t.taken.filename not in _NO_CODE]
    if not found:
        raise LineError(f"{hint('promote')}: no cell of {state.name} has ended well")
    for turn in found:
        if why := _unrepeatable(turn):
            rest = [each.number for each in found if not _unrepeatable(each)]
            without = f"; --cells {words.spell(rest)} leaves it out" if rest else ""
            raise LineError(f"{hint('promote')}: {turn.name} can't be repeated: {why}{without}")
    return found


def _unrepeatable(turn: Turn) -> str:
    taken = turn.taken
    if not taken.text:
        return f"it was a call, {words.line(taken.label, 60)}, not a cell"
    if len(taken.text) >= TEXT:
        return "its text is longer than a lab tells"
    if taken.pushed:
        return f"it came with pushed values ({', '.join(taken.pushed)})"
    return ""


def _some(turn: Turn, state: JobState) -> tuple[int, ...]:
    """Return the ranks that a turn ran on, if they weren't all that there were."""
    base = turn.taken.base
    alike = [each.taken for each in turns.turns(state) if each.taken.base == base]
    every = {rank for taken in alike for rank in taken.ranks}
    if base == state.round:
        every |= {rank for node in state.nodes.values() for rank in node.ranks}
    return turn.taken.ranks if {*turn.taken.ranks} < every else ()


def _listed(chosen: Sequence[Turn], state: JobState) -> Iterator[str]:
    """Yield the cells as comments, in front of what is sent."""
    for turn in chosen:
        some = _some(turn, state)
        yield f"# {turn.name}{f', {words.ranks(some)} only' if some else ''}:"
        yield from (f"#   {words.line(each, 100)}" for each in turn.taken.text.strip().splitlines())


def _refuse(asked: CellOptions) -> None:
    for name in ("keep", "on", "arg", "argv", "out"):
        if getattr(asked, name):
            raise LineError(f"{hint('promote')}: --{name} is for cells")


def _lab(find: Find, name: str) -> Lab:
    job = find(name)
    if job.info.of_lab:
        return api.lab(job.info.id.rpartition(MARK)[0])
    return api.lab(job.info.id if not name or job.info.name != name else name)


def _spelled(numbers: Sequence[int]) -> str:
    return words.ranks(numbers).replace("rank", "cell")
