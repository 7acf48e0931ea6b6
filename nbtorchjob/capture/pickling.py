"""One pickle of what travels, and what was seen on the way.

Code from the notebook goes by value, code from modules by name; the memory of arrays and tensors
stays where it is and goes out of band (PEP 574).
"""

from __future__ import annotations

import builtins
import dis
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from linecache import cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

# Each buffer costs its own entry and hash in the payload; small ones are cheaper in the pickle.
_SMALL = 4096
_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")


@dataclass(frozen=True)
class Pickled:
    """A pickle (protocol 5) and its buffers, which are views of the live objects' memory.

    ``modules`` are the names of modules that it refers to, ``sources`` the text of the notebook
    cells whose code it holds, by file name, and ``globals`` the notebook's variables that functions
    in it read.
    """

    data: bytes
    buffers: tuple[memoryview, ...]
    modules: frozenset[str]
    sources: dict[str, str]
    globals: dict[str, Any]


def dump(call: dict[str, Any]) -> Pickled:
    """Pickle ``call`` with one more key, ``definitions``: the notebook's classes and functions in it.

    Raises whatever an object's own pickling raises.
    """
    file = io.BytesIO()
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        small = buffer.raw().nbytes < _SMALL
        if not small:
            buffers.append(buffer.raw())
        return small

    pickler = Pickler(file, keep)
    # The list is pickled last, so by then it is complete.
    pickler.dump({**call, "definitions": pickler.definitions})
    return Pickled(
        file.getvalue(),
        tuple(buffers),
        frozenset(pickler.modules),
        pickler.sources,
        pickler.globals,
    )


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles what a notebook holds, and notes the modules, cells and definitions it comes across."""

    def __init__(self, file: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.modules: set[str] = set()
        self.sources: dict[str, str] = {}
        self.globals: dict[str, Any] = {}
        self.definitions: list[type | FunctionType] = []

    def reducer_override(self, obj: Any) -> Any:
        """Say how ``obj`` is pickled (see ``pickle.Pickler.reducer_override``)."""
        if issubclass(type(obj), (type, FunctionType)):
            self._note(obj)
        elif type(obj) is ModuleType:
            self.modules.add(obj.__name__)
        elif type(obj) is BuiltinFunctionType and isinstance(obj.__module__, str):
            self.modules.add(obj.__module__)
        found = _special(obj)
        return super().reducer_override(obj) if found is NotImplemented else found

    def _note(self, obj: Any) -> None:
        if obj.__module__ != "__main__":
            self.modules.add(str(obj.__module__))
        elif obj.__qualname__.isidentifier():
            self.definitions.append(obj)
        if isinstance(obj, FunctionType):
            self.modules.update(_imports(obj.__code__))
            self._note_source(obj.__code__.co_filename)
            if obj.__globals__.get("__name__") == "__main__":
                names = global_names(obj.__code__) & obj.__globals__.keys()
                self.globals.update((name, obj.__globals__[name]) for name in sorted(names))

    def _note_source(self, filename: str) -> None:
        # Python 3.13 files what `python -c` runs under the name that code made by dataclasses has, too.
        entry = cache.get(filename) if filename != "<string>" else None
        if entry is not None and len(entry) == 4 and entry[1] is None:  # no file: a notebook's cell
            self.sources[filename] = "".join(entry[2])


def _special(obj: Any) -> Any:
    """Reduce what cloudpickle alone would take along wrongly, or not at all."""
    torch = sys.modules.get("torch")
    if torch is not None and type(obj) is torch.Tensor:
        from nbtorchjob.runtime.codec import tensor_reduce

        return tensor_reduce(obj)
    for name in _STREAMS:  # a kernel's own streams hold threads and sockets
        if obj is getattr(sys, name):
            return getattr, (sys, name)
    if isinstance(obj, io.TextIOWrapper):  # cloudpickle would send the file's text instead
        raise pickle.PicklingError("cannot pickle an open file")
    if type(obj) is FunctionType and obj.__dict__.get("__wrapped__") is open:
        return getattr, (builtins, "open")  # IPython's, which a notebook's functions get as `open`
    return NotImplemented


def global_names(code: CodeType) -> set[str]:
    """Give the names that a function, and those defined in it, look up as globals."""
    return {i.argval for i in _instructions(code) if i.opname == "LOAD_GLOBAL"}


def _imports(code: CodeType) -> set[str]:
    return {i.argval for i in _instructions(code) if i.opname == "IMPORT_NAME"}


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _instructions(inner)
