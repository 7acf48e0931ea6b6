"""Whether what a node has is what the notebook has, for a job that asks for that (``--strict``)."""

from __future__ import annotations

import re
import sys
from typing import Dict, Sequence

from .environment import distributions
from .needed import refusal
from .payload import PayloadError

_leads = re.compile(r"\d+\.\d+(?![\w.]*(?:a|b|rc|dev)\d)").match


def compatible(one: str, other: str) -> bool:
    """Whether two versions differ by no more than a patch: their first two numbers are the same.

    A build of its own (``2.13.0+cpu``) is no difference; one before a release is.
    """
    leads = [_leads(version) for version in (one, other)]
    if all(leads):
        return leads[0].group() == leads[1].group()  # type: ignore[union-attr]
    return one.partition("+")[0] == other.partition("+")[0]


def check(needs: Sequence[Dict[str, str]], installed: str) -> None:
    """Raise ``PayloadError`` for distributions that are here in another version than the notebook has.

    What was ``installed`` for the job, into a folder, was asked for as it is.
    """
    found: Dict[str, str] = {}
    for folder in sys.path:
        found = dict(distributions(folder), **found)
    for name in distributions(installed):
        found.pop(name, None)
    other = [
        need
        for need in needs
        if need["distribution"] in found and not compatible(found[need["distribution"]], need["version"])
    ]
    if other:
        has = ", ".join("%s %s" % (need["distribution"], found[need["distribution"]]) for need in other)
        raise PayloadError(refusal("this image has %s and" % has, other))
