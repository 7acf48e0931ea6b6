"""What is requested for a job. This module: options, and checks of a field's value that return the value."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import SplitResult, urlsplit

from nbtorchjob.errors import SpecError
from nbtorchjob.frozen import FrozenDataclass

E = TypeVar("E", bound=Enum)
V = TypeVar("V")

Takes = Literal["text", "int", "number", "switch", "pairs", "texts"]


class Option(FrozenDataclass):
    """How a field is set by an option.

    ``flags`` end with the long one; ``takes`` is the type of its value. ``path`` leads to the field
    (``("launch", "nnodes")``), and ``default`` is its default as text; both are filled in by the table in
    ``options.py``.
    """

    flags: tuple[str, ...]
    help: str
    takes: Takes = "text"
    metavar: str = ""
    unit: str = ""
    choices: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    default: str = ""

    @property
    def repeated(self) -> bool:
        """Whether the option may be given several times, and its values accumulate."""
        return self.takes in ("pairs", "texts")

    @property
    def home(self) -> tuple[str, ...]:
        """The path to the config that has the field."""
        return self.path[:-1]

    @property
    def name(self) -> str:
        """The field's name."""
        return self.path[-1]

    @property
    def key(self) -> str:
        """Its name in a profile: the long flag without its dashes."""
        return self.flags[-1][2:]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"NBTORCHJOB_{self.key.upper().replace('-', '_')}"


def option(
    usage: str, help: str, *, takes: Takes | None = None, unit: str = "", choices: tuple[str, ...] = ()
) -> Option:
    """Return the option that help lists as ``usage``, such as ``-o, --out NAME``.

    Without ``takes`` it takes text, or is a switch where no value follows.
    """
    words = usage.split()
    flags = tuple(word.rstrip(",") for word in words if word.startswith("-"))
    metavar = "" if words[-1].startswith("-") else words[-1]
    return Option(flags, help, takes or ("text" if metavar else "switch"), metavar, unit, choices)


def setting(
    usage: str,
    help: str,
    default: Any = MISSING,
    *,
    takes: Takes | None = None,
    unit: str = "",
    choices: tuple[str, ...] = (),
    check: Callable[[str, Any], Any] | None = None,
) -> Any:
    """Declare a dataclass field that is also an option, and how its value is checked.

    Without ``default`` a switch is off, an option that can be repeated is empty, and any other is None.
    """
    declared = option(usage, help, takes=takes, unit=unit, choices=choices)
    metadata = {"option": declared, "check": check}
    if default is MISSING and declared.takes == "pairs":
        return field(default_factory=Frozen[str], metadata=metadata)
    if default is MISSING:
        default = {"switch": False, "texts": ()}.get(declared.takes)
    return field(default=default, metadata=metadata)


class Frozen(Mapping[str, V]):
    """A read-only copy of a mapping; unlike ``MappingProxyType`` it can be pickled."""

    def __init__(self, items: Mapping[str, V] | None = None) -> None:
        self._items = dict(items or {})

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)


def address(field: str, value: str, allowed: str) -> SplitResult:
    """Return the parts of a URL; raises ``SpecError`` if it is none, such as ``s3://[bucket``."""
    try:
        return urlsplit(value)
    except ValueError:
        raise SpecError(field, value, allowed) from None


def whole(field: str, value: object, at_least: int) -> int:
    """Return ``value`` if it is a whole number of at least ``at_least``, else raise ``SpecError``."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= at_least:
        return value
    raise SpecError(field, value, f"a whole number, {at_least} or more")


def whole_or_none(field: str, value: object, at_least: int) -> int | None:
    """Like :func:`whole`; None is left as it is."""
    return None if value is None else whole(field, value, at_least)


def seconds(field: str, value: object, *, zero: bool = False) -> float:
    """Return ``value`` if it is a number above 0, or 0 with ``zero``, else raise ``SpecError``."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        isinstance(value, int | float)
        and number
        and math.isfinite(value)
        and (value > 0 or (zero and value == 0))
    ):
        return value
    raise SpecError(field, value, "a number of seconds, 0 or more" if zero else "a number of seconds above 0")


_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_or_none(field: str, value: object) -> float | None:
    """Return the seconds in a number, or in text such as ``90s`` or ``10m``; None is left as it is."""
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    number = float(match[1]) * _UNITS[match[2]] if match else value
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
        raise SpecError(field, value, "a duration above 0, in seconds or such as 90s, 10m, 2h")
    return int(number) if number == int(number) else number


