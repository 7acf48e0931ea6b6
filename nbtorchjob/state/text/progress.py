"""How far a job is, how fast, and for how long nothing was heard of it, in words."""

from __future__ import annotations

import math

from nbtorchjob.state import JobState, Phase
from nbtorchjob.state.progress import PERCENT, REPORT, Progress, progress, still
from nbtorchjob.text.words import DOT, about, duration, number


def progress_line(state: JobState, now: float) -> str:
    """Return :func:`far` of a running job; of one that doesn't run now how far it was."""
    current = progress(state)
    if current is None:
        return ""
    if state.phase is Phase.RUNNING and not state.reforming:
        return far(current, now)
    return "" if current.unit == REPORT else reached(current)


def stillness(state: JobState, now: float) -> str:
    """State that nothing was heard of a running job for a while: ``quiet for 2 min``; empty else.

    Of one that has stalled it is said by :func:`far`.
    """
    silence = still(state, now)
    return f"quiet for {about(now - silence.since)}" if silence is not None and not silence.stalled else ""


def far(progress: Progress, now: float) -> str:
    """Describe how far it is, and how fast or for how long silent: ``3 of 10 epochs · 5 s per epoch``."""
    if progress.unit == REPORT:
        return overdue(progress, now)
    left = progress.left(now)
    parts = (
        reached(progress),
        f"about {duration(left)} left" if left is not None and math.isfinite(left) else "",
        overdue(progress, now) or rate(progress),
    )
    return DOT.join(part for part in parts if part)


def reached(progress: Progress) -> str:
    """Return ``3 of 10 epochs``, ``30 %``, or ``37 steps`` where nobody said how many there will be."""
    many, unit = number(progress.done), progress.unit
    if unit == PERCENT:
        return f"{many} %"
    if progress.total is not None:
        return f"{many} of {number(progress.total)} {unit}s"
    return f"{many} {unit}" if progress.done == 1 else f"{many} {unit}s"


def overdue(progress: Progress, now: float) -> str:
    """Describe for how long nothing was reported, and what is usual; empty until it is longer than that."""
    silent = progress.overdue(now)
    if silent is None or progress.every is None:
        return ""
    if progress.told_each and progress.pace is not None:
        return (
            f"no {progress.unit} for {duration(silent)}; {_one(progress.unit)} took {duration(progress.pace)}"
        )
    return f"no report for {duration(silent)}; one came every {duration(progress.every)}"


def _one(unit: str) -> str:
    return f"an {unit}" if unit[0] in "aeiou" else f"a {unit}"


def rate(progress: Progress) -> str:
    """Describe how fast it goes: ``12.3 steps/s``, ``4.2 s per epoch``; empty where nobody counts those."""
    seconds = progress.pace
    if seconds is None or progress.unit == PERCENT:
        return ""
    return (
        f"{1 / seconds:.1f} {progress.unit}s/s" if seconds < 1 else f"{duration(seconds)} per {progress.unit}"
    )
