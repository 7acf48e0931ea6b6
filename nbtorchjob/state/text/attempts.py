"""Texts on attempts: why each failed and what follows; and on labs: what they do, lose, and when they end.

The text is clean (``words.clean``) and bounded, but not escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from nbtorchjob.runtime.api.report import TOTALS
from nbtorchjob.state import Attempt, Budget, JobState, Node, Phase, progress, turns
from nbtorchjob.state.facts.events import WorkersStarted
from nbtorchjob.state.facts.series import as_float
from nbtorchjob.state.text import facts, lifetime
from nbtorchjob.state.text.tracebacks import frames_text, summarised
from nbtorchjob.state.turns import Stage
from nbtorchjob.text.hints import hint
from nbtorchjob.text.words import (
    DOT,
    LINE,
    about,
    clip,
    clock,
    count,
    duration,
    fit,
    line,
    number,
    ranks,
    size,
)

_LATE_S = 10.0  # a follower takes a moment to start an attempt that is due
_MAX_PAST = 5
_MAX_WHY = 160
_MAX_TEXT = 300


def pending(state: JobState, now: float) -> list[str]:
    """Explain why the job doesn't run as it should: what comes next, which nodes left, what it waits for."""
    if state.phase.terminal:
        return []
    texts = (
        *(
            coming(state, now),
            *facts.stops(state, now),
            facts.leaving(state, now),
            facts.reforming(state),
            *facts.waiting(state),
            lifetime.doing(state),
        ),
        facts.hanging(state, now),
    )
    return [text for text in texts if text]


def use(attempt: Attempt, state: JobState) -> str:
    """Return what the attempt's end used, as ``preemption 1 of 3``; empty where it used nothing."""
    spent = next((row for row in state.budgets if row.budget is attempt.budget), None)
    if spent is None:
        return ""
    until_then = state.attempts[: _place(attempt, state) + 1]
    alike = [other for other in until_then if other.budget is attempt.budget]
    paid = len(alike) <= spent.used  # the last attempt of an ended job paid for no further one
    return f"{spent.budget.value.removesuffix('s')} {len(alike)} of {facts.limit(spent)}" if paid else ""


def _place(attempt: Attempt, state: JobState) -> int:
    """Return the index of an attempt: a queue may take its nodes away several times under one number."""
    return state.attempts.index(attempt)


def saved(attempt: Attempt, state: JobState) -> str:
    """Return ``saved at step 1,204`` for an attempt whose ranks left as a node was about to end; else "".

    Once the ranks were started again, the text adds that they went on from there, and as which attempt.
    """
    if attempt.left is None:
        return ""
    values = attempt.left.metrics
    counted = [f"{unit} {as_float(values[unit]):,.15g}" for unit in TOTALS if unit in values]
    text = " ".join(["saved", *(["at", *counted[-1:]] if counted else [])])
    later = state.attempts[_place(attempt, state) + 1 :]
    if not later:
        return text
    who = f"attempt {later[0].number} " if later[0].number > attempt.number else ""
    return f"{text}, and {who}went on from there"


def why(attempt: Attempt, state: JobState) -> str:
    """Describe in a few words why an attempt ended; empty while it goes on, and where it ended well."""
    failed = attempt.failure
    return clip(facts.heading(failed, state) or failed.reason.line, _MAX_WHY) if failed else ""


def reason(attempt: Attempt, state: JobState) -> str:
    """Explain why an attempt ended and, for the newest, what to do about it; empty where :func:`why` is."""
    failed = attempt.failure
    if failed is None or attempt != state.attempts[-1]:
        return why(attempt, state)
    return f"{why(attempt, state).rstrip('.')}. {facts.cause(failed, state)}".rstrip()


def coming(state: JobState, now: float) -> str:
    """Describe when the next attempt starts, why there is one and what it uses; empty where none follows."""
    plan = state.next
    if plan is None:
        return ""
    last = state.attempts[-1]
    where = " on a host that isn't preemptible" if plan.on_demand else ""
    if now < plan.at:
        starts = f"starts in {duration(plan.at - now)}"
    # This machine's supervisor starts what is due; on a cluster that takes a follower of the job.
    elif now < plan.at + _LATE_S or not state.info.cluster:
        starts = "is about to start"
    else:
        starts = f"waits for someone to follow the job ({hint('attach', line(state.info.name, 80))})"
    text = f"attempt {plan.number} {starts}{where}"
    return clip(_because(text, last, state, "uses "), _MAX_TEXT)


def _because(text: str, attempt: Attempt, state: JobState, uses: str) -> str:
    used = use(attempt, state)
    details = "; ".join(
        part for part in (saved(attempt, state), why(attempt, state), used and uses + used) if part
    )
    return f"{text}: {details}" if details else text


