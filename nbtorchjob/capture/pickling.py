"""One pickle of what travels, and what was seen on the way.

Code from the notebook goes by value, code from modules by name; the memory of arrays and tensors
stays where it is and goes out of band (PEP 574). The runtime's pickler does this: values come home the
same way.

``explain`` says why something can't travel: the path from a captured name to the object that can't be
pickled. ``logging_setup`` reads how ``logging`` is set up in the notebook, as far as that can go along.
"""

from __future__ import annotations

import ast
import builtins
import copyreg
import inspect
import io
import os
import pickle
import re
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from linecache import cache
from multiprocessing.process import BaseProcess
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from nbtorchjob.capture import cells
from nbtorchjob.capture.cells import for_the_notebook, modules_named
from nbtorchjob.errors import CaptureError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.objects import codenames, importable, memory, pickler, rebuilt, threads
from nbtorchjob.runtime.objects.codenames import names_read
from nbtorchjob.runtime.objects.pickler import by_name
from nbtorchjob.runtime.objects.sources import ANCHOR, Codes

_EMPTY: Mapping[str, Any] = MappingProxyType({})
_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")
_STAYS = {
    "graph": "the graph that made it stays here, on ranks it is a leaf",
    "grad": "its gradient stays here",
    "hooks": "its hooks stay here",
    "memory": "it shares memory with others here, on ranks it has its own",
    "cache": "its cache stays here",
    "library": "ranks have their own, without what was set on it here",
    "finalizer": "finalizers stay here, ranks call none",
}
# Classes with one instance per process, held by a library. The library wouldn't use a copy; random generators
# would start alike on all ranks, and the environment would bring secrets along.
_GLOBAL_STATE = frozenset(
    (
        ("os", "_Environ"),
        ("random", "Random"),
        ("numpy.random.mtrand", "RandomState"),
        ("torch._C", "Generator"),
        ("matplotlib", "RcParams"),
    )
)
_DISPLAYS = ("IPython.core.display_functions", "IPython.core.display")  # the latter before IPython 7.23


@dataclass
class Seen:
    """What a pickler came across.

    ``modules`` are the names of modules that the pickle refers to, ``surely`` of those that loading it
    imports, and ``pickled_modules`` the modules that the notebook made. ``sources`` is the text of the
    notebook cells whose code it holds, by file name, ``globals`` the notebook's variables that functions in
    it read, ``names`` what else may be looked up in ``namespace``, the notebook's, and ``weakly`` the objects
    that weak references lead to. ``stays`` pairs objects with the part of them that isn't taken along (a key
    of ``_STAYS``), and ``locations`` names the place where a library holds some of these, by their ``id``.
    ``rank_names`` are names of ``namespace`` that code finds on a lab's ranks. ``codes`` are the code objects
    of the notebook's functions, ``code`` is all code in the pickle, and ``stops`` is whether some of it may
    stop in a debugger.
    """

    namespace: Mapping[str, Any]
    rank_names: frozenset[str] = frozenset()

    modules: set[str] = field(default_factory=set)
    pickled_modules: list[Any] = field(default_factory=list)
    surely: set[str] = field(default_factory=set)
    sources: dict[str, str] = field(default_factory=dict)
    globals: dict[str, Any] = field(default_factory=dict)
    names: list[tuple[str, Any]] = field(default_factory=list)
    weakly: list[Any] = field(default_factory=list)
    stays: list[tuple[Any, str]] = field(default_factory=list)
    locations: dict[int, str] = field(default_factory=dict)
    codes: list[CodeType] = field(default_factory=list)
    code: Codes = field(default_factory=Codes)
    stops: bool = False

    def notes(self, objects: dict[str, Any]) -> list[str]:
        """Describe what stays here, by the names of the ``objects`` that it belongs to."""
        names = {**self.locations, **{id(value): name for name, value in objects.items()}}
        stays: dict[tuple[str, str], None] = {}
        for value, kind in self.stays:
            stays[names.get(id(value), f"a {type(value).__name__}"), kind] = None
        return [f"{name}: {_STAYS[kind]}" for name, kind in stays]


