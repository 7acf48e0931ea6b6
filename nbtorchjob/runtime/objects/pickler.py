"""Pickles the objects of a notebook or a rank so that they are the same at the other end.

Code in modules is pickled by name; code defined in ``__main__`` or in functions by value, with its file,
lines and columns. One object graph keeps what its parts share: closure variables, memory of arrays and
tensors, namespaces of functions. Classes keep slots, members and hooks. Properties, loggers, dict views and
the like use cloudpickle's reductions, through its public names only.
"""

from __future__ import annotations

import abc
import builtins
import collections
import contextvars
import copyreg
import dataclasses
import datetime
import enum
import functools
import gc
import importlib
import inspect
import io
import itertools
import pathlib
import pickle
import sys
import types
import typing
import weakref
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import cloudpickle

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.objects import codenames, generated, importable, memory, rebuilt, sources, threads
from nbtorchjob.runtime.objects.importable import made_by_hand

_HEAP = 1 << 9  # the type flag of a class that code has made
_LOOKED = 1000  # how many objects in containers to look at
_MAPPINGS = (
    *(dict, collections.OrderedDict, collections.defaultdict),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary),
)
_ATOMS = {type(None), bool, int, float, complex, str, bytes}
_FILLED_APART = (type, types.FunctionType, types.ModuleType, types.CodeType)  # these wait by themselves
_COLLECTIONS = (list, tuple, set, frozenset, collections.deque, weakref.WeakSet)
_FUNCTION = ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__")


def dumps(
    value: Any,
    make: Callable[[Any, Any], Pickler],
    out_of_band: Callable[[pickle.PickleBuffer], Any],
    *,
    sourced: bool = False,
) -> bytes:
    """Pickle ``value`` for ``pickle.loads``; ``make`` returns the pickler, ``out_of_band`` gets the buffers.

    If ``sourced``, the pickle includes the sources of its code, for another Python.
    """
    file = io.BytesIO()
    later: List[pickle.PickleBuffer] = []

    def wait(buffer: pickle.PickleBuffer) -> bool:
        small = buffer.raw().nbytes < memory.SMALL
        if not small:
            later.append(buffer)
        return small

    pickler = make(file, wait)
    pickler.dump(value)
    begin = pickler.memory.begin(out_of_band)  # its buffers are the first to be loaded
    for buffer in later:
        out_of_band(buffer)
    table = pickler.codes.table() if sourced else {"places": []}
    front = sources.front(table) if table["places"] else b""
    hooks = sources.ahead(_handle(max(pickler.hooks))) if pickler.hooks else b""
    return front + begin + hooks + file.getvalue()


def _handle(number: int) -> Any:
    """Return a handle of hook ``number``; loading it makes torch number new hooks from there on.

    Otherwise, a hook added after loading could replace the pickled hook of the same number.
    """
    type_: Any = sys.modules["torch"].utils.hooks.RemovableHandle
    handle = type_.__new__(type_)
    handle.__setstate__((None, number))
    return handle