def one_of(field: str, value: object, allowed: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``allowed``, else raise ``SpecError``."""
    if isinstance(value, str) and value in allowed:
        return value
    raise SpecError(field, value, " or ".join(map(repr, allowed)))


def instance(type_: type[V], field: str, value: object) -> V:
    """Return ``value`` if it is of that type, else raise ``SpecError``."""
    if isinstance(value, type_):
        return value
    raise SpecError(field, value, f"a {type_.__name__}")


def switch(field: str, value: object) -> bool:
    """Return ``value`` if it is True or False, else raise ``SpecError``."""
    return instance(bool, field, value)


def member_or_none(field: str, value: object, enum: type[E]) -> E | None:
    """Return the enum's member; its name or value is accepted as text, in any case.

    None is left as it is: only the text ``"None"`` can name a member.
    """
    if value is None or isinstance(value, enum):
        return value
    for name, member in enum.__members__.items():
        if isinstance(value, str) and _folded(value) in (_folded(name), _folded(member.value)):
            return member
    raise SpecError(field, value, " or ".join(repr(m.value) for m in enum))


def texts(field: str, value: object) -> Frozen[str]:
    """Return a read-only copy of a mapping of texts to texts, else raise ``SpecError``."""
    if not isinstance(value, Mapping):
        raise SpecError(field, value, "a mapping of names to texts")
    for name, text in value.items():
        if not (isinstance(name, str) and name and isinstance(text, str)):
            raise SpecError(field, {name: text}, "a mapping of names to texts (numbers in quotes)")
    return Frozen(value)


def sequence(field: str, value: object) -> tuple[str, ...]:
    """Return the texts of a list, each once, in their order; raise ``SpecError`` for anything else."""
    if not isinstance(value, list | tuple):
        raise SpecError(field, value, "a list of texts")
    for text in value:
        if not (isinstance(text, str) and text):
            raise SpecError(field, text, "a text in a list of texts")
    return tuple(dict.fromkeys(value))


def digits(text: object) -> int | None:
    """Return the whole number in ``text``; None where it isn't one."""
    # More than nine digits are a mistake, and int() refuses more than 4300 with an error of its own.
    match = isinstance(text, str) and re.fullmatch(r"-?[0-9]{1,9}", text)
    return int(match[0]) if match else None


def _folded(text: str) -> str:
    return text.replace("_", "").casefold()


T = TypeVar("T")
Check: TypeAlias = Callable[[Any], bool]

_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


@cache
def _origin_and_args(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


def checked(type_: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the dataclass ``type_`` knows; unknown ones, of a later version, are dropped.

    Raises ``TypeError`` for a field whose value has another type.
    """
    hints = _checks(type_)
    field_values = {}
    for name, value in values.items():
        if name in hints:
            exact, check = hints[name]
            if type(value) not in exact and not check(value):
                raise TypeError(f"its {name} is of type {type(value).__name__}")
            field_values[name] = value
    return field_values


@cache
def _checks(type_: type) -> dict[str, tuple[frozenset[type], Check]]:
    """Return for each field the types whose values need no further check, and the check for other values.

    Nearly all values have one of these types, and a list of jobs checks a hundred values of each job.
    """
    return {name: (_exact(hint), fits(hint)) for name, hint in _hints(type_).items()}


@cache
def _exact(hint: Any) -> frozenset[type]:
    origin, inner = _origin_and_args(hint)
    if origin in (Union, types.UnionType):
        return frozenset[type]().union(*map(_exact, inner))
    return frozenset((int, float) if hint is float else (hint,) if isinstance(hint, type) else ())


def built(type_: type[T], data: Mapping[str, Any]) -> T:
    """Return the dataclass whose ``asdict`` was written as JSON; raises ``TypeError`` for other data."""
    if not isinstance(data, Mapping):
        raise TypeError(f"a {type_.__name__} is of type {type(data).__name__}")
    hints = _hints(type_)
    parts = {name: _part(hints[name], value) for name, value in data.items() if name in hints}
    return type_(**checked(type_, parts))


def _part(hint: Any, value: Any) -> Any:
    origin, inner = _origin_and_args(hint)
    if origin is tuple and isinstance(value, list):
        return tuple(_part(inner[0], item) for item in value)
    return built(hint, value) if _is_built(hint) else value


@cache
def _is_built(hint: Any) -> bool:
    return is_dataclass(hint) and isinstance(hint, type)


_MAPPINGS = (dict, Mapping)  # most are dicts: isinstance of an abstract class takes ten times as long


@cache
def fits(hint: Any) -> Check:
    """Return the check that a value has the type of a hint."""
    origin, inner = _origin_and_args(hint)
    if hint is Any:
        return lambda value: True
    if origin in (Union, types.UnionType):
        checks = [*map(fits, inner)]
        return lambda value: any(check(value) for check in checks)
    if origin is tuple and inner[1:] == (...,):
        every = _every(inner[0])
        return lambda value: isinstance(value, tuple) and every(value)
    if origin is tuple:
        parts = [*map(fits, inner)]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(check(item) for check, item in zip(parts, value, strict=True))
        )
    if origin in _MAPPINGS:
        keys, values = map(_every, inner)
        return lambda value: isinstance(value, _MAPPINGS) and keys(value) and values(value.values())
    kind = (int, float) if hint is float else origin or hint
    return lambda value: isinstance(value, kind)


def _every(hint: Any) -> Callable[[Collection[Any]], bool]:
    """Return the check that all values of a collection have the type of a hint."""
    exact, check = _exact(hint), fits(hint)
    if hint is Any:
        return lambda values: True
    return lambda values: exact.issuperset(map(type, values)) or all(map(check, values))


def brief(spec: Any) -> str:
    """Return a dataclass as the call that makes it: the fields that differ from their defaults."""
    shown = []
    for item in fields(spec):
        value = getattr(spec, item.name)
        default = item.default if item.default_factory is MISSING else item.default_factory()
        if item.repr and value != default:
            shown.append(f"{item.name}={value if isinstance(value, Enum) else repr(value)}")
    return f"{type(spec).__name__}({', '.join(shown)})"
