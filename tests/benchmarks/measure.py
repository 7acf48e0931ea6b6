"""Helpers of the benchmarks: a pool of their own, medians, and a table of ratios.

Only ratios taken in the same run mean anything: machines differ, and so does one machine from hour to
hour. Every benchmark therefore takes its baseline and its subjects in turn, round after round.
"""

import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from nbtorchjob.backends.local.launch import pool
from nbtorchjob.machine import folders

ROWS = "NBTORCHJOB_BENCH_ROWS"  # the file to which rows are added, for a run of many benchmarks


@dataclass(frozen=True)
class Row:
    """One line of a table: the measured value, its baseline, and its highest acceptable ratio."""

    name: str
    value: float
    base: float = 1.0
    goal: float | None = None
    unit: str = "s"
    peer: bool = False  # whether it is another tool's, for comparison with ours

    @property
    def ratio(self) -> float:
        return self.value / self.base

    def cells(self) -> tuple[str, ...]:
        if self.goal is None:
            return (self.name, self._amount(self.value), f"{self.ratio:.3f}", "", "")
        verdict = "ok" if self.ratio <= self.goal else "OVER"
        return (self.name, self._amount(self.value), f"{self.ratio:.3f}", f"<= {self.goal:g}", verdict)

    def _amount(self, value: float) -> str:
        return f"{value * 1000:.1f} ms" if self.unit == "s" else f"{value:.3f} {self.unit}"


def show(title: str, against: str, rows: Sequence[Row], *notes: str) -> None:
    """Print a table of ratios; ``against`` names their baseline."""
    lines = [("", "median", f"x {against}", "goal", ""), *(row.cells() for row in rows)]
    print(f"\n{title}")
    printed(lines)
    for note in notes:
        print(f"  {note}")
    if ROWS in os.environ:
        with open(os.environ[ROWS], "a") as file:
            file.writelines(json.dumps((f"{title}: {row.name}", asdict(row))) + "\n" for row in rows)


def printed(lines: Sequence[Sequence[str]]) -> None:
    """Print lines of cells below each other."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *rest in lines:
        numbers = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        print("  " + "  ".join([first.ljust(widths[0]), *numbers]).rstrip())


def in_turn(subjects: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call each subject once a round; return the values of each one, round by round."""
    timings: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            timings[name].append(subject())
    return timings


def medians(taken: dict[str, list[float]]) -> dict[str, float]:
    """Return the median of each subject."""
    return {name: statistics.median(values) for name, values in taken.items()}


def spread(taken: dict[str, list[float]]) -> str:
    """Return how far apart the rounds were, to tell a difference from noise."""
    widest = ((min(values), max(values), name) for name, values in taken.items())
    return "from-to: " + ", ".join(f"{name} {1000 * a:.0f}-{1000 * b:.0f} ms" for a, b, name in widest)


@contextmanager
def own_state() -> Iterator[Path]:
    """Yield a temporary folder that has jobs and pool; the pool ends with it, also on SIGTERM."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="nbtorchjob-bench-") as folder:
        os.environ[folders.STATE] = str(Path(folder) / "state")
        try:
            yield Path(folder)
        finally:
            pool.stop()
