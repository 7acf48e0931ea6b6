"""The notebook's objects, made again on a rank; one that can't be is called by its name."""

from __future__ import annotations

import io
import pickle
import types
from typing import Any, Callable, List, Sequence

from nbtorchjob.runtime.objects import sources


class RebuildError(Exception):
    """An object of the notebook can't be made again here."""

    __module__ = "nbtorchjob"


def loads(data: bytes, buffers: Sequence[memoryview], load: Callable[..., Any] = pickle.loads) -> Any:
    """Load what ``nbtorchjob.capture`` pickled, as ``load`` does.

    Raises ``RebuildError`` from what an object's own code raises, with the name of the variable.
    """
    try:
        return load(data, buffers=buffers)
    except Exception as exc:  # whatever a user's __setstate__ raises
        # Name the variable that loading fails at, from what the unpickler in Python leaves on its stacks.
        unpickler: Any = pickle._Unpickler(io.BytesIO(data), buffers=buffers)
        try:
            unpickler.load()
        except Exception:  # as before
            pass
        # Each mark opens a stack: the call's own items, a function that is being filled, the names and values
        # that it reads. What a value is made of may lie behind its name.
        stacks: List[List[Any]] = [*getattr(unpickler, "metastack", ()), getattr(unpickler, "stack", [])]
        functions = [
            function for stack in stacks for function in stack if isinstance(function, types.FunctionType)
        ]
        read = {
            name
            for function in functions
            if function.__code__.co_name == sources.ANCHOR
            for name in function.__code__.co_names
        }
        names = [name for stack in stacks for name in stack if isinstance(name, str) and name in read]
        name = names[-1] if names else ""
        sources.forget()
        if not name:
            raise
        raise RebuildError(
            "the notebook's %r was pickled there, but can't be made again here (%s: %s); make it in the cell"
            % (name, type(exc).__name__, exc)
        ) from exc