def exhausted(state: JobState) -> str:
    """Explain why no attempt follows one that failed; empty where the job has no budgets, or didn't fail."""
    last = state.attempts[-1] if state.attempts else None
    failed = last.failure if last is not None else None
    if state.phase is not Phase.FAILED or last is None or failed is None or not state.budgets:
        return ""
    if state.missed is not None:
        return f"attempt {state.missed.number} would start after the deadline, so it isn't retried"
    if last.budget is None:
        if failed.error is None or failed.rank is None:
            return ""
        name = line(failed.error.type.rpartition(".")[2], 80)
        return f"not retried: {name} isn't a RecoverableError or named by --retry-on"
    spent = next(row for row in state.budgets if row.budget is last.budget)
    if spent.used < spent.limit:
        return ""
    name = "retries" if spent.budget is Budget.FAILURES else "preemptions"
    return f"no {name} left ({facts.budget(spent)})" if spent.limit else f"not retried: --{name} is 0"


def past(state: JobState) -> list[str]:
    """Return a line for each earlier attempt, newest first: how long it took, why it ended, what it used."""
    before = state.attempts[:-1]
    shown = []
    for attempt in reversed(before[-_MAX_PAST:]):
        took = span(attempt, None)
        text = f"attempt {attempt.number}" + (f", {took}" if took else "")
        shown.append(clip(_because(text, attempt, state, "used "), _MAX_TEXT))
    more = len(before) - len(shown)
    rest = f"and {more} more: {hint('describe', line(state.info.name, 80))}"
    return [*shown, rest] if more else shown


def span(attempt: Attempt, now: float | None) -> str:
    """Describe how long an attempt took, until ``now`` if it still runs; empty where that is unknown."""
    end = attempt.end if attempt.end is not None else now
    return duration(end - attempt.start) if attempt.start is not None and end is not None else ""


MOST_BYTES = 5_000  # of a traceback; a longer one loses its middle


def lines(state: JobState) -> list[str]:
    """Return which rank or node failed first and how, its traceback, the cause, and what else failed."""
    failure, out = state.failure, []
    if failure is not None:
        out = [facts.heading(failure, state)]
        if failure.error is not None and not summarised(failure.error):
            frames = frames_text(failure.error, state.info.sources.get).split("\n")
            out += fit([clip(frame, LINE) for frame in frames], MOST_BYTES)
        out += [f"  {line}" for line in facts.output(state)]
        out += [facts.cause(failure, state), exhausted(state), lost(state)]
    label = "Also: " if failure else "So far: "
    return [*filter(None, out), *(label + row for row in facts.beside(state))]


def turn_causes(state: JobState) -> Mapping[int, str]:
    """Return why each round after the first began, by its number: ``node 1 lost``, ``restart 2``."""
    rounds: dict[int, dict[int, tuple[Node, WorkersStarted]]] = {}
    for node in state.nodes.values():
        for workers in node.workers:
            rounds.setdefault(workers.round, {})[node.index] = (node, workers)
    return {late: "; ".join(_turn(rounds[early], rounds[late])) for early, late in pairwise(sorted(rounds))}


def setback(state: JobState) -> str:
    """Say where the ranks go on from after they were started again, until they have caught up."""
    setback = progress.setback(state)
    if setback is None or state.phase is not Phase.RUNNING:
        return ""
    round_, reached, begun = setback
    unit, why = progress.unit_of(state.spoken), turn_causes(state).get(round_, "started again")
    if begun < reached:
        return f"{why}: goes on from {unit} {number(begun)}, of {number(reached)} done before"
    return f"{why}: {unit} {number(reached)} was reached before"


def _turn(
    before: Mapping[int, tuple[Node, WorkersStarted]], after: Mapping[int, tuple[Node, WorkersStarted]]
) -> Iterator[str]:
    attempt = max(node.life_of(workers).attempt for node, workers in after.values())
    restart = max(workers.restart for _, workers in after.values())
    lost, come = before.keys() - after.keys(), after.keys() - before.keys()
    again = {n for n in before.keys() & after.keys() if before[n][1].pod != after[n][1].pod}
    if attempt > max(node.life_of(workers).attempt for node, workers in before.values()):
        yield f"attempt {attempt}"
    elif lost or come or again:
        for nodes, word in ((lost, "lost"), (come, "joined"), (again, "replaced")):
            if nodes:
                yield f"{ranks(nodes).replace('rank', 'node')} {word}"
    elif restart > max(workers.restart for _, workers in before.values()):
        yield f"restart {restart}"
    else:
        yield "started again"


WHY: Mapping[str, str] = {"asked": "its end was requested", "idle": "it was idle"}
IDLE = "idle"
_MAX_WHOSE, _MAX_NAMED = 80, 4


