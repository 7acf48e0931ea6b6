"""One pickle of what travels, and what was seen on the way.

Code from the notebook goes by value, code from modules by name; the memory of arrays and tensors
stays where it is and goes out of band (PEP 574). The runtime says how: values come home the same way.
"""

from __future__ import annotations

import builtins
import io
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from linecache import cache
from types import CodeType, MappingProxyType, ModuleType
from typing import Any

from nbtorchjob.capture import debuggers
from nbtorchjob.capture.cells import for_the_notebook, modules_named
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime import importable, pickler, rebuilt
from nbtorchjob.runtime.sources import Codes

_EMPTY: Mapping[str, Any] = MappingProxyType({})
_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")
_STAYS = {
    "graph": "the graph that made it stays here, on ranks it is a leaf",
    "grad": "its gradient stays here",
    "hooks": "its hooks stay here",
    "cache": "what it has cached stays here",
}


@dataclass
class Seen:
    """What a pickler came across.

    ``modules`` are the names of modules that it refers to, ``surely`` of those that are imported where it is
    loaded, ``sources`` the text of the notebook
    cells whose code it holds, by file name, ``globals`` the notebook's variables that functions
    in it read, ``names`` what else may be looked up in ``namespace``, the notebook's, and ``stays`` what
    isn't taken along of objects, as a word of what. ``theirs`` are names of ``namespace`` that a lab's ranks
    have, which code finds there. ``codes`` are those of the notebook's functions, ``code`` is all that the
    pickle holds, and ``stops`` is whether one may stop in a debugger.
    """

    namespace: Mapping[str, Any]
    theirs: frozenset[str] = frozenset()

    modules: set[str] = field(default_factory=set)
    made: list[Any] = field(default_factory=list)
    surely: set[str] = field(default_factory=set)
    sources: dict[str, str] = field(default_factory=dict)
    globals: dict[str, Any] = field(default_factory=dict)
    names: list[tuple[str, Any]] = field(default_factory=list)
    stays: list[tuple[Any, str]] = field(default_factory=list)
    codes: list[CodeType] = field(default_factory=list)
    code: Codes = field(default_factory=Codes)
    stops: bool = False

    def notes(self, objects: dict[str, Any]) -> list[str]:
        """Describe what stays, by the names of those of ``objects`` that it belongs to."""
        names = {id(value): name for name, value in objects.items()}
        told: dict[tuple[str, str], None] = {}
        for value, what in self.stays:
            told[names.get(id(value), f"a {type(value).__name__}"), what] = None
        return [f"{name}: {_STAYS[what]}" for name, what in told]


class Pickled(FrozenDataclass):
    """A pickle (protocol 5), its buffers, which are views of the live objects' memory, and what was seen."""

    data: bytes
    buffers: tuple[memoryview, ...]
    seen: Seen


def dump(
    call: dict[str, Any],
    namespace: Mapping[str, Any] = _EMPTY,
    theirs: frozenset[str] = frozenset(),
    push: Mapping[str, Any] = _EMPTY,
) -> Pickled:
    """Pickle ``call`` with one more key, ``names``: pairs of what its code finds by name in ``namespace``.

    Of these ``theirs`` stay here, and what is in ``push`` is among them. Raises whatever an object's own
    pickling raises.
    """
    seen = Seen(namespace, theirs)
    seen.names += push.items()
    buffers: list[memoryview] = []
    # The list is pickled last, so by then it is complete.
    whole = {**call, "names": seen.names}
    data = pickler.dumps(
        whole,
        lambda file, out_of_band: Pickler(file, out_of_band, seen),
        lambda buffer: buffers.append(buffer.raw()),
    )
    return Pickled(data, tuple(buffers), seen)


