"""Other code for a rank that runs: what a cell of definitions changes in ``__main__``, and its undoing.

The cell runs in the rank's own namespace, so that all it defines finds its globals there; then that is put
back as it was. What the cell has set is compared with what was there, and refused where it can't take its
place. So far nothing has changed, and once all ranks of the job have come so far, each makes the change.

Functions and classes stay the objects that they are, and get the new one's code and methods: whoever holds on
to one, a DataLoader, a hook, a compiled function, an instance, goes on with the new code. Anything else takes
the place of what the name stood for.

An attempt that starts anew makes the changes of those before it again, each as soon as what it changes stands
there (``Replay``).
"""

from __future__ import annotations

import ast
import builtins
import enum
import glob
import os
import sys
import types
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from nbtorchjob.runtime.api import report
from nbtorchjob.runtime.api.swapping import ADDED, LATER, REPLACED, SAME
from nbtorchjob.runtime.rank import call, optimizers
from nbtorchjob.runtime.rank.names import Names
from nbtorchjob.runtime.store.payload import Payload

_COMPILED = "_torchdynamo_orig_callable"
_COPIED = ("__code__", "__defaults__", "__kwdefaults__", "__doc__", "__annotations__")
_METHODS = (types.FunctionType, classmethod, staticmethod, property)
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
# Of a class's namespace, what belongs to the class itself, or was worked out for it.
_OWN = frozenset(
    ("__dict__", "__weakref__", "__module__", "__qualname__", "__slots__", "_abc_impl", "__orig_bases__")
)
_GONE: Any = object()


class CannotSwapError(Exception):
    """What stands there can't be changed as asked; the message is one line that says why."""

    __module__ = "nbtorchjob"


class LackingNamesError(CannotSwapError):
    """New code reads names that this rank doesn't have; ``names`` are these."""

    __module__ = "nbtorchjob"

    def __init__(self, names: List[str]) -> None:
        super().__init__("this rank has no %s, which the new code reads" % ", ".join(names))
        self.names = names


class Tried(NamedTuple):
    """A function with new code, and what its name stood for: itself, with its ``attributes`` of then."""

    function: Any
    old: Any
    attributes: Dict[str, Any]


