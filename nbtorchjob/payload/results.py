"""Turns a rank's outcome into the value in the notebook."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

from nbtorchjob.errors import ResultError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.objects import memory, rebuilt
from nbtorchjob.runtime.objects.wire import Unpicklable, WireError, Withheld, read_value
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint


class FetchedValue(FrozenDataclass):
    """A rank's value on this machine's disk, and the key it is signed with.

    ``ours`` is whether its job was submitted from here, so that nobody else has chosen what a pickle runs.
    """

    path: Path
    key: bytes
    ours: bool = True


class _ForeignError(Exception):
    """The value can't be read without unpickling somebody else's data."""


def load(fetched: FetchedValue, name: str, *, trust: bool = False) -> Any:
    """Rebuild a rank's value; big arrays and tensors are mapped from the file, not copied.

    For a job that wasn't submitted from here only plain data is read, unless ``trust``. Warns about
    differences from the rank. Raises ``ResultError``, which says what to do, if it can't be read here.
    """
    lost: list[Unpicklable] = []
    rebuilt.differences.clear()

    def unpickle(data: Any, buffers: Any) -> Any:
        if not (fetched.ours or trust):
            raise _ForeignError
        with memory.in_host_memory():
            return memory.Unpickler(io.BytesIO(data), buffers=buffers).load()

    try:
        value = read_value(str(fetched.path), unpickle, fetched.key, lost)
    except _ForeignError:
        raise ResultError(
            f"the value of {name} holds a pickle, and {name} wasn't submitted from here: unpickling it runs, "
            f"as you, whatever its submitter put there; {hint('result', name, '--trust')} does that"
        ) from None
    except WireError as exc:
        raise ResultError(f"the value of {name} can't be trusted: {exc}") from exc
    except ImportError as exc:
        raise ResultError(
            f"the value of {name} needs {exc.name or exc} here: install it, or return plain data"
        ) from exc
    except OSError as exc:
        raise ResultError(f"the value of {name} can't be read: {exc}") from exc
    except Exception as exc:  # whatever unpickling a user's object raises
        raise ResultError(
            f"the value of {name} can't be rebuilt here ({type(exc).__name__}: {exc}); "
            "import or define what it needs and ask again, as with job.result(); job.raw() has its bytes"
        ) from exc
    if isinstance(value, Withheld):
        size = words.size(value.size)
        raise ResultError(f"the value of {name} is {size}, and couldn't be sent: {value.reason}")
    if isinstance(value, Unpicklable):
        if value.type.removeprefix("builtins.") == "coroutine":  # older nodes named the module
            raise ResultError(f"the value of {name} is a coroutine: put await before the call that makes it")
        raise ResultError(
            f"the value of {name} is a {value.type}, which can't be pickled "
            f"({value.error.type}: {value.error.message}); return plain data such as numbers, "
            "a dict, or a state_dict"
        )
    for part in lost:
        warnings.warn(
            f"the value of {name} arrived without result{part.path}, a {part.type}, which can't be pickled "
            f"({part.error.type}: {part.error.message})",
            stacklevel=2,
        )
    for difference in dict.fromkeys(rebuilt.differences):
        warnings.warn(f"the value of {name}: {difference}", stacklevel=2)
    return value