class Pickled(FrozenDataclass):
    """A pickle (protocol 5), its buffers, which are views of the live objects' memory, and what was seen."""

    data: bytes
    buffers: tuple[memoryview, ...]
    seen: Seen


def dump(
    call: dict[str, Any],
    namespace: Mapping[str, Any] = _EMPTY,
    rank_names: frozenset[str] = frozenset(),
    push: Mapping[str, Any] = _EMPTY,
) -> Pickled:
    """Pickle ``call`` with two more keys, ``names`` and ``held``.

    ``names`` are pairs of a name and what the call's code finds by it in ``namespace``, without
    ``rank_names`` and with ``push``. ``held`` are objects that only weak references in ``call`` lead to, so
    that ranks keep them alive as the notebook does. Raises whatever an object's own pickling raises.
    """

    def pickled(*, by_reference: bool) -> Pickled:
        seen = Seen(namespace, rank_names)
        seen.names += push.items()
        buffers: list[memoryview] = []
        # The lists are pickled last, so by then they are complete.
        whole = {**call, "names": seen.names}
        data = pickler.dumps(
            {**whole, "held": _Held(seen.weakly, whole)},
            lambda file, out_of_band: Pickler(file, out_of_band, seen, by_reference=by_reference),
            lambda buffer: buffers.append(buffer.raw()),
        )
        return Pickled(data, tuple(buffers), seen)

    try:
        return pickled(by_reference=False)
    except CaptureError:
        raise
    except Exception:  # whatever an object's own code raises; searching libraries first would take time
        return pickled(by_reference=True)


class _Held(FrozenDataclass):
    """The objects in ``weakly`` that ``call`` doesn't refer to otherwise."""

    weakly: list[Any]
    call: dict[str, Any]


