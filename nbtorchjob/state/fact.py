"""What makes a class a kind of fact: a frozen dataclass, from the first fact of its kind on.

``dataclass(frozen=True)`` compiles six methods for each class, 0.6 ms (Python 3.11). Most processes meet only
a few of some fifty kinds, and to make all of them took a sixth of the time of ``nbtorchjob list``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from dataclasses import Field

    from typing_extensions import dataclass_transform  # in ``typing`` from Python 3.11 on
else:
    dataclass_transform = partial(partial, lambda cls, **_: cls)  # only type checkers read it

_making = threading.Lock()


@dataclass_transform(frozen_default=True)
class Fact:
    """A base of classes that are declared as dataclasses are, and become frozen ones with their first fact.

    Before that ``dataclasses.fields`` knows nothing of such a class; ``typing.get_type_hints`` does.
    """

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init__(self, *args: Any, **given: Any) -> None:
        cls = type(self)
        with _making:
            if "__dataclass_fields__" not in vars(cls):
                dataclass(frozen=True)(cls)
        cls.__init__(self, *args, **given)  # its own by now
