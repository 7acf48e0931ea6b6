"""What makes a class a fact: a frozen dataclass, but for the cost of making it.

``dataclass(frozen=True)`` compiles six methods for each class, 0.6 ms (Python 3.11): for all kinds of facts
that took a sixth of the time of ``nbtorchjob list``. Here all kinds have the same methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform  # in ``typing`` from Python 3.11 on
else:
    dataclass_transform = partial(partial, lambda cls, **_: cls)  # only type checkers read it


@dataclass_transform(frozen_default=True)
class Fact:
    """A base whose subclasses are dataclasses that can't be changed, compared by kind and fields."""

    if TYPE_CHECKING:  # else who asks for the types of a kind's fields would find them
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
        _names: ClassVar[tuple[str, ...]]
        _defaults: ClassVar[dict[str, Any]]
        _makers: ClassVar[dict[str, Callable[[], Any]]]

    def __init_subclass__(cls) -> None:
        known = fields(dataclass(init=False, repr=False, eq=False)(cls))
        cls._names = tuple(each.name for each in known)
        cls._defaults = {each.name: each.default for each in known if each.default is not MISSING}
        cls._makers = {
            each.name: each.default_factory for each in known if each.default_factory is not MISSING
        }

    # Each kind's own parameters, to a type checker.
    def __init__(self, *args: Any, **given: Any) -> None:
        values, names = self.__dict__, self._names
        values.update(self._defaults)
        values.update(zip(names, args, strict=False))
        values.update(given)
        for name, make in self._makers.items():
            if name not in values:
                values[name] = make()
        if values.keys() != self.__dataclass_fields__.keys() or len(args) > len(names):
            wrong = ", ".join({*names} ^ {*values}) or f"{len(args)} values for {len(names)}"
            raise TypeError(f"a {type(self).__name__} lacks, or doesn't have: {wrong}")

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *map(self.__dict__.__getitem__, self._names)))

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._names)
        return f"{type(self).__qualname__}({told})"