class Pickler(pickler.Pickler):
    """Pickles what a notebook holds, and notes what it comes across."""

    def __init__(
        self, file: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any], seen: Seen | None = None
    ) -> None:
        super().__init__(file, buffer_callback)
        self.seen = seen if seen is not None else Seen(_EMPTY)
        self.codes = self.seen.code
        self._streams = {type(getattr(sys, name)) for name in _STREAMS}

    def _reducer(self, type_: type) -> Callable[[Any], Any]:
        if type_ in self._streams:
            return self._stream
        if issubclass(type_, io.TextIOWrapper):
            return _refuse_file  # cloudpickle would send the file's text instead
        return super()._reducer(type_)

    def reduce_function(self, function: Any) -> Any:
        """Note the function, and reduce it."""
        if function.__dict__.get("__wrapped__") is open:
            return getattr, (builtins, "open")  # IPython's, which a notebook's functions get as `open`
        if (function.__module__, function.__name__) == ("IPython.core.display_functions", "display"):
            return getattr, (builtins, "display")  # which a rank has without IPython, too
        self._note(function)
        self.seen.modules.update(modules_named(function.__code__))
        self._note_source(function.__code__.co_filename)
        if "breakpoint" not in function.__globals__:
            self.seen.stops = self.seen.stops or debuggers.stops(function.__code__)
        if function.__globals__.get("__name__") == "__main__":
            self.seen.globals.update(sorted(self.reads(function).items()))
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
            self.seen.made.append(module)
        return reduced

    def reduce_stand_in(self, found: Any) -> Any:
        """Note the module that an object stands for, and reduce it."""
        return self._imported(super().reduce_stand_in(found))

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

    def _by_name(self, found: Any, reduced: Any) -> Any:
        if reduced is NotImplemented:
            self.seen.surely.add(str(found.__module__))
        return reduced

    def reduce_cached(self, cached: Any) -> Any:
        """Note what it holds, and reduce it."""
        if cached.cache_info().currsize:
            self.seen.stays.append((cached, "cache"))
        return super().reduce_cached(cached)

    def reduce_tensor(self, tensor: Any) -> Any:
        """Note what doesn't travel of a tensor, and reduce it."""
        if tensor.grad_fn is not None:
            self.seen.stays.append((tensor, "graph"))
        elif tensor.grad is not None:
            self.seen.stays.append((tensor, "grad"))
        if tensor._backward_hooks:
            self.seen.stays.append((tensor, "hooks"))
        return super().reduce_tensor(tensor)

    def reduce_parameter(self, parameter: Any) -> Any:
        """Note what doesn't travel of a parameter, and reduce it."""
        if parameter.grad is not None:
            self.seen.stays.append((parameter, "grad"))
        return super().reduce_parameter(parameter)

    def _stream(self, stream: Any) -> Any:
        for name in _STREAMS:  # a kernel's own streams hold threads and sockets
            if stream is getattr(sys, name):
                return getattr, (sys, name)
        return _refuse_file(stream) if isinstance(stream, io.TextIOWrapper) else NotImplemented

    def _note(self, found: Any) -> None:
        module = str(found.__module__)
        if module == "__main__":
            # One that the notebook has deleted or replaced since isn't found there by its name either.
            name = str(found.__qualname__)
            if self.seen.namespace.get(name) is found and name not in self.seen.theirs:
                self.seen.names.append((name, found))
            self.seen.names += self._annotated(vars(found), self.seen.namespace).items()
            return
        if module.startswith("nbtorchjob.") and not module.startswith("nbtorchjob.runtime"):
            raise pickle.PicklingError(for_the_notebook(found.__name__))
        self.seen.modules.add(module)

    def reads(self, function: Any) -> dict[str, Any]:
        """Return what ``function`` finds in its globals, also by annotations that are texts."""
        own = {"__annotations__": function.__annotations__}
        found = {**super().reads(function), **self._annotated(own, function.__globals__)}
        if self.seen.theirs and function.__globals__ is self.seen.namespace:
            return {name: value for name, value in found.items() if name not in self.seen.theirs}
        return found

    def _annotated(self, own: Mapping[str, Any], namespace: Mapping[str, Any]) -> dict[str, Any]:
        """Return what texts among annotations name: types and modules, no data that has a word of theirs."""
        texts = [each for each in own.get("__annotations__", {}).values() if isinstance(each, str)]
        values = {name: namespace.get(name) for text in texts for name in pickler.names_in(text)}
        return {
            name: value
            for name, value in values.items()
            if isinstance(value, type | ModuleType) or type(value).__module__ in ("typing", "types")
        }

    def _note_source(self, filename: str) -> None:
        # Python 3.13 files what `python -c` runs under the name that code made by dataclasses has, too.
        entry = cache.get(filename) if filename != "<string>" else None
        if entry is not None and len(entry) == 4 and entry[1] is None:  # no file: a notebook's cell
            self.seen.sources[filename] = "".join(entry[2])


def _refuse_file(file: Any) -> Any:
    raise pickle.PicklingError("cannot pickle an open file")