class Pickler(pickler.Pickler):
    """Pickles what a notebook holds, and notes what it comes across.

    With ``by_reference``, an object that can't be pickled, or has locks, goes by reference if its library
    holds it: loguru's ``logger``, which writes to an open file here. Without it, pickling an object with
    locks fails. Without ``weak``, weak references are pickled as dead ones.
    """

    def __init__(
        self,
        file: Any,
        buffer_callback: Callable[[pickle.PickleBuffer], Any],
        seen: Seen | None = None,
        *,
        by_reference: bool = True,
        weak: bool = True,
    ) -> None:
        super().__init__(file, buffer_callback)
        self._by_reference = by_reference
        self._weak = weak
        self.seen = seen if seen is not None else Seen(_EMPTY)
        self.codes = self.seen.code
        self._copied = memory.Memory()  # of objects that don't share it once they are loaded
        self._streams = {type(getattr(sys, name)) for name in _STREAMS}

    def dump(self, obj: Any) -> None:
        """Pickle ``obj``, and note which parts of it will no longer share memory."""
        super().dump(obj)
        if self._copied.spans:
            copied = {id(span.owner) for span in self._copied.spans}
            both = memory.Memory()
            both.spans = [*self.memory.spans, *self._copied.spans]
            for region in both.regions()[1]:
                if len(region.owners) > 1:
                    self.seen.stays += [(owner, "memory") for owner in region.owners if id(owner) in copied]

    def _reducer(self, type_: type) -> Callable[[Any], Any]:
        if type_ in self._streams:
            return self._stream
        if issubclass(type_, io.TextIOWrapper):
            return _refuse_file  # cloudpickle would send the file's text instead
        if not self._by_reference and issubclass(type_, _OF_PROCESS):
            return _refuse_lock
        if type_ is _Held:
            return self._reduce_held_weakly
        if type_ is weakref.finalize:
            return self._finalizer
        reducer = super()._reducer(type_)
        if type_ in _REFERENTS:
            return partial(self._reduce_weak, _REFERENTS[type_], reducer)
        if (type_.__module__, type_.__qualname__) in _GLOBAL_STATE:
            state = importable.locations(type_)
            return lambda obj: (getattr, state[id(obj)]) if id(obj) in state else reducer(obj)
        torch = sys.modules.get("torch")
        if torch is not None and issubclass(type_, torch.optim.Optimizer):
            return partial(self._reduce_optimizer, reducer)
        if (add := _adds_copied(type_)) is not None:
            return partial(self._reduce_copied, add, reducer)
        if issubclass(type_, dict) and type_.__dictoffset__ and type_.__reduce_ex__ is object.__reduce_ex__:
            return partial(_reduce_attributes, reducer)
        locations = importable.locations(type_) if self._by_reference else {}
        return partial(self._reduce_held, locations, reducer) if locations else reducer

    def _reduce_held(
        self, locations: Mapping[int, tuple[Any, str]], reducer: Callable[[Any], Any], obj: Any
    ) -> Any:
        if (
            id(obj) not in locations
            or fails(obj, by_reference=False) is None
            or _filled_later(*locations[id(obj)])
        ):
            return reducer(obj)
        self._note_held(obj, *locations[id(obj)])
        return getattr, locations[id(obj)]

    def _reduce_weak(
        self, referents: Callable[[Any], Iterable[Any]], reducer: Callable[[Any], Any], obj: Any
    ) -> Any:
        if not self._weak:
            return rebuilt.dead, (weakref.ref,)
        self.seen.weakly += referents(obj)
        return reducer(obj)

    def _reduce_held_weakly(self, held: _Held) -> Any:
        objects = {id(obj): obj for obj in held.weakly if obj is not None}
        if objects:
            seen = Seen(self.seen.namespace, self.seen.rank_names)
            strong = Pickler(
                _Nowhere(), lambda buffer: None, seen, by_reference=self._by_reference, weak=False
            )
            strong.dump(held.call)
            for reached in strong.memo.copy():
                objects.pop(reached, None)
        return list, ([*objects.values()],)

    def _finalizer(self, finalizer: Any) -> Any:
        if finalizer.alive:
            self.seen.stays.append((finalizer, "finalizer"))
        return NotImplemented  # it is then pickled as a dead one

    def _note_held(self, obj: Any, module: ModuleType, name: str) -> None:
        self.seen.stays.append((obj, "library"))
        self.seen.locations[id(obj)] = f"{module.__name__}.{name}"

    def reduce_context_variable(self, variable: Any) -> Any:
        """Note that the value of a library's variable doesn't travel, and reduce the variable."""
        reduced = super().reduce_context_variable(variable)
        if reduced[0] is getattr and variable in copy_context():
            self._note_held(variable, *reduced[1])
        return reduced

    def reduce_function(self, function: Any) -> Any:
        """Note the function, and reduce it."""
        if function.__dict__.get("__wrapped__") is open:
            return getattr, (builtins, "open")  # IPython's wrapper, which is `open` in a notebook
        if function.__name__ == "display" and function.__module__ in _DISPLAYS:
            return getattr, (builtins, "display")  # a rank has it even without IPython
        self._note(function)
        self.seen.modules.update(modules_named(function.__code__))
        # Python 3.13 caches the source of `python -c` under the file name of dataclasses' generated code.
        filename = function.__code__.co_filename
        entry = cache.get(filename) if filename != "<string>" else None
        # An entry without a time or a file is a notebook's cell; IPython before 8 sets a time for cells, too.
        if entry is not None and len(entry) == 4 and (entry[1] is None or not os.path.exists(filename)):
            self.seen.sources[filename] = "".join(entry[2])
        if "breakpoint" not in function.__globals__:
            self.seen.stops = self.seen.stops or cells.stops(function.__code__)
        if function.__globals__.get("__name__") == "__main__":
            self.seen.globals.update(sorted(self.reads(function).items()))
            if function.__name__ != ANCHOR:
                self.seen.codes.append(function.__code__)
        return self._by_name(function, super().reduce_function(function))

    def reduce_class(self, cls: Any) -> Any:
        """Note the class, and reduce it."""
        self._note(cls)
        return self._by_name(cls, super().reduce_class(cls))

    def reduce_module(self, module: ModuleType) -> Any:
        """Note the module, and reduce it."""
        self.seen.modules.add(importable.name_of(module))
        reduced = self._imported(super().reduce_module(module))
        if isinstance(reduced, tuple) and reduced[0] is rebuilt.make_module:
            self.seen.pickled_modules.append(module)
        return reduced

    def reduce_stand_in(self, obj: Any) -> Any:
        """Note the module that an object stands for, and reduce it."""
        return self._imported(super().reduce_stand_in(obj))

    def _imported(self, reduced: Any) -> Any:
        if isinstance(reduced, tuple) and reduced[0] is import_module:
            self.seen.modules.add(reduced[1][0])
            self.seen.surely.add(reduced[1][0])
        return reduced

    def reduce_builtin(self, function: Any) -> Any:
        """Note the function's module."""
        if isinstance(function.__module__, str):
            self.seen.modules.add(function.__module__)
            self.seen.surely.add(function.__module__)
        return super().reduce_builtin(function)

    def _by_name(self, obj: Any, reduced: Any) -> Any:
        if reduced is NotImplemented:
            self.seen.surely.add(str(obj.__module__))
        return reduced

    def reduce_cached(self, cached: Any) -> Any:
        """Note that a function's cached results stay here, and reduce the function."""
        if cached.cache_info().currsize:
            self.seen.stays.append((cached, "cache"))
        return super().reduce_cached(cached)

    def reduce_tensor(self, tensor: Any) -> Any:
        """Note which parts of a tensor don't travel, and reduce it."""
        if tensor.grad_fn is not None:
            self.seen.stays.append((tensor, "graph"))
        elif tensor.grad is not None:
            self.seen.stays.append((tensor, "grad"))
        self._note_hooks(tensor)
        return super().reduce_tensor(tensor)

    def reduce_parameter(self, parameter: Any) -> Any:
        """Note which parts of a parameter don't travel, and reduce it."""
        if parameter.grad is not None:
            self.seen.stays.append((parameter, "grad"))
        self._note_hooks(parameter)
        return super().reduce_parameter(parameter)

    def _note_hooks(self, tensor: Any) -> None:
        if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
            self.seen.stays.append((tensor, "hooks"))

    def _reduce_copied(
        self, add: Callable[[memory.Memory, Any], Any], reducer: Callable[[Any], Any], obj: Any
    ) -> Any:
        add(self._copied, obj)
        return reducer(obj)

    def _reduce_optimizer(self, reducer: Callable[[Any], Any], optimizer: Any) -> Any:
        if any(name.endswith("_hooks") and value for name, value in vars(optimizer).items()):
            self.seen.stays.append((optimizer, "hooks"))
        return reducer(optimizer)

    def _stream(self, stream: Any) -> Any:
        for name in _STREAMS:  # a kernel's own streams hold threads and sockets
            if stream is getattr(sys, name):
                return getattr, (sys, name)
        return _refuse_file(stream) if isinstance(stream, io.TextIOWrapper) else NotImplemented

    def _note(self, obj: Any) -> None:
        module = str(obj.__module__)
        if module == "__main__":
            # If the notebook has since deleted or replaced it, its name doesn't lead to it here either.
            name = str(obj.__qualname__)
            if self.seen.namespace.get(name) is obj and name not in self.seen.rank_names:
                self.seen.names.append((name, obj))
            self.seen.names += self._annotated(vars(obj), self.seen.namespace).items()
            return
        if module.startswith("nbtorchjob.") and not module.startswith("nbtorchjob.runtime"):
            raise pickle.PicklingError(for_the_notebook(obj.__name__))
        self.seen.modules.add(module)

    def reads(self, function: Any) -> dict[str, Any]:
        """Return what ``function`` finds in its globals, also by string annotations."""
        own = {"__annotations__": function.__annotations__}
        values = {**super().reads(function), **self._annotated(own, function.__globals__)}
        if self.seen.rank_names and function.__globals__ is self.seen.namespace:
            return {name: value for name, value in values.items() if name not in self.seen.rank_names}
        return values

    def _annotated(self, own: Mapping[str, Any], namespace: Mapping[str, Any]) -> dict[str, Any]:
        """Return the types and modules that string annotations name; other values aren't meant by them."""
        texts = [
            annotation
            for annotation in own.get("__annotations__", {}).values()
            if isinstance(annotation, str)
        ]
        values = {name: namespace.get(name) for text in texts for name in codenames.names_in(text)}
        return {
            name: value
            for name, value in values.items()
            if isinstance(value, type | ModuleType) or type(value).__module__ in ("typing", "types")
        }


