"""New code for a running rank: what a cell of definitions changes in ``__main__``, and how to undo that.

The cell runs in the rank's own namespace, so that its definitions find their globals there; then the
namespace is restored. Each value that the cell set is compared with the old one, and refused if it can't take
its place. Up to here nothing has changed; once all ranks of the job are this far, each makes the change.

Functions and classes stay the same objects, and get the new code and methods: anything that refers to one, a
DataLoader, a hook, a compiled function, an instance, goes on with the new code. The class that the cell
defined is then discarded, so its instances and subclasses that the cell made are moved to the class that
stays. For anything else, the name gets the new value; so it does for a function or class of a module, which
other code uses, too.
"""

from __future__ import annotations

import ast
import builtins
import enum
import importlib
import os
import re
import sys
import traceback
import types
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Set

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.api import report
from nbtorchjob.runtime.api.points import ADDED, LATER, REBOUND, REPLACED, SAME
from nbtorchjob.runtime.objects import sources
from nbtorchjob.runtime.rank import call, optimizers
from nbtorchjob.runtime.rank.names import CACHED, WRAPPERS, Names, Snapshot, adopt, class_cells
from nbtorchjob.runtime.store.payload import FILES, Payload

_COMPILED = "_torchdynamo_orig_callable"
_COPIED = ("__code__", "__defaults__", "__kwdefaults__", "__doc__", "__annotations__")
_METHODS = (types.FunctionType, classmethod, staticmethod, property)
_CODE = (types.FunctionType, type)
_WITH_CODE = (*_CODE, CACHED, *WRAPPERS)
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
# Names in a class's namespace that belong to the class itself, or were computed for it.
_OWN = frozenset(
    ("__dict__", "__weakref__", "__module__", "__qualname__", "__slots__", "_abc_impl", "__orig_bases__")
)
_COUNTED = frozenset((*report.TOTALS, *report.TOTALS.values()))
_GONE: Any = object()
_NOT_FOR_EXISTING = "%s has %s, which existing objects can't get: give it another name"


class CannotSwapError(Exception):
    """The rank's code can't be changed as requested; the message is one line that says why."""

    __module__ = "nbtorchjob"


class LackingNamesError(CannotSwapError):
    """New code reads names that this rank doesn't have; ``names`` are these."""

    __module__ = "nbtorchjob"

    def __init__(self, names: List[str]) -> None:
        super().__init__("this rank has no %s, which the new code reads" % ", ".join(names))
        self.names = names


class TriedSwap(NamedTuple):
    """A function with new code, and the old value of its name: maybe itself, with its old ``attributes``."""

    function: Any
    old: Any
    attributes: Dict[str, Any]


