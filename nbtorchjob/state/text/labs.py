"""A lab in words: what it does, for how long nobody has used it, and what its ranks have no more (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nbtorchjob.state import JobState, turns
from nbtorchjob.state.turns import Stage
from nbtorchjob.text.words import DOT, about, clock, count, line, size

WHY: Mapping[str, str] = {"asked": "its end was asked for", "idle": "nobody used it"}
IDLE = "idle"
_MAX_WHOSE = 80


def doing(state: JobState, now: float) -> str:
    """Return what a lab does, in a few words: ``idle 3 min``, ``runs cell 4, 2 wait``; "" as it starts."""
    since = turns.idle_since(state) if state.info.lab is not None else None
    text = doing_now(state)
    return f"{text} {about(max(0.0, now - since))}" if since is not None and text == IDLE else text


def doing_now(state: JobState) -> str:
    """Return the same without a time."""
    if state.info.lab is None or state.phase.terminal:
        return ""
    since = turns.idle_since(state)
    if state.lab_ends is not None and turns.running(state) is None:
        return "ending"
    if since is not None:
        return IDLE
    running = turns.running(state)
    if running is None or not state.working:
        return ""
    more = sum(turn.stage is Stage.WAITS for turn in turns.turns(state))
    behind = f", {more} {'waits' if more == 1 else 'wait'}" if more else ""
    return f"runs {running.name}{behind}"


def lines(state: JobState, now: float) -> list[str]:
    """Return what a lab's card says of it: whose cell runs, what it has run and holds, and when it ends."""
    if state.info.lab is None:
        return []
    known, what = turns.turns(state), turns.what_of(state.info)
    running = turns.running(state)
    if state.phase.terminal:
        why = WHY.get(state.lab_ends.why, "") if state.lab_ends is not None else ""
        return [f"{count(len(known), what)}{f'; it ended as {why}' if why else ''}"]
    parts = [line(f"{running.whose} runs", _MAX_WHOSE)] if running and running.taken.by else []
    parts += [f"{count(len(known), what)} so far"] if known else []
    parts += [f"holds {size(held)}"] if (held := memory(state)) else []
    end = ends(state, now)
    parts += [end] if end else []
    return [DOT.join(parts)] if parts else []


def memory(state: JobState) -> int:
    """Return the bytes that a lab's ranks were known to hold last, on GPUs where they hold any there."""
    uses = [use.newest for use in state.uses.values()]
    gpus = sum(gpu.memory for use in uses for gpu in use.gpus)
    return gpus or sum(rank.resident for use in uses for rank in use.uses)


def ends(state: JobState, now: float) -> str:
    """Return when a lab that nobody uses will end; "" where it won't."""
    if state.phase.terminal:
        return ""
    at, limit = turns.ends_at(state), state.info.lab
    if at is not None:
        return f"ends at {clock(at, now)}, in {about(max(0.0, at - now))}, unless it is used"
    return f"ends once it is idle for {about(limit)}" if limit else ""


def lost(state: JobState) -> str:
    """Say of a lab's turn that its ranks are gone, and what they held; "" where they stay."""
    verdict = state.verdict
    if verdict is None or verdict.reason not in (turns.ANEW, turns.UNREAD):
        return ""
    return f"{verdict.text[:1].upper()}{verdict.text[1:]}."


def ended(state: JobState) -> str:
    """Say why a lab has ended, behind that it has; "" where that says nothing more."""
    if state.lab_ends is not None:
        return f" ({WHY.get(state.lab_ends.why, line(state.lab_ends.why, 40))})"
    return "" if state.failure is None else f" ({line(state.failure.reason.line, 120)})"


def began_anew(state: JobState) -> Iterator[str]:
    """Tell who sends the first cell after a lab's ranks began anew that they are empty."""
    cells = [turn for turn in state.turns if turn.id] or state.turns
    if cells and cells[-1].base < state.round:
        yield anew(state)


def anew(state: JobState) -> str:
    """Say that a lab's ranks began anew, and what that means to who uses it."""
    times = [w.time for node in state.nodes.values() for w in node.workers if w.round == state.round]
    at = clock(min(times, default=0.0), max(times, default=0.0))
    ranks = f"the ranks of {state.info.name} began anew at {at}, {count(state.world_size, 'rank')}"
    # Kubernetes makes new pods of a Job that is resumed, which can't know that there were others.
    if any(turn.base == state.round for turn in state.turns if not turn.id):
        return f"{ranks}, and ran its first cell again: what other cells set is gone"
    return f"{ranks}: what former cells set is gone, and init_process_group is to be called again"
