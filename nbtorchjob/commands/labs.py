"""The verbs of labs and pools: start a pool, end a lab or a pool, and make one job of a lab's cells."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbtorchjob import api, capture, submission
from nbtorchjob.backends.base import Backend
from nbtorchjob.commands import verbs
from nbtorchjob.commands.front import Answer, Answers, Find, Front, ParsedArgs, RunRequest, for_each_name
from nbtorchjob.commands.running import submit
from nbtorchjob.errors import AskError, LineError, SpecError
from nbtorchjob.machine import interrupts
from nbtorchjob.machine.folders import working
from nbtorchjob.runtime.facts.secret import MASKED
from nbtorchjob.runtime.lab import TEXT
from nbtorchjob.spec import options
from nbtorchjob.state import JobState, turns
from nbtorchjob.state.info import MARK
from nbtorchjob.state.text import swaps
from nbtorchjob.state.turns import Stage, Turn
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint, run_hint
from nbtorchjob.ui.record import record

if TYPE_CHECKING:
    from nbtorchjob.labs import Lab

CELLS = "--cells"
# The options for cells that these verbs read.
_OF_POOLS = ("profile", "dry-run", "detach", "quiet")
_OF_PROMOTED = ("profile", "dry-run", "rehearse", "detach", "quiet")
_NO_CODE = (turns.KEEP, turns.PULL)  # cells of ours, which do nothing worth repeating


@for_each_name
def end(name: str, find: Find) -> Answers:
    """End labs, once the turns that they have taken are run."""
    lab = _lab(find, name, "end", f"a lab or a pool; {hint('cancel', name)} ends a job")
    if lab.state.phase.terminal:
        yield Answer(f"{lab.name} has already ended", record(lab.state, time.time()))
        return
    _end(lab)
    state = lab.state
    running = ", ".join(turn.full_name for turn in turns.running(state))
    after = f" after {running}" if running else ""
    yield Answer(f"{lab.name} ends{after}", record(state, time.time()))


def ended(backend: Backend, name: str) -> None:
    """End a lab; raises ``SpecError`` for a job that is none."""
    info = backend.info(name)
    if info.lab is None:
        raise SpecError("end", info.name, f"a lab; {hint('cancel', info.name)} ends a job")
    from nbtorchjob.labs import Lab  # late: most lines name no lab

    _end(Lab(backend, info))


def _end(lab: Lab) -> None:
    state = lab.state
    if not state.phase.terminal and turns.lead(state) is None:
        if turns.ranks(state):
            again = f"{hint('end', lab.name)} ends it once it has ranks"
            raise AskError(f"{lab.name} is restarting: {again}, {hint('cancel', lab.name)} at once")
        raise AskError(f"{lab.name} hasn't started: {hint('cancel', lab.name)} ends it")
    lab.end()


def pool(args: ParsedArgs, front: Front) -> Any:
    """Start a pool: standing pods in which jobs run."""
    with interrupts.message(interrupts.NOTHING):
        alone, flagged = options.split_words(args.words)
        if len(alone) != 1:
            raise LineError(f"{hint('pool', 'NAME')} takes one name, got {' '.join(alone)!r}")
        options.check_read(flagged, _OF_POOLS, hint("pool"))
        # A pool takes a lab's options: its name is the one that --keep gives.
        spec, cell_options = verbs.parse(shlex.join(["--keep", alone[0], *flagged]), front.say)
        pool_spec = replace(spec, lab=False)
        policy = spec.launch.run_policy
        if policy is not None and policy.active_deadline_seconds is not None:
            front.say("Note: a deadline doesn't end a pool, which ends when it is idle (--idle)")
        if spec.launch.max_restarts:
            front.say("Note: --max-restarts has no effect on a pool, whose pods are replaced (--retries)")
        if cell_options.dry_run:
            from nbtorchjob import pools  # late: most lines name no pool

            front.show(Answer(submission.dry_run(pools.call(), pools.requested(pool_spec))))
            return None
        job = api.pool(pool_spec).job
    front.say(f"{run_hint(f'--pool {job.name}')} runs a job there")
    return front.detached(job, None)


def promote(args: ParsedArgs, front: Front) -> Any:
    """Make one job of the cells that were run on a lab."""
    with interrupts.message(interrupts.NOTHING):
        name, numbers, flagged = _promoted(args.words)
        options.check_read(flagged, _OF_PROMOTED, hint("promote"))
        lab = _lab(front.find, name, "promote", "a lab, started with --keep NAME; this is an ordinary job")
        if lab.info.is_pool:
            raise SpecError("promote", lab.name, "a lab; what ran in this pool already was a job")
        state = lab.state
        chosen = _chosen(state, numbers)
        base = replace(lab.info.jobspec, lab=False, name=None)
        spec, cell_options = verbs.parse(shlex.join(flagged), front.say, base)
        texts = {turn.number: _as_swapped(turn, state, front) for turn in chosen}
        parts = []
        for turn in chosen:
            text, fact, of_cell = texts[turn.number], turn.fact, options.parse(turn.fact.arguments, base)[1]
            parts.append(
                capture.Part(text, fact.filename, _some(turn, state), dict(of_cell.arg), of_cell.argv)
            )
        label = f"{lab.name}, {words.ranks([turn.number for turn in chosen]).replace('rank', 'cell')}"
        call = capture.from_cells(parts, front.namespace(), label, root=working())
        call = replace(call, promoted=lab.name)
        if cell_options.dry_run:
            lines = []
            for turn in chosen:
                ranks = _some(turn, state)
                only = f", {words.ranks(ranks)} only" if ranks else ""
                arguments = f", {words.line(turn.fact.arguments, 100)}" if turn.fact.arguments else ""
                lines.append(f"# {turn.name}{only}{arguments}:")
                lines += (f"#   {words.line(code, 100)}" for code in texts[turn.number].strip().splitlines())
            front.show(Answer("\n".join(lines)))
    request = RunRequest(call, spec, replace(cell_options, detach=True), front.origin(call))
    return submit(request, front)


def _promoted(line: Iterable[str]) -> tuple[str, tuple[int, ...], list[str]]:
    """Return the lab's name, the numbers of the chosen cells, and the options of the job."""
    numbers: tuple[int, ...] = ()
    rest, remaining = [], iter(line)
    for word in remaining:
        flag, equals, value = word.partition("=")
        if flag != CELLS:
            rest.append(word)
            continue
        spelled = value if equals else next(remaining, "")
        try:
            numbers = words.parse(spelled)
        except words.SpansError:
            raise LineError(
                f"{hint('promote')}: --cells expects cells such as 1,3-5, got {spelled!r}"
            ) from None
    alone, flagged = options.split_words(rest)
    if len(alone) != 1:
        raise LineError(f"{hint('promote', 'NAME')} takes one lab, got {' '.join(alone)!r}")
    return alone[0], numbers, flagged


