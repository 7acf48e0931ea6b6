"""``swap_point()``: where ranks may go on with other code, all of a job at the same call (``points.py``)."""

from __future__ import annotations

import weakref
from typing import Any, Dict, Iterable, Mapping

from nbtorchjob.runtime.api import points

KEPT = "swaps"  # in a node's folder: the payloads of swaps, by number
PLACE = "NBTORCHJOB_KEPT_SWAPS"  # where that is, for ranks and the processes that they start
MARK = "nbtorchjob_swaps"  # in an optimizer's groups: which swaps have set a value of it
# How a name came by its new value, in the order of what says most. With REBOUND the name alone stands for it:
# whoever holds the old one keeps that.
HOWS = SAME, ADDED, REPLACED, LATER, REBOUND = "same", "added", "replaced", "later", "rebound"


def merged(names: Iterable[Mapping[str, str]]) -> Dict[str, str]:
    """Return how each name changed; of ranks among which that differs what says most."""
    together: Dict[str, str] = {}
    for of in names:
        for name, how in of.items():
            together[name] = max(together.get(name, how), how, key=HOWS.index)
    return together


_point = points.of[points.POINT]
_optimizers: Any = weakref.WeakSet()  # each of whose steps is such a point


def swap_point(optimizer: Any = None) -> None:
    """Let this job's code be swapped here; call it equally often on each rank, once a step.

    With an ``optimizer`` of torch's each of its steps is such a point from now on, after it has stepped.
    ``leaving()`` and, where all ranks call it, ``report()`` are such points, too. A call takes well below a
    microsecond. Outside a job it does nothing.
    """
    if optimizer is None:
        _point.passed()
        return
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate's wraps one (1.15)
    if optimizer not in _optimizers:
        _optimizers.add(optimizer)
        optimizer.register_step_post_hook(_stepped)


swap_point.__module__ = "nbtorchjob"  # so it comes from there with the cell, too: the rank counts its calls


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    _point.passed()
