"""What this interpreter can import, told without importing any of it.

A distribution goes by its normalised name (PEP 503). Nothing is read but the names in the folders on
``sys.path``: that takes a hundred distributions a millisecond, and their metadata a quarter of a second.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager, suppress
from importlib.machinery import all_suffixes
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from nbtorchjob.runtime.facts.emit import emit

_named = re.compile(r"([^-~][^-]*)(?:-([^-]+)(?:-.*)?)?\.(?:dist|egg)-info$").match
_separators = re.compile(r"[-_.]+")
_STDLIB = os.path.dirname(os.__file__)
_SUFFIXES = all_suffixes()


def normalised(name: str) -> str:
    """Return a distribution's name as all spell it (PEP 503)."""
    return _separators.sub("-", name).lower()


def parsed(info: str) -> Optional[Tuple[str, str]]:
    """Return the name and version of the distribution whose metadata lie at ``info``, if they do."""
    match = _named(os.path.basename(info)) if info.endswith("-info") else None
    if not match:
        return None
    version = match.group(2) or ""
    if not version:  # a project's own ``*.egg-info`` has it inside
        path = os.path.join(info, "PKG-INFO")
        with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            version = next((line[8:].strip() for line in file if line.startswith("Version:")), "")
    return normalised(match.group(1)), version


def distributions(folder: str) -> Dict[str, str]:
    """Return the version of each distribution in a folder, by name."""
    return dict(filter(None, (parsed(os.path.join(folder, name)) for name in sorted(_names(folder)))))


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:  # an archive; what was removed
        return []


def listed(folder: str) -> Tuple[Dict[str, str], Set[str]]:
    """Return the distributions in a folder, and the modules that lie there, but for Python's own."""
    modules: Set[str] = set()
    if not (_STDLIB.startswith(folder) or folder.endswith("lib-dynload")):
        for name in _names(folder):
            suffix = next((ending for ending in _SUFFIXES if name.endswith(ending)), "")
            module = name[: len(name) - len(suffix)]
            if module.isidentifier() and module != "__pycache__":
                modules.add(module)
    return distributions(folder), modules


def description(listed: Callable[[str], Tuple[Dict[str, str], Set[str]]] = listed) -> Dict[str, Any]:
    """Return this interpreter's version, its platform and what it can import: ``EnvironmentTold``'s fields.

    ``modules`` are those that lie beside Python's own and don't have the name of a distribution.
    """
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # musl knows no such name
        libc = ""
    installed: Dict[str, str] = {}
    modules: Set[str] = set()
    for folder in sys.path:
        there, lie = listed(folder)
        installed = dict(there, **installed)  # of two that have a name the first is imported
        modules.update(lie)
    return {
        "python": "%d.%d.%d" % sys.version_info[:3],
        "platform": ("%s %s" % (os.uname().machine, libc)).strip(),
        "distributions": installed,
        "modules": sorted(name for name in modules if normalised(name) not in installed),
    }


@contextmanager
def telling(node: int, folder: str, images: int) -> Iterator[None]:
    """Tell of this environment once what is installed meanwhile, into ``folder``, is there or has failed.

    Only the first nodes do, one of each image.
    """
    before = description()
    try:
        yield
    finally:
        if node < images:
            emit("EnvironmentTold", node=node, installed=distributions(folder), **before)
