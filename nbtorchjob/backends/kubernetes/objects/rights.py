"""What an account is permitted, in the terms of a Role (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nbtorchjob.backends.kubernetes.objects.paths import Api


class Right(NamedTuple):
    """A verb on a resource, as a Role has it."""

    verb: str
    group: str
    resource: str

    @property
    def what(self) -> str:
        """The resource's full name."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


class Use(NamedTuple):
    """Verbs on a resource, and what they are for; ``part`` is a subresource."""

    verbs: str
    api: Api
    why: str
    part: str = ""

    @property
    def rights(self) -> Iterator[Right]:
        """Each verb by itself."""
        resource = f"{self.api.plural}/{self.part}" if self.part else self.api.plural
        return (Right(verb, self.api.group, resource) for verb in self.verbs.split())
