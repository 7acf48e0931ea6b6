"""What this interpreter can import, told and looked up without importing any of it.

A distribution goes by its normalised name (PEP 503). Nothing is read but the names in the folders on
``sys.path``: that takes a hundred distributions a millisecond, and their metadata a quarter of a second.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any, Dict, Iterable, Iterator, Optional, Sequence, Tuple

from .emit import emit
from .payload import PayloadError

_named = re.compile(r"([^-~][^-]*)(?:-([^-]+)(?:-.*)?)?\.(?:dist|egg)-info$").match
_separators = re.compile(r"[-_.]+")
# What a package that shares its name with others says in its ``__init__`` (before PEP 420).
_SHARES = (b"declare_namespace", b"extend_path")


def normalised(name: str) -> str:
    """Return a distribution's name as all spell it (PEP 503)."""
    return _separators.sub("-", name).lower()


def parsed(info: str) -> Optional[Tuple[str, str]]:
    """Return the name and version of the distribution whose metadata lie at ``info``, if they do."""
    match = _named(os.path.basename(info)) if info.endswith("-info") else None
    if not match:
        return None
    return normalised(match.group(1)), match.group(2) or _version(info)


def _version(info: str) -> str:
    """Return the version that a project's own ``*.egg-info`` has inside."""
    try:
        with open(os.path.join(info, "PKG-INFO"), encoding="utf-8", errors="replace") as file:
            return next((line[8:].strip() for line in file if line.startswith("Version:")), "")
    except OSError:
        return ""


def distributions(folders: Optional[Iterable[str]] = None) -> Dict[str, str]:
    """Return the version of each distribution in ``folders``, by name; without them in those of ``sys.path``.

    Of two in different folders the first is imported.
    """
    found: Dict[str, str] = {}
    for folder in sys.path if folders is None else folders:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # an archive; what was removed
            continue
        here = (parsed(os.path.join(folder, name)) for name in sorted(names))
        found = dict(filter(None, here), **found)
    return found


def told() -> Dict[str, Any]:
    """Return this interpreter's version, its platform and its distributions: ``EnvironmentTold``'s fields."""
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # musl knows no such name
        libc = ""
    return {
        "python": "%d.%d.%d" % sys.version_info[:3],
        "platform": ("%s %s" % (os.uname().machine, libc)).strip(),
        "distributions": distributions(),
    }


@contextmanager
def telling(node: int, folder: str) -> Iterator[None]:
    """Tell of this environment once what is installed meanwhile, into ``folder``, is there or has failed.

    Only node 0 does: a job's nodes have one image.
    """
    before = told()
    try:
        yield
    finally:
        if node == 0:
            emit("EnvironmentTold", node=node, installed=distributions([folder]), **before)


def check(needs: Sequence[Dict[str, str]]) -> None:
    """Raise ``PayloadError`` for modules that the call is sure to import, and that can't be here."""
    lacking = [need for need in needs if find(need["module"]) is None]
    if lacking:
        raise PayloadError(refusal("this image", lacking))


def refusal(image: str, lacking: Sequence[Dict[str, str]]) -> str:
    """Say in one line what an image lacks, and what mends it."""
    names = ["%(distribution)s %(version)s" % need for need in lacking]
    names[-2:] = [" and ".join(names[-2:])]
    mends = " ".join(dict.fromkeys(need["mend"] for need in lacking))
    return "%s lacks %s, which the call imports: add %s, or use an image that has %s" % (
        image,
        ", ".join(names),
        mends,
        "it" if len(lacking) == 1 else "them",
    )


def find(module: str) -> Optional[Tuple[str, str]]:
    """Return the first of ``a``, ``a.b``, … that is no mere namespace, with its file; None if there is none.

    What lies below it is its own matter: it may make modules, or look for them elsewhere.
    """
    name, *inner = module.split(".")
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # made by hand
        return name, ""
    while spec is not None:
        origin = spec.origin or ""
        mine = spec.submodule_search_locations
        if not inner or not mine or (origin and not _shares(origin)):
            return name, origin
        below = os.path.join(*name.split("."))
        path = [os.path.join(each, below) for each in sys.path] if origin else [*mine]
        name = "%s.%s" % (name, inner[0])
        # By its last name: for a whole one Python would import what lies above it.
        spec = PathFinder.find_spec(inner.pop(0), path)
    return None


def _shares(origin: str) -> bool:
    try:
        with open(origin, "rb") as file:
            text = file.read(4096)
    except OSError:  # in an archive; Python's own
        return False
    return any(word in text for word in _SHARES)