def _as_swapped(turn: Turn, state: JobState, front: Front) -> str:
    """Return a cell's text with what was swapped in while it ran."""
    from nbtorchjob.swapping import code  # late: most cells run as they were sent

    turn_swaps = [swap for swap in swaps.as_swapped(state) if swap.round == turn.fact.round]
    if not turn_swaps:
        return turn.fact.text
    front.say(f"Note: {turn.name} runs as it was swapped: {', '.join(map(swaps.names, turn_swaps))}")
    if set_ := dict.fromkeys(name for swap in turn_swaps for name in swap.names if "." in name):
        front.say(f"Note: {', '.join(set_)}: set while {turn.name} ran, but not by its code")
    return code.as_swapped(turn.fact.text, [swap.text for swap in turn_swaps])


def _chosen(state: JobState, cells: Sequence[int]) -> list[Turn]:
    """Return the chosen turns; raises ``LineError`` that names one that can't be repeated."""
    lab_turns = turns.turns(state)
    if cells:
        by_number = {turn.number: turn for turn in lab_turns}
        absent = [item for item in cells if item not in by_number]
        if absent:
            cell_range = (
                f"cells 1 to {len(lab_turns)}" if len(lab_turns) > 1 else words.count(len(lab_turns), "cell")
            )
            raise LineError(f"{hint('promote')}: {state.name} has no cell {absent[0]}: it has {cell_range}")
        selected = [by_number[item] for item in cells]
        bad = [turn for turn in selected if turn.stage is not Stage.DONE]
        if bad:
            how = {Stage.FAILED: "failed", Stage.LOST: "was lost"}.get(bad[0].stage, "is still running")
            raise LineError(f"{hint('promote')}: {bad[0].name} {how}")
    else:
        selected = [t for t in lab_turns if t.stage is Stage.DONE and t.fact.filename not in _NO_CODE]
    if not selected:
        raise LineError(f"{hint('promote')}: no cell of {state.name} has succeeded")
    for turn in selected:
        if why := _unrepeatable(turn):
            rest = [item.number for item in selected if not _unrepeatable(item)]
            without = f"; --cells {words.spell(rest)} omits it" if rest else ""
            raise LineError(f"{hint('promote')}: {turn.name} can't be repeated: {why}{without}")
    return selected


def _unrepeatable(turn: Turn) -> str:
    fact = turn.fact
    if not fact.text:
        return f"it was a call, {words.line(fact.label, 60)}, not a cell"
    if max(len(fact.text), len(fact.arguments)) >= TEXT:
        return "its text exceeds the limit of a lab's records"
    if fact.arguments == MASKED:
        return "one of its arguments may be a secret, which a lab's records don't have"
    if fact.pushed:
        return f"it used pushed values ({', '.join(fact.pushed)})"
    return ""


def _some(turn: Turn, state: JobState) -> tuple[int, ...]:
    """Return the ranks that a turn ran on, if they weren't all of the lab's."""
    base = turn.fact.base
    alike = [other.fact for other in turns.turns(state) if other.fact.base == base]
    every = {rank for fact in alike for rank in fact.ranks}
    if base == state.round:
        every |= {rank for node in state.nodes.values() for rank in node.ranks}
    return turn.fact.ranks if {*turn.fact.ranks} < every else ()


def _lab(find: Find, name: str, verb: str, allowed: str) -> Lab:
    """Return the lab of that name, or that of a turn; raises a ``SpecError`` about the verb for a job."""
    job = find(name)
    try:
        if job.info.of_lab:
            return api.lab(job.info.id.rpartition(MARK)[0])
        return api.lab(job.info.id if not name or job.info.name != name else name)
    except SpecError as exc:
        if exc.field != "on":  # about the name itself
            raise
        raise SpecError(verb, name, allowed) from None
