"""A value as text: its types, contents, sharing and identity, and nothing that differs by chance."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_ATOMS = (type(None), bool, int, float, complex, str, bytes)


def portrait(value: Any, namespace: Mapping[str, Any]) -> str:
    """Describe ``value``; mark the classes that are in ``namespace``, but not others of the same name."""
    return _Portrait(namespace).of(value)


def _is(value: Any, module: str, name: str) -> bool:
    """Return whether ``value`` is of a class from a module that may not be imported."""
    return isinstance(value, getattr(sys.modules.get(module), name, ()))


class _Portrait:
    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._seen: dict[int, tuple[int, Any]] = {}
        self._memory: list[tuple[int, int]] = []

    def of(self, value: Any) -> str:
        if isinstance(value, _ATOMS) and type(value) in _ATOMS:
            return repr(value)
        if id(value) in self._seen:
            return f"<{self._seen[id(value)][0]}>"
        self._seen[id(value)] = (len(self._seen), value)
        return f"{self._kind(type(value))} {self._body(value)}"

    def _kind(self, kind: type) -> str:
        suffix = " of the notebook" if self._namespace.get(kind.__name__) is kind else ""
        return f"{kind.__module__}.{kind.__qualname__}{suffix}"

    def _body(self, value: Any) -> str:
        if isinstance(value, type):
            return self._kind(value)
        if isinstance(value, PurePath):  # its slots cache what it has computed (Python 3.12)
            return str(value)
        if _is(value, "torch", "Tensor"):
            form = (value.dtype, tuple(value.shape), value.stride(), value.requires_grad)
            return f"{form} {self._place(value)} {value.detach().tolist()}"
        if _is(value, "numpy", "ndarray") and not value.dtype.hasobject:
            return f"{value.dtype} {value.shape} {value.strides} {value.tolist()}"
        if isinstance(value, dict):
            return (
                "{"
                + ", ".join(f"{self.of(k)}: {self.of(v)}" for k, v in value.items())
                + "}"
                + self._vars(value)
            )
        if isinstance(value, set | frozenset):
            return "{" + ", ".join(sorted(map(self.of, value))) + "}" + self._vars(value)
        if isinstance(value, list | tuple):
            return "[" + ", ".join(map(self.of, value)) + "]" + self._vars(value)
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
            return str(getattr(value, "__qualname__", value.__name__))
        if isinstance(value, BaseException):
            return self.of(value.args) + self._vars(value)
        own = self._vars(value)
        return own or _ADDRESS.sub("", repr(value))

    def _place(self, tensor: Any) -> str:
        """Return the number of the first tensor with the same memory."""
        start = tensor.untyped_storage().data_ptr()
        self._memory.append((start, tensor.storage_offset()))
        return f"memory {[address for address, _ in self._memory].index(start)}"

    def _vars(self, value: Any) -> str:
        own = dict(vars(value)) if hasattr(value, "__dict__") else {}
        own.pop("cache_parameters", None)  # lru_cache's: a function that it creates
        for kind in type(value).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                mangled = f"_{kind.__name__.lstrip('_')}{name}" if name[:2] == "__" != name[-2:] else name
                if hasattr(value, mangled) and name not in ("__dict__", "__weakref__"):
                    own[mangled] = getattr(value, mangled)
        return "(" + ", ".join(f"{k}={self.of(v)}" for k, v in sorted(own.items())) + ")" if own else ""
