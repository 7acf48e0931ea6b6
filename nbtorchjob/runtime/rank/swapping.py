"""A rank's part in a swap: it happens at a call that all ranks of the job make together (``api/points.py``).

    the rank                                            READY       the nodes have decided
    --------------------------------------------------  ----------  -----------------------
    finds out what it would change, and waits           PREPARED
    or can't change it, and says why in a file          REFUSED
    changes nothing, and goes on                                    DROP, in VERDICT
    makes the change                                    CHANGED     GO, in VERDICT
    or fails at it, and undoes what it had changed      RAISED
    goes on with the new code                           SETTLED     STAYS, in TRIAL
    puts back what was there, and goes on with that     SETTLED     BACK, in TRIAL

A rank that has CHANGED waits until the change stays on all ranks. With ``--or-back`` it goes on instead, and
the new functions are on trial. A stand-in makes the first call of one on this rank, and waits for the outcome
on the other ranks; a rank that makes no such call delays none of them, and settles the change at its next
point.

    the first call returned, and the rank waits         WENT_WELL
    it raised, and the rank waits                       RAISED

READY, VERDICT and TRIAL also hold the swap's number. A node begins no other swap before its ranks have acted
on GO, so if a rank finds a newer number in VERDICT, its swap was dropped. TRIAL is overwritten only after all
ranks have reached the call of a newer swap, where each first settles the change on trial.

A new attempt makes the changes of earlier attempts again (``Replay``). Each is made as soon as the values
exist that it changes or reads: after the last statement of the cell, outside of loops, that sets a name which
the change sets, or, ahead of the last loop, one which it reads. With several cells, that is the last such
statement in any of them.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
import threading
import time
import types
from typing import Any, Callable, Dict, Generator, Iterable, Iterator, List, Optional, Tuple, cast

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.api import points, report
from nbtorchjob.runtime.api.points import SAME, TRIAL, VERDICT
from nbtorchjob.runtime.facts.errors import from_exception, is_a
from nbtorchjob.runtime.objects import sources
from nbtorchjob.runtime.rank import call, optimizers, streams, swapped
from nbtorchjob.runtime.rank.names import Later, Names, Snapshot, branches, read_by, set_by
from nbtorchjob.runtime.rank.settings import Randomness
from nbtorchjob.runtime.rank.swapped import Change, LackingNamesError
from nbtorchjob.runtime.store.payload import FILES, Payload

PREPARED, REFUSED, CHANGED, WENT_WELL, RAISED, SETTLED = range(1, 7)
GO, DROP, STAYS, BACK = range(1, 5)
STEP = 8  # the distance between two swaps' numbers


def payload_of(folder: str, number: int) -> str:
    """Return the path in a round's folder where a node puts the payload of a swap."""
    return os.path.join(folder, "swap-%d.payload" % number)


def outcome_of(folder: str, number: int, rank: int) -> str:
    """Return the path where a node's rank, from 0, writes the outcome of a swap."""
    return os.path.join(folder, "swap-%d-rank-%d.json" % (number, rank))


def install() -> None:
    """Make this rank take part in swaps."""

    def settle() -> None:
        for trial in _trials[-1:]:
            trial.end()

    points.on_swap, points.on_trial = _swap, settle
    swapped.began, optimizers.unfrozen = time.time(), []


