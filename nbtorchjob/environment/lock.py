"""What a job could import, as requirements that pip installs (pure)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nbtorchjob.environment.here import reference
from nbtorchjob.state import JobState
from nbtorchjob.state.events import EnvironmentTold
from nbtorchjob.text.words import LINE, line

if TYPE_CHECKING:
    pass

# What pip takes for a name (PEP 508) and a version (PEP 440): a node may be somebody else's.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_VERSION = re.compile(
    r"(?:\d+!)?\d+(?:\.\d+)*(?:[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview)[-_.]?\d*)?(?:(?:-\d+)|"
    r"(?:[-_.]?(?:post|rev|r)[-_.]?\d*))?(?:[-_.]?dev[-_.]?\d*)?",
    re.IGNORECASE,
)


def requirements(fact: EnvironmentTold) -> list[str]:
    """Return a line for each distribution, by name; what can't be installed from elsewhere is a comment."""
    versions = {**fact.distributions, **fact.installed}
    return [text for name in sorted(versions) for text in _lines(name, versions[name], fact.origins)]


def text(state: JobState, fact: EnvironmentTold, facts: Sequence[str]) -> str:
    """Return the requirements of a job below comments on where they are from; ``facts`` are more of those."""
    submitted = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(state.info.created))
    head = (
        f"What {state.info.id} could import, which was submitted on {submitted}.",
        f"Python {fact.python} on {fact.platform}",
        *facts,
    )
    return "\n".join([*map(_comment, head), *requirements(fact)])


def _lines(name: str, version: str, origins: Mapping[str, str]) -> Sequence[str]:
    public, plus, build = version.partition("+")
    pinned = f"{name}=={version}"
    if _NAME.fullmatch(name) is None or _VERSION.fullmatch(public) is None:
        return [_comment(f"{pinned}: no version that pip knows")]
    if name in origins:
        where, why = reference(origins[name])
        return [f"{name} @ {where}"] if where else [_comment(f"{pinned}: {why}")]
    if plus:
        # An index that has no such builds has the version all the same, and so has one that has nothing else.
        return [
            _comment(f"{pinned}, a build (+{build}) that may have an index of its own"),
            f"{name}=={public}",
        ]
    return [pinned]


def _comment(text: str) -> str:
    return f"# {line(text, LINE)}"