def doing(state: JobState, now: float) -> str:
    """Say in a few words what a lab does: ``idle 3 min``, ``runs cell 4, 2 more wait``; "" as it starts."""
    since = turns.idle_since(state) if state.info.lab is not None else None
    text = doing_now(state)
    return f"{text} {about(max(0.0, now - since))}" if since is not None and text == IDLE else text


def doing_now(state: JobState) -> str:
    """Return what :func:`doing` does, without the idle time."""
    if state.info.lab is None or state.phase.terminal:
        return ""
    since = turns.idle_since(state)
    running = turns.running(state)
    if state.lab_ends is not None and not running:
        return "ending"
    if since is not None:
        return IDLE
    if not running or not state.working or state.suspended:
        return ""
    more = sum(turn.stage is Stage.WAITS for turn in turns.turns(state))
    behind = f", {more} more {'waits' if more == 1 else 'wait'}" if more else ""
    *numbers, last = (str(turn.number) for turn in running)
    names = f"s {', '.join(numbers)} and {last}" if numbers else f" {last}"
    return f"runs {turns.what_of(state.info)}{names}{behind}"


def lab_lines(state: JobState, now: float) -> list[str]:
    """Return the lines on a lab's card: whose cell runs, what the lab has run and holds, and when it ends."""
    if state.info.lab is None:
        return []
    all_turns, noun = turns.turns(state), turns.what_of(state.info)
    running = turns.running(state) if not state.suspended else []
    if state.phase.terminal:
        why = WHY.get(state.lab_ends.why, "") if state.lab_ends is not None else ""
        return [f"{count(len(all_turns), noun)}{f'; it ended because {why}' if why else ''}"]
    named = [line(turn.full_name, _MAX_WHOSE) for turn in running if turn.fact.by or turn.nodes]
    owners = [*named[:_MAX_NAMED], *([f"{len(named) - _MAX_NAMED} more"] if named[_MAX_NAMED:] else [])]
    parts = [f"{', '.join(owners)} run{'s' if len(running) == 1 else ''}"] if owners else []
    parts += [f"{count(len(all_turns), noun)} so far"] if all_turns else []
    parts += [f"holds {size(bytes_held)}"] if (bytes_held := memory(state)) and not state.suspended else []
    end = ends(state, now) if not state.suspended else ""
    parts += [end] if end else []
    return [DOT.join(parts)] if parts else []


def memory(state: JobState) -> int:
    """Return the bytes that a lab's ranks last reported to hold: on GPUs, or in memory if none there."""
    uses = [use.newest for use in state.uses.values()]
    gpus = sum(gpu.memory for use in uses for gpu in use.gpus)
    return gpus or sum(rank.resident for use in uses for rank in use.uses)


def ends(state: JobState, now: float) -> str:
    """Return when an idle lab will end, in words; "" where it won't."""
    if state.phase.terminal:
        return ""
    at, limit = turns.ends_at(state), state.info.lab
    if at is not None:
        return f"ends at {clock(at, now)}, in {about(max(0.0, at - now))}, unless it is used"
    return f"ends once it is idle for {about(limit)}" if limit else ""


def lost(state: JobState) -> str:
    """Say that a turn's lab has lost its ranks, with all they held; "" where it hasn't."""
    verdict = state.verdict
    if verdict is None or verdict.reason not in (turns.ANEW, turns.UNREAD):
        return ""
    return f"{verdict.text[:1].upper()}{verdict.text[1:]}."


def ended(state: JobState) -> str:
    """Say why a lab has ended, in parentheses to follow that it has; "" where there is nothing to add."""
    if state.lab_ends is not None:
        return f" ({WHY.get(state.lab_ends.why, line(state.lab_ends.why, 40))})"
    return "" if state.failure is None else f" ({line(state.failure.reason.line, 120)})"


def began_anew(state: JobState) -> Iterator[str]:
    """Yield a warning for the first cell after a lab's ranks began anew: they are empty."""
    sent = (turn for turn in reversed(state.turns) if turn.id)
    last = next(sent, state.turns[-1] if state.turns else None)
    if last is not None and last.base < state.round:
        yield anew(state)


def anew(state: JobState) -> str:
    """Say that a lab's ranks began anew, and what that means for its users."""
    times = [w.time for node in state.nodes.values() for w in node.workers if w.round == state.round]
    at = clock(min(times, default=0.0), max(times, default=0.0))
    ranks = f"the ranks of {state.info.name} began anew at {at}, {count(state.world_size, 'rank')}"
    # Kubernetes makes new pods for a resumed Job, which can't know that there were turns before.
    if any(turn.base == state.round for turn in state.turns if not turn.id):
        return f"{ranks}, and ran its first cell again: what other cells set is gone"
    return f"{ranks}: what earlier cells set is gone, and init_process_group must be called again"