def _swap(number: int, count: int) -> None:
    """Do a swap at this rank's ``count``-th call of its kind."""
    page, chance = points.page, Randomness()
    assert page is not None
    change, state = Change(vars(sys.modules["__main__"])), PREPARED
    record: Dict[str, Any] = {"metrics": report.last}
    modules = os.path.join(os.path.dirname(points.folder), FILES)
    try:
        change.prepare(payload_of(points.folder, number), modules)
    except (Exception, SystemExit) as exc:  # whatever the cell raises
        record.update(_described(exc))
        state = REFUSED
    record.update(names=change.hows, compiled=change.compiled)
    _tell(number, state, record)
    about, verdict = divmod(page[VERDICT], STEP)
    while about < number:  # the nodes are still deciding
        time.sleep(points.PAUSE_S)
        about, verdict = divmod(page[VERDICT], STEP)
    if about > number or verdict == DROP:
        change.drop()
        chance.put_back()
        return
    trial = _Trial(number, change, record)
    try:
        change.apply()
    except Exception as exc:  # one that `prepare` didn't foresee
        change.undo()
        _tell(number, RAISED, {**record, **_described(exc)})
        if trial.wait() == STAYS:  # on the other ranks, and this one can't go on with them
            raise
        chance.put_back()
        return
    if change.words["or_back"]:
        trial.begin()
    points.tell_ready(number * STEP + CHANGED)
    if not change.words["or_back"] and trial.wait() == BACK:
        chance.put_back()
        return
    names = ", ".join(name for name, how in change.hows.items() if how != SAME) or "nothing (no change)"
    where = points.NAMES[page[points.KIND]]
    streams.say("nbtorchjob: swapped %s at call %d of %s\n" % (names, count, where))
    streams.flush()


def _described(exc: BaseException) -> Dict[str, Any]:
    lacks: List[str] = cast("LackingNamesError", exc).names if is_a(exc, LackingNamesError) else []
    return {"error": from_exception(exc).to_json(), "lacks": lacks}


def _tell(number: int, state: int, record: Dict[str, Any]) -> None:
    path = outcome_of(points.folder, number, points.rank)
    try:
        with open(path + ".partial", "w") as file:
            json.dump(record, file)
        os.replace(path + ".partial", path)
    except (OSError, ValueError, TypeError):  # a full disk
        state = REFUSED if state == PREPARED else state
    points.tell_ready(number * STEP + state)


class _Trial:
    """A change that was made, until it is decided whether it stays."""

    def __init__(self, number: int, change: Change, record: Dict[str, Any]) -> None:
        self._number = number
        self._change = change
        self._record = record
        self._page = points.page
        self._new: List[types.FunctionType] = []
        self._stance: Any = None  # in which compiled functions run as they are written
        self._calling = False
        self._settling = threading.Lock()
        self._outcome = 0

    def begin(self) -> None:
        """Put stand-ins in place of the new functions."""
        for candidate in self._change.functions:
            own = candidate.function
            names, rest = own.__globals__, (own.__name__, own.__defaults__, own.__closure__)
            new = types.FunctionType(own.__code__, names, *rest)
            new.__kwdefaults__ = own.__kwdefaults__
            self._new.append(new)
        _trials.append(self)  # before a stand-in is called, maybe in another thread
        if "torch._dynamo" in sys.modules and torch_versions.SET_STANCE.get() is not None:
            # What is compiled with ``fullgraph=True`` would fail at a stand-in, ahead of its call.
            self._stance = torch_versions.SET_STANCE.get()("force_eager")
        for index, candidate in enumerate(self._change.functions):
            # Code that calls one of the functions below, for a function with the same free variables
            old = candidate.function.__code__
            text = next(text for flags, text in _STAND_INS if not flags or old.co_flags & flags)
            space: Dict[str, Any] = {}
            exec(text % (len(_trials) - 1, index), space)
            code: Any = space["stand_in"].__code__  # its type's stub lacks `replace` for old Pythons
            stand_in: types.CodeType = code.replace(co_freevars=old.co_freevars, co_name=old.co_name)
            candidate.function.__code__ = stand_in

    def call(self, index: int, use: Callable[[Any], Any]) -> Any:
        """Call a function on trial, in ``use``."""
        candidate, new = self._change.functions[index], self._new[index]
        if self._calling:  # by another function on trial
            return use(new)
        outcome = self.settle()
        if outcome:
            return use(candidate.old if outcome == BACK else candidate.function)
        chance, self._calling = Randomness(), True
        try:
            value = use(new)
        except (Exception, SystemExit) as exc:
            _tell(self._number, RAISED, {**self._record, **_described(exc)})
            if self.wait() == STAYS:
                raise
        else:
            points.tell_ready(self._number * STEP + WENT_WELL)
            if self.wait() == STAYS:
                return value
        finally:
            self._calling = False
        chance.put_back()
        return use(candidate.old)

    def wait(self) -> int:
        """Wait until it is decided whether the change stays; return STAYS or BACK."""
        while not self.settle():  # another thread may settle it, at a point
            time.sleep(points.PAUSE_S)
        return self._outcome

    def settle(self) -> int:
        """Keep or undo the change, as decided; return the decision, or 0 while there is none."""
        decision = self._outcome
        if not decision:
            assert self._page is not None
            number, decision = divmod(self._page[TRIAL], STEP)
            if number != self._number:
                # A round that is over gets no more decisions, and a forked process doesn't wait for one.
                decision = 0 if points.page is self._page else STAYS
        if not decision:
            return 0
        with self._settling:
            if not self._outcome:
                for candidate, new in zip(self._change.functions, self._new):
                    candidate.function.__code__ = new.__code__
                if decision == BACK:
                    self._change.undo()
                    streams.say("nbtorchjob: the old code was put back\n")
                    streams.flush()
                else:
                    self._change.keep()
                self._outcome = decision
                if self._stance is None:
                    self._tell_settled()
        return self._outcome

    def end(self) -> None:
        """Settle the change at a point."""
        if self.settle() and self._stance is not None:
            stance, self._stance = self._stance, None
            # Not before: with ``fullgraph=True``, a call that has compiled nothing fails as it returns.
            stance.__exit__(None, None, None)
            self._tell_settled()

    def _tell_settled(self) -> None:
        if points.page is self._page:
            points.tell_ready(self._number * STEP + SETTLED)


