"""A value as a line of text, for users who can't inspect it: what a variable was when a rank failed.

The value is the user's object in a process that has failed: of its class, only ``repr`` is run, and only for
types that aren't handled here. So a type is read from its C slots (a metaclass may lie about its classes, and
``isinstance`` asks ``__class__``), built-in containers are read by the methods of their own types, and no
library is imported: one that isn't loaded has no objects.

``with_variables`` does so for all variables in the user's frames of a failed rank. A ``repr`` may block or
take for ever, so it is called in threads, which are abandoned if they hang, as the process ends anyway. C
code that holds Python's lock for ever hangs all threads: then Python's own watchdog, which needs no lock,
ends the process, whose failure was reported before.
"""

from __future__ import annotations

import dis
import faulthandler
import inspect
import json
import math
import os
import queue
import sys
import threading
import time
import types
from dataclasses import replace
from itertools import islice
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.facts.errors import HERE, MAX_VARIABLES, Error, behind, traced, type_name
from nbtorchjob.runtime.facts.injected import FOLDER
from nbtorchjob.runtime.facts.secret import is_secret, masked

MAX_REPR = 200  # characters
_MOST = 460  # characters of a container
_ITEMS = 5
_DEPTH = 3
_READ = 4096  # characters of a repr
_BITS = 1024  # a bigger number isn't written out: Python refuses to do so from 4300 digits on
_VALUES = 1 << 18  # of a bigger tensor only some values are read: 10 ms
_MODULES = 100_000

# From the type itself: ``cls.__mro__`` would ask a metaclass.
_mro = type.__dict__["__mro__"].__get__
_qualname = type.__dict__["__qualname__"].__get__
_function_name = types.FunctionType.__dict__["__qualname__"].__get__


def described(value: Any, name: str = "") -> str:
    """Return a line about a value; only its type if the value must stay hidden (``hidden``).

    A ``repr`` that raises is mentioned. A ``repr`` may take for ever: see ``with_variables``.
    """
    text = _described(value, name, 0)
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"


def hidden(value: Any, name: str) -> bool:
    """Whether a value with a name that looks secret may be one: not a number, tensor, array, table or net.

    A number of more than 64 bits may be a key.
    """
    type_ = type(value)
    if not is_secret(name) or type_ in (bool, float, complex, type(None)):
        return False
    return int.bit_length(value) > 64 if type_ is int else _library(type_) is None


def _described(value: Any, name: str, depth: int) -> str:
    type_ = type(value)
    try:
        tell_library = _library(type_)
        if tell_library is not None:
            return tell_library(value, type_, depth)
        if hidden(value, name):
            return "<masked %s>" % type_name(type_)
        for kind, tell in _BUILT_IN.items():
            if kind in _mro(type_):
                return tell(value, type_, depth)
        return _of_repr(value)
    except BaseException as exc:  # a repr may raise anything, which nothing else would handle
        return "<%s whose repr raised %s>" % (_qualname(type_), _qualname(type(exc)))


def _library(type_: type) -> Optional[_Tell]:
    """Return the function that describes values of a library's type; None for an unknown type."""
    for (module, kind_name), tell in _OF_LIBRARIES.items():
        kind = getattr(sys.modules.get(module), kind_name, None)
        if any(kind is base for base in _mro(type_)):
            return tell
    return None


def _of_repr(value: Any) -> str:
    text = str.__getitem__(repr(value), slice(0, _READ))
    return _cut(masked(text))


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_REPR else text[: MAX_REPR - 1] + "…"


_Tell = Callable[[Any, type, int], str]
_BUILT_IN: Dict[type, _Tell] = {}  # the first entry counts that a type is, or derives from


_OF_LIBRARIES: Dict[Tuple[str, str], _Tell] = {}  # by module, which needn't be loaded, and class
_Kind = TypeVar("_Kind")


def _tells(table: Dict[_Kind, _Tell], *kinds: _Kind) -> Callable[[_Tell], _Tell]:
    """Register a function that describes values of these types and of types derived from them."""

    def enter(tell: _Tell) -> _Tell:
        table.update(dict.fromkeys(kinds, tell))
        return tell

    return enter


@_tells(_BUILT_IN, int, float, complex)
def _number(value: Any, type_: type, depth: int) -> str:
    if type_ is not int:
        return _of_repr(value)
    bits = int.bit_length(value)
    return repr(value) if bits <= _BITS else "<int of %s bits>" % format(bits, ",")


@_tells(_BUILT_IN, str, bytes, bytearray)
def _text(value: Any, type_: type, depth: int) -> str:
    base = next(kind for kind in (str, bytes, bytearray) if kind in _mro(type_))
    many = base.__len__(value)
    text = masked(repr(base.__getitem__(value, slice(0, MAX_REPR + 1))))
    if many <= MAX_REPR:
        return _cut(text)
    return "%s (%s %s)" % (_cut(text), format(many, ","), "characters" if base is str else "bytes")


