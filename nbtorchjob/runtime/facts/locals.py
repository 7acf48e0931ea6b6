"""What the variables of a failed rank were: its user's frames with what each name held, in words.

Who describes them runs a ``repr`` of anybody's, which may block or take for ever. So threads do it, that are
left behind where they hang, as the process ends anyway. What holds Python's lock in C for ever hangs all
threads: then Python's own watchdog ends the process, which needs no lock, and whose failure was told before.
"""

from __future__ import annotations

import dis
import faulthandler
import inspect
import json
import os
import queue
import threading
import time
import types
from dataclasses import replace
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from nbtorchjob.runtime.facts.described import described
from nbtorchjob.runtime.facts.errors import HERE, MAX_VARIABLES, Error, behind, traced
from nbtorchjob.runtime.facts.injected import FOLDER

_SECONDS = 1.5  # for all of a rank's variables
_EACH = 0.5  # for one of them
_PATIENCE = 5.0  # with what holds Python's lock
_MOST = 100  # of a frame
_SLOW = "<takes too long to print>"


class _Variable(NamedTuple):
    at: Tuple[int, int]  # how many exceptions it is behind the first, and its frame there
    name: str
    value: Any


def with_variables(
    error: Error, exc: BaseException, seconds: float = _SECONDS, each_seconds: float = _EACH
) -> Error:
    """Return an error with the variables of its frames: of the innermost first, as far as there is room.

    It takes at most so many ``seconds``, and for one variable no more than ``each_seconds``.
    """
    variables = [*_variables(exc)]
    if not variables:
        return error
    by_frame: Dict[Tuple[int, int], List[Tuple[str, str]]] = {}
    room = MAX_VARIABLES
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(seconds + _PATIENCE, exit=True, file=nowhere)
        try:
            for variable, text in zip(variables, _in_time(variables, seconds, each_seconds)):
                room -= len(json.dumps((variable.name, text)))
                if room < 0:
                    break
                by_frame.setdefault(variable.at, []).append((variable.name, text))
        finally:
            faulthandler.cancel_dump_traceback_later()
    return _filled(error, by_frame)


def _filled(error: Error, by_frame: Dict[Tuple[int, int], List[Tuple[str, str]]], depth: int = 0) -> Error:
    frames = tuple(
        replace(frame, variables=tuple(by_frame.get((depth, number), ())))
        for number, frame in enumerate(error.frames)
    )
    cause = error.cause and _filled(error.cause, by_frame, depth + 1)
    return replace(error, frames=frames, cause=cause)


def _in_time(variables: Sequence[_Variable], seconds: float, each_seconds: float) -> Iterator[str]:
    """Yield what each of them was, as long as there is time."""
    until, at = time.monotonic() + seconds, 0
    while at < len(variables):
        texts: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_describe, args=(variables[at:], texts), daemon=True).start()
        try:
            while at < len(variables):
                text = texts.get(timeout=max(0.0, min(each_seconds, until - time.monotonic())))
                at += 1
                yield text
        except queue.Empty:
            at += 1
            yield _SLOW
            if time.monotonic() >= until:
                return


def _describe(variables: Sequence[_Variable], texts: queue.SimpleQueue[str]) -> None:
    for variable in variables:
        texts.put(described(variable.value, variable.name))


def _variables(exc: BaseException) -> Iterator[_Variable]:
    """Yield the variables of the user's frames, the innermost first; those of its causes come after."""
    depth, error = 0, exc
    while True:
        frames = [*enumerate(traced(error))]
        for number, (_, frame) in reversed(frames):
            if frame is not None and _is_users(frame.f_code.co_filename):
                names = _names(frame)[:_MOST]
                yield from (_Variable((depth, number), name, value) for name, value in names)
        cause = behind(error)
        if cause is None or depth == 8:
            return
        depth, error = depth + 1, cause


def _is_users(filename: str) -> bool:
    """Whether code is the user's own, rather than a library's or this runtime's."""
    if filename.startswith((HERE, _PYTHON, "<frozen ")) or filename == "<string>":
        return False
    installed = os.path.join(os.environ.get(FOLDER, os.devnull), "packages", "")  # by ``packages``
    parts = filename.replace("\\", "/").split("/")
    libraries = not {"site-packages", "dist-packages"}.isdisjoint(parts)
    return not libraries and not filename.startswith(installed)


def _names(frame: types.FrameType) -> List[Tuple[str, Any]]:
    """Return a frame's variables: of a module's those that its code names, but for functions and classes."""
    held, top = frame.f_locals, frame.f_locals is frame.f_globals
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(held) is not dict:
        return []  # somebody's own mapping, as of a class that is being made
    names = _named(frame.f_code) if top else list(held)
    return [(name, held[name]) for name in names if name in held and _is_shown(name, held[name], top=top)]


def _is_shown(name: str, value: Any, *, top: bool) -> bool:
    if not name.isidentifier() or (name.startswith("__") and name.endswith("__")):
        return False  # what Python, or this runtime, keeps there
    bases = type.__dict__["__mro__"].__get__(type(value))
    hidden = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type) if top else ()
    return not any(kind in bases for kind in (types.ModuleType, *hidden))


def _named(code: types.CodeType) -> List[str]:
    """Return the names that a module's code reads or sets, its comprehensions' too, in their order."""
    names = [item.argval for item in dis.get_instructions(code) if item.opname in _NAMING]
    for item in code.co_consts:
        if isinstance(item, types.CodeType) and item.co_name.startswith("<"):
            names += _named(item)
    return list(dict.fromkeys(names))


_NAMING = ("LOAD_NAME", "STORE_NAME", "LOAD_GLOBAL", "STORE_GLOBAL")
_PYTHON = os.path.join(os.path.dirname(os.__file__), "")
