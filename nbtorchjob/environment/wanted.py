"""All that a job's nodes are to install before their ranks start."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.environment import normalised

if TYPE_CHECKING:
    from nbtorchjob.environment.installer import Installer
    from nbtorchjob.environment.wheels import Wheel


class Wanted(FrozenDataclass):
    """Requirements in pip's form, wheels that travel, and the versions that what they need may have.

    What is wanted ``exactly`` is installed in these versions, whatever any of them asks of the others. The
    ``installer`` lies in the job's store for nodes that have none; what is installed doesn't depend on it.
    """

    requirements: tuple[str, ...] = ()
    wheels: tuple[Wheel, ...] = ()
    constraints: tuple[str, ...] = ()
    exactly: tuple[str, ...] = ()
    installer: Installer | None = None

    def __bool__(self) -> bool:
        return bool(self.requirements or self.wheels or self.exactly)

    @property
    def names(self) -> frozenset[str]:
        """The normalised names of the distributions that are asked for."""
        return names((*self.requirements, *self.exactly)) | {each.distribution for each in self.wheels}

    @property
    def digest(self) -> str:
        """What tells it from others."""
        wheels = [(each.name, each.digest) for each in self.wheels]
        parts = self.requirements, self.constraints, self.exactly, wheels
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def header(self) -> dict[str, Any]:
        """What ``runtime/packages`` reads of it in a payload."""
        return {
            "requirements": self.requirements,
            "wheels": {each.name: each.digest for each in self.wheels},
            "constraints": self.constraints,
            "exactly": self.exactly,
        }


NOTHING = Wanted()


def names(lines: Iterable[str]) -> frozenset[str]:
    """Return the normalised names in requirements."""
    from nbtorchjob.environment import requirements  # late: most jobs ask for none

    return frozenset(normalised(requirements.parsed(line).name) for line in lines)
