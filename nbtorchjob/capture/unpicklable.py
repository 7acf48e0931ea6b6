"""Why something can't travel: the way from a captured name to the object that can't be pickled."""

from __future__ import annotations

import io
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from multiprocessing.process import BaseProcess
from types import (
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
)
from typing import Any

from nbtorchjob.capture.pickling import Pickler
from nbtorchjob.errors import CaptureError
from nbtorchjob.runtime.pickler import by_name, names_read

_SECONDS = 5.0
_OBJECTS = 2000
_NEVER: tuple[tuple[tuple[type, ...], str], ...] = (
    ((type(threading.Lock()), type(threading.RLock())), "a lock"),
    ((threading.Condition, threading.Event, threading.Semaphore), "a lock"),
    ((threading.Thread,), "a thread"),
    ((Executor,), "a pool"),
    ((BaseProcess,), "a process"),
    ((socket.socket,), "a socket"),
    ((io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO), "an open file"),
    ((FrameType,), "a frame"),
)
_PARAMETRIZED = (
    "a module with parametrizations, which torch doesn't pickle: send its state_dict() and build it inside "
    "the cell, or end them before with torch.nn.utils.parametrize.remove_parametrizations"
)
_SCRIPTED = (
    "compiled by torch.jit, which doesn't pickle it: compile it inside the cell, or torch.jit.save it to a "
    "file that ranks load"
)
# What to do about what can't travel, by its class.
_CURES = {
    "torch._library.custom_ops.CustomOpDef": (
        "an operator that is registered here: register it inside the cell, or in a module beside the notebook"
    ),
    "torch.jit._script.ScriptModule": _SCRIPTED,
    "torch.jit.ScriptFunction": _SCRIPTED,
    "torch.jit.torch.jit.ScriptFunction": _SCRIPTED,
    "torch.ScriptModule": _SCRIPTED,
    "torch.utils.data.dataloader._BaseDataLoaderIter": (
        "a DataLoader that is being gone through: take the DataLoader along, and iterate it inside the cell"
    ),
    "builtins.generator": "a generator, which has no copy: make a list of it, or create it inside the cell",
    "builtins.async_generator": "an asynchronous generator, which has no copy: create it inside the cell",
    "builtins.coroutine": "a coroutine: await it in the notebook, or call its function inside the cell",
}
# torch keeps a module's attributes in dicts of its own.
_TORCH_ATTRIBUTE = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")


def explain(objects: Mapping[str, Any], exc: Exception) -> CaptureError:
    """Explain which of ``objects`` made pickling fail with ``exc``, and what in it."""
    deadline = time.monotonic() + _SECONDS
    for name, value in objects.items():
        found = fails(value)
        if isinstance(found, RecursionError) or isinstance(found and found.__cause__, RecursionError):
            return CaptureError(
                f"can't take {name!r} along: it is nested too deeply to be pickled; send what it "
                "is made from and build it inside the cell"
            )
        if found is not None:
            return _refusal(name, *_search(name, value, found, deadline))
    return CaptureError(f"can't take the code along: {_first_line(exc)}")


def _refusal(name: str, path: str, value: Any, exc: Exception) -> CaptureError:
    what = "it" if path == name else path
    type_name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    word, cure = _never(value), _cure(value)
    if cure:
        return CaptureError(f"can't take {name!r} along: {what} is {cure}")
    if word is not None:
        why = f"is {word} ({type_name}), which never works on another machine"
    elif type_name.startswith(("IPython.", "ipykernel.")):
        why = f"belongs to the notebook ({type_name}), which ranks don't have"
    else:
        why = f"({type_name}) can't be pickled: {_first_line(exc)}"
    return CaptureError(f"can't take {name!r} along: {what} {why}; delete it or create it inside the cell")


def _never(value: Any) -> str | None:
    return next((word for types_, word in _NEVER if isinstance(value, types_)), None)


def _cure(value: Any) -> str:
    """Say what it is and what to do instead, of what libraries refuse to pickle."""
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(value).__mro__}
    return next((text for name, text in _CURES.items() if name in names), "") or (
        _PARAMETRIZED if type(value).__module__ == "torch.nn.utils.parametrize" else ""
    )


def _first_line(exc: Exception) -> str:
    text = str(exc).strip() or type(exc).__name__
    return text.splitlines()[0][:200]


def _search(name: str, value: Any, exc: Exception, deadline: float) -> tuple[str, Any, Exception]:
    """Go down, breadth first, along what can't be pickled; the shortest way to the cause is told."""
    waiting = deque([(name, value, exc)])
    seen = {id(value): value}  # keeps them alive, so ids stay unique
    while waiting:
        path, value, exc = waiting.popleft()
        if _never(value) is not None or _cure(value) or time.monotonic() > deadline or len(seen) > _OBJECTS:
            break
        failing = [(path + step, part, why) for step, part in _parts(value) if (why := fails(part))]
        if not failing:
            break
        waiting.extend(found for found in failing if id(found[1]) not in seen)
        seen.update((id(part), part) for _, part, _ in failing)
    return _TORCH_ATTRIBUTE.sub(r".\1", path), value, exc


class _Nowhere:
    def write(self, data: bytes) -> None:
        """Forget ``data``."""


def fails(value: Any) -> Exception | None:
    """Return what pickling ``value`` raises."""
    try:
        Pickler(_Nowhere(), lambda buffer: None).dump(value)
    except Exception as exc:  # whatever an object's own code raises
        return exc
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what pickling ``value`` would pickle, each with its step in a path: ``.loader``."""
    if isinstance(value, FunctionType | type) and by_name(value):
        return
    if isinstance(value, FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif isinstance(value, type):
        inner = (GetSetDescriptorType, MemberDescriptorType)  # these refer back to the class
        yield from ((f".{k}", part) for k, part in vars(value).items() if not isinstance(part, inner))
    else:
        if isinstance(value, dict):
            yield from ((f"[{key!r}]", part) for key, part in value.items())
        elif isinstance(value, list | tuple | set | frozenset):
            yield from ((f"[{index}]", part) for index, part in enumerate(value))
        yield from _object_parts(value)


def _function_parts(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name in sorted(names_read(function.__code__).keys() & function.__globals__.keys()):
        yield f" → {name}", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f" → {name}", cell.cell_contents
    for index, part in enumerate(function.__defaults__ or ()):
        yield f".__defaults__[{index}]", part
    yield from ((f".{key}", part) for key, part in vars(function).items())


def _object_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that travel: without those that its ``__getstate__`` leaves out."""
    try:
        reduced = value.__reduce_ex__(5)
    except Exception:  # that it has no state to give may be the reason itself
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
