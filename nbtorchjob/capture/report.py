"""What travels, with its size: the names that a call takes along."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from nbtorchjob.capture.modules import LocalFile
from nbtorchjob.capture.pickling import Pickler
from nbtorchjob.runtime.described import is_secret
from nbtorchjob.text import words

# Sizing pickles each object once more, so it stops here and takes the rest from the whole's size.
_LIMIT = 2_000_000
_LINE = 160
_CODE = ("function", "class")
_IMPORTED = ("module", "imported function", "imported class")


@dataclass(frozen=True)
class Ship:
    """One name that travels; ``size`` in bytes; ``value`` is the repr of a short plain value."""

    name: str
    type: str
    size: int
    value: str = ""

    @property
    def human(self) -> str:
        """The size in the words of people."""
        return words.size(self.size)


def ships(objects: Mapping[str, Any], whole: int) -> tuple[Ship, ...]:
    """Measure each of ``objects``; ``whole`` is the size in bytes of all of them together."""
    alone = len(objects) == 1 and whole > _LIMIT
    sizes = {name: whole if alone else _size(value) for name, value in objects.items()}
    big = sum(size is None for size in sizes.values())
    rest = max(0, whole - sum(size or 0 for size in sizes.values()))
    over = max(_LIMIT, rest // max(1, big))
    return tuple(
        Ship(name, type_name(value), over if (size := sizes[name]) is None else size, _short(name, value))
        for name, value in objects.items()
    )


def line(all_ships: Iterable[Ship], files: Iterable[LocalFile]) -> str:
    """Describe in one line what travels: code first, then the biggest; at most 160 characters."""
    mine = [ship for ship in all_ships if ship.type not in _IMPORTED]
    code = [ship.name for ship in mine if ship.type in _CODE]
    data = sorted((ship for ship in mine if ship.type not in _CODE), key=lambda s: -s.size)
    words = [*code, *map(_word, data), *_modules(files)]
    return _bounded(words) if words else "ships the code alone"


def type_name(value: Any) -> str:
    """Name the type of a value, with the shape and dtype of what has them: ``Tensor 3x4 int64``."""
    if isinstance(value, ModuleType):
        return "module"
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        word = "class" if isinstance(value, type) else "function"
        return word if value.__module__ == "__main__" else f"imported {word}"
    shape, dtype = _attribute(value, "shape"), _attribute(value, "dtype")
    words = [type(value).__name__]
    if isinstance(shape, tuple) and shape:
        words.append("x".join(map(str, shape)))
    if dtype is not None:
        words.append(str(dtype).rpartition(".")[2])
    return " ".join(words)


def _attribute(value: Any, name: str) -> Any:
    if not hasattr(type(value), name):
        return None
    try:
        return getattr(value, name)
    except Exception:  # a property's own code; a type is only a word
        return None


def _short(name: str, value: Any) -> str:
    if isinstance(value, str) and is_secret(name):
        return ""  # cards are saved with the notebook
    plain = value is None or type(value) in (bool, float, str)
    # Python refuses to write integers of more than 4300 digits as text.
    plain = plain or (type(value) is int and value.bit_length() < 64)
    return text if plain and len(text := repr(value)) <= 20 else ""


def _word(ship: Ship) -> str:
    if ship.value:
        return f"{ship.name}={ship.value}"
    return f"{ship.name} ({ship.type}, {ship.human})" if ship.size >= 1000 else ship.name


def _modules(files: Iterable[LocalFile]) -> list[str]:
    sizes: dict[str, int] = {}
    for file in files:
        top = file.path.partition("/")[0]
        sizes[top] = sizes.get(top, 0) + len(file.data)
    return [f"{top} ({words.size(size)})" for top, size in sizes.items()]


def _bounded(words: list[str]) -> str:
    text = f"ships {words[0]}"
    for index, word in enumerate(words[1:], 1):
        more = f", and {len(words) - index} more"
        if len(text) + len(word) + 2 + len(more) > _LINE:
            return text[: _LINE - len(more)] + more
        text += f", {word}"
    return text[:_LINE]


class _TooBigError(Exception):
    """The object is bigger than the limit."""


class _Gauge:
    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > _LIMIT:
            raise _TooBigError


class _Sizer(Pickler):
    """Pickles functions without the globals that they read: those have sizes of their own."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType) and obj.__module__ == "__main__":
            state = (obj.__code__, obj.__defaults__, obj.__kwdefaults__, obj.__closure__)
            return object, (), (*state, obj.__dict__)
        return super().reducer_override(obj)


def _size(value: Any) -> int | None:
    """Return the pickled size in bytes, or None if it is over the limit; buffers aren't copied."""
    gauge = _Gauge()
    buffers: list[int] = []

    def measure(buffer: pickle.PickleBuffer) -> None:
        buffers.append(buffer.raw().nbytes)

    sizer = _Sizer(gauge, measure)
    try:
        sizer.dump(value)
    except _TooBigError:
        return None
    return gauge.size + sum(buffers) + sizer.memory.size