class Change:
    """The changes to make in the namespace ``space``, by name."""

    def __init__(self, space: Dict[str, Any]) -> None:
        self.words: Dict[str, Any] = {}  # how the payload describes the swap
        self.hows: Dict[str, str] = {}
        self.functions: List[TriedSwap] = []
        self.compiled = False  # whether code that torch has compiled will be compiled anew
        self._settings: List[optimizers.Setting] = []
        self._space = space
        self._new: Dict[str, Any] = {}
        self._kept: Set[str] = set()  # names that keep their objects, which get the new ones' code or methods
        self._brought: Set[str] = set()  # modules that came with the cell and that it imported
        self._undo: List[Callable[[], None]] = []

    def prepare(self, path: str, modules: str = "") -> None:
        """Find out what a payload changes, but change nothing; local modules are in the folder ``modules``.

        Raises whatever its cell raises, ``LackingNamesError``, and ``CannotSwapError``.
        """
        payload, space = Payload(path), self._space
        self.words = payload.header["swap"]
        lacks = [name for name in self.words["assumes"] if name not in space and not hasattr(builtins, name)]
        if lacks:
            raise LackingNamesError(lacks)
        if self.words.get("stops") and sys.breakpointhook is call.pass_over:
            raise CannotSwapError("the new code names breakpoint(), and %s" % call.CANNOT_STOP)
        edited = _modules(file for file, exists in payload.differing(modules).items() if exists)
        # Modules that ranks import in place may have been edited since
        for file, name in _modules(self.words.get("in_place", ())).items():
            place = getattr(sys.modules.get(name), "__file__", None)
            if place is not None and os.path.exists(place) and os.path.getmtime(place) > began:
                edited[file] = name
        _refuse_imported(edited)
        payload.show_sources()
        importlib.invalidate_caches()  # files that came with the cell were written just now
        before, imported = Snapshot(space, self.words["sets"]), set(sys.modules)
        try:
            content = Names(space, ()).load(payload)
            sources.show(content["cell"], content["filename"])
            tree = ast.parse(content["cell"], content["filename"])
            call.execute(tree, content["filename"], content["flags"], space)
            self.take(before)
        finally:
            before.restore()
            names = (name[len(FILES) :] for name in payload.checksums() if name.startswith(FILES))
            self._brought = set(_modules(names).values()).intersection(sys.modules) - imported
        _refuse_imported(edited)
        stacks = map(traceback.walk_stack, sys._current_frames().values())
        running = {frame.f_code for stack in stacks for frame, _ in stack}
        old = before.values
        for name, new in self._new.items():
            if name in self.words["sets"]:
                kept = name in self._kept
                self.hows[name] = _how(old[name], new, kept, running) if name in old else ADDED
        self.hows.update((name, SAME) for name in self.words["sets"] if name not in self.hows)
        for path, value in self.words.get("settings", {}).items():
            setting = optimizers.Setting(path, value, space)
            self.hows[path] = REPLACED if setting.prepare() else SAME
            self._settings.append(setting)
        frames = sys.modules.get("torch._dynamo.convert_frame")
        seen = getattr(getattr(frames, "output_codes", None), "seen", ())
        self.compiled = bool(seen) and any(isinstance(value, _WITH_CODE) for value in self._new.values())
        if self.compiled and self.words["or_back"] and torch_versions.SET_STANCE.get() is None:
            raise CannotSwapError("this torch can't try code where it has compiled some: leave out --or-back")

    def take(self, before: Snapshot) -> None:
        """Record the values that a cell has set, and check that each can take the place of the old one.

        A function or class from before the cell that gets another name stays as it is.
        """
        values = before.values
        self._new = {
            name: value
            for name, value in dict(self._space).items()
            if not (
                name[:2] == "__" == name[-2:] or name in before.others or values.get(name, _GONE) is value
            )
        }
        pairs = {name: (values[name], new) for name, new in self._new.items() if name in values}
        stays: Dict[int, Any] = {}  # by the id of the object that is discarded
        old_ids, used = set(map(id, before.objects)), set()
        for name, (old, new) in pairs.items():
            own = new.__name__ if isinstance(new, _CODE) else name
            renamed = own != name and self._new.get(own) is new  # as in `def smooth(): ...; loss = smooth`
            # As in `def loss(): ...` where it was another name for `mse`, which stays as it is
            alias = isinstance(old, _CODE) and old.__name__ != own == name and values.get(old.__name__) is old
            if not (renamed or alias or id(new) in old_ids or id(old) in used) and _can_become(old, new):
                stays.setdefault(id(new), old)
                used.add(id(old))
        self._kept = {name for name, (old, new) in pairs.items() if stays.get(id(new)) is old}
        for name, (old, new) in pairs.items():
            if isinstance(old, type) and _is_mine(old):
                _check_class(name, old, new, stays)
        classes = tuple(new for _, new in pairs.values() if isinstance(stays.get(id(new)), type))
        try:
            adopt(classes, stays, self._new)
        except TypeError as exc:
            text = "the cell's subclasses and objects of a changed class can't use the existing class: %s"
            raise CannotSwapError(text % exc) from exc
        for name, new in self._new.items():
            if name not in self._kept:
                self._new[name] = stays.get(id(new), new)  # another name for the object that stays

    def apply(self) -> None:
        """Make the change. If this raises, :meth:`undo` restores what was changed."""
        for name, new in self._new.items():
            self._bind(name, new)
        for setting in self._settings:
            self._undo.append(setting.apply())
            self._undo.append(setting.mark(self.words["id"]))
        # Make ``report()`` include the numbers that were swapped, with their values at the time
        watched: Dict[str, Callable[[], Any]] = {
            name: partial(self._space.get, name)
            for name in self.words["sets"]
            if type(self._new.get(name)) in (int, float)
        }
        watched.update((setting.key, setting.current) for setting in self._settings)
        before = dict(report.watched)
        report.watched.update((name, read) for name, read in watched.items() if name not in _COUNTED)

        def put_back() -> None:
            report.watched.clear()
            report.watched.update(before)

        self._undo += [put_back]
        self._recompile()

    def keep(self) -> None:
        """Discard what it takes to undo the change: old values may be big."""
        self._undo.clear()
        self._new.clear()

    def drop(self) -> None:
        """Discard what was prepared: a module that came with it may be a different one the next time."""
        for name in self._brought:
            sys.modules.pop(name, None)

    def undo(self) -> None:
        """Undo the change."""
        while self._undo:
            self._undo.pop()()
        self._recompile()
        self.drop()

    def _recompile(self) -> None:
        if self.compiled:
            with suppress(Exception):  # a torch without it notices changed code by its own guards
                sys.modules["torch._dynamo"].reset()

    def _bind(self, name: str, new: Any) -> None:
        space = self._space
        old = space.get(name, _GONE)
        if name in self._kept and _can_become(old, new):
            if isinstance(new, type):
                for cell in class_cells(vars(new).values(), new):
                    cell.cell_contents = old  # which `super()` uses
                becomes: Dict[int, Any] = {}  # by the id of the old function, which several methods may share
                for attribute, value in list(vars(new).items()):
                    if attribute in _OWN or isinstance(value, _SLOTS):
                        continue
                    previous = vars(old).get(attribute)
                    alike = _interchangeable(previous, value) and previous.__qualname__ == value.__qualname__
                    if alike and becomes.setdefault(id(previous), value) is value:
                        self._change_function(previous, value)
                    else:
                        self._set(old, attribute, value)
                for attribute, value in list(vars(old).items()):
                    computes = hasattr(type(value), "__get__") and not isinstance(value, _SLOTS)
                    # A user's plain value stays; a class with `__eq__` alone got its `__hash__` from Python.
                    if attribute not in vars(new) and (computes or attribute == "__hash__"):
                        self._set(old, attribute, _GONE)
            else:
                self._change_function(_behind(old), new)  # it stays compiled
            return
        space[name] = new
        if old is _GONE:
            self._undo.append(lambda: space.pop(name, None))
        else:
            self._undo.append(lambda: space.__setitem__(name, old))
            if isinstance(new, types.FunctionType) and callable(old):
                self.functions.append(TriedSwap(new, old, {}))

    def _change_function(self, old: Any, new: Any) -> None:
        alike = False
        with suppress(Exception):  # whatever a comparison of the user's objects raises
            alike = bool(_content(old) == _content(new))
        saved = {name: getattr(old, name) for name in _COPIED}
        own = dict(vars(old))

        def put_back() -> None:
            _give(old, saved)
            vars(old).clear()
            vars(old).update(own)

        self._undo.append(put_back)
        _give(old, {name: getattr(new, name) for name in _COPIED})
        vars(old).update(vars(new))
        if not alike:  # its calls would try nothing
            self.functions.append(TriedSwap(old, old, saved))

    def _set(self, cls: Any, name: str, value: Any) -> None:
        previous = vars(cls).get(name, _GONE)
        self._undo.append(lambda: _put(cls, name, previous))
        _put(cls, name, value)


