"""Finds out what this interpreter can import, without importing any of it.

So a node knows whether it has what a call imports, and in the notebook's versions if a job requires those.

Distributions have their normalised names (PEP 503). Only the names in the folders on ``sys.path`` are read:
for a hundred distributions that takes a millisecond, while their metadata would take a quarter of a second.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder, all_suffixes
from importlib.util import find_spec
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from nbtorchjob.runtime.facts import emit
from nbtorchjob.runtime.store.payload import PayloadError

_named = re.compile(r"([^-~][^-]*)(?:-([^-]+)(?:-.*)?)?\.(?:dist|egg)-info$").match
_separators = re.compile(r"[-_.]+")
_STDLIB = os.path.dirname(os.__file__)
_SUFFIXES = all_suffixes()


def command(module: str) -> List[str]:
    """Return the command that runs a module with this interpreter.

    Unlike ``-m`` it leaves the working folder off ``sys.path``: some of the user's files there may be named
    as modules of Python's own.
    """
    run = "import runpy; runpy.run_module(%r, run_name='__main__', alter_sys=True)" % module
    return [sys.executable, "-c", "import sys; sys.path[:] = filter(None, sys.path); " + run]


def normalised(name: str) -> str:
    """Return a distribution's normalised name (PEP 503)."""
    return _separators.sub("-", name).lower()


def parsed(info: str) -> Optional[Tuple[str, str]]:
    """Return the name and version of the distribution whose metadata is at ``info``; None if it isn't."""
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
    except OSError:  # an archive, or a folder that was removed
        return []


def listed(folder: str) -> Tuple[Dict[str, str], Set[str]]:
    """Return the distributions in a folder, and the modules in it, except Python's own."""
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

    ``modules`` are those besides Python's own that aren't named like a distribution.
    """
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # musl has no such name
        libc = ""
    installed: Dict[str, str] = {}
    modules: Set[str] = set()
    for folder in sys.path:
        versions, names = listed(folder)
        installed = dict(versions, **installed)  # the first of two with the same name is imported
        modules.update(names)
    return {
        "python": "%d.%d.%d" % sys.version_info[:3],
        "platform": ("%s %s" % (os.uname().machine, libc)).strip(),
        "distributions": installed,
        "modules": sorted(name for name in modules if normalised(name) not in installed),
    }


@contextmanager
def telling(node: int, folder: str, images: int) -> Iterator[None]:
    """Report this environment once the installation within, into ``folder``, is done or has failed.

    Only the first nodes do, one of each image.
    """
    before = description()
    try:
        yield
    finally:
        if node < images:
            emit("EnvironmentTold", node=node, installed=distributions(folder), **before)


_MOST = 6  # names: a card's line isn't endless
# What a package that shares its name with others has in its ``__init__`` (before PEP 420).
_SHARES = (b"declare_namespace", b"extend_path")


def check_modules(needs: Sequence[Dict[str, str]]) -> None:
    """Raise ``PayloadError`` if modules are missing that the call is sure to import."""
    lacking = [need for need in needs if find(need["module"]) is None]
    if lacking:
        raise PayloadError(refusal("this image", lacking))


def refusal(image: str, lacking: Sequence[Dict[str, str]], add: str = "add") -> str:
    """Return one line that says what an image lacks, and how to fix that."""
    names = in_words(["%(distribution)s %(version)s" % need for need in lacking])
    return "%s lacks %s, which the call imports: %s %s, or use an image that has %s" % (
        image,
        names,
        add,
        mend([need["mend"] for need in lacking]),
        "it" if len(lacking) == 1 else "them",
    )


def mend(options: Sequence[str]) -> str:
    """Return the options that fix all of it, or the one that does if there are many."""
    distinct = dict.fromkeys(options)
    return " ".join(distinct) if len(distinct) <= _MOST else "--package like-here"


def in_words(texts: Sequence[str]) -> str:
    """Return texts as a list in words, and only some of many: ``a, b and 7 others``."""
    shown = [*texts]
    if len(shown) > _MOST:
        shown[_MOST - 1 :] = ["%d others" % (len(shown) - _MOST + 1)]
    shown[-2:] = [" and ".join(shown[-2:])]
    return ", ".join(shown)


def find(module: str) -> Optional[Tuple[str, str]]:
    """Return the first of ``a``, ``a.b``, … that isn't a mere namespace, with its file; None if none is.

    Modules below it aren't looked for: it may create them, or find them elsewhere.
    """
    name, *inner = module.split(".")
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # a module that was made by hand
        return name, ""
    while spec is not None:
        origin = spec.origin or ""
        locations = spec.submodule_search_locations
        shares = not origin
        if inner and locations and origin:
            with suppress(OSError), open(origin, "rb") as file:  # none in an archive, nor for Python's own
                text = file.read(4096)
                shares = any(word in text for word in _SHARES)
        if not inner or not locations or not shares:
            return name, origin
        below = os.path.join(*name.split("."))
        path = [os.path.join(folder, below) for folder in sys.path] if origin else [*locations]
        name = "%s.%s" % (name, inner[0])
        # By its last name: for a full name Python would import the packages above it.
        spec = PathFinder.find_spec(inner.pop(0), path)
    return None


_leads = re.compile(r"\d+\.\d+(?![\w.]*(?:a|b|rc|dev)\d)").match


def compatible(one: str, other: str) -> bool:
    """Whether two versions differ by no more than a patch: their first two numbers are the same.

    A local build (``2.13.0+cpu``) makes no difference; a pre-release does.
    """
    leads = [_leads(version) for version in (one, other)]
    if all(leads):
        return leads[0].group() == leads[1].group()  # type: ignore[union-attr]
    return one.partition("+")[0] == other.partition("+")[0]


def check_versions(needs: Sequence[Dict[str, str]], installed: str) -> None:
    """Raise ``PayloadError`` for distributions that are here in another version than the notebook has.

    Those in the folder ``installed`` don't count: the job requested them as they are.
    """
    installed_versions: Dict[str, str] = {}
    for folder in sys.path:
        installed_versions = dict(distributions(folder), **installed_versions)
    for name in distributions(installed):
        installed_versions.pop(name, None)
    other = [
        need
        for need in needs
        if need["distribution"] in installed_versions
        and not compatible(installed_versions[need["distribution"]], need["version"])
    ]
    if other:
        has = ", ".join(
            "%s %s" % (need["distribution"], installed_versions[need["distribution"]]) for need in other
        )
        raise PayloadError(refusal("this image has %s and" % has, other))
