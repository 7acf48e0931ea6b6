"""What a config's fields may hold: checks that return the value, and each field's option."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Literal, TypeVar

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
        """Whether it may be given several times, and adds up."""
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
    *flags: str,
    help: str,
    takes: Takes = "text",
    metavar: str = "",
    unit: str = "",
    choices: tuple[str, ...] = (),
) -> dict[str, Option]:
    """Return the metadata of a dataclass field that is also an option."""
    return {"option": Option(flags, help, takes, metavar, unit, choices)}


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


def whole(field: str, value: object, at_least: int) -> int:
    """Return ``value`` if it is a whole number of at least ``at_least``, else raise ``SpecError``."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= at_least:
        return value
    raise SpecError(field, value, f"a whole number, {at_least} or more")


def whole_or_none(field: str, value: object, at_least: int) -> int | None:
    """Like :func:`whole`; None is left as it is."""
    return None if value is None else whole(field, value, at_least)


_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_or_none(field: str, value: object) -> float | None:
    """Return the seconds in a number, or in text such as ``90s`` or ``10m``; None is left as it is."""
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    number = float(found[1]) * _UNITS[found[2]] if found else value
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
        raise SpecError(field, value, "a time above 0, in seconds or such as 90s, 10m, 2h")
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
    # Nobody means more than nine digits, and int() refuses 4301 of them with an error of its own.
    found = isinstance(text, str) and re.fullmatch(r"-?[0-9]{1,9}", text)
    return int(found[0]) if found else None


def _folded(text: str) -> str:
    return text.replace("_", "").casefold()
