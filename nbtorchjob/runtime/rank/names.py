"""The names of ``__main__``, for calls that are loaded into a running rank; and the names in statements.

Also the functions and classes that these names hold.
"""

from __future__ import annotations

import ast
import collections
import dis
import functools
import gc
import io
import pickle
import sys
import threading
import traceback
from contextlib import suppress
from itertools import chain
from types import CodeType, FunctionType, MethodType
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Set, Tuple

from nbtorchjob.runtime.objects import memory, rebuilt
from nbtorchjob.runtime.store.payload import Payload


class Names:
    """The names of ``__main__``, for calls that are loaded there.

    Values that came with a call are set there if the name is free, or is in ``push``; the call's functions
    find their globals there.
    """

    def __init__(self, names: Dict[str, Any], push: Any) -> None:
        self.push = list(push)
        self.laid = False  # whether any name was set
        self._names = names

    def load(self, payload: Payload) -> Dict[str, Any]:
        """Load a call on a rank, and set the names that came with it."""
        import torch

        try:
            with torch.device("cpu"):  # for loaded tensors, whatever default the code has set
                return self.take(payload)
        except BaseException:
            memory.forget()
            raise

    def take(self, payload: Payload) -> Dict[str, Any]:
        """Load a payload's call."""

        def make_function(code: Any, space: Any, cells: Any) -> Any:
            if type(space) is dict and space.get("__name__") == "__main__":
                space = self._names
            return rebuilt.make_function(code, space, cells)

        def fill_function(function: Any, state: Any) -> None:
            if function.__globals__ is self._names:
                attributes, own, reads, *rest = state
                self._lay(reads)
                state = (attributes, own, {}, *rest)
            rebuilt.fill_function(function, state)

        def load(data: bytes, buffers: Any) -> Any:
            loader = _Loader(io.BytesIO(data), buffers=buffers)
            loader.instead = {rebuilt.make_function: make_function, rebuilt.fill_function: fill_function}
            return loader.load()

        content: Dict[str, Any] = rebuilt.loads(payload.call(), payload.buffers(), load)
        self._lay(dict(content["names"]))
        if self.laid:
            rebuilt.held.extend(content.get("held", ()))
        return content

    def _lay(self, names: Dict[str, Any]) -> None:
        for name, value in names.items():
            if name in self.push or name not in self._names:
                self._names[name] = value
                self.laid = True


class _Loader(pickle.Unpickler):
    instead: Dict[Any, Any]

    def find_class(self, module: str, name: str) -> Any:
        """See the base class."""
        obj = super().find_class(module, name)
        return self.instead.get(obj, obj) if isinstance(obj, FunctionType) else obj


WRAPPERS = (
    functools.partial,
    functools.partialmethod,
    functools.cached_property,
    functools.singledispatchmethod,
)
CACHED = type(functools.lru_cache()(len))
CellType = type(rebuilt.make_cell())


def class_cells(values: Any, cls: Any) -> Iterator[Any]:
    """Yield the closure variables of a class's methods that hold the class itself."""
    waiting, seen = list(values), set()
    while waiting:
        member = waiting.pop()
        if id(member) in seen:
            continue
        seen.add(id(member))
        if isinstance(member, (classmethod, staticmethod)):
            waiting.append(member.__func__)
        elif isinstance(member, property):
            waiting += [member.fget, member.fset, member.fdel]
        elif isinstance(member, WRAPPERS):
            waiting.append(member.func)
        elif isinstance(member, CACHED):
            waiting.append(member.__wrapped__)
        elif isinstance(member, FunctionType):
            for cell in member.__closure__ or ():
                with suppress(ValueError):  # it is empty
                    if cell.cell_contents is cls:
                        yield cell
                    else:
                        waiting.append(cell.cell_contents)


