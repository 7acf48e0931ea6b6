"""A job's id in a URL: its backend and its address, as in ``local:NAME``."""

from __future__ import annotations

import re

from nbtorchjob.backends import FORMS, ROWS
from nbtorchjob.errors import MalformedError
from nbtorchjob.frozen import FrozenDataclass

_NUMBER = re.compile(r"[0-9]{1,15}")
_MOST_SHOWN = 80


class JobId(FrozenDataclass):
    """A job by its backend and its address there (``JobInfo.address``)."""

    backend: str
    address: str

    @classmethod
    def parse(cls, text: str) -> JobId:
        """Read what ``JobInfo.id`` returned; raises ``MalformedError``."""
        name, _, address = text.partition(":")
        if name not in ROWS or not re.fullmatch(ROWS[name].address, address):
            raise MalformedError(
                f"{text[:_MOST_SHOWN]!r} isn't a job's id: it must be {FORMS}, percent-encoded"
            )
        return cls(name, address)

    @property
    def lane(self) -> str:
        """Where requests about it go: this machine, or one cluster."""
        return lane(self.backend, "/".join(self.address.split("/")[:-2]))

    @property
    def scope(self) -> str:
        """Where it is listed: one of its backend's ``scopes``."""
        return self.address.rpartition("/")[0]

    def __str__(self) -> str:
        return f"{self.backend}:{self.address}"


def lane(backend: str, context: str | None) -> str:
    """Name the lane of this machine, or of one cluster; without a context it is the current one's."""
    return f"{backend}:{context}" if context else backend


def number(name: str, text: str) -> int:
    """Read a number that counts something; raises ``MalformedError``."""
    if not _NUMBER.fullmatch(text):
        raise MalformedError(f"{name}: got {text[:_MOST_SHOWN]!r}, but it must be 0 or a positive number")
    return int(text)