def _adds_copied(type_: type) -> Callable[[memory.Memory, Any], Any] | None:
    """Return a function that adds the memory of a class's arrays or tensors, if pickling copies these."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and issubclass(type_, torch.Tensor) and type_ is not torch.Tensor:
        names = ("__reduce_ex__", "__torch_dispatch__")  # a class with the latter may have no memory
        return _add_tensor if all(getattr(type_, n) == getattr(torch.Tensor, n) for n in names) else None
    if numpy is not None and issubclass(type_, numpy.ndarray) and type_ is not numpy.ndarray:
        copying = (numpy.ndarray.__reduce__, numpy.ma.MaskedArray.__reduce__)
        return memory.reduce_array if type_.__reduce__ in copying else None
    return None


def _add_tensor(to: memory.Memory, tensor: Any) -> None:
    without = torch_versions.WITHOUT_SUBCLASSES.get()
    if without is not None:
        with without():  # otherwise its class may run any code to locate its memory
            memory.reduce_tensor(to, tensor)


def _filled_later(module: ModuleType, name: str) -> bool:
    """Whether a module's variable is None after the import: on ranks it may not have been filled yet."""
    try:
        body = ast.parse(inspect.getsource(module)).body
    except (OSError, TypeError, SyntaxError):  # it has no source
        return False
    values = [
        node.value
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == name
    ]
    return bool(values) and all(isinstance(value, ast.Constant) and value.value is None for value in values)


