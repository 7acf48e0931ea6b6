"""Recreates functions, classes and the like that travelled by value: their pickles call this module.

Each object is made empty first and filled afterwards, so that objects may refer to each other in cycles.
Whatever holds instances of a class comes after the class has its methods. Each class has a tag: if the tag is
known already, as in the notebook, it stands for the known class, as that is now.

``loads`` loads such a pickle; if an object can't be made again, its error names the variable.
"""

from __future__ import annotations

import builtins
import contextlib
import enum
import functools
import importlib
import inspect
import io
import os
import pickle
import sys
import threading
import types
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from nbtorchjob.runtime.objects import sources

_lock = threading.Lock()
_tags: Any = weakref.WeakKeyDictionary()  # a class, or a type variable, to its tag
_tagged: Any = weakref.WeakValueDictionary()
_unfilled: Any = weakref.WeakSet()
differences: List[str] = []  # what differs after loading, for callers to read
held: List[Any] = []  # referents of weak references, kept for as long as this process lives


def tag(type_: Any) -> str:
    """Return a class's tag, the same here and wherever its pickles are loaded.

    Raises ``TypeError`` for objects that allow no weak references.
    """
    with _lock:
        if type_ not in _tags:
            _tags[type_] = os.urandom(16).hex()
            _tagged[_tags[type_]] = type_
        type_tag: str = _tags[type_]
        return type_tag


def tags() -> List[str]:
    """Return all tags that this process knows: each process makes its own."""
    return list(_tagged)


def same(value: Any, *_: Any) -> Any:
    """Return ``value``, an object whose pickle has two parts."""
    return value


def tracked(known_as: str, module: str, make: Any, args: Sequence[Any]) -> Any:
    """Return the type variable with that tag, made if it doesn't exist."""
    obj = _tagged.get(known_as)
    if obj is None:
        obj = make(*args)
        with contextlib.suppress(AttributeError):
            obj.__module__ = module
        if known_as:
            with _lock:
                _tags[obj], _tagged[known_as] = known_as, obj
    return obj


def make_alias(name: str, module: str, cell: Any) -> Any:
    """Make what ``type NAME = ...`` makes (Python 3.12); its value will be in ``cell``."""
    space: Dict[str, Any] = {"__name__": module}
    exec("def make(cell):\n    type %s = cell.cell_contents\n    return %s" % (name, name), space)
    return space["make"](cell)


def fill_alias(alias: Any, state: Tuple[Any, Any]) -> None:
    """Set an alias's value."""
    cell, value = state
    cell.cell_contents = value


def unwrapped(value: Any, wrapper: str) -> Any:
    """Return what was inside a ``wrapper`` that only works between ranks."""
    differences.append("%s arrived without its %s" % (type(value).__name__, wrapper))
    return value


# Functions


def make_cell() -> Any:
    """Make a variable of a closure, without a value."""
    value = None
    cell = (lambda: value).__closure__[0]  # type: ignore[index]
    del cell.cell_contents
    return cell


def fill_cell(cell: Any, content: Any) -> None:
    """Fill in the value of a closure's variable."""
    cell.cell_contents = content


# The attributes of code: its lines are in one of two tables, and some exist only in newer Pythons.
CODE = (
    "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_stacksize", "co_flags",
    "co_code", "co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_filename", "co_name",
    "co_qualname", "co_firstlineno", "co_linetable", "co_lnotab", "co_exceptiontable",
)  # fmt: skip


def make_code(python: str, number: int, *values: Any) -> Any:
    """Make code from its attributes' values, in the order of ``CODE``: None if ``python`` lacks one.

    Bytecode of another Python isn't used: the code with that ``number`` is compiled from its source.
    """
    described = {name: value for name, value in zip(CODE, values) if value is not None}
    if python != sources.HERE:
        return sources.code(python, number, described)
    return same.__code__.replace(**described)


def make_function(code: Any, space: Any, cells: Optional[Tuple[Any, ...]]) -> Any:
    """Make a function in the namespace ``space``, or in that of a module."""
    space = vars(space) if isinstance(space, types.ModuleType) else space
    space.setdefault("__builtins__", builtins)
    if isinstance(code, sources.Missing):
        return code.function(space)
    return types.FunctionType(code, space, None, None, cells)


