"""What a job could import, as requirements that pip installs (pure).

What this kernel has, as requirements: the versions that a call was written with.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING

from nbtorchjob.environment import here
from nbtorchjob.environment.here import reference
from nbtorchjob.runtime.install.environment import normalised
from nbtorchjob.runtime.install.packages import of_torch
from nbtorchjob.state import JobState
from nbtorchjob.state.events import EnvironmentTold
from nbtorchjob.text.words import LINE, line

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# What pip takes for a name (PEP 508) and a version (PEP 440): a node may be somebody else's.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_VERSION = re.compile(
    r"(?:\d+!)?\d+(?:\.\d+)*(?:[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview)[-_.]?\d*)?(?:(?:-\d+)|"
    r"(?:[-_.]?(?:post|rev|r)[-_.]?\d*))?(?:[-_.]?dev[-_.]?\d*)?",
    re.IGNORECASE,
)


def requirements(told: EnvironmentTold) -> list[str]:
    """Return a line for each distribution, by name; what can't be installed from elsewhere is a comment."""
    found = {**told.distributions, **told.installed}
    return [text for name in sorted(found) for text in _lines(name, found[name], told.origins)]


def text(state: JobState, told: EnvironmentTold, facts: Sequence[str]) -> str:
    """Return the requirements of a job below comments on where they are from; ``facts`` are more of those."""
    submitted = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(state.info.created))
    head = (
        f"What {state.info.id} could import, which was submitted on {submitted}.",
        f"Python {told.python} on {told.platform}",
        *facts,
    )
    return "\n".join([*map(_comment, head), *requirements(told)])


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


# The payload brings its own.
_OURS = ("nbtorchjob", "cloudpickle")


def pins(names: Iterable[str]) -> tuple[str, ...]:
    """Return a requirement of each distribution's version here; of torch's own the image has its own."""
    versions = here.environment().distributions
    travels = (name for name in dict.fromkeys(names) if name not in _OURS and not of_torch(name))
    return tuple(f"{name}=={_public(versions[name])}" for name in travels if versions.get(name))


def closure(names: Iterable[str]) -> list[str]:
    """Return these distributions and all that they need here, directly or not; sorted.

    What torch needs is the image's own, as torch is.
    """
    found: set[str] = set()
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name not in found and not of_torch(name):
            found.add(name)
            waiting += required(name)
    return sorted(found)


def required(name: str) -> Iterator[str]:
    """Yield the distributions that one needs here, without its extras."""
    return (normalised(each.name) for each in _requirements(name))


def at_odds(names: Iterable[str]) -> bool:
    """Whether one of these distributions asks for another version of something than is here.

    An installer would refuse them, though they work here. Of torch the image has its own.
    """
    versions = here.environment().distributions
    asked = (each for name in names for each in _requirements(name))
    found = ((each.specifier, normalised(each.name)) for each in asked)
    return any(
        name in versions and not of_torch(name) and not specifier.contains(versions[name], prereleases=True)
        for specifier, name in found
    )


def _requirements(name: str) -> Iterator[Requirement]:
    from packaging.requirements import InvalidRequirement, Requirement  # late: few jobs ask

    with suppress(metadata.PackageNotFoundError):
        for text in metadata.distribution(name).requires or ():
            with suppress(InvalidRequirement):
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                    yield needed


def _public(version: str) -> str:
    """Return a version as an index has it: ``+cpu`` and the like is a build's own."""
    return version.partition("+")[0]
