"""The user that pods run as: ``UID[:GID]``, as numbers, as a name has a meaning only inside the image."""

from __future__ import annotations

import re
from typing import NamedTuple

from nbtorchjob.errors import SpecError

_MOST = 2**31 - 1  # Kubernetes' limit (1.36)


class User(NamedTuple):
    """A user and their group."""

    uid: int
    gid: int


def user(field: str, value: object) -> str:
    """Return ``value`` as text if it names a user other than root, else raise ``SpecError``."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and re.fullmatch(r"[0-9]{1,10}(:[0-9]{1,10})?", text):
        uid, gid = parse(text)
        if 0 < uid <= _MOST and gid <= _MOST:
            return text
    raise SpecError(field, value, "UID or UID:GID as numbers, the UID from 1 on: 0 is root")


def parse(text: str) -> User:
    """Return the user; an omitted group has the user's number."""
    uid, _, gid = text.partition(":")
    return User(int(uid), int(gid or uid))