def fill_function(
    function: Any, state: Tuple[Dict[str, Any], Dict[str, Any], Dict[str, Any], Any, Any]
) -> None:
    """Fill in a function's attributes, the globals that it reads, and its closure's values."""
    attributes, own, reads, cells, _ = state
    function.__dict__.update(own)
    function.__globals__.update(reads)
    for cell, content in cells:
        cell.cell_contents = content
    for name, value in attributes.items():
        setattr(function, name, value)


def dead(refer: Callable[[Any], Any]) -> Any:
    """Return a weak reference, or a proxy, whose referent is gone."""
    return refer(set())


def make_cached(function: Any, parameters: Dict[str, Any]) -> Any:
    """Wrap a function in ``lru_cache``, with an empty cache."""
    return functools.lru_cache(**parameters)(function)


def fill_cached(cached: Any, state: Tuple[Any, Dict[str, Any]]) -> None:
    """Fill in a cached function's attributes."""
    cached.__dict__.update(state[1])


def make_partial(type_: Any) -> Any:
    """Make a partial, for now without its function, which may refer to the partial."""
    return type_(same)


# Classes


def make_class(
    known_as: str, type_: Any, maker: Any, name: str, bases: Tuple[type, ...], own: Dict[str, Any]
) -> Any:
    """Make a class without attributes; ``maker`` is the first class in ``type_``'s MRO that a module has.

    The effects of a notebook's own metaclass and ``__init_subclass__``, for instance in registries, travelled
    with the class: the two aren't called again. Those of a module are, as its registries are new here, unless
    they require keywords: a class doesn't keep the keywords of its statement.
    """
    existing = _tagged.get(known_as)
    if existing is not None:
        return existing
    hushed = [
        base
        for derived in bases
        for base in derived.__mro__
        if "__init_subclass__" in vars(base) and (base in _tags or _wants_keywords(base))
    ]
    saved = [(base, vars(base)["__init_subclass__"]) for base in hushed]
    for base in hushed:
        type.__setattr__(base, "__init_subclass__", classmethod(functools.partial(_skip, base)))
    try:
        try:
            space = maker.__prepare__(name, bases)
            space.update(own)
            cls = maker.__new__(type_, name, bases, space)
            maker.__init__(cls, name, bases, space)
        except TypeError:  # typing's refuses the bases of a TypedDict; others need the class's keywords
            cls = type.__new__(type_, name, bases, own)
    finally:
        for base, method in reversed(saved):
            type.__setattr__(base, "__init_subclass__", method)
    with _lock:
        _tags[cls], _tagged[known_as] = known_as, cls
        _unfilled.add(cls)
    namesake = getattr(sys.modules["__main__"], name, None)
    if isinstance(namesake, type) and own.get("__module__") == "__main__" and own["__qualname__"] == name:
        differences.append("its %s is the class of that name of the rank, not the notebook's" % name)
    return cls


def _wants_keywords(base: Any) -> bool:
    try:
        inspect.signature(base.__init_subclass__).bind()
    except TypeError:
        return True
    except ValueError:  # in C, without a signature
        pass
    return False


def _skip(base: Any, cls: Any, **_: Any) -> None:
    super(base, cls).__init_subclass__()


def fill_class(cls: Any, state: Tuple[Dict[str, Any], Sequence[Any], str, bool]) -> None:
    """Fill in attributes and virtual subclasses of a class that was just made; leave others as they are.

    A class that isn't complete after that is passed to :func:`complete_class` later.
    """
    if cls not in _unfilled:
        return
    attributes, registered, python, complete = state
    if complete:
        _unfilled.discard(cls)
    if python != sources.HERE:
        from nbtorchjob.runtime.objects import generated  # imported late: it travels only with classes

        if issubclass(cls, enum.Enum):
            attributes = generated.fill_enum(cls, attributes)
    for name, value in attributes.items():
        # Not through the metaclass, which may forbid it, as that of enums does.
        type.__setattr__(cls, name, value)
    if "__firstlineno__" in attributes:  # setting other attributes removes it (Python 3.13)
        type.__setattr__(cls, "__firstlineno__", attributes["__firstlineno__"])
    for subclass in registered:
        cls.register(subclass)
    if python != sources.HERE:
        generated.renew(cls, attributes)


def complete_class(cls: Any, attributes: Dict[str, Any]) -> None:
    """Fill in attributes that need the class."""
    if cls in _unfilled:
        _unfilled.discard(cls)
        for name, value in attributes.items():
            type.__setattr__(cls, name, value)


