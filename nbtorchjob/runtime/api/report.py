"""``report(loss=0.1, epoch=3)``: live numbers from a rank to the notebook."""

from __future__ import annotations

import itertools
import os
from typing import Any, Callable, Dict

from nbtorchjob.runtime.api import points
from nbtorchjob.runtime.facts import EVENTS, emit

ROUND = "NBTORCHJOB_ROUND"
# What counts, and what may be reported beside it to say how many there will be.
TOTALS = {"epoch": "epochs", "step": "steps"}

COUNTED = frozenset((*TOTALS, *TOTALS.values()))

_point = points.of[points.REPORT]
_seq = itertools.count()
sent = 0  # how many so far: a sign that the rank goes on
last: Dict[str, float] = {}  # the newest
# Values that were swapped, which are reported beside what the code reports: what reads one, by its name.
watched: Dict[str, Callable[[], Any]] = {}


def report(**metrics: Any) -> None:
    """Send numbers (int, float, or anything with ``item()``, as tensors have) to the notebook.

    ``step`` and ``epoch`` count how far the job is, and ``steps`` and ``epochs`` are how many there will be.
    Outside a job it only checks them, so a function that reports also runs in the notebook.
    Raises ``TypeError`` for a metric that isn't a number.
    """
    global sent, last
    numbers: Dict[str, float] = {}
    for name, value in metrics.items():
        numbers[name] = value.item() if hasattr(value, "item") else value
        if not isinstance(numbers[name], (int, float)):
            raise TypeError("report(%s=…): got %r, but a metric is a number" % (name, numbers[name]))
    if os.environ.get(EVENTS):
        for name, read in watched.items():
            value = read()
            if name not in numbers and type(value) in (int, float):
                numbers[name] = value
        rank, round_ = int(os.environ["RANK"]), int(os.environ[ROUND])
        emit("Reported", rank=rank, round=round_, seq=next(_seq), metrics=numbers)
        sent += 1
        last = numbers
        _point.passed()


def begin() -> None:
    """Count anew: a rank that stays begins another turn."""
    global _seq, last
    _seq, last = itertools.count(), {}
    watched.clear()
