"""``report(loss=0.1, epoch=3)``: live numbers from a rank to the notebook."""

from __future__ import annotations

import math
import os
from numbers import Real
from typing import Any, Callable, Dict, Mapping, Optional

from nbtorchjob.runtime.api import points
from nbtorchjob.runtime.facts import APPEND, EVENTS, emit
from nbtorchjob.runtime.facts.injected import FOLDER

ROUND = "NBTORCHJOB_ROUND"
MOST = 1024  # metrics of a report
# Metrics that count, and for each the metric that may be reported beside it for the total.
TOTALS = {"epoch": "epochs", "step": "steps"}

_point = points.of[points.REPORT]
sent = 0  # how many reports so far: a sign that the rank makes progress
last: Dict[str, float] = {}  # the newest report
# Functions that read values that were swapped, by name: these are reported beside the code's own metrics.
watched: Dict[str, Callable[[], Any]] = {}


def report(**metrics: Any) -> None:
    """Send numbers (real ones, or anything with ``item()``, as tensors have) to the notebook.

    ``step`` and ``epoch`` count how far the job is, and ``steps`` and ``epochs`` are their totals.
    Processes that a rank starts report as that rank.
    Outside a job it only checks them, so a function that reports also runs in the notebook.
    Raises ``TypeError`` for a metric that isn't a number, and ``ValueError`` for more than 1024 of them.
    """
    global sent, last
    if len(metrics) > MOST:
        raise ValueError("report() got %d metrics, but takes at most %d" % (len(metrics), MOST))
    numbers: Dict[str, float] = {}
    for name, value in metrics.items():
        shape = tuple(getattr(value, "shape", ()))
        if any(size != 1 for size in shape):
            kind = type(value).__name__
            message = "report(%s=…): got a %s of shape %s, but a metric is a number"
            raise TypeError(message % (name, kind, shape))
        number = value.item() if hasattr(value, "item") else value
        if not isinstance(number, (int, float)):
            if not isinstance(number, Real):
                raise TypeError("report(%s=…): got %r, but a metric is a number" % (name, number))
            number = float(number)  # as numpy's longdouble, whose ``item`` returns itself
        numbers[name] = number
    if os.environ.get(EVENTS):
        for name, read in watched.items():
            value = read()
            if name not in numbers and type(value) in (int, float) and len(numbers) < MOST:
                numbers[name] = value
        tell("Reported", int(os.environ["RANK"]), metrics=numbers)
        sent += 1
        last = numbers
        _point.passed()


def tell(event: str, rank: int, **fields: Any) -> int:
    """Emit an event with its number in this round; return the number.

    The rank and the processes that it starts count together: each event adds a byte to a file. The file is
    opened for each event, so that no other thread or forked process moves its position.
    """
    round_ = int(os.environ[ROUND])
    fd = os.open("%s/round-%d/rank-%d.%s" % (os.environ[FOLDER], round_, rank, event), APPEND, 0o600)
    try:
        os.write(fd, b".")
        seq = os.lseek(fd, 0, os.SEEK_CUR) - 1
    finally:
        os.close(fd)
    emit(event, rank=rank, round=round_, seq=seq, **fields)
    return seq


def begin() -> None:
    """Forget all reports: a rank that stays begins another turn."""
    global last
    last = {}
    watched.clear()


def total(unit: str, metrics: Mapping[str, float]) -> Optional[float]:
    """Return the total number of a unit, by the newest metrics; None if they don't have it."""
    most = metrics.get(TOTALS.get(unit, ""), 0)
    # A number that the count has passed isn't its total, but only has that name.
    return most if 0 < most < math.inf and -math.inf < metrics.get(unit, math.nan) <= most else None