_trials: List[_Trial] = []  # only the last one may be unsettled


def call_tried(trial: int, index: int, args: Any, kwargs: Any) -> Any:
    """Call the function on trial with that index."""
    return _trials[trial].call(index, lambda function: function(*args, **kwargs))


def iterate_tried(trial: int, index: int, args: Any, kwargs: Any) -> Generator[Any, Any, Any]:
    """Iterate over a generator function on trial: its code up to the first item counts as its call."""

    def iterated(value: Any) -> Generator[Any, Any, Any]:
        return (yield from value.__await__() if inspect.iscoroutine(value) else value)

    def first(function: Any) -> Any:
        iterator = iterated(function(*args, **kwargs))
        return iterator, *_resume(iterator.send, None)

    iterator, item, end = _trials[trial].call(index, first)
    while end is None:
        try:
            sent = yield item
        except GeneratorExit:
            iterator.close()
            raise
        except BaseException as exc:
            item, end = _resume(iterator.throw, exc)
        else:
            item, end = _resume(iterator.send, sent)
    return end.value


@types.coroutine
def await_tried(trial: int, index: int, args: Any, kwargs: Any) -> Generator[Any, Any, Any]:
    """Await a coroutine function on trial: its code up to where it first waits counts as its call."""
    return (yield from iterate_tried(trial, index, args, kwargs))


def _resume(resume: Callable[[Any], Any], value: Any) -> Tuple[Any, Optional[StopIteration]]:
    try:
        return resume(value), None
    except StopIteration as end:
        return None, end


_STAND_IN = """
%sdef stand_in(*args, **kwargs):
    from nbtorchjob.runtime.rank import swapping
    return (%sswapping.%s(%%d, %%d, args, kwargs))
"""
# By flags of the code that they stand in for
_STAND_INS = (
    (inspect.CO_GENERATOR, _STAND_IN % ("", "yield from ", "iterate_tried")),
    (inspect.CO_COROUTINE, _STAND_IN % ("async ", "await ", "await_tried")),
    (0, _STAND_IN % ("", "", "call_tried")),
)