def _reduce_attributes(reducer: Callable[[Any], Any], obj: Any) -> Any:
    """Reduce a dictionary that may be its own attributes (``self.__dict__ = self``), which pickle copies."""
    if vars(obj) is not obj:
        return reducer(obj)
    new: Any = getattr(copyreg, "__newobj__")  # noqa: B009 - no type checker knows it
    return new, (type(obj),), (None, {"__dict__": obj}), None, iter([*dict.items(obj)])


def _refuse_file(file: Any) -> Any:
    raise pickle.PicklingError("cannot pickle an open file")


def _refuse_lock(lock: Any) -> Any:
    raise pickle.PicklingError("what has it may be held by a library")


# The objects that each kind of weak reference leads to.
_REFERENTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    weakref.ref: lambda reference: [reference()],
    weakref.ProxyType: lambda proxy: [pickler.proxied(proxy)],
    weakref.CallableProxyType: lambda proxy: [pickler.proxied(proxy)],
    weakref.WeakKeyDictionary: list,
    weakref.WeakValueDictionary: lambda mapping: mapping.values(),
    weakref.WeakSet: list,
}
# An object that has one of these is often the only one of its kind in a process.
_OF_PROCESS = (*threads.OF_PROCESS, threading.local, ContextVar)
_SECONDS = 5.0
_OBJECTS = 2000
_NEVER: tuple[tuple[tuple[type, ...], str], ...] = (
    ((threading.Thread,), "a thread"),
    ((Executor,), "a pool"),
    ((BaseProcess,), "a process"),
    ((socket.socket,), "a socket"),
    ((io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO), "an open file"),
    ((FrameType,), "a frame"),
)
_PARAMETRIZED = (
    "a module with parametrizations, which torch doesn't pickle: send its state_dict() and build it inside "
    "the cell, or remove them first with torch.nn.utils.parametrize.remove_parametrizations"
)
_SCRIPTED = (
    "compiled by torch.jit, which doesn't pickle it: compile it inside the cell, or torch.jit.save it to a "
    "file that ranks load"
)
_HELD = "a lock that is held: release it first, or create it inside the cell"
_SHARED = "of multiprocessing, for processes that are started here: create it inside the cell"
# What to do about objects that can't travel, by their class.
_CURES = {
    "_thread.lock": _HELD,
    "_thread.RLock": _HELD,
    "threading.Condition": (
        "a condition that a thread holds or waits on: end that first, or create it inside the cell"
    ),
    "multiprocessing.synchronize.SemLock": _SHARED,
    "multiprocessing.synchronize.Condition": _SHARED,
    "multiprocessing.synchronize.Event": _SHARED,
    "multiprocessing.pool.Pool": _SHARED,
    "multiprocessing.queues.Queue": _SHARED,
    "multiprocessing.queues.SimpleQueue": _SHARED,
    "_contextvars.Context": "a context of this process: copy it inside the cell",
    "_contextvars.Token": "a token of one of this process's contexts: set its variable inside the cell",
    "torch._library.custom_ops.CustomOpDef": (
        "an operator that is registered here: register it inside the cell, or in a module beside the notebook"
    ),
    "torch.jit._script.ScriptModule": _SCRIPTED,
    "torch.jit.ScriptFunction": _SCRIPTED,
    "torch.jit.torch.jit.ScriptFunction": _SCRIPTED,
    "torch.ScriptModule": _SCRIPTED,
    "torch.utils.data.dataloader._BaseDataLoaderIter": (
        "the iterator of a DataLoader: send the DataLoader, and iterate over it inside the cell"
    ),
    "builtins.generator": (
        "a generator, which can't be copied: make a list of it, or create it inside the cell"
    ),
    "builtins.async_generator": "an asynchronous generator, which can't be copied: create it inside the cell",
    "builtins.coroutine": "a coroutine: await it in the notebook, or call its function inside the cell",
}
# torch keeps a module's attributes in dicts of its own.
_TORCH_ATTRIBUTE = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")