class Change:
    """What is to be changed in the namespace ``space``, by name."""

    def __init__(self, space: Dict[str, Any]) -> None:
        self.words: Dict[str, Any] = {}  # what the swap's payload says of it
        self.hows: Dict[str, str] = {}
        self.functions: List[Tried] = []
        self.compiled = False  # whether what torch has compiled is going to be compiled anew
        self._settings: List[optimizers.Setting] = []
        self._space = space
        self._new: Dict[str, Any] = {}
        self._undo: List[Callable[[], None]] = []

    def prepare(self, path: str) -> None:
        """Find out what a payload changes, and change nothing.

        Raises what its cell raises, ``LackingNamesError``, and ``CannotSwapError``.
        """
        payload, space = Payload(path), self._space
        self.words = payload.header["swap"]
        lacks = [name for name in self.words["assumes"] if name not in space and not hasattr(builtins, name)]
        if lacks:
            raise LackingNamesError(lacks)
        payload.show_sources()
        before = dict(space)
        try:
            content = Names(space, ()).load(payload)
            call.show(content["cell"], content["filename"])
            tree = ast.parse(content["cell"], content["filename"])
            call.execute(tree, content["filename"], content["flags"], space)
            self._take(before, dict(space))
        finally:
            _restore(space, before)
        running = {frame.f_code for frame in _frames()}
        for name, new in self._new.items():
            if name in before:
                _check(name, before[name], new, self._bases(new, before))
            if name in self.words["sets"]:
                self.hows[name] = _how(before[name], new, running) if name in before else ADDED
        self.hows.update((name, SAME) for name in self.words["sets"] if name not in self.hows)
        for path, value in self.words.get("settings", {}).items():
            setting = optimizers.Setting(path, value, space)
            self.hows[path] = REPLACED if setting.prepare() else SAME
            self._settings.append(setting)
        self.compiled = _has_compiled() and any(map(_is_code, self._new.values()))

    def _take(self, before: Dict[str, Any], after: Dict[str, Any]) -> None:
        self._new = {
            name: value
            for name, value in after.items()
            if not name.startswith("__") and before.get(name, _GONE) is not value
        }

    def _bases(self, new: Any, before: Dict[str, Any]) -> Tuple[Any, ...]:
        """Return a new class's bases as they are going to be: those that change stay the objects they are."""
        same = {id(value): before[name] for name, value in self._new.items() if name in before}
        return tuple(same.get(id(base), base) for base in getattr(new, "__bases__", ()))

    def apply(self) -> None:
        """Make the change."""
        classes: Dict[Any, Any] = {}
        for name, new in self._new.items():
            old = self._space.get(name)
            if isinstance(new, type) and isinstance(old, type):
                classes[new] = old
        for name, new in self._new.items():
            if type(new) in classes and hasattr(new, "__dict__"):
                new.__class__ = classes[type(new)]  # it was made in the cell, of the class as defined there
            self._bind(name, new)
        for setting in self._settings:
            self._undo += [setting.apply(), setting.mark(self.words["id"])]
        self._undo += _watch(self._new, self.words["sets"], self._space, self._settings)
        self._recompile()

    def undo(self) -> None:
        """Put all back that was changed."""
        while self._undo:
            self._undo.pop()()
        self._recompile()

    def _recompile(self) -> None:
        if self.compiled:
            with suppress(Exception):  # a torch without it notices changed code by its own guards
                sys.modules["torch._dynamo"].reset()

    def _bind(self, name: str, new: Any) -> None:
        space = self._space
        old = space.get(name, _GONE)
        if isinstance(old, type) and isinstance(new, type) and _is_mine(old):
            self._change_class(old, new)
            return
        inner = getattr(old, _COMPILED, None)
        if inner is not None and _interchangeable(inner, new):
            old = inner  # it stays compiled
        if _interchangeable(old, new):
            self._change_function(old, new)
            return
        space[name] = new
        if old is _GONE:
            self._undo.append(lambda: space.pop(name, None))
        else:
            self._undo.append(lambda: space.__setitem__(name, old))
            if isinstance(new, types.FunctionType) and callable(old):
                self.functions.append(Tried(new, old, {}))

    def _change_function(self, old: Any, new: Any) -> None:
        saved = {name: getattr(old, name) for name in _COPIED}
        own = dict(vars(old))

        def put_back() -> None:
            _give(old, saved)
            vars(old).clear()
            vars(old).update(own)

        self._undo.append(put_back)
        _give(old, {name: getattr(new, name) for name in _COPIED})
        vars(old).update(vars(new))
        self.functions.append(Tried(old, old, saved))

    def _change_class(self, old: Any, new: Any) -> None:
        for cell in _class_cells(vars(new).values(), new):
            cell.cell_contents = old  # what `super()` finds
        for name, value in list(vars(new).items()):
            if name in _OWN or isinstance(value, _SLOTS):
                continue
            known = vars(old).get(name)
            if _interchangeable(known, value):
                self._change_function(known, value)
            else:
                self._set(old, name, value)
        for name, value in list(vars(old).items()):
            if name not in vars(new) and isinstance(value, _METHODS):
                self._set(old, name, _GONE)

    def _set(self, cls: Any, name: str, value: Any) -> None:
        known = vars(cls).get(name, _GONE)
        self._undo.append(lambda: _put(cls, name, known))
        _put(cls, name, value)


def _watch(
    new: Dict[str, Any], sets: Iterable[str], space: Dict[str, Any], settings: List[optimizers.Setting]
) -> List[Callable[[], None]]:
    """Have ``report()`` tell the numbers that were swapped, as they are then; return what puts that back."""
    watched: Dict[str, Callable[[], Any]] = {
        name: partial(space.get, name) for name in sets if type(new.get(name)) in (int, float)
    }
    watched.update((setting.key, setting.current) for setting in settings)
    before = dict(report.watched)
    report.watched.update((name, read) for name, read in watched.items() if name not in report.COUNTED)

    def put_back() -> None:
        report.watched.clear()
        report.watched.update(before)

    return [put_back]


