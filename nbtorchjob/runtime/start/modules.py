"""The package ``nbtorchjob.runtime`` in a payload, where one member of the archive holds all its modules.

Compressed one by one they take a third more space, and zipimport can't read an archive within its own. They
come before all other modules, as a payload's runtime and cloudpickle take precedence over an image's.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from typing import Any, Dict, Mapping, Optional

MODULES = "modules"
SEPARATOR = b"\0"  # between names and sources, which alternate: no source contains it


class _Modules:
    """Finds the modules of ``archive`` under the file names that zipimport would give them."""

    def __init__(self, archive: str, together: bytes) -> None:
        parts = together.split(SEPARATOR)
        self._begin = archive + "/"
        self._sources = {self._begin + name.decode(): source for name, source in zip(parts[::2], parts[1::2])}

    def add_late(self, sources: Mapping[str, str]) -> None:
        """Find these modules, too, unless they exist already (``ask/questions.py``)."""
        for name, text in sources.items():
            self._sources.setdefault(self._begin + name, text.encode())

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """See ``importlib.abc.MetaPathFinder``."""
        begin = self._begin + name.replace(".", "/")
        for file in (begin + ".py", begin + "/__init__.py"):
            if file in self._sources:
                return spec_from_file_location(name, file, loader=_Loader(name, file, self._sources))
        return None


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, sources: Dict[str, bytes]) -> None:
        super().__init__(name, path)
        self._sources = sources

    def get_data(self, path: str) -> bytes:
        """Return a module's source; the rest of Python's own loader reads no file."""
        return self._sources[path]


if __name__ == "nbtorchjob.runtime":
    _zip: Any = __spec__.loader
    sys.meta_path.insert(0, _Modules(_zip.archive, _zip.get_data(MODULES)))