@_tells(_BUILT_IN, list, tuple, set, frozenset)
def _sequence(value: Any, type_: type, depth: int) -> str:
    base = next(kind for kind in (list, tuple, set, frozenset) if kind in _mro(type_))
    many = base.__len__(value)
    # A pair may be a name and its value, as in headers.
    name = _word(tuple.__getitem__(value, 0)) if base is tuple and many == 2 else ""
    shown = islice(base.__iter__(value), _items(depth))
    items = (_described(item, name if at else "", depth + 1) for at, item in enumerate(shown))
    return _container(type_, base, many, items)


@_tells(_BUILT_IN, dict)
def _mapping(value: Any, type_: type, depth: int) -> str:
    many = dict.__len__(value)
    pairs = islice(dict.items(value), _items(depth))
    items = (
        "%s: %s" % (_described(key, "", depth + 1), _described(item, _word(key), depth + 1))
        for key, item in pairs
    )
    return _container(type_, dict, many, items)


def _items(depth: int) -> int:
    return _ITEMS if depth < _DEPTH else 0


def _word(key: Any) -> str:
    """Return a key that may be a name, such as a str, or bytes as in headers; else ""."""
    bases = _mro(type(key))
    if bytes in bases:
        return bytes.decode(key, "latin-1")
    return str.__str__(key) if str in bases else ""


_BRACKETS: Dict[type, Tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")")}


def _container(type_: type, base: type, many: int, items: Iterator[str]) -> str:
    shown, room = [], _MOST
    for item in items:
        room -= len(item)
        if room < 0:
            break
        shown.append(item)
    if many > len(shown):
        shown.append("…")
    opening, closing = _BRACKETS.get(base, ("{", "}"))
    return "%s of %s: %s%s%s" % (type_name(type_), format(many, ","), opening, ", ".join(shown), closing)


_BUILT_IN[types.FunctionType] = lambda value, type_, depth: "function %s" % _function_name(value)
_BUILT_IN[type] = lambda value, type_, depth: "class %s" % type_name(value)


@_tells(_OF_LIBRARIES, ("torch", "Tensor"))
def _tensor(value: Any, type_: type, depth: int) -> str:
    # Nothing is read from a GPU: that would wait for all its queued work, maybe a collective that hangs.
    # Subclasses may run anything to return a number.
    torch = sys.modules["torch"]
    without = torch_versions.WITHOUT_SUBCLASSES.get()
    if without is None:
        return "a tensor"
    with without():
        dtype, device = torch.Tensor.dtype.__get__(value), torch.Tensor.device.__get__(value)
        layout, shape = torch.Tensor.layout.__get__(value), torch.Tensor.shape.__get__(value)
        grad = ", requires grad" if torch.Tensor.requires_grad.__get__(value) else ""
        own = type_ in (torch.Tensor, torch.nn.Parameter)
        plain = own and device.type == "cpu" and layout is torch.strided and not value.is_quantized
        numbers = _numbers(torch, value, depth) if plain else ""
    kind = "" if type_ is torch.Tensor else " " + _qualname(type_)
    laid = "" if layout is torch.strided else ", %s" % str(layout).replace("torch.", "")
    summary = "%s%s %s%s" % (str(dtype).replace("torch.", ""), _shape(shape), device, kind)
    return summary + laid + numbers + grad


@_tells(_OF_LIBRARIES, ("torch.nn", "Module"))
def _neural_module(value: Any, type_: type, depth: int) -> str:
    torch = sys.modules["torch"]
    seen: Set[int] = set()
    many, open_ = 0, [value]
    while open_ and len(seen) < _MODULES:
        own = object.__getattribute__(open_.pop(), "__dict__")
        if id(own) in seen:
            continue
        seen.add(id(own))
        open_ += [child for child in dict.values(own.get("_modules", {})) if child is not None]
        for parameter in dict.values(own.get("_parameters", {})):
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                many += torch.Tensor.numel(parameter)
    training = object.__getattribute__(value, "__dict__").get("training")
    mode = ", in eval mode" if training is False else ""
    return "%s, a module of %s parameters%s" % (_qualname(type_), format(many, ","), mode)


@_tells(_OF_LIBRARIES, ("numpy", "ndarray"))
def _array(value: Any, type_: type, depth: int) -> str:
    array = sys.modules["numpy"].ndarray
    return "%s%s %s" % (array.dtype.__get__(value), _shape(array.shape.__get__(value)), _qualname(type_))


@_tells(_OF_LIBRARIES, ("pandas", "Series"), ("pandas", "DataFrame"))
def _table(value: Any, type_: type, depth: int) -> str:
    pandas: Any = sys.modules["pandas"]
    kind = pandas.DataFrame if any(base is pandas.DataFrame for base in _mro(type_)) else pandas.Series
    return "%s of %s" % (_qualname(kind), " × ".join(format(size, ",") for size in kind.shape.__get__(value)))