def explain(objects: Mapping[str, Any], exc: Exception) -> CaptureError:
    """Explain which of ``objects``, and which part of it, made pickling fail with ``exc``."""
    deadline = time.monotonic() + _SECONDS
    for name, value in objects.items():
        failure = fails(value)
        if isinstance(failure, RecursionError) or isinstance(failure and failure.__cause__, RecursionError):
            return CaptureError(
                f"can't take {name!r} along: it is nested too deeply to be pickled; send what it "
                "is made from and build it inside the cell"
            )
        if failure is not None:
            # Search breadth first along the parts that can't be pickled, to report the shortest path.
            waiting = deque([(name, value, failure)])
            seen = {id(value): value}  # keeps them alive, so ids stay unique
            while waiting:
                path, value, failure = waiting.popleft()
                over = time.monotonic() > deadline or len(seen) > _OBJECTS
                if over or _never(value) is not None or _cure(value):
                    break
                failing = [(path + step, part, why) for step, part in _parts(value) if (why := fails(part))]
                if not failing:
                    break
                waiting.extend(failing_part for failing_part in failing if id(failing_part[1]) not in seen)
                seen.update((id(part), part) for _, part, _ in failing)
            return _refusal(name, _TORCH_ATTRIBUTE.sub(r".\1", path), value, failure)
    return CaptureError(f"can't take the code along: {_first_line(exc)}")


def _refusal(name: str, path: str, value: Any, exc: Exception) -> CaptureError:
    subject = "it" if path == name else path
    type_name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    word, cure = _never(value), _cure(value)
    if cure:
        return CaptureError(f"can't take {name!r} along: {subject} is {cure}")
    if word is not None:
        why = f"is {word} ({type_name}), which never works on another machine"
    elif type_name.startswith(("IPython.", "ipykernel.")):
        why = f"belongs to the notebook ({type_name}), which ranks don't have"
    else:
        why = f"({type_name}) can't be pickled: {_first_line(exc)}"
    return CaptureError(f"can't take {name!r} along: {subject} {why}; delete it or create it inside the cell")


def _never(value: Any) -> str | None:
    return next((word for types_, word in _NEVER if isinstance(value, types_)), None)


