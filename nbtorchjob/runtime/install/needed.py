"""Whether a node has what a call imports, and in the notebook's versions where a job asks for those.

Nothing is imported to find that out.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Dict, Optional, Sequence, Tuple

from nbtorchjob.runtime.install.environment import distributions
from nbtorchjob.runtime.store.payload import PayloadError

_MOST = 6  # that are named: a card's line isn't endless
# What a package that shares its name with others says in its ``__init__`` (before PEP 420).
_SHARES = (b"declare_namespace", b"extend_path")


def check_modules(needs: Sequence[Dict[str, str]]) -> None:
    """Raise ``PayloadError`` for modules that the call is sure to import, and that can't be here."""
    lacking = [need for need in needs if find(need["module"]) is None]
    if lacking:
        raise PayloadError(refusal("this image", lacking))


def refusal(image: str, lacking: Sequence[Dict[str, str]], add: str = "add") -> str:
    """Say in one line what an image lacks, and what mends it."""
    names = listed(["%(distribution)s %(version)s" % need for need in lacking])
    return "%s lacks %s, which the call imports: %s %s, or use an image that has %s" % (
        image,
        names,
        add,
        mend([need["mend"] for need in lacking]),
        "it" if len(lacking) == 1 else "them",
    )


def mend(options: Sequence[str]) -> str:
    """Return the options that mend all, or of many the one that does."""
    distinct = dict.fromkeys(options)
    return " ".join(distinct) if len(distinct) <= _MOST else "--package like-here"


def listed(texts: Sequence[str]) -> str:
    """Return texts in a row, or of many some: ``a, b and 7 others``."""
    shown = [*texts]
    if len(shown) > _MOST:
        shown[_MOST - 1 :] = ["%d others" % (len(shown) - _MOST + 1)]
    shown[-2:] = [" and ".join(shown[-2:])]
    return ", ".join(shown)


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
        path = [os.path.join(folder, below) for folder in sys.path] if origin else [*mine]
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


_leads = re.compile(r"\d+\.\d+(?![\w.]*(?:a|b|rc|dev)\d)").match


def compatible(one: str, other: str) -> bool:
    """Whether two versions differ by no more than a patch: their first two numbers are the same.

    A build of its own (``2.13.0+cpu``) is no difference; one before a release is.
    """
    leads = [_leads(version) for version in (one, other)]
    if all(leads):
        return leads[0].group() == leads[1].group()  # type: ignore[union-attr]
    return one.partition("+")[0] == other.partition("+")[0]


def check_versions(needs: Sequence[Dict[str, str]], installed: str) -> None:
    """Raise ``PayloadError`` for distributions that are here in another version than the notebook has.

    What was ``installed`` for the job, into a folder, was asked for as it is.
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