def make_member(cls: Any, name: str, base: Any, args: Tuple[Any, ...]) -> Any:
    """Return the member ``name`` of an enum; for an enum that is being made, a new object of ``base``."""
    member = None if cls in _unfilled else cls._member_map_.get(name)
    return base.__new__(cls, *args) if member is None else member


def fill_member(member: Any, state: Tuple[Dict[str, Any], Dict[str, Any]]) -> None:
    """Fill in the attributes of a member that was just made, and those in slots."""
    attributes, slots = state
    if "_name_" not in vars(member):
        vars(member).update(attributes)
        fill_object(member, slots)


def make_named(name: str, cls: Any, base: Any, args: Tuple[Any, ...]) -> Any:
    """Return the object of that name in ``__main__``, or a new one made by ``base`` if there is none."""
    existing = _of_main(name)
    return existing if type(existing) is cls else base.__new__(cls, *args)


def fill_named(obj: Any, state: Tuple[str, Dict[str, Any], Dict[str, Any]]) -> None:
    """Fill in the attributes of an object that was just made, and those in slots."""
    name, *own = state
    if _of_main(name) is not obj:
        fill_object(obj, tuple(own))


def _of_main(name: str) -> Any:
    main: Any = sys.modules["__main__"]
    return functools.reduce(lambda owner, step: getattr(owner, step, None), name.split("."), main)


# Others


def make_module(name: str, importable: bool, type_: Any = types.ModuleType) -> types.ModuleType:
    """Make a module that was made by hand; ``importable`` if it could be imported by its name."""
    module: types.ModuleType = type_.__new__(type_)
    types.ModuleType.__init__(module, name)  # not the class's own, which may take more arguments
    if not importable:
        return module
    entry: types.ModuleType = sys.modules.setdefault(name, module)
    return entry


def fill_module(module: types.ModuleType, attributes: Dict[str, Any]) -> None:
    """Fill in a module's attributes."""
    object.__getattribute__(module, "__dict__").update(attributes)


def make_exception(cls: Any, base: Any, args: Tuple[Any, ...]) -> Any:
    """Make an exception with its ``args``, whatever its class takes; ``base`` is a base that a module has."""
    exception = cls.__new__(cls, *args)
    base.__init__(exception, *args)
    exception.args = args
    return exception


class RemoteTraceback(Exception):
    """Stands as the cause of an exception that was raised in another process, with its traceback as text."""

    def __str__(self) -> str:
        return '\n"""\n%s"""' % self.args


def raised(exc: BaseException) -> str:
    """Return the traceback of an exception and of what led to it; "" if it was never raised."""
    if exc.__traceback__ is None and exc.__cause__ is None and exc.__context__ is None:
        return ""
    if exc.__traceback__ is None and isinstance(exc.__cause__, RemoteTraceback):
        return str(exc.__cause__.args[0])
    import traceback

    try:
        return "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
    except Exception:  # code of the exception, or of an object that it holds, can't format it
        return ""


def fill_exception(exception: Any, state: Tuple[Any, str]) -> None:
    """Fill in an exception's attributes, and the traceback of where it was raised."""
    own, text = state
    if type(exception).__setstate__ is not BaseException.__setstate__:
        exception.__setstate__(own)
    else:
        fill_object(exception, own)
    if text:
        exception.__cause__ = RemoteTraceback(text)


def constant(module: str, name: str) -> Any:
    """Return what a module has under that name."""
    return getattr(importlib.import_module(module), name)


def fill_object(instance: Any, state: Any) -> None:
    """Set attributes without asking the object's ``__getattr__``, which may need them already."""
    own, slots = state if isinstance(state, tuple) else (state, None)
    for name, value in (own or {}).items():
        object.__setattr__(instance, name, value)
    for name, value in (slots or {}).items():
        object.__setattr__(instance, name, value)


def make_past_own(cls: Any, base: Any, args: Tuple[Any, ...]) -> Any:
    """Make an object as the class in C below its class does.

    A complete class that makes plain objects is asked first: it may have only one of them.
    """
    if base is object and cls not in _unfilled:
        with contextlib.suppress(TypeError):  # it requires arguments
            return cls.__new__(cls)
    return base.__new__(cls, *args)


def make_descriptor(cls: Any, base: Any, args: Tuple[Any, ...]) -> Any:
    """Make a descriptor as the class of Python's below its class does."""
    descriptor = base.__new__(cls)
    base.__init__(descriptor, *args)
    return descriptor


def fill_with_attributes(instance: Any, state: Tuple[Any, Dict[str, Any]]) -> None:
    """Set what a library's own ``__setstate__`` takes, then the attributes that its reduction leaves out."""
    instance.__setstate__(state[0])
    vars(instance).update(state[1])


