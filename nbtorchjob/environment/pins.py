"""What this kernel has, as requirements: the versions that a call was written with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING

from nbtorchjob.environment import here
from nbtorchjob.runtime.install.environment import normalised
from nbtorchjob.runtime.install.packages import of_torch

if TYPE_CHECKING:
    from packaging.requirements import Requirement

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
    reached: set[str] = set()
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name not in reached and not of_torch(name):
            reached.add(name)
            waiting += required(name)
    return sorted(reached)


def required(name: str) -> Iterator[str]:
    """Yield the distributions that one needs here, without its extras."""
    return (normalised(requirement.name) for requirement in _requirements(name))


def at_odds(names: Iterable[str]) -> bool:
    """Whether one of these distributions asks for another version of something than is here.

    An installer would refuse them, though they work here. Of torch the image has its own.
    """
    versions = here.environment().distributions
    asked = (requirement for name in names for requirement in _requirements(name))
    specifiers = ((requirement.specifier, normalised(requirement.name)) for requirement in asked)
    return any(
        name in versions and not of_torch(name) and not specifier.contains(versions[name], prereleases=True)
        for specifier, name in specifiers
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