class Pickler(pickle.Pickler):
    """Pickles with protocol 5; loading the pickle needs the modules ``rebuilt`` and ``memory``."""

    def __init__(self, file: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        # A plain dict: cloudpickle's chains its own table and copyreg's, and is searched for each object.
        self.dispatch_table = dict(cloudpickle.Pickler.dispatch_table)
        self.memory = memory.Memory()
        self.codes = sources.Codes()
        self.hooks: List[int] = []  # the numbers of hooks of torch modules
        self._reducers: Dict[type, Callable[[Any], Any]] = {}
        self._spaces: Dict[int, Dict[str, Any]] = {}  # by the id of functions' globals
        self._cells: Dict[int, Any] = {}  # closure variables that get their value with a function
        self._functions: Dict[int, Tuple[Any, List[Any]]] = {}  # with the closure variables that they fill
        self._bare: Dict[int, _Bare] = {}
        self._classes: Dict[int, _Class] = {}
        self._open = 0  # how many classes are incomplete at this point of loading
        self._late: List[_Late] = []  # what is filled in once they are complete

    def dump(self, obj: Any) -> None:
        """Pickle ``obj``; raises whatever an object's own pickling raises."""
        try:
            super().dump(obj)
        finally:
            self._reducers.clear()  # methods of this pickler: the cycle would keep alive all that was pickled

    def reducer_override(self, obj: Any) -> Any:
        """Return how ``obj`` is pickled (see ``pickle.Pickler.reducer_override``)."""
        type_ = type(obj)
        reducer = self._reducers.get(type_)
        if reducer is None:
            reducer = self._reducers[type_] = self._reducer(type_)
        return reducer(obj)

    def _reducer(self, type_: type) -> Callable[[Any], Any]:
        if issubclass(type_, type):
            return self.reduce_class
        method = _BY_TYPE.get(type_)
        if method is not None:
            reducer: Callable[[Any], Any] = getattr(self, method)
            return reducer
        if issubclass(type_, types.ModuleType):
            return self.reduce_module
        if type_ in importable.types_of_others():
            return self.reduce_stand_in
        return self._reducer_of_object(type_)

    def _reducer_of_object(self, type_: Any) -> Callable[[Any], Any]:
        if type_ in _OF_PYTHON:
            return _OF_PYTHON[type_]
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if numpy is not None and type_ is numpy.ndarray:
            return functools.partial(memory.reduce_array, self.memory)
        if torch is not None and type_ is torch.Tensor:
            return self.reduce_tensor
        if torch is not None and type_ is torch.nn.Parameter:
            return self.reduce_parameter
        for base in type_.__mro__:
            own = _OF_LIBRARIES.get((base.__module__, base.__name__))
            if own is not None:
                return own
        if torch is not None and issubclass(type_, torch.nn.Module) and type_.__name__ == _WRAPPER:
            return lambda wrapper: (rebuilt.unwrapped, (wrapper.module, _WRAPPER))
        if issubclass(type_, BaseException):
            return _reduce_exception
        notebooks = not by_name(type_)
        refill = _refilling(type_) if notebooks else None
        if refill is not None:
            return refill
        remake = _remaking(type_) if notebooks else None
        if remake is not None:
            return remake
        if type_.__reduce__ in _WITHOUT_ATTRIBUTES and type_.__reduce_ex__ is object.__reduce_ex__:
            return _leave if type_ in self.dispatch_table else _reduce_container
        if notebooks and issubclass(type_, enum.Enum):
            return _reduce_member
        sentinels = {} if notebooks else importable.sentinels(type_)
        if sentinels:
            return lambda obj: (getattr, sentinels[id(obj)]) if id(obj) in sentinels else NotImplemented
        if torch is not None and issubclass(type_, torch.nn.Module):
            return self.reduce_net
        if type_ in self.dispatch_table:
            return _leave
        if (
            notebooks
            and issubclass(type_, pathlib.PurePath)
            and type_.__reduce__ is pathlib.PurePath.__reduce__
        ):
            return _reduce_path
        if hasattr(type_, "__getattr__") and not hasattr(type_, "__setstate__"):
            return _reduce_trapped
        plain = (type_.__reduce__, type_.__reduce_ex__) == (object.__reduce__, object.__reduce_ex__)
        if plain and isinstance(type_.__hash__, types.FunctionType) and type_.__new__ is object.__new__:
            return _leave if _has_own_state(type_) else _reduce_hashed
        return _leave if plain else _reduced

    def reduce_tensor(self, tensor: Any) -> Any:
        """Reduce a tensor whose class is ``torch.Tensor`` itself."""
        return memory.reduce_tensor(self.memory, tensor)

    def reduce_parameter(self, parameter: Any) -> Any:
        """Reduce a parameter; it is left to torch unless it was made in inference mode."""
        if not parameter.is_inference():
            return NotImplemented
        return rebuilt.inference_parameter, (parameter.data, parameter.requires_grad)

    def reduce_net(self, net: Any) -> Any:
        """Leave a torch module to its own reduction, and record the numbers of its hooks."""
        for name, hooks in vars(net).items():
            if name.endswith("_hooks") and isinstance(hooks, dict):
                self.hooks += [number for number in hooks if isinstance(number, int)]
        return NotImplemented

    # Functions

    def reduce_function(self, function: Any) -> Any:
        """Reduce a function: by name where its module has it, else by value."""
        if by_name(function):
            return generated.reduce_private(function)
        if generated.is_dispatching(function):
            return self.reduce_dispatching(function)
        args, state = self._make(function), self._state(function)
        bare = self._bare.get(id(function))
        call = (rebuilt.make_function, args) if bare is None else (rebuilt.same, (bare,))
        return (*call, state, None, None, rebuilt.fill_function)

    def _make(self, function: Any) -> Tuple[Any, ...]:
        if id(function) not in self._functions:
            fresh = [cell for cell in function.__closure__ or () if id(cell) not in self._cells]
            self._cells.update((id(cell), cell) for cell in fresh)
            self._functions[id(function)] = (function, fresh)
        return function.__code__, self._space(function), function.__closure__

    def _space(self, function: Any) -> Any:
        names = function.__globals__
        module = sys.modules.get(names.get("__name__"))
        if (
            names.get("__name__") != "__main__"
            and importable.installed(module)
            and importable.attributes(module) is names
        ):
            return module  # made by a library's decorator: it uses the globals of the module at the other end
        space = self._spaces.setdefault(id(names), {})
        if not space:
            space.update(
                (k, names[k]) for k in ("__package__", "__name__", "__path__", "__file__") if k in names
            )
        return space

    def reads(self, function: Any) -> Dict[str, Any]:
        """Return the globals that ``function``, and the functions defined in it, read."""
        names = function.__globals__
        return {name: names[name] for name in codenames.names_read(function.__code__) if name in names}

    def _state(self, function: Any) -> Tuple[Any, ...]:
        # Copies of the names: an interned string may be shared with other objects, which changes the pickle.
        attributes = {name: getattr(function, name) for name in _FUNCTION}
        attributes["__annotations__"] = annotations_of(function)
        if getattr(function, "__type_params__", ()):
            attributes["__type_params__"] = function.__type_params__
        own = {"".join(name): value for name, value in vars(function).items()}
        reads = {} if isinstance(self._space(function), types.ModuleType) else self.reads(function)
        cells = [(cell, cell.cell_contents) for cell in self._functions[id(function)][1] if _full(cell)]
        values = [*reads.values(), *(content for _, content in cells)]
        submodules = importable.submodules(values, codenames.all_names(function.__code__))
        if self._open:
            late = [
                {name: names.pop(name) for name in [*names] if _is_late(names[name])}
                for names in (attributes, own, reads)
            ]
            late_cells = [(cell, content) for cell, content in cells if _is_late(content)]
            cells = [(cell, content) for cell, content in cells if not _is_late(content)]
            if late_cells or any(late):
                self._late.append(_Late(rebuilt.fill_function, function, (*late, late_cells, ())))
        return attributes, own, reads, cells, submodules

    def reduce_cell(self, cell: Any) -> Any:
        """Reduce a closure variable; its value comes with a function, or else right after the variable."""
        if id(cell) in self._cells or not _full(cell):
            return rebuilt.make_cell, ()
        self._cells[id(cell)] = cell
        return rebuilt.make_cell, (), cell.cell_contents, None, None, rebuilt.fill_cell

    def reduce_cached(self, cached: Any) -> Any:
        """Reduce an ``lru_cache`` function, without its cache."""
        function = getattr(cached, "__wrapped__", None)
        if function is None or _attribute(cached) is cached:
            return NotImplemented
        own = {k: v for k, v in vars(cached).items() if k != "cache_parameters"}
        args = (self._inner(function), cached.cache_parameters())
        return rebuilt.make_cached, args, (function, own), None, None, rebuilt.fill_cached

    def _inner(self, function: Any) -> Any:
        """Return the function to wrap, without its state if that may refer back to the wrapper."""
        plain = isinstance(function, types.FunctionType) and not by_name(function)
        if plain and id(function) not in self._functions:
            self._bare[id(function)] = _Bare(function, self._make(function))
        return self._bare.get(id(function), function)

    def reduce_dispatching(self, function: Any) -> Any:
        """Reduce a ``singledispatch`` function, which closes over internal tables of Python."""
        own = {
            name: value
            for name, value in vars(function).items()
            if not callable(value) and name != "registry"
        }
        state = (function.__wrapped__, dict(function.registry), own)
        args = (self._inner(function.__wrapped__),)
        return generated.make_dispatching, args, state, None, None, generated.fill_dispatching

    def reduce_code(self, code: types.CodeType) -> Any:
        """Reduce code unchanged, with all that tracebacks and debuggers show."""
        values = {name: getattr(code, name) if name in _CODE else None for name in rebuilt.CODE}
        # Which equal names and tuples Python shares depends on how it compiled them, and pickles would show
        # that: copies are pickled. A cell's code all shares one file name.
        for name, value in values.items():
            if isinstance(value, tuple):
                values[name] = (*value, None)[:-1]
            elif name in ("co_name", "co_qualname") and value is not None:
                values[name] = "".join(value)
        return rebuilt.make_code, (sources.HERE, self.codes.add(code), *values.values())

    # Classes

    def reduce_class(self, cls: Any) -> Any:
        """Reduce a class: by name where its module has it, else by value."""
        if cls in _SINGLETONS or by_name(cls):
            return generated.reduce_name(cls)
        if cls in _TYPES:
            return getattr, (types, _TYPES[cls])
        # Its instances, in attributes or in globals of methods, come last: hashing them needs the methods.
        if id(cls) in self._classes:
            return rebuilt.same, (self._classes[id(cls)],)
        self._classes[id(cls)] = _Class(cls)
        self._open += 1
        return rebuilt.same, (self._classes[id(cls)], _End())

    def reduce_open(self, opened: _Class) -> Any:
        """Reduce a class without the parts that come last."""
        cls = opened.cls
        # The attributes of a class, without those that Python adds when it makes one

        def is_added(value: Any) -> bool:
            types_ = (types.GetSetDescriptorType, types.MemberDescriptorType)
            return isinstance(value, types_) and value.__objclass__ is cls

        state = {"".join(name): value for name, value in vars(cls).items() if not is_added(value)}
        state.pop("__slotnames__", None)  # pickle caches it in a class when it pickles an instance
        lazy = _ANNOTATIONS.intersection(state)
        if lazy:
            for name in lazy:
                del state[name]
            state["__annotations__"] = annotations_of(cls)
        if "__slots__" in state and not isinstance(state["__slots__"], (str, tuple, list, dict)):
            types_ = types.MemberDescriptorType
            state["__slots__"] = tuple(k for k, v in vars(cls).items() if isinstance(v, types_))
        if issubclass(cls, enum.Enum):
            # Combined flags are made again on demand.
            members = set(map(id, state["_member_map_"].values()))
            values = state["_value2member_map_"]
            state["_value2member_map_"] = {k: v for k, v in values.items() if id(v) in members}
        names = {"__module__", "__slots__"}.intersection(state)
        own: Dict[str, Any] = {name: state.pop(name) for name in sorted(names)}
        own["__qualname__"] = cls.__qualname__
        if "__orig_bases__" in state:
            own["__orig_bases__"] = state["__orig_bases__"]
        registered: List[Any] = []
        if isinstance(cls, abc.ABCMeta):
            state.pop("_abc_impl", None)
            registered = [item() for item in abc._get_dump(cls)[0]]  # type: ignore[attr-defined]
        type_ = type(cls)
        maker = next(item for item in type_.__mro__ if by_name(item))
        args = (rebuilt.tag(cls), type_, maker, "".join(cls.__name__), cls.__bases__, own)
        for method in generated.methods(cls):
            self.codes.add_generated(method.__code__)
        late: Dict[str, Any] = {}
        if not issubclass(cls, enum.Enum):  # an enum's members are made with it
            # What Python's class makers write is read right away by the class makers of another Python.
            makers = ("__", "_field")
            late = {k: v for k, v in state.items() if not k.startswith(makers) and _is_late(v)}
        if late:
            state.update(dict.fromkeys(late))  # placeholders, to keep the order
            self._late.append(_Late(rebuilt.complete_class, cls, late))
        filled = (state, registered, sources.HERE, not late)
        return rebuilt.make_class, args, filled, None, None, rebuilt.fill_class

    def reduce_end(self, end: Any) -> Any:
        """Reduce the parts that come last, of a class and of the classes inside it."""
        self._open -= 1
        late: List[_Late] = []
        if not self._open:
            late, self._late = self._late, late
        return tuple, (late,) if late else ()

    # Weak references: the referent travels along, but survives only if something else holds it.

    def reduce_reference(self, reference: Any) -> Any:
        """Reduce a weak reference, with its callback."""
        referent = reference()
        if referent is None:
            return rebuilt.dead, (weakref.ref,)
        return weakref.ref, (referent, reference.__callback__)

    def reduce_weak_proxy(self, proxy: Any) -> Any:
        """Reduce a weak proxy, with its callback."""
        referent = proxied(proxy)
        if referent is None:
            return rebuilt.dead, (weakref.proxy,)
        return weakref.proxy, (referent, *gc.get_referents(proxy))

    def reduce_weak_dict(self, mapping: Any) -> Any:
        """Reduce a dictionary with weak keys or values."""
        return type(mapping), (), None, None, iter(list(mapping.items()))

    def reduce_weak_set(self, weak_set: Any) -> Any:
        """Reduce a weak set to its items: how it stores them differs between Pythons."""
        return type(weak_set), (list(weak_set),)

    # Others

    def reduce_module(self, module: types.ModuleType) -> Any:
        """Reduce a module: by name where it can be imported, else by value."""
        if not _registered(importable.name_of(module)):
            route = importable.route(module)
            if route is not None:
                return (importlib.import_module, (route,)) if isinstance(route, str) else (getattr, route)
        type_ = type(module)
        if (type_.__reduce__, type_.__reduce_ex__) != (object.__reduce__, object.__reduce_ex__):
            return NotImplemented
        state = importable.attributes(module)
        own = {k: v for k, v in state.items() if k not in ("__builtins__", "__loader__", "__spec__")}
        if "__builtins__" in state:
            own["__builtins__"] = builtins
        name = importable.name_of(module)
        args = (name, sys.modules.get(name) is module, type_)
        return rebuilt.make_module, args, own, None, None, rebuilt.fill_module

    def reduce_stand_in(self, obj: Any) -> Any:
        """Reduce an object whose class has an instance in ``sys.modules`` in place of a module."""
        route = importable.route(obj)
        if isinstance(route, str):
            return importlib.import_module, (route,)
        return self._reducer_of_object(type(obj))(obj)

    def reduce_partial(self, partial: Any) -> Any:
        """Reduce a partial, whose function may refer back to it."""
        return rebuilt.make_partial, (type(partial),), partial.__reduce__()[2]

    def reduce_cached_property(self, prop: Any) -> Any:
        """Reduce a ``cached_property`` without the lock that it has on Python 3.11 and before."""
        own = {name: value for name, value in vars(prop).items() if name != "lock"}
        return type(prop), (prop.func,), own

    def reduce_proxy(self, proxy: Any) -> Any:
        """Reduce a view of a mapping, together with the mapping."""
        return types.MappingProxyType, (gc.get_referents(proxy)[0],)

    def reduce_variable(self, variable: Any) -> Any:
        """Reduce a type variable of a notebook."""
        if _attribute(variable) is variable:
            return getattr, (sys.modules[variable.__module__], variable.__name__)
        if hasattr(variable, "__value__") and not variable.__type_params__:  # it may refer to itself
            cell = rebuilt.make_cell()
            self._cells[id(cell)] = cell
            state = (cell, variable.__value__)
            alias = (variable.__name__, variable.__module__, cell)
            return rebuilt.make_alias, alias, state, None, None, rebuilt.fill_alias
        try:
            known_as = rebuilt.tag(variable)
        except TypeError:  # its type allows no weak references: each pickle makes a new one
            known_as = ""
        type_: Any = type(variable)
        args = (variable.__name__, *getattr(variable, "__constraints__", ()))
        for name in ("__supertype__", "__value__"):
            if hasattr(variable, name):
                args = (*args, getattr(variable, name))
        names = ("bound", "covariant", "contravariant", "infer_variance", "type_params")
        options = {name: getattr(variable, "__%s__" % name, None) for name in names}
        if hasattr(variable, "has_default") and variable.has_default():  # Python 3.13
            options["default"] = variable.__default__
        return rebuilt.tracked, (
            known_as,
            variable.__module__,
            *(functools.partial(type_, **{name: value for name, value in options.items() if value}), args),
        )

    def reduce_context_variable(self, variable: Any) -> Any:
        """Reduce a context variable: by name if a module holds it, since the module's code reads that one."""
        module, name = importable.all_locations(type(variable)).get(id(variable), (None, ""))
        if module is None or _registered(importable.name_of(module)):
            return threads.reduce_variable(variable)
        return getattr, (module, name)

    def reduce_builtin(self, function: Any) -> Any:
        """Reduce a function of Python or of a C library: pickle does so by name."""
        return NotImplemented

    def reduce_bare(self, bare: _Bare) -> Any:
        """Reduce a function without its state."""
        return rebuilt.make_function, bare.args


class _Bare:
    """A function without its state, for a wrapper that is made before the function is complete."""

    def __init__(self, function: Any, args: Tuple[Any, ...]) -> None:
        self.function = function
        self.args = args


class _Class:
    """A class before it is complete."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls


class _End:
    """Marks where a class is complete in the pickle."""


class _Late:
    """A call that fills in values that had to wait for a class."""

    def __init__(self, fill: Any, *args: Any) -> None:
        self._call = (fill, args)

    def __reduce__(self) -> Any:
        return self._call


def _is_late(value: Any) -> bool:
    """Whether a value has to wait for a class pickled by value: it is, or holds, an instance of one."""
    waiting = collections.deque([value])
    for _ in range(_LOOKED):
        if not waiting:
            break
        value = waiting.popleft()  # not the last one: a long list would hide the keys beside it
        type_ = type(value)
        if issubclass(type_, _FILLED_APART):
            continue
        if type_ in _MAPPINGS:
            parts: Any = itertools.chain.from_iterable(value.items())
        elif type_ in _COLLECTIONS:
            parts = value
        elif type_.__flags__ & _HEAP and not by_name(type_):
            return True
        else:
            parts = gc.get_referents(value)  # an object of a library may hash what it holds
        waiting += [part for part in itertools.islice(parts, _LOOKED) if type(part) not in _ATOMS]
    return False


def proxied(proxy: Any) -> Any:
    """Return the referent of a weak proxy, or None once that is gone."""
    try:
        return proxy.__reduce_ex__.__self__  # a method of the referent
    except ReferenceError:
        return None


def by_name(obj: Any) -> bool:
    """Whether importing a class or function by its name returns that very object."""
    return _attribute(obj) is obj


def annotations_of(obj: Any) -> Dict[str, Any]:
    """Return annotations; on Python 3.14 as strings if they contain an undefined name."""
    try:
        own: Dict[str, Any] = obj.__annotations__
    except NameError:
        import annotationlib  # type: ignore[import-not-found]

        own = annotationlib.get_annotations(obj, format=annotationlib.Format.STRING)
    return own


def _leave(obj: Any) -> Any:
    return NotImplemented


def _full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _attribute(obj: Any) -> Any:
    """Return the object that can be imported by the name of ``obj``, if any: often ``obj`` itself."""
    name = str(obj.__module__)
    if name == "__main__" or name not in sys.modules or made_by_hand(name) or _registered(name):
        return None
    path = getattr(obj, "__qualname__", obj.__name__)
    module: Any = sys.modules[name]
    return functools.reduce(lambda owner, step: getattr(owner, step, None), path.split("."), module)


def _registered(name: str) -> bool:
    """Whether a module, or a package above it, is registered with cloudpickle to be pickled by value."""
    by_value = cloudpickle.list_registry_pickle_by_value()
    return any(name == prefix or name.startswith(prefix + ".") for prefix in by_value)


def _reduce_member(member: Any) -> Any:
    cls = type(member)
    if cls._member_map_.get(member._name_) is not member:
        return cls, (member._value_,)
    args = (cls, member._name_, *_maker(member))
    return rebuilt.make_member, args, _attributes(member), None, None, rebuilt.fill_member


def _maker(obj: Any) -> Tuple[Any, Tuple[Any, ...]]:
    """Return the C class whose ``__new__`` can make ``obj`` again, and the arguments to pass."""
    base: Any = next(cls for cls in type(obj).__mro__ if isinstance(vars(cls).get("__new__"), type(len)))
    if base is object:
        return base, ()
    if hasattr(base, "__getnewargs__"):
        return base, base.__getnewargs__(obj)
    maker, args, *_ = base.__reduce_ex__(obj, 5)
    if maker is not type(obj) or base.__hash__ is None:  # a container, which ``__init__`` fills
        raise pickle.PicklingError("an object of a class below %s can't be made again" % base.__name__)
    return base, args


def _attributes(obj: Any) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return the attributes in an object's ``__dict__``, and those in its slots."""
    slots = [name for name in copyreg._slotnames(type(obj)) if hasattr(obj, name)]  # type: ignore[attr-defined]
    return dict(getattr(obj, "__dict__", ())), {name: getattr(obj, name) for name in slots}


# Classes of torch, Triton and Python that don't define how to make their objects again elsewhere.
_OF_LIBRARIES: Dict[Tuple[str, str], Callable[[Any], Any]] = {}


def _reduces(module: str, name: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register a function that reduces the objects of a library's class and of its subclasses."""

    def enter(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
        _OF_LIBRARIES[module, name] = reduce
        return reduce

    return enter


@_reduces("torch", "memory_format")
def _reduce_memory_format(memory_format: Any) -> Any:
    # Its name is "torch.channels_last", which pickle would look up in the first module that has a `torch`.
    return rebuilt.of_torch, (str(memory_format).rpartition(".")[2],)


@_reduces(torch_versions.PACKET.module, torch_versions.PACKET.name)
def _reduce_packet(packet: Any) -> Any:
    # Its `__module__` is "torch._ops.aten", which doesn't exist.
    space, _, name = packet._qualified_op_name.partition("::")
    return getattr, (getattr(sys.modules["torch"].ops, space), name)


@_reduces(torch_versions.OVERLOAD.module, torch_versions.OVERLOAD.name)
def _reduce_overload(overload: Any) -> Any:
    return getattr, (overload.overloadpacket, overload._overloadname)


@_reduces(torch_versions.HIGHER_ORDER.module, torch_versions.HIGHER_ORDER.name)
def _reduce_higher_order(operator: Any) -> Any:
    space, name = sys.modules["torch"].ops.higher_order, operator.name()
    return (getattr, (space, name)) if getattr(space, name, None) is operator else NotImplemented


@_reduces("torch.utils.data.dataloader", "DataLoader")
def _reduce_loader(loader: Any) -> Any:
    state = dict(vars(loader))
    state["_iterator"] = None  # with persistent_workers: its workers are processes on this machine
    return copyreg.__newobj__, (type(loader),), state, None, None, rebuilt.fill_plainly  # type: ignore[attr-defined]


@_reduces("numpy", "ndarray")
def _reduce_own_array(array: Any) -> Any:
    reduced, own = array.__reduce_ex__(5), dict(getattr(array, "__dict__", ()))
    numpy = sys.modules["numpy"]
    # numpy's own reduction leaves attributes out. Those of a memmap are its file.
    left_out = own and type(array).__reduce__ is numpy.ndarray.__reduce__ and not by_name(type(array))
    if not left_out or isinstance(array, numpy.memmap):
        return reduced
    return (*reduced[:2], (reduced[2], own), None, None, rebuilt.fill_with_attributes)


@_reduces("numpy", "finfo")
def _reduce_limits(limits: Any) -> Any:
    return type(limits), (limits.dtype,)


@_reduces("torch", "finfo")
@_reduces("torch", "iinfo")
def _reduce_torch_limits(limits: Any) -> Any:
    return type(limits), (getattr(sys.modules["torch"], limits.dtype),)


@_reduces("torch.nn.parameter", "Parameter")
def _reduce_own_parameter(parameter: Any) -> Any:
    # Of another class than torch's: its own reduction would make one of that.
    torch, type_ = sys.modules["torch"], type(parameter)
    if type_.__reduce_ex__ is not torch.nn.Parameter.__reduce_ex__:
        return NotImplemented
    args = (type_, parameter.data.as_subclass(torch.Tensor), parameter.requires_grad)
    return rebuilt.own_parameter, args, vars(parameter) or None, None, None, rebuilt.fill_plainly


@_reduces("torch.optim.lr_scheduler", "LRScheduler")
def _reduce_scheduler(scheduler: Any) -> Any:
    # It marks its optimizer, to know whether that steps; the optimizer leaves the mark out of its own state.
    state = (dict(vars(scheduler)), torch_versions.STEPPED.get(scheduler.optimizer))
    call = copyreg.__newobj__, (type(scheduler),)  # type: ignore[attr-defined]
    return (*call, state, None, None, rebuilt.fill_scheduler)


@_reduces("torch.export.exported_program", "ExportedProgram")
def _reduce_exported(program: Any) -> Any:
    file = io.BytesIO()
    sys.modules["torch"].export.save(program, file)  # its own pickle can't be loaded
    return rebuilt.exported, (file.getvalue(),)


@_reduces("triton.runtime.jit", "JITFunction")
def _reduce_kernel(kernel: Any) -> Any:
    # Everything but its function and its options (locks, compiled code) is made anew with it.
    names = [*inspect.signature(type(kernel)).parameters][1:]
    own = vars(kernel)
    options = {name: own.get("_" + name, own.get(name)) for name in names}
    return rebuilt.kernel, (type(kernel), kernel.fn, options)


@_reduces("cytoolz.functoolz", "curry")
@_reduces("toolz.functoolz", "curry")
def _reduce_curry(curried: Any) -> Any:
    call, (type_, function, *rest) = curried.__reduce__()
    if isinstance(function, str) and function.startswith("__main__:"):
        # This names the decorated function's place in the notebook, which a rank doesn't have (toolz 1.2).
        function, rest = curried.func, [*rest[:-1], None]
    return call, (type_, function, *rest)


def _reduce_with_constant(module: str, name: str, obj: Any) -> Any:
    reduced = obj.__reduce_ex__(5)
    constant = getattr(sys.modules.get(module), name, None)
    if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    own = {key: _Constant(module, name) if value is constant else value for key, value in reduced[2].items()}
    return (*reduced[:2], own, *reduced[3:])


class _Constant:
    """A string or tuple that a module compares with by identity: pickle would make another one."""

    def __init__(self, module: str, name: str) -> None:
        self._place = (module, name)

    def __reduce__(self) -> Any:
        return rebuilt.constant, self._place


for _module, _name, _constant in (
    ("argparse", "Action", "SUPPRESS"),
    ("argparse", "_ActionsContainer", "SUPPRESS"),
    ("argparse", "Namespace", "SUPPRESS"),
    ("optparse", "Option", "NO_DEFAULT"),
):
    _OF_LIBRARIES[_module, _name] = functools.partial(_reduce_with_constant, _module, _constant)


_OF_LIBRARIES.update(
    {
        ("_thread", "_local"): threads.reduce_local,
        ("threading", "Condition"): threads.reduce_condition,
        ("threading", "Thread"): threads.refuse_thread,
        ("queue", "Queue"): threads.reduce_queue,
        ("concurrent.futures._base", "Future"): threads.reduce_future,
        ("concurrent.futures._base", "Executor"): threads.refuse_thread,
    }
)


@_reduces("builtins", "property")
@_reduces("builtins", "classmethod")
@_reduces("builtins", "staticmethod")
def _reduce_descriptor(obj: Any) -> Any:
    type_: Any = type(obj)
    base = next(base for base in (property, classmethod, staticmethod) if isinstance(obj, base))
    if type_ is base or by_name(type_) or type_.__reduce__ is not object.__reduce__:
        return NotImplemented
    args = (obj.fget, obj.fset, obj.fdel, obj.__doc__) if base is property else (obj.__func__,)
    call = (rebuilt.make_descriptor, (type_, base, args))
    return (*call, _attributes(obj), None, None, rebuilt.fill_hashed)


@_reduces("_io", "TextIOWrapper")
def _reduce_stream(stream: Any) -> Any:
    # cloudpickle would make a copy of a file's text instead.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is stream:
            return getattr, (sys, name)
    raise pickle.PicklingError("cannot pickle an open file")


def _reduce_exception(exc: Any) -> Any:
    type_: Any = type(exc)
    if by_name(type_) or type_.__reduce__ is not BaseException.__reduce__:
        reduced = exc.__reduce_ex__(5)
        if not isinstance(reduced, tuple) or len(reduced) > 3:
            return reduced
    else:
        base = next(base_class for base_class in type_.__mro__ if by_name(base_class))
        reduced = (rebuilt.make_exception, (type_, base, exc.args), dict(vars(exc)))
    state = reduced[2] if len(reduced) > 2 else None
    return (*reduced[:2], (state, rebuilt.raised(exc)), None, None, rebuilt.fill_exception)


def _reduced(obj: Any) -> Any:
    """Return an object's own reduction; if that is a name in the notebook, the object comes along."""
    reduced = obj.__reduce_ex__(5)
    if not isinstance(reduced, str) or type(obj).__module__ != "__main__":
        return reduced
    state = (reduced, *_attributes(obj))
    return rebuilt.make_named, (reduced, type(obj), *_maker(obj)), state, None, None, rebuilt.fill_named


def _reduce_path(path: Any) -> Any:
    return (*path.__reduce__()[:2], getattr(path, "__dict__", None) or None)


def _reduce_trapped(obj: Any) -> Any:
    reduced = _reduced(obj)
    if not isinstance(reduced, tuple) or len(reduced) > 5 or len(reduced) < 3 or reduced[2] is None:
        return reduced
    plain = isinstance(reduced[2], dict) and type(obj).__dictoffset__
    fill = rebuilt.fill_plainly if plain else rebuilt.fill_object
    return (*reduced, *(None,) * (5 - len(reduced)), fill)


def _reduce_hashed(obj: Any) -> Any:
    """Reduce an object that hashes itself: it is made with what it may be hashed by.

    Whatever holds it as a key, perhaps an attribute of its own, is filled before it has all its attributes.
    """
    own, slots = _attributes(obj)
    if all(map(_is_plain, own.values())) and all(map(_is_plain, slots.values())):
        return NotImplemented  # nothing can lead back to it, and there may be millions, as of samples
    early = [{name: names.pop(name) for name in [*names] if _is_plain(names[name])} for names in (own, slots)]
    return rebuilt.make_hashed, (type(obj), *early), (own, slots), None, None, rebuilt.fill_hashed


_VALUES = (object, int, float, complex, str, bytes, tuple, frozenset)
# Python's classes whose reductions call the object's class with the value, and leave out attributes.
_BARE = {
    *(("datetime", name) for name in ("date", "datetime", "time", "timedelta")),
    *(("decimal", "Decimal"), ("fractions", "Fraction")),
}


def _remaking(type_: Any) -> Optional[Callable[[Any], Any]]:
    """Return what reduces values with attributes, or with a ``__new__`` of their own; None for any other.

    pickle would leave out the attributes, and call the ``__new__`` with the finished value, or without the
    arguments that it requires.
    """
    bare = next((base for base in type_.__mro__ if (base.__module__, base.__name__) in _BARE), None)
    reductions = [(cls.__reduce__, cls.__reduce_ex__) for cls in (type_, bare) if cls is not None]
    if bare is not None and reductions[0] == reductions[1] and not _has_own_state(type_):

        def reduce_bare(obj: Any) -> Any:
            args = (type_, bare, obj.__reduce_ex__(5)[1])
            return rebuilt.make_past_own, args, _attributes(obj), None, None, rebuilt.fill_hashed

        return reduce_bare
    new = type_.__new__
    if not isinstance(new, types.FunctionType) or new.__globals__.get("__name__", "").startswith(
        "namedtuple_"
    ):
        return None
    base = next(base for base in type_.__mro__ if isinstance(vars(base).get("__new__"), type(len)))
    names = ("__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__", "__setstate__")
    methods = [getattr(type_, name, None) for name in names]
    # A named tuple has a ``__getnewargs__`` that Python wrote.
    own = [m for m in methods if isinstance(m, types.FunctionType) and m.__globals__ is not vars(collections)]
    if base not in _VALUES or own or _says_state(type_):
        return None

    def reduce(obj: Any) -> Any:
        args = (type_, *_maker(obj))
        return rebuilt.make_past_own, args, _attributes(obj), None, None, rebuilt.fill_hashed

    return reduce


def _is_plain(value: Any) -> bool:
    """Whether a value is hashed by itself alone, and can't refer to anything."""
    type_ = type(value)
    if type_ in _ATOMS:
        return True
    if type_ in (tuple, frozenset):
        return all(map(_is_plain, value))
    if issubclass(type_, enum.Enum):
        return _is_plain(value._value_)
    return type_.__module__.partition(".")[0] in _OF_VALUES


# Python's modules whose objects are values.
_OF_VALUES = {"datetime", "decimal", "fractions", "pathlib", "uuid"}
# Python's own reductions, which leave out attributes set on an instance.
_WITHOUT_ATTRIBUTES = (collections.Counter.__reduce__, collections.defaultdict.__reduce__)


def _reduce_container(container: Any) -> Any:
    maker, args, *items = container.__reduce__()
    own = container.__getstate__() if _says_state(type(container)) else getattr(container, "__dict__", None)
    return (maker, args, own or None, *items[1:])


# Containers, and which methods of theirs pickle uses to make, to fill and to read them.
_CONTAINERS: Dict[Any, Tuple[str, ...]] = {
    collections.OrderedDict: ("__init__", "__setitem__", "items"),
    collections.Counter: ("__init__", "update", "__iter__", "keys", "__getitem__"),
    collections.defaultdict: ("__init__", "__setitem__", "items"),
    dict: ("__setitem__", "items"),
    list: ("append", "extend", "__iter__"),
    set: ("__init__", "__iter__"),
    collections.deque: ("__init__", "append", "extend", "__iter__"),
}


def _says_state(type_: Any) -> bool:
    """Whether a class defines ``__getstate__``, which ``object`` has since Python 3.11."""
    return getattr(type_, "__getstate__", None) not in (None, getattr(object, "__getstate__", None))


def _has_own_state(type_: Any) -> bool:
    """Whether a class defines with which arguments, or to which state, its objects are made again."""
    own = ("__setstate__", "__getnewargs__", "__getnewargs_ex__")
    return _says_state(type_) or any(hasattr(type_, name) for name in own)


def _refilling(type_: Any) -> Optional[Callable[[Any], Any]]:
    """Return what reduces a container whose class has its own ways to put items in; None for any other.

    pickle would put in what these have changed already, and before the container has its attributes.
    """
    base: Any = next((base for base in _CONTAINERS if issubclass(type_, base)), None)
    if base is None:
        return None
    own = any(getattr(type_, name) is not getattr(base, name) for name in _CONTAINERS[base])
    plain = (type_.__reduce__, type_.__reduce_ex__) == (base.__reduce__, object.__reduce_ex__)
    if not own or not plain or type_.__new__ is not base.__new__ or _has_own_state(type_):
        return None

    def reduce(obj: Any) -> Any:
        items = [*dict.items(obj)] if issubclass(base, dict) else [*base.__iter__(obj)]
        args: Tuple[Any, ...] = ()
        if base is collections.deque:
            args = ((), obj.maxlen)
        elif base is collections.defaultdict:
            args = (obj.default_factory,)
        state = (_attributes(obj), base, args, items)
        return copyreg.__newobj__, (type_,), state, None, None, rebuilt.fill_container  # type: ignore[attr-defined]

    return reduce


_WRAPPER = "DistributedDataParallel"  # making it again would need the ranks' process group
_VARIABLES = tuple(
    getattr(typing, name)
    for name in ("TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "TypeAliasType")
    if hasattr(typing, name)
)
_CODE = frozenset(
    name
    for name in rebuilt.CODE
    if hasattr(types.CodeType, name) and name not in ("co_lnotab", "co_linetable")
) | {"co_linetable" if hasattr(types.CodeType, "co_linetable") else "co_lnotab"}
# Where a class keeps its annotations since Python 3.14; the function refers to the class's first dict.
_ANNOTATIONS = frozenset(("__annotate__", "__annotate_func__", "__annotations_cache__", "__classdictcell__"))
# Objects that differ between Pythons.
_OF_PYTHON: Dict[Any, Callable[[Any], Any]] = {
    dataclasses.Field: generated.reduce_field,
    dataclasses._DataclassParams: generated.reduce_params,  # type: ignore[attr-defined]
    datetime.timezone: _leave,  # the constant `datetime.UTC` exists only since Python 3.11
    functools.partialmethod: generated.reduce_partialmethod,
    memoryview: memory.reduce_view,
    functools.singledispatchmethod: generated.reduce_dispatched_method,
    **dict.fromkeys(generated.SENTINELS, generated.reduce_sentinel),
    **threads.OF_PROCESS,
}
if hasattr(types, "UnionType"):
    _OF_PYTHON[types.UnionType] = generated.reduce_union
if hasattr(enum, "property"):
    _OF_PYTHON[enum.property] = generated.reduce_redirect
    _OF_PYTHON[getattr(enum, "FlagBoundary", None)] = generated.reduce_boundary
_SINGLETONS: Set[Any] = {type(None), type(Ellipsis), type(NotImplemented)}  # pickle itself handles these
_TYPES = {
    type_: name for name, type_ in vars(types).items() if type(type_) is type
}  # Python's own, which may have no module
_BY_TYPE: Dict[Any, str] = {
    types.FunctionType: "reduce_function",
    types.CodeType: "reduce_code",
    type(rebuilt.make_cell()): "reduce_cell",
    type(functools.lru_cache()(len)): "reduce_cached",
    types.BuiltinFunctionType: "reduce_builtin",
    types.ModuleType: "reduce_module",
    functools.partial: "reduce_partial",
    getattr(functools, "cached_property", None): "reduce_cached_property",
    contextvars.ContextVar: "reduce_context_variable",
    weakref.ref: "reduce_reference",
    weakref.ProxyType: "reduce_weak_proxy",
    weakref.CallableProxyType: "reduce_weak_proxy",
    weakref.WeakKeyDictionary: "reduce_weak_dict",
    weakref.WeakValueDictionary: "reduce_weak_dict",
    weakref.WeakSet: "reduce_weak_set",
    types.MappingProxyType: "reduce_proxy",
    _Bare: "reduce_bare",
    _Class: "reduce_open",
    _End: "reduce_end",
    **dict.fromkeys(_VARIABLES, "reduce_variable"),
}
