"""Immutable values: frozen dataclasses, and mappings by number whose changed copies are cheap.

``dataclass(frozen=True)`` compiles six methods for each class: 0.6 ms with ten fields, 2 ms with thirty
(Python 3.11). The package has 160 of them, and a short command uses a few: compiling the methods of all that
are imported took a third of the time of ``nbtorchjob list``. So a class gets its methods when it is first
instantiated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, fields
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from dataclasses import Field
    from functools import cached_property as cached_property

    from typing_extensions import dataclass_transform  # in ``typing`` from Python 3.11 on

    _Kind = type
else:

    class cached_property:
        """Python's own without its lock, which takes two thirds of the time and is gone from 3.12 on."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.function, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.function(instance)
            return value

    dataclass_transform = partial(partial, lambda cls, **_: cls)  # only type checkers read it

    class _Kind(type):
        def __getattr__(cls, name: str) -> Any:
            # ``is_dataclass``, ``fields``, and ``dataclass`` on a derived class look these up.
            if name not in ("__dataclass_fields__", "__dataclass_params__") or cls is FrozenDataclass:
                raise AttributeError(name)
            _make(cls)
            return getattr(cls, name)


@dataclass_transform(frozen_default=True)
class FrozenDataclass(metaclass=_Kind):
    """Base of classes that are declared like dataclasses and become frozen ones on first use.

    A class that adds fields to another such class has to be decorated itself.
    """

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        _make(cls)
        cls.__init__(self, *args, **kwargs)  # the generated one by now

    def __setstate__(self, state: dict[str, Any]) -> None:
        _make(type(self))  # an unpickled instance may be a process's first
        vars(self).update(state)


V = TypeVar("V")


@cache
def _many(kind: type) -> int:
    return len(fields(kind))


def replace(instance: V, **changes: Any) -> V:
    """Do what ``dataclasses.replace`` does, for a class without ``__post_init__``, in a fifth of the time.

    A state has forty fields, and a frozen class sets each of them by a call.
    """
    kind: Any = type(instance)
    values = vars(instance).copy()
    while len(values) > _many(kind):
        values.popitem()  # a cached result, set after all fields
    values.update(changes)
    new: V = object.__new__(kind)
    object.__setattr__(new, "__dict__", values)
    return new


Held = TypeVar("Held", bound=FrozenDataclass)
Rest = ParamSpec("Rest")


def remembered(
    function: Callable[Concatenate[Held, Rest], V],
) -> Callable[Concatenate[Held, Rest], V]:
    """Cache a pure function's newest result in its first argument, as ``cached_property`` does.

    It is recomputed when the other arguments differ.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def call(instance: Held, /, *rest: Rest.args, **named: Rest.kwargs) -> V:
        entry = vars(instance).get(name)
        if entry is None or entry[0] != (rest, named):
            entry = vars(instance)[name] = (rest, named), function(instance, *rest, **named)
        value: V = entry[1]
        return value

    return call


class NumberedMapping(Mapping[int, V]):
    """An immutable mapping by number, such as a rank's; :meth:`with_item` copies one page, not the whole.

    It iterates in the order of the numbers. A copy with one more item takes 2 µs for 8,192 items and 4 µs for
    65,536; with a dict it takes 60 µs and 1.4 ms. A map of rpds (2026.9) takes 1 µs, but needs 25 ms to
    iterate over 8,192 items, which each drawing does several times; this one needs 0.6 ms.
    """

    __slots__ = ("_flat", "_pages", "_size")
    _PAGE = 7  # the bits of a number within its page

    _pages: dict[int, dict[int, V]]
    _size: int
    _flat: dict[int, V] | None

    def __init__(self, items: Iterable[tuple[int, V]] = ()) -> None:
        self._pages = {}
        for number, value in items:
            self._pages.setdefault(number >> self._PAGE, {})[number] = value
        self._size, self._flat = sum(map(len, self._pages.values())), None

    def with_item(self, number: int, value: V, most: int) -> NumberedMapping[V]:
        """Return the mapping with an item added or replaced; above ``most`` the highest number is dropped."""
        place = number >> self._PAGE
        page = self._pages.get(place, {})
        new: NumberedMapping[V] = object.__new__(NumberedMapping)
        new._pages, new._flat = self._pages.copy(), None
        changed = new._pages[place] = page.copy()
        changed[number] = value
        new._size = self._size + (number not in page)
        if new._size > most:
            last = max(new._pages)
            kept = dict(new._pages[last])
            del kept[max(kept)]
            new._pages.pop(last)
            new._pages.update({last: kept} if kept else {})
            new._size -= 1
        return new

    def __getitem__(self, number: int) -> V:
        try:
            return self._pages[number >> self._PAGE][number]
        except (KeyError, TypeError):  # a fact that belongs to no node has None, which is no key
            raise KeyError(number) from None

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        return iter(self._ordered())

    def keys(self) -> KeysView[int]:
        """Return the numbers, in order."""
        return self._ordered().keys()

    def values(self) -> ValuesView[V]:
        """Return the values in the order of their numbers."""
        return self._ordered().values()

    def items(self) -> ItemsView[int, V]:
        """Return the items in the order of their numbers."""
        return self._ordered().items()

    def __repr__(self) -> str:
        return repr(self._ordered())

    def _ordered(self) -> dict[int, V]:
        if self._flat is None:
            pages = [page for _, page in sorted(self._pages.items())]
            if len(pages) == 1 and [*pages[0]] == sorted(pages[0]):
                self._flat = pages[0]  # most jobs have few ranks: no copy is needed
            else:
                self._flat = {number: page[number] for page in pages for number in sorted(page)}
        return self._flat


_making = threading.RLock()  # making a class may make its base


def _make(cls: type) -> None:
    with _making:
        if "__dataclass_fields__" not in vars(cls):
            dataclass(frozen=True)(cls)


def make_all() -> None:
    """Make all classes declared so far: else each process that is forked later would make its own."""
    kinds = FrozenDataclass.__subclasses__()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        _make(kind)
