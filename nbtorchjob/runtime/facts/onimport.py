"""Libraries are changed as they are imported: most cells don't, and looking for them would cost each rank."""

from __future__ import annotations

import sys
from typing import Any, Callable, Mapping

Changes = Mapping[str, Callable[[Any], None]]


def change(changes: Changes) -> None:
    """Have each module that is named here be passed to its function once it is imported."""
    sys.meta_path.insert(0, _Finder(changes))


class _Finder:
    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find what the other finders find, with a loader that changes it."""
        if name not in self._changes:
            return None
        for finder in sys.meta_path:
            spec: Any = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = _Loader(spec.loader, self._changes[name])
                return spec
        return None


class _Loader:
    def __init__(self, inner: Any, change: Callable[[Any], None]) -> None:
        self._inner = inner
        self._change = change

    def create_module(self, spec: Any) -> Any:
        """See ``importlib.abc.Loader``."""
        return self._inner.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """See ``importlib.abc.Loader``."""
        module.__spec__.loader = module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._change(module)
