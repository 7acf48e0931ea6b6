"""Change libraries once they are imported: most cells import none, and searching for them would cost time."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Mapping

_Change = Callable[[Any], None]


class Changes(Dict[str, _Change]):
    """Functions that change modules, by the modules' names."""

    def of(self, *modules: str) -> Callable[[_Change], _Change]:
        """Register a function that changes modules of these names."""

        def enter(change: _Change) -> _Change:
            self.update(dict.fromkeys(modules, change))
            return change

        return enter


def change(changes: Mapping[str, _Change]) -> None:
    """Pass each module named in ``changes`` to its function once it is imported."""
    sys.meta_path.insert(0, _Finder(changes))


class _Finder:
    def __init__(self, changes: Mapping[str, _Change]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find what the other finders find, with a loader that changes the module."""
        if name not in self._changes:
            return None
        for finder in sys.meta_path:
            spec: Any = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = _Loader(spec.loader, self._changes[name])
                return spec
        return None


class _Loader:
    def __init__(self, inner: Any, change: _Change) -> None:
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