def adopt(classes: Tuple[Any, ...], stays: Dict[int, Any], new_names: Dict[str, Any]) -> None:
    """Move instances and subclasses of ``classes`` to the classes that stay, and whatever else holds them.

    In ``new_names``, what the cell sets, the classes stay. Raises ``TypeError`` if Python can't move one.
    """
    for new in classes:
        for derived in new.__subclasses__():
            if id(derived) not in stays:
                derived.__bases__ = tuple(stays.get(id(base), base) for base in derived.__bases__)
    of = {id(new) for new in classes}
    for value in gc.get_objects() if classes else ():  # wherever they are held
        if id(type(value)) in of:
            # Not through the class, which may forbid it, as one that is frozen does.
            base: Any = type if isinstance(value, type) else object
            base.__setattr__(value, "__class__", stays[id(type(value))])
    # What the cell has put a class into: a registry, defaults, a partial. The discarded class is broken, as
    # ``super()`` in its methods looks for the class that stays. Tuples and bound methods are made anew, and
    # then replaced in what holds these.
    becomes = {id(new): stays[id(new)] for new in classes}
    waiting = list(classes)
    alive: List[Any] = []  # so that no id is given away
    while waiting:
        alive.append(waiting.pop())
        for holder in gc.get_referrers(alive[-1]):
            if any(holder is own for own in (waiting, alive, classes)):
                continue
            if holder is new_names:
                _hold(holder, {key: value for key, value in becomes.items() if key not in of})
                continue
            anew: Any = None
            if type(holder) in (tuple, frozenset):
                anew = type(holder)(becomes.get(id(value), value) for value in holder)
            elif isinstance(holder, MethodType):
                anew = MethodType(holder.__func__, becomes.get(id(holder.__self__), holder.__self__))
            if anew is None:
                _hold(holder, becomes)
            elif id(holder) not in becomes:
                becomes[id(holder)] = anew
                waiting.append(holder)


def _hold(holder: Any, becomes: Dict[int, Any]) -> None:
    """Have an object hold other values, by the ids of those that it holds.

    Not by its own methods: those of a registry may refuse a name that is taken.
    """

    def now(value: Any) -> Any:
        return becomes.get(id(value), value)

    if isinstance(holder, (list, collections.deque)):
        base: Any = list if isinstance(holder, list) else collections.deque
        for index, value in enumerate([*base.__iter__(holder)]):
            if id(value) in becomes:
                base.__setitem__(holder, index, now(value))
    elif isinstance(holder, set):
        old = [value for value in set.__iter__(holder) if id(value) in becomes]
        set.difference_update(holder, old)
        set.update(holder, map(now, old))
    elif isinstance(holder, dict):
        if isinstance(holder, collections.defaultdict):
            holder.default_factory = now(holder.default_factory)
        if "__module__" in holder:
            for owner in gc.get_referrers(holder):  # the class with this namespace
                if isinstance(owner, type) and vars(owner).get("__module__") is holder["__module__"]:
                    for name, value in [*holder.items()]:
                        if id(value) in becomes:
                            type.__setattr__(owner, name, now(value))
            return
        items = [*dict.items(holder)]
        owned = any(type(value).__name__ == "_lru_list_elem" for _, value in items)  # by C: a cache
        if any(id(key) in becomes for key, _ in items) and not owned:
            own_order: Any = collections.OrderedDict if isinstance(holder, collections.OrderedDict) else dict
            own_order.clear(holder)
            for key, value in items:
                own_order.__setitem__(holder, now(key), now(value))
        else:
            for key, value in items:
                if id(value) in becomes:
                    dict.__setitem__(holder, key, now(value))
    elif isinstance(holder, CellType):
        holder.cell_contents = now(holder.cell_contents)
    elif isinstance(holder, FunctionType):
        holder.__defaults__ = now(holder.__defaults__)
    elif isinstance(holder, functools.partial):
        state = (now(holder.func), now(holder.args), holder.keywords, vars(holder))
        holder.__setstate__(state)  # type: ignore[attr-defined]
    elif not isinstance(holder, type):
        with suppress(AttributeError):  # it has none, or Python keeps them elsewhere (before 3.11)
            own = object.__getattribute__(holder, "__dict__")
            for name, value in [*own.items()]:
                if id(value) in becomes:
                    own[name] = now(value)


def _metaclasses(metaclass: Any) -> Iterator[Any]:
    yield metaclass
    for derived in type.__subclasses__(metaclass):
        yield from _metaclasses(derived)


class Snapshot:
    """A namespace before a cell runs there whose text sets the names ``sets``.

    Names that other threads set stay theirs meanwhile, unless the cell sets them: ``others`` are these.
    ``makes`` says that a statement makes what it sets, so that objects elsewhere don't matter.
    """

    def __init__(self, space: Dict[str, Any], sets: Iterable[str], *, makes: bool = False) -> None:
        self.values = dict(space)
        self.objects: List[Any] = []  # the functions and classes
        for value in self.values.values():
            inner = dict.values(value) if issubclass(type(value), dict) else ()
            if issubclass(type(value), type):
                inner = vars(value).values()
            parts = (value, *list(inner))
            self.objects += (part for part in parts if issubclass(type(part), (FunctionType, type)))
        # And wherever else they are, as in a list, or a static method's: ``gc.freeze()`` hides those above.
        kinds = {FunctionType, *_metaclasses(type)}
        self.objects += () if makes else (part for part in gc.get_objects() if type(part) in kinds)
        self.others = _set_by_threads(space) - set(sets)
        self._space = space

    def restore(self) -> None:
        """Restore the namespace, while other threads may read the names that haven't changed."""
        space = self._space
        for name in [name for name in list(space) if name not in self.values and name not in self.others]:
            del space[name]
        for name, value in self.values.items():
            if name not in self.others and (name not in space or space[name] is not value):
                space[name] = value