def earlier(folder: str) -> List[str]:
    """Return the payloads of the swaps in a folder, in order."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    numbers = sorted(int(name.partition(".")[0]) for name in names if re.match(r"\d+\.payload$", name))
    return [os.path.join(folder, "%d.payload" % number) for number in numbers]


class Replay:
    """Makes earlier changes again, each once the names that it concerns are set in ``space``."""

    def __init__(self, paths: List[str], space: Dict[str, Any]) -> None:
        self._space = space
        self._left: List[Tuple[ast.stmt, Dict[str, Any]]] = []
        settings: List[Tuple[str, optimizers.Setting]] = []
        for path in paths:
            payload = Payload(path)
            words = payload.header["swap"]
            for setting, value in words.get("settings", {}).items():
                settings.append((words["id"], optimizers.Setting(setting, value, space)))
            payload.show_sources()
            content = Names(space, ()).load(payload)
            sources.show(content["cell"], content["filename"])
            tree = ast.parse(content["cell"], content["filename"])
            self._left += [(statement, content) for statement in tree.body]
        if settings:
            optimizers.again(settings)

    def advance(self, awaited: Iterable[str], ahead: Iterable[str] = ()) -> None:
        """Make the changes that concern none of the names that are yet to be set.

        ``ahead`` are the names in ``awaited`` that are set ahead of the cell's last loop.
        """
        left, self._left = self._left, []
        sets, reads = set(awaited), set(ahead)
        for statement, content in left:
            # A star import ahead of the loop may set any name.
            if not ("*" in reads or set_by(statement) & sets or read_by(statement) & reads):
                try:
                    self._make(statement, content)
                    continue
                except NameError:
                    if not awaited:
                        raise
                except Exception:  # a name may have another value until then, such as None
                    if not ahead:
                        raise
            self._left.append((statement, content))
            sets |= set_by(statement)  # changes are made in order
            reads |= set_by(statement)

    def _make(self, statement: ast.stmt, content: Dict[str, Any]) -> None:
        makes = isinstance(statement, (ast.ClassDef, ast.FunctionDef)) and not statement.decorator_list
        change, before = Change(self._space), Snapshot(self._space, set_by(statement), makes=makes)
        try:
            tree = ast.Module([statement], [])
            call.execute(tree, content["filename"], content["flags"], self._space)
            change.take(before)
            change.words["sets"] = set_by(statement)
        finally:
            before.restore()
        change.apply()

    def define(self, is_quiet: Callable[[ast.stmt], bool]) -> Iterator[str]:
        """Make the changes that only define something, in a process that a rank has started.

        Yield the names that all changes set. If a change isn't made, its names are removed: their values are
        out of date.
        """
        for statement, content in self._left:
            names = set_by(statement)
            yield from names
            try:
                if is_quiet(statement):
                    self._make(statement, content)
                    continue
            except Exception:  # it reads something that only the rank has
                pass
            for name in names:
                self._space.pop(name, None)

    def into(self, tree: ast.Module, later: Iterable[Dict[str, Any]] = ()) -> str:
        """Add calls of :meth:`advance` by a name to a cell's statements; return the name.

        ``later`` are the cells that come after it.
        """
        texts = [cell["cell"] for cell in later if call.is_mine(cell)]
        end = Later().before(*(statement for text in texts for statement in ast.parse(text).body))
        tree.body = [*_advancing(tree.body, end), _advance(end, tree.body[-1])]
        ast.fix_missing_locations(tree)
        return _AGAIN


_AGAIN = "<again>"  # no name that a cell can spell


def _advancing(body: List[ast.stmt], later: Later) -> List[ast.stmt]:
    """Return statements with a call of ``Replay.advance`` after each that sets names.

    ``later`` is for the place after all of them.
    """
    out: List[ast.stmt] = []
    for statement in reversed(body):
        for owner, field, rest in branches(statement):
            setattr(owner, field, _advancing(getattr(owner, field), later.before(*rest)))
        # The imports from __future__ come before all else.
        if set_by(statement) and getattr(statement, "module", "") != "__future__":
            out.append(_advance(later, statement))
        out.append(statement)
        later = later.before(statement)
    return out[::-1]


def _advance(later: Later, after: ast.stmt) -> ast.stmt:
    names = [ast.parse(repr(sorted(some)), mode="eval").body for some in (later.names, later.ahead)]
    return ast.copy_location(ast.Expr(ast.Call(ast.Name(_AGAIN, ast.Load()), names, [])), after)