def _put(cls: Any, name: str, value: Any) -> None:
    # Not through the metaclass, which may forbid it.
    if value is not _GONE:
        type.__setattr__(cls, name, value)
    elif name in vars(cls):
        type.__delattr__(cls, name)
        if name == "__new__" and cls.__new__ is object.__new__:
            # Python would go on to call that with all arguments, of which it then takes none.
            def new(of: Any, *args: Any, **kwargs: Any) -> Any:
                inherited = super(cls, of).__new__
                return inherited(of) if inherited is object.__new__ else inherited(of, *args, **kwargs)

            type.__setattr__(cls, name, staticmethod(new))


def _give(function: Any, attributes: Dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(function, name, value)


def _behind(value: Any) -> Any:
    """Return the function that torch compiled to make this one, or the value itself if it is another."""
    # A user's object isn't asked: one that makes up its attributes may have this one, or raise anything.
    return vars(value).get(_COMPILED, value) if isinstance(value, types.FunctionType) else value


def _can_become(old: Any, new: Any) -> bool:
    """Whether one object can get the other's code or methods."""
    if isinstance(old, type) and isinstance(new, type):
        return _is_mine(old) and _is_mine(new) and old is not new
    return _interchangeable(_behind(old), new)


def _modules(files: Iterable[str]) -> Dict[str, str]:
    """Return the module names of the Python files among ``files``, by file."""
    code = [file for file in files if file.endswith(".py")]
    return {file: re.sub(r"(/__init__)?\.py$", "", file).replace("/", ".") for file in code}


began = 0.0  # when this rank began, as `time.time` has it


def _refuse_imported(edited: Dict[str, str]) -> None:
    for file, module in edited.items():
        if module in sys.modules:
            text = "%s has changed since the ranks imported it: put the new definitions into the cell"
            raise CannotSwapError(text % file)


def _is_mine(cls: Any) -> bool:
    return str(cls.__module__) == "__main__"


def _interchangeable(old: Any, new: Any) -> bool:
    """Whether one function can get the other's code: the two have the same globals and free variables."""
    return (
        isinstance(old, types.FunctionType)
        and isinstance(new, types.FunctionType)
        and old.__globals__ is new.__globals__
        and old.__code__.co_freevars == new.__code__.co_freevars
        and set(old.__code__.co_freevars) <= {"__class__"}
        and _behind(new) is new
        and _behind(old) is old
    )


def _check_class(name: str, old: type, new: Any, stays: Dict[int, Any]) -> None:
    """Raise ``CannotSwapError`` if a value can't take the place of a class.

    ``stays`` are the objects that stay, by the ids of the cell's objects that they stand in for.
    """
    if not isinstance(new, type):
        raise CannotSwapError("%s is a class, and can't become a %s" % (name, type(new).__name__))
    if isinstance(old, enum.EnumMeta):
        raise CannotSwapError("%s is an enum, whose members can't be changed" % name)
    if id(new) not in stays:
        return
    if stays[id(new)] is not old:
        raise CannotSwapError("%s can't become another name for %s" % (name, stays[id(new)].__name__))
    bases = tuple(stays.get(id(base), base) for base in new.__bases__)
    if bases != old.__bases__ or type(old) is not type(new):
        named = (", ".join(base.__name__ for base in some) for some in (bases, old.__bases__))
        change = "other bases now (%s, not %s)" % tuple(named)
        raise CannotSwapError(_NOT_FOR_EXISTING % (name, change))
    slots = (vars(cls).get("__slots__") for cls in (old, new))
    if len({own if own is None or isinstance(own, str) else tuple(own) for own in slots}) > 1:
        raise CannotSwapError(_NOT_FOR_EXISTING % (name, "other __slots__ now"))


def _how(old: Any, new: Any, kept: bool, running: Set[Any]) -> str:
    """Return how a name's value changes, as a word; ``kept`` says whether the name keeps its object."""
    with suppress(Exception):  # whatever a comparison of the user's objects raises
        if type(old) is type(new) and bool(_content(old) == _content(new)):
            return SAME
    if isinstance(old, _WITH_CODE) and isinstance(new, _WITH_CODE) and not kept:
        return REBOUND
    return LATER if running.intersection(_codes(old)) else REPLACED


def _content(value: Any) -> Any:
    """Return a value that is equal for functions, or classes, that do the same."""
    value = _behind(value)
    if isinstance(value, (classmethod, staticmethod)):
        return type(value), _content(value.__func__)
    if isinstance(value, property):
        return property, [_content(part) for part in (value.fget, value.fset, value.fdel)]
    if isinstance(value, CACHED):
        return value.cache_parameters(), _content(value.__wrapped__)
    if isinstance(value, WRAPPERS) and not hasattr(value, "dispatcher"):  # which has a registry
        return type(value), _content(value.func), getattr(value, "args", ()), getattr(value, "keywords", {})
    if isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or ())
        closed = [_content(cell.cell_contents) for name, cell in cells if name != "__class__"]
        own = {k: _content(v) for k, v in vars(value).items()}
        return _content(value.__code__), value.__defaults__, value.__kwdefaults__, own, closed
    if isinstance(value, types.CodeType):
        names = value.co_names, value.co_varnames, value.co_freevars
        return value.co_code, names, [_content(constant) for constant in value.co_consts]
    if isinstance(value, type) and _is_mine(value):
        parts = [(k, v) for k, v in vars(value).items() if k not in _OWN and not isinstance(v, _SLOTS)]
        return {k: _content(v) for k, v in parts if isinstance(v, _METHODS) or not k.startswith("__")}
    return type(value), value


def _codes(value: Any) -> Iterator[types.CodeType]:
    """Yield the code of a function, or of a class's methods."""
    value = _behind(value)
    if isinstance(value, (classmethod, staticmethod, types.MethodType)):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        yield value.__code__
    elif isinstance(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from _codes(part)
    elif isinstance(value, type) and _is_mine(value):
        for item in list(vars(value).values()):
            if not isinstance(item, type):
                yield from _codes(item)