def _has_compiled() -> bool:
    """Whether torch has compiled any code of this process (2.13)."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return bool(getattr(getattr(frames, "output_codes", None), "seen", ()))


def _is_code(value: Any) -> bool:
    return isinstance(value, (type, types.FunctionType)) or hasattr(value, _COMPILED)


def _put(cls: Any, name: str, value: Any) -> None:
    # Not through the metaclass, which may forbid it.
    if value is not _GONE:
        type.__setattr__(cls, name, value)
    elif name in vars(cls):
        type.__delattr__(cls, name)


def _give(function: Any, attributes: Dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(function, name, value)


def _restore(space: Dict[str, Any], before: Dict[str, Any]) -> None:
    """Put a namespace back, of which other threads may read meanwhile what hasn't changed."""
    for name in [name for name in space if name not in before]:
        del space[name]
    for name, value in before.items():
        if space.get(name, _GONE) is not value:
            space[name] = value


def _check(name: str, old: Any, new: Any, bases: Tuple[Any, ...]) -> None:
    """Raise ``CannotSwapError`` where one value can't take the other's place."""
    if not isinstance(old, type) or not _is_mine(old):
        return
    if not isinstance(new, type):
        raise CannotSwapError("%s is a class, and can't become a %s" % (name, type(new).__name__))
    if isinstance(old, enum.EnumMeta):
        raise CannotSwapError("%s is an enum, whose members can't be changed" % name)
    if bases != old.__bases__ or type(old) is not type(new):
        text = "%s has other bases now (%s, not %s), which existing objects can't get: give it another name"
        raise CannotSwapError(text % (name, _named(bases), _named(old.__bases__)))
    if _slots(old) != _slots(new):
        text = "%s has other __slots__ now, which existing objects can't get: give it another name"
        raise CannotSwapError(text % name)


def _frames() -> Iterator[types.FrameType]:
    for top in sys._current_frames().values():
        frame: Optional[types.FrameType] = top
        while frame is not None:
            yield frame
            frame = frame.f_back


def _is_mine(cls: Any) -> bool:
    return str(cls.__module__) == "__main__"


def _named(classes: Tuple[Any, ...]) -> str:
    return ", ".join(cls.__name__ for cls in classes)


def _slots(cls: Any) -> Any:
    slots = vars(cls).get("__slots__")
    return slots if slots is None or isinstance(slots, str) else tuple(slots)


def _interchangeable(old: Any, new: Any) -> bool:
    """Whether one function can be given the other's code: it has the same globals and free variables."""
    return (
        isinstance(old, types.FunctionType)
        and isinstance(new, types.FunctionType)
        and old.__globals__ is new.__globals__
        and old.__code__.co_freevars == new.__code__.co_freevars
        and set(old.__code__.co_freevars) <= {"__class__"}
        and not hasattr(new, _COMPILED)
        and not hasattr(old, _COMPILED)
    )


def _class_cells(values: Any, cls: Any) -> Iterator[Any]:
    """Yield the variables of a class's methods that hold the class itself."""
    waiting, seen = list(values), set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (classmethod, staticmethod)):
            waiting.append(value.__func__)
        elif isinstance(value, property):
            waiting += [value.fget, value.fset, value.fdel]
        elif isinstance(value, types.FunctionType):
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # it is empty
                    if cell.cell_contents is cls:
                        yield cell
                    else:
                        waiting.append(cell.cell_contents)


def _how(old: Any, new: Any, running: Set[Any]) -> str:
    """Return how a name's value changes, as a word."""
    with suppress(Exception):  # whatever a comparison of the user's objects raises
        if type(old) is type(new) and bool(_content(old) == _content(new)):
            return SAME
    return LATER if running.intersection(_codes(old)) else REPLACED