def _cure(value: Any) -> str:
    """Say what an object is that libraries refuse to pickle, and what to do instead; "" for others."""
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(value).__mro__}
    return next((text for name, text in _CURES.items() if name in names), "") or (
        _PARAMETRIZED if type(value).__module__ == "torch.nn.utils.parametrize" else ""
    )


def _first_line(exc: Exception) -> str:
    text = str(exc).strip() or type(exc).__name__
    return text.splitlines()[0][:200]


class _Nowhere:
    def write(self, data: bytes) -> None:
        """Forget ``data``."""


def fails(value: Any, *, by_reference: bool = True) -> Exception | None:
    """Return the exception that pickling ``value`` raises, if any."""
    try:
        Pickler(_Nowhere(), lambda buffer: None, by_reference=by_reference).dump(value)
    except Exception as exc:  # whatever an object's own code raises
        return exc
    return None


def goes_by_reference(value: Any) -> bool:
    """Whether a value, not a function or class, is pickled as a reference to a module's variable."""
    reduced = Pickler(_Nowhere(), lambda buffer: None).reducer_override(value)
    return isinstance(reduced, tuple) and reduced[0] is getattr


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects that pickling ``value`` would pickle, each with its step in a path: ``.loader``."""
    if isinstance(value, FunctionType | type) and by_name(value):
        return
    if isinstance(value, FunctionType):
        for read_name in sorted(names_read(value.__code__).keys() & value.__globals__.keys()):
            yield f" → {read_name}", value.__globals__[read_name]
        for read_name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield f" → {read_name}", cell.cell_contents
        for index, part in enumerate(value.__defaults__ or ()):
            yield f".__defaults__[{index}]", part
        yield from ((f".{key}", part) for key, part in vars(value).items())
    elif isinstance(value, MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif isinstance(value, type):
        inner = (GetSetDescriptorType, MemberDescriptorType)  # these refer back to the class
        # A copy: pickling an instance has pickle note its slots in the class.
        own = vars(value).copy()
        yield from ((f".{k}", part) for k, part in own.items() if not isinstance(part, inner))
    else:
        if isinstance(value, dict):
            yield from ((f"[{key!r}]", part) for key, part in value.items())
        elif isinstance(value, list | tuple | set | frozenset | deque):
            yield from ((f"[{index}]", part) for index, part in enumerate(value))
        # The attributes that travel: without those that ``__getstate__`` leaves out.
        try:
            reduced = value.__reduce_ex__(5)
        except Exception:  # this may itself be the reason
            reduced = (None, (), getattr(value, "__dict__", None))
        if not isinstance(reduced, tuple):
            return
        state = reduced[2] if len(reduced) > 2 else None
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                yield from ((f".{key}", item) for key, item in part.items())
            elif part is not None:
                yield "(…)", part
        yield from (("(…)", part) for part in reduced[1])


def logging_setup() -> tuple[dict[str, Any], list[str]]:
    """Return the settings for ``carried.lay_logging`` on ranks, and a note for each handler left here."""
    if "logging" not in sys.modules:
        return {}, []
    from nbtorchjob.runtime.rank import carried

    current, stay = carried.changed_logging()
    loggers = dict(current.get("loggers", {}))
    for name, logger in loggers.items():
        travels = [item for item in logger.handlers if not fails(item)]
        stay += [item.type.__name__ for item in logger.handlers if item not in travels]
        filters = [item for item in logger.filters if not fails(item)]
        loggers[name] = logger._replace(handlers=travels, filters=filters)
    notes = [
        f"logging's {name} stays here: on ranks nothing is written to it" for name in dict.fromkeys(stay)
    ]
    return {**current, "loggers": loggers} if current else {}, notes


def uses_logging(captured: Mapping[str, Any], imports: Iterable[str]) -> bool:
    """Whether code that travels logs: it imports ``logging``, or has it or a logger among its variables."""
    logging = sys.modules.get("logging")
    return "logging" in imports or any(
        value is logging or type(value).__module__ == "logging" for value in captured.values()
    )
