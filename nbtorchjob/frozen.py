"""Frozen dataclasses that are made when the first one of their class is.

``dataclass(frozen=True)`` compiles six methods for each class: 0.6 ms with ten fields, 2 ms with thirty
(Python 3.11). The package has 160 of them, of which a short command uses a few: to make all that it imported
took a third of the time of ``nbtorchjob list``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from dataclasses import Field

    from typing_extensions import dataclass_transform  # in ``typing`` from Python 3.11 on

    _Kind = type
else:
    dataclass_transform = partial(partial, lambda cls, **_: cls)  # only type checkers read it

    class _Kind(type):
        def __getattr__(cls, name: str) -> Any:
            # What ``is_dataclass``, ``fields`` and ``dataclass`` of a class derived from this one look for.
            if name not in ("__dataclass_fields__", "__dataclass_params__") or cls is FrozenDataclass:
                raise AttributeError(name)
            _make(cls)
            return getattr(cls, name)


@dataclass_transform(frozen_default=True)
class FrozenDataclass(metaclass=_Kind):
    """A base of classes that are declared as dataclasses are, and become frozen ones when they are needed.

    A class that adds fields to another of these has to be decorated itself.
    """

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        _make(cls)
        cls.__init__(self, *args, **kwargs)  # its own by now

    def __setstate__(self, state: dict[str, Any]) -> None:
        _make(type(self))  # in a process that reads one, it may be the first
        vars(self).update(state)


_making = threading.RLock()  # to make one may make what it is derived from


def _make(cls: type) -> None:
    with _making:
        if "__dataclass_fields__" not in vars(cls):
            dataclass(frozen=True)(cls)


def make_all() -> None:
    """Make all that are declared so far: of what is forked later each would make its own."""
    kinds = FrozenDataclass.__subclasses__()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        _make(kind)