def _content(value: Any) -> Any:
    """Return what is equal for functions, or classes, that do the same."""
    value = getattr(value, _COMPILED, value)
    if isinstance(value, (classmethod, staticmethod)):
        return type(value), _content(value.__func__)
    if isinstance(value, property):
        return property, [_content(part) for part in (value.fget, value.fset, value.fdel)]
    if isinstance(value, types.FunctionType):
        closed = object() if set(value.__code__.co_freevars) - {"__class__"} else None
        return _content(value.__code__), value.__defaults__, value.__kwdefaults__, vars(value), closed
    if isinstance(value, types.CodeType):
        names = value.co_names, value.co_varnames, value.co_freevars
        return value.co_code, names, [_content(constant) for constant in value.co_consts]
    if isinstance(value, type) and _is_mine(value):
        own = vars(value).items()
        return {k: _content(v) for k, v in own if isinstance(v, _METHODS) or not k.startswith("__")}
    return type(value), value


def _codes(value: Any) -> Iterator[types.CodeType]:
    """Yield the code of a function, or of a class's methods."""
    value = getattr(value, _COMPILED, value)
    value = getattr(value, "__func__", value)
    if isinstance(value, types.FunctionType):
        yield value.__code__
    elif isinstance(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from _codes(part)
    elif isinstance(value, type) and _is_mine(value):
        for item in list(vars(value).values()):
            if not isinstance(item, type):
                yield from _codes(item)


# An attempt that starts anew


def earlier(folder: str) -> List[str]:
    """Return the payloads of the swaps in a folder, in their order."""
    paths = glob.glob(os.path.join(glob.escape(folder), "*.payload"))
    return sorted(paths, key=lambda path: int(os.path.basename(path).partition(".")[0]))


class Replay:
    """Makes earlier changes again, each once what it changes stands in the namespace ``space``."""

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
            call.show(content["cell"], content["filename"])
            tree = ast.parse(content["cell"], content["filename"])
            self._left += [(statement, content) for statement in tree.body]
        if settings:
            optimizers.again(settings)

    def advance(self, awaited: Iterable[str]) -> None:
        """Make those changes that concern none of the names that are yet to be set."""
        left, self._left, awaited = self._left, [], set(awaited)
        for statement, content in left:
            if set_by(statement) & awaited or not self._made(statement, content, bool(awaited)):
                self._left.append((statement, content))

    def _made(self, statement: ast.stmt, content: Dict[str, Any], early: bool) -> bool:
        change, before = Change(self._space), dict(self._space)
        try:
            tree = ast.Module([statement], [])
            call.execute(tree, content["filename"], content["flags"], self._space)
            change._take(before, dict(self._space))
            change.words["sets"] = set_by(statement)
        except NameError:
            if not early:
                raise
            return False
        finally:
            _restore(self._space, before)
        change.apply()
        return True

    def into(self, tree: ast.Module) -> str:
        """Have a cell's statements call :meth:`advance` by a name; return the name."""
        ahead = [set_by(statement) for statement in tree.body]
        body: List[ast.stmt] = []
        for index, statement in enumerate(tree.body):
            body.append(statement)
            if ahead[index] or index + 1 == len(tree.body):
                names = ast.parse(repr(sorted(set().union(*ahead[index + 1 :]))), mode="eval").body
                again = ast.Expr(ast.Call(ast.Name(_AGAIN, ast.Load()), [names], []))
                body.append(ast.copy_location(again, statement))
        tree.body = [ast.fix_missing_locations(statement) for statement in body]
        return _AGAIN


_AGAIN = "<again>"  # no name that a cell can spell


def set_by(statement: ast.stmt) -> Set[str]:
    """Return the names that a statement defines; of loops, and of what only changes a name, none."""
    if isinstance(statement, (ast.For, ast.AsyncFor, ast.While, ast.AugAssign)):
        return set()
    names: Set[str] = set()
    waiting: List[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            continue
        waiting += ast.iter_child_nodes(node)
    return names