def _set_by_threads(space: Dict[str, Any]) -> Set[str]:
    """Return the globals that functions set which other threads run, or call by their names."""
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    stacks = chain.from_iterable(map(traceback.walk_stack, frames.values()))
    waiting: List[CodeType] = [frame.f_code for frame, _ in stacks if frame.f_globals is space]
    names: Set[str] = set()
    seen: Set[CodeType] = set()
    while waiting:
        code = waiting.pop()
        if code not in seen:
            seen.add(code)
            names |= {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL"}
            called = (space.get(name) for name in code.co_names)
            waiting += (function.__code__ for function in called if type(function) is FunctionType)
            waiting += (inner for inner in code.co_consts if isinstance(inner, CodeType))
    return names


LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_PATTERNS = tuple(getattr(ast, f"Match{kind}") for kind in ("As", "Star", "Mapping") if hasattr(ast, "Match"))
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def set_by(statement: ast.stmt) -> Set[str]:
    """Return the names that a statement sets, except those that loops in it set repeatedly.

    ``*`` stands for those that a star import sets.
    """
    return set_outside(statement, *LOOPS)


def set_outside(part: ast.AST, *leaves: type) -> Set[str]:
    """Return the names that a part of a cell sets, except those inside ``leaves`` or local to its parts."""
    names: Set[str] = set()
    for node in walk(part, ast.ClassDef, *FUNCTIONS, *_COMPREHENSIONS, *leaves):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, _PATTERNS):
            names.update(filter(None, (getattr(node, "name", None), getattr(node, "rest", None))))
    return names


def read_by(part: ast.AST) -> Set[str]:
    """Return the names that a statement itself reads, without those that its functions read when called."""
    names: Set[str] = set()
    for node in walk(part, *FUNCTIONS):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, FUNCTIONS):
            returns = getattr(node, "returns", None)
            parts = (node.args, *getattr(node, "decorator_list", ()), *([returns] if returns else []))
            names.update(*map(read_by, parts))
    return names


def loaded_in(part: ast.AST) -> Set[str]:
    """Return the names that any code in a statement reads, also a function when it is called."""
    return {
        node.id for node in ast.walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def stored_in(part: ast.AST) -> Set[str]:
    """Return the names that any code in a statement sets or deletes."""
    stores = (ast.Store, ast.Del)
    return {node.id for node in ast.walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, stores)}


def loops_in(statement: ast.stmt) -> Iterator[Any]:
    """Yield the outermost loops in a statement, except those in functions and classes."""
    return (node for node in walk(statement, ast.ClassDef, *FUNCTIONS, *LOOPS) if isinstance(node, LOOPS))


class Later(NamedTuple):
    """The names that are set after a place in the code, and those that are set ahead of its last loop.

    The code that a swap changed ran in that loop: the names that it read had been set.
    """

    names: FrozenSet[str] = frozenset()
    ahead: FrozenSet[str] = frozenset()
    loops: bool = False  # whether a loop follows

    def before(self, *statements: ast.stmt) -> "Later":
        """Return the names for the place before these statements."""
        names, ahead, loops = self
        for statement in reversed(statements):
            if not loops and any(isinstance(node, LOOPS) for node in walk(statement, *FUNCTIONS)):
                ahead, loops = frozenset(), True
            set_names = set_by(statement)
            names, ahead = names | set_names, ahead | set_names
        return Later(names, ahead, loops)


def branches(statement: ast.stmt) -> Iterator[Tuple[Any, str, List[ast.stmt]]]:
    """Yield the places of a statement's branches, each with the statements that run after the branch."""
    branching: Any = statement
    if isinstance(statement, (ast.If, ast.With, ast.AsyncWith)):
        yield branching, "body", []
        if isinstance(statement, ast.If):
            yield branching, "orelse", []
    elif hasattr(statement, "handlers"):  # `try` or `try` with `except*`
        final = branching.finalbody
        yield branching, "body", [*branching.orelse, *final]
        yield branching, "orelse", final
        yield branching, "finalbody", []
        for handler in branching.handlers:
            yield handler, "body", final
    for case in getattr(statement, "cases", ()):
        yield case, "body", []


def walk(top: ast.AST, *leaves: type) -> Iterator[ast.AST]:
    """Yield the nodes of a part of a cell, but not those inside nodes of the types ``leaves``."""
    waiting = [top]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, leaves):
            waiting += ast.iter_child_nodes(node)
