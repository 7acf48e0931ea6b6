"""Texts on the swaps of a job's code: where, whose, and which names (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from nbtorchjob.runtime.api.points import SAME
from nbtorchjob.state import JobState
from nbtorchjob.state.facts.events import Swapped
from nbtorchjob.state.info import API_BYTES, JobInfo
from nbtorchjob.text.words import LINE, clock, count, line, number

HEAD = ("swap", "at", "when", "whose", "names", "outcome")
_MOST = 50
_MAX_NAMES = 120
_MAX_WHO = 120


def as_swapped(state: JobState) -> tuple[Swapped, ...]:
    """Return the swaps that are in effect in the job's code, without those that were put back."""
    return tuple(swap for swap in state.swapped if not swap.back)


def texts(swaps: Sequence[Swapped], name: str) -> list[tuple[str, str]]:
    """Return the labels and texts of swaps of the job called ``name``, for a job that begins with them."""
    return [(f"swap {swap.number} of {name}", swap.text) for swap in swaps]


def begun_with(info: JobInfo) -> list[tuple[str, str]]:
    """Return the labels and texts of an earlier job's swaps that a job's own code begins with."""
    return [
        pair for file, pair in info.sources.items() if file == f"<{pair[0]}>" and pair[0].startswith("swap ")
    ]


def carried(state: JobState) -> tuple[Swapped, ...]:
    """Return the swaps whose payloads are recorded, up to the first without."""
    return tuple(takewhile(lambda swap: swap.payload, as_swapped(state)))


def left_out(state: JobState) -> str:
    """Describe the code that a cluster job made from this one begins with; "" if it gets all swaps."""
    swaps = as_swapped(state)
    whole = carried(state) if state.info.payload <= API_BYTES else ()
    if len(whole) == len(swaps):
        return ""
    first = swaps[len(whole)]
    so_far = f"the code as of swap {whole[-1].number}" if whole else "the code as it was submitted"
    why = "that swap, or the job, is too big to include it"
    return f"{so_far}, without swap {first.number} ({names(first)}): {why}"


def where(swap: Swapped) -> str:
    """Return the step at which a swap took place, or the call if no step was reported."""
    if "step" in swap.metrics:
        return f"step {number(swap.metrics['step'])}"
    return f"call {swap.call:,} of {line(swap.point, 20)}"


def names(swap: Swapped) -> str:
    """Return the names that a swap changed."""
    return line(", ".join(name for name, how in swap.names.items() if how != SAME) or "nothing", _MAX_NAMES)


def rows(state: JobState, now: float) -> list[tuple[str, ...]]:
    """Return a header, and a row for each of the newest swaps."""
    swaps = [
        (
            str(swap.number),
            where(swap),
            clock(swap.time, now),
            line(swap.by, _MAX_WHO),
            names(swap),
            line(f"put back: {swap.back}", _MAX_NAMES) if swap.back else "stays",
        )
        for swap in state.swapped[-_MOST:]
    ]
    return [HEAD, *swaps] if swaps else []


def diffs(state: JobState) -> list[str]:
    """Return the lines of the diffs of the swaps that are in effect."""
    return [line(text, LINE) for swap in as_swapped(state)[-_MOST:] for text in swap.diff.split("\n")]


def newest(state: JobState) -> list[str]:
    """Return a line on the newest swap, if there was one."""
    swaps = as_swapped(state)
    if not swaps:
        return []
    often = "" if len(swaps) == 1 else f", {count(len(swaps), 'swap')} so far"
    return [line(f"Code swapped at {where(swaps[-1])}: {names(swaps[-1])}{often}", LINE)]


def marks(state: JobState) -> Sequence[tuple[int, float, str]]:
    """Return the round, the time and a chart's label of each swap that is in effect."""
    return [(swap.round, swap.time, f"swap {swap.number}") for swap in as_swapped(state)]
