"""How a rank takes part in a swap: at a call that all ranks of the job make together (``api/points.py``).

    the rank                                            READY       the nodes have decided, in VERDICT
    --------------------------------------------------  ----------  ----------------------------------
    finds out what it would change, and waits           PREPARED
    or can't change it, and says why in a file          REFUSED
    changes nothing, and goes on                                    DROP
    makes the change, and goes on                       CHANGED     GO

With ``--or-back`` each new function is on trial. A stand-in makes the first call of one on this rank, and
waits until it is known how the others' went; a rank that makes none holds nobody up beyond its next point.

    the first call returned, and the rank waits         WENT_WELL
    it raised, and the rank waits                       RAISED
    goes on with the new code                                       STAYS
    puts back what was there, and makes the call with                BACK
    that

READY and VERDICT hold the swap's number, too.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from typing import Any, Dict, Optional

from nbtorchjob.runtime.api import points, report
from nbtorchjob.runtime.api.swapping import SAME
from nbtorchjob.runtime.facts.errors import from_exception
from nbtorchjob.runtime.rank import streams
from nbtorchjob.runtime.rank.swapped import Change, LackingNamesError

PREPARED, REFUSED, CHANGED, WENT_WELL, RAISED = range(1, 6)
GO, DROP, STAYS, BACK = range(1, 5)
STEP = 8  # between two swaps' numbers


def payload_of(folder: str, number: int) -> str:
    """Return where a node leaves the payload of a swap, in its round's folder."""
    return os.path.join(folder, "swap-%d.payload" % number)


def outcome_of(folder: str, number: int, rank: int) -> str:
    """Return where a node's rank, from 0, leaves how a swap went there."""
    return os.path.join(folder, "swap-%d-rank-%d.json" % (number, rank))


def install() -> None:
    """Have this rank take part in swaps."""
    points.on_swap, points.on_trial = _swap, _look


def _swap(number: int, made: int) -> None:
    """Do a swap at this rank's ``made``-th call of its kind."""
    page, chance = points.page, _Randomness()
    assert page is not None
    change, what = Change(vars(sys.modules["__main__"])), PREPARED
    said: Dict[str, Any] = {"metrics": report.last}
    try:
        change.prepare(payload_of(points.folder, number))
    except Exception as exc:  # whatever the cell raises
        said.update(_described(exc))
        what = REFUSED
    said.update(names=change.hows, compiled=change.compiled)
    _tell(number, what, said)
    if _decided(number, GO, DROP) == DROP:
        chance.put_back()
        return
    change.apply()
    names = ", ".join(name for name, how in change.hows.items() if how != SAME) or "nothing: all is as it was"
    where = points.NAMES[page[points.KIND]]
    sys.stderr.write("nbtorchjob: swapped %s at call %d of %s\n" % (names, made, where))
    streams.flush()
    if change.words["or_back"] and change.functions:
        _Trial(number, change).begin()
    points.tell_ready(number * STEP + CHANGED)


def _described(exc: Exception) -> Dict[str, Any]:
    lacks = exc.names if isinstance(exc, LackingNamesError) else []
    return {"error": from_exception(exc).to_json(), "lacks": lacks}


def _tell(number: int, what: int, said: Dict[str, Any]) -> None:
    path = outcome_of(points.folder, number, points.rank)
    try:
        with open(path + ".partial", "w") as file:
            json.dump(said, file)
        os.replace(path + ".partial", path)
    except (OSError, ValueError, TypeError):  # a full disk
        what = REFUSED if what == PREPARED else what
    points.tell_ready(number * STEP + what)


def _verdict(number: int) -> int:
    page = points.page
    swap, verdict = divmod(page[points.VERDICT], STEP) if page is not None else (number, STAYS)
    return verdict if swap == number else 0


def _decided(number: int, *of: int) -> int:
    while True:
        verdict = _verdict(number)
        if verdict in of:
            return verdict
        time.sleep(points.PAUSE_S)


class _Trial:
    """New code until it is known how its first call went on all ranks."""

    def __init__(self, number: int, change: Change) -> None:
        self._number = number
        self._change = change
        self._new = [_copied(tried.function) for tried in change.functions]
        self._calling = self._settled = False

    def begin(self) -> None:
        """Have stand-ins called in place of the new functions."""
        global _trial
        for index, tried in enumerate(self._change.functions):
            tried.function.__code__ = _stand_in(index, tried.function)
        _trial = self

    def call(self, index: int, args: Any, kwargs: Any) -> Any:
        """Make the call of a function."""
        tried, new = self._change.functions[index], self._new[index]
        if self._calling:  # by another function on trial
            return new(*args, **kwargs)
        if self.over():
            return tried.function(*args, **kwargs)
        chance, self._calling = _Randomness(), True
        try:
            value = new(*args, **kwargs)
        except Exception as exc:
            _tell(self._number, RAISED, _described(exc))
            if _decided(self._number, STAYS, BACK) == STAYS:
                raise
        else:
            points.tell_ready(self._number * STEP + WENT_WELL)
            if _decided(self._number, STAYS, BACK) == STAYS:
                return value
        finally:
            self._calling = False
            self.over()
        chance.put_back()
        return tried.old(*args, **kwargs)

    def over(self) -> bool:
        """Whether it is; then the functions are what they are going to be."""
        verdict = _verdict(self._number)
        if verdict not in (STAYS, BACK):
            return self._settled
        if not self._settled:
            self._settled = True
            for tried, new in zip(self._change.functions, self._new):
                tried.function.__code__ = new.__code__
            if verdict == BACK:
                self._change.undo()
                sys.stderr.write("nbtorchjob: what was swapped is put back\n")
                streams.flush()
        return True


_trial: Optional[_Trial] = None


def _look() -> None:
    if _trial is not None:
        _trial.over()


def _copied(function: Any) -> types.FunctionType:
    name, cells = function.__name__, function.__closure__
    new = types.FunctionType(function.__code__, function.__globals__, name, function.__defaults__, cells)
    new.__kwdefaults__ = function.__kwdefaults__
    return new


def _stand_in(index: int, function: Any) -> types.CodeType:
    """Return code that calls :func:`call_tried`, for a function with the same free variables."""
    space: Dict[str, Any] = {}
    exec(
        "def stand_in(*args, **kwargs):\n"
        "    from nbtorchjob.runtime.rank import swapping\n"
        "    return swapping.call_tried(%d, args, kwargs)" % index,
        space,
    )
    code: Any = space["stand_in"].__code__  # its type's stub lacks `replace` for old Pythons
    own = function.__code__
    made: types.CodeType = code.replace(co_freevars=own.co_freevars, co_name=own.co_name)
    return made


def call_tried(index: int, args: Any, kwargs: Any) -> Any:
    """Make a call of a function on trial."""
    assert _trial is not None
    return _trial.call(index, args, kwargs)


class _Randomness:
    """Where this process's random numbers stand, so that what is dropped has drawn none."""

    def __init__(self) -> None:
        self._states = [(name, getattr(_module(name), read)()) for name, read, _ in _DRAWN if _module(name)]

    def put_back(self) -> None:
        """Go on with the numbers from there."""
        known = {name: set_ for name, _, set_ in _DRAWN}
        for name, state in self._states:
            getattr(_module(name), known[name])(state)


# What draws them, by module, with how its state is read and set.
_DRAWN = (
    ("random", "getstate", "setstate"),
    ("numpy.random", "get_state", "set_state"),
    ("torch", "get_rng_state", "set_rng_state"),
)


def _module(name: str) -> Any:
    return sys.modules.get(name)