def make_hashed(cls: Any, own: Dict[str, Any], slots: Dict[str, Any]) -> Any:
    """Make an object that hashes itself, with the attributes that are plain values, and those in slots."""
    instance = cls.__new__(cls)
    fill_hashed(instance, (own, slots))
    return instance


def fill_hashed(instance: Any, state: Tuple[Dict[str, Any], Dict[str, Any]]) -> None:
    """Fill in attributes as they are, past properties of their names, and those in slots."""
    own, slots = state
    if own:
        vars(instance).update(own)
    fill_object(instance, slots)


def fill_container(container: Any, state: Any) -> None:
    """Set attributes, then put items in as the base class does: the class's own methods were there before."""
    own, base, args, items = state
    fill_object(container, own)
    if args:
        base.__init__(container, *args)
    if issubclass(base, dict):
        for key, value in items:
            base.__setitem__(container, key, value)
    elif base is set:
        set.update(container, items)
    else:
        base.extend(container, items)


def fill_plainly(instance: Any, state: Dict[str, Any]) -> None:
    """Set attributes as they are, in an object whose class checks what is set on it."""
    vars(instance).update(state)


def fill_scheduler(scheduler: Any, state: Tuple[Dict[str, Any], bool]) -> None:
    """Fill in a learning-rate scheduler, and have its optimizer record that it steps, as torch does."""
    own, called = state
    vars(scheduler).update(own)
    optimizer = scheduler.optimizer
    if called:
        optimizer._opt_called = True
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        return
    step, reference = optimizer.step.__func__, weakref.ref(optimizer)

    @functools.wraps(step)
    def told_step(*args: Any, **kwargs: Any) -> Any:
        stepping: Any = reference()
        stepping._opt_called = True
        return step(stepping, *args, **kwargs)

    told_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = told_step


def exported(data: bytes) -> Any:
    """Make a program that ``torch.export`` saved."""
    import torch

    return torch.export.load(io.BytesIO(data))


def kernel(type_: Any, function: Any, options: Dict[str, Any]) -> Any:
    """Make a Triton kernel from a function that has a source."""
    return type_(function, **options)


def inference_parameter(data: Any, requires_grad: bool) -> Any:
    """Make a parameter of ``torch.inference_mode`` again, which is allowed only in that mode."""
    import torch

    with torch.inference_mode():
        return torch.nn.Parameter(data, requires_grad)


def own_parameter(cls: Any, data: Any, requires_grad: bool) -> Any:
    """Make a parameter of a class below torch's."""
    import torch

    return torch.nn.Parameter.__new__(cls, data, requires_grad)


def of_torch(name: str) -> Any:
    """Return torch's attribute of that name."""
    import torch

    return getattr(torch, name)


class RebuildError(Exception):
    """An object of the notebook can't be made again here."""

    __module__ = "nbtorchjob"


def loads(data: bytes, buffers: Sequence[memoryview], load: Callable[..., Any] = pickle.loads) -> Any:
    """Load what ``nbtorchjob.capture`` pickled, as ``load`` does.

    Raises ``RebuildError`` from what an object's own code raises, with the name of the variable.
    """
    try:
        return load(data, buffers=buffers)
    except Exception as exc:  # whatever a user's __setstate__ raises
        # Find the variable that loading fails at, on the stacks that the pure-Python unpickler leaves behind.
        unpickler: Any = pickle._Unpickler(io.BytesIO(data), buffers=buffers)
        try:
            unpickler.load()
        except Exception:  # as before
            pass
        # Each mark opens a stack: the call's own items, a function that is being filled, the names and values
        # that it reads. The parts of a value may lie behind its name.
        stacks: List[List[Any]] = [*getattr(unpickler, "metastack", ()), getattr(unpickler, "stack", [])]
        functions = [
            function for stack in stacks for function in stack if isinstance(function, types.FunctionType)
        ]
        read = {
            name
            for function in functions
            if function.__code__.co_name == sources.ANCHOR
            for name in function.__code__.co_names
        }
        names = [name for stack in stacks for name in stack if isinstance(name, str) and name in read]
        name = names[-1] if names else ""
        sources.forget()
        if not name:
            raise
        raise RebuildError(
            "the notebook's %r was pickled there, but can't be made again here (%s: %s); make it in the cell"
            % (name, type(exc).__name__, exc)
        ) from exc
