"""How long a job may run, how long and where it is kept, and what can be done about it, in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nbtorchjob.state import JobState, starting
from nbtorchjob.text.hints import hint
from nbtorchjob.text.words import LINE, clock, duration, line

_MAX_WHO = 200


def times(state: JobState, enforced: Mapping[str, str], now: float) -> list[str]:
    """Describe when the job was submitted and ended, when its deadline ends it, when it will be removed."""
    told = [f"submitted at {clock(state.info.created, now)}"]
    told += [f"ended at {clock(state.ended, now)}"] if state.ended is not None else []
    removed = removal(state, enforced.get("ttl_seconds_after_finished", ""), now)
    return [*told, *filter(None, (deadline(state, now), patience(state, now), removed))]


def outlook(state: JobState, now: float, *, waited_for: bool) -> list[str]:
    """Describe when a running job was looked at, and how to follow and to end it; nothing for an ended one.

    What was drawn may outlive the drawing; ``waited_for`` by a cell, it is the kernel that is interrupted.
    """
    if state.phase.terminal:
        return []
    name = line(state.info.name, 80)
    if waited_for and state.info.of_lab:
        ways = [f"interrupt the kernel to interrupt {name}, whose ranks stay"]
    elif waited_for:
        ways = [f"interrupt the kernel to stop waiting for {name}, twice to cancel it"]
    else:
        end = "interrupt" if state.info.of_lab else "cancel"
        ways = [f"{hint('attach', name)} to follow it", f"{hint('cancel', name)} to {end} it"]
    return [f"as of {clock(now, now)}", *ways]


def deadline(state: JobState, now: float) -> str:
    """Describe when the job's deadline ends it; empty for a job that has none, or has ended."""
    most, at = state.info.deadline_s, state.deadline_at
    if most is None or state.phase.terminal:
        return ""
    if at is None:
        return f"once it is resumed, it may run for {duration(most)}"
    if at <= now:
        return f"its deadline passed at {clock(at, now)}, {duration(now - at)} ago"
    return f"ends at {clock(at, now)}, in {duration(at - now)}"


def patience(state: JobState, now: float) -> str:
    """Describe until when the job may be held back; empty where nothing holds it back, or for ever."""
    held, most = starting.held(state), state.info.start_within_s
    began = starting.since(state, held) if held is not None else None
    if most is None or began is None:
        return ""
    return f"fails at {clock(began + most, now)} unless it is running by then"


def removal(state: JobState, who: str, now: float) -> str:
    """Describe when the job will be removed, and by ``who``."""
    ttl, name = state.info.ttl_s, line(state.info.of_lab or state.info.name, 80)
    if state.removed is not None:
        return f"removed from its cluster at {clock(state.removed, now)}"
    if ttl is None:
        at_last = "" if state.info.cluster else ", or a week after it ends"
        return f"kept until {hint('delete', name)} or {hint('gc', '--yes')}{at_last}"
    if state.ended is None:
        told = f"removed {duration(ttl)} after it ends"
    elif state.ended + ttl <= now:
        told = f"due for removal since {clock(state.ended + ttl, now)}"
    else:
        told = f"removed in {duration(state.ended + ttl - now)}"
    return f"{told}, {line(who, _MAX_WHO)}" if who else told


def stored(state: JobState, folder: Path) -> list[str]:
    """Describe where the job's values and logs are; ``folder`` is the user's state directory."""
    if not state.info.cluster:
        here = folder / "jobs" / (state.info.of_lab or state.info.name)
        return [line(f"logs and values in {here} on this machine", LINE)]
    cluster = state.info.spec.get("cluster")
    storage = cluster.get("storage") if isinstance(cluster, Mapping) else None
    told = f"logs and values in the cluster while its pods exist; copies in {folder / 'kubernetes'}"
    return [told, *([f"payload and values in {line(f'{storage}', _MAX_WHO)}"] if storage else [])]