def _shape(shape: Any) -> str:
    return "[%s]" % ", ".join(str(int(size)) for size in shape)


def _numbers(torch: Any, value: Any, depth: int) -> str:
    many = torch.Tensor.numel(value)
    if value.dtype.is_complex:
        return ""
    if not many:
        return ", finite" if value.dtype.is_floating_point else ""
    with torch.no_grad():
        flat = value.detach()
        if many > _VALUES:
            if not flat.is_contiguous():  # flattening would copy all of it
                return ""
            flat = flat.view(-1)[:: -(-many // _VALUES)]
        if many == 1:
            return " = %s" % (flat.item(),)
        if value.dtype is torch.bool:
            return ", %s of %s true" % (format(int(flat.sum()), ","), format(flat.numel(), ","))
        numbers = flat.double()
        finite = torch.isfinite(numbers)
        good = int(finite.sum())
        if value.dtype.is_floating_point:
            nan = int(torch.isnan(numbers).sum())
            inf = int(numbers.numel()) - good - nan
            odd = (
                ", ".join("%s %s" % (format(n, ","), word) for n, word in ((nan, "NaN"), (inf, "Inf")) if n)
                or "finite"
            )
        else:
            odd = ""
        if depth:  # in a container there is room for little
            return odd and ", " + odd
        text = ", " + odd + (": " if odd and good else "")
        if good:
            kept = numbers if good == numbers.numel() else numbers[finite]
            whole = not value.dtype.is_floating_point
            low, high = (_short(number, whole) for number in (kept.min().item(), kept.max().item()))
            text += "min %s, max %s, mean %s" % (low, high, _short(kept.mean().item()))
    return text + (" (of 1 number in %d)" % -(-many // _VALUES) if many > _VALUES else "")


def _short(value: float, whole: bool = False) -> str:
    return str(int(value)) if whole and math.isfinite(value) else "%.4g" % value


_SECONDS = 1.5  # for all of a rank's variables
_EACH = 0.5  # for one variable
_PATIENCE = 5.0  # seconds more for code that holds Python's lock
_MOST_VARIABLES = 100  # of a frame
_SLOW = "<takes too long to print>"


class _Variable(NamedTuple):
    at: Tuple[int, int]  # how many exceptions behind the first, and the number of the frame there
    name: str
    value: Any


def with_variables(
    error: Error, exc: BaseException, seconds: float = _SECONDS, each_seconds: float = _EACH
) -> Error:
    """Return an error with the variables of its frames, as far as they fit, innermost frames first.

    It takes at most ``seconds``, and for one variable at most ``each_seconds``.
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
    """Yield a description of each variable, as long as there is time."""

    def describe(left: Sequence[_Variable], texts: queue.SimpleQueue[str]) -> None:
        for variable in left:
            texts.put(described(variable.value, variable.name))

    until, at = time.monotonic() + seconds, 0
    while at < len(variables):
        texts: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=describe, args=(variables[at:], texts), daemon=True).start()
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


def _variables(exc: BaseException) -> Iterator[_Variable]:
    """Yield the variables of the user's frames, innermost first, then those of the exception's causes."""
    depth, error = 0, exc
    while True:
        frames = [*enumerate(traced(error))]
        for number, (_, frame) in reversed(frames):
            if frame is not None and _is_users(frame.f_code.co_filename):
                values, top = frame.f_locals, frame.f_locals is frame.f_globals
                if not frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(values) is not dict:
                    # a mapping of another type, as of a class that is being defined
                    names = []
                else:
                    names = _named(frame.f_code) if top else list(values)
                shown = (name for name in names if name in values and _is_shown(name, values[name], top=top))
                for name in islice(shown, _MOST_VARIABLES):
                    yield _Variable((depth, number), name, values[name])
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


def _is_shown(name: str, value: Any, *, top: bool) -> bool:
    if not name.isidentifier() or (name.startswith("__") and name.endswith("__")):
        return False  # names that Python or this runtime keeps there
    bases = type.__dict__["__mro__"].__get__(type(value))
    hidden = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type) if top else ()
    return not any(kind in bases for kind in (types.ModuleType, *hidden))


def _named(code: types.CodeType) -> List[str]:
    """Return the names that a module's code, including comprehensions, reads or sets, in order."""
    names = [item.argval for item in dis.get_instructions(code) if item.opname in _NAMING]
    for item in code.co_consts:
        if isinstance(item, types.CodeType) and item.co_name.startswith("<"):
            names += _named(item)
    return list(dict.fromkeys(names))


_NAMING = ("LOAD_NAME", "STORE_NAME", "LOAD_GLOBAL", "STORE_GLOBAL")
_PYTHON = os.path.join(os.path.dirname(os.__file__), "")
