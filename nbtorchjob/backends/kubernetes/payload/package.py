"""A call as what travels to a cluster: the payload's bytes, its key, and a digest of what they run."""

from __future__ import annotations

import io
import os
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from nbtorchjob.backends.kubernetes.payload import secrets, stores
from nbtorchjob.errors import SubmitError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.payload import archive, identity
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo
from nbtorchjob.text import words

if TYPE_CHECKING:
    from nbtorchjob.capture import Call

_NAMED = 3  # of the biggest captures


class Packed(FrozenDataclass):
    """A payload, the key that it is signed with, and the digest of what it runs and how.

    ``ours`` is whether its call was submitted from here, rather than another person's repeated. Where it is
    ``shared``, Secrets of these names hold it, for all runs of a group. Else it is in Secrets of at most
    ``limit`` bytes.
    """

    data: memoryview
    key: bytes
    digest: str
    ours: bool = True
    shared: tuple[str, ...] = ()
    limit: int = secrets.SECRET_BYTES

    @cached_property
    def sha256(self) -> str:
        """The payload's own digest, in hex."""
        return sha256(self.data).hexdigest()

    @property
    def travels(self) -> bool:
        """Whether it fits through the API; else it goes through a store."""
        return len(self.data) <= secrets.LIMIT_BYTES

    def secrets(self, info: JobInfo, labels: dict[str, str], url: str) -> list[dict[str, Any]]:
        """Return the Secrets that its pods mount; ``url`` is where :meth:`store` puts what doesn't travel."""
        if self.shared:
            return secrets.sharing(info, labels, self.key, self.shared)
        if self.travels:
            return secrets.manifests(info, labels, self.key, bytes(self.data), self.limit)
        return secrets.reference(info, labels, self.key, url, self.sha256)

    def store(self, url: str) -> None:
        """Write it to a store. Raises ``SubmitError``."""
        stores.put(self.data, url)


class Stored(FrozenDataclass):
    """A payload that an earlier job left in a store; else as :class:`Packed`.

    It is copied for a job that is sent; of one that is only exported it ``stays`` where it is.
    """

    url: str
    sha256: str
    key: bytes
    digest: str
    ours: bool
    stays: bool = False
    travels = False
    shared: tuple[str, ...] = ()

    def secrets(self, info: JobInfo, labels: dict[str, str], url: str) -> list[dict[str, Any]]:
        """Return the Secret that its pods mount."""
        return secrets.reference(info, labels, self.key, self.url if self.stays else url, self.sha256)

    def store(self, url: str) -> None:
        """Copy it within the store, as the original goes with the earlier job. Raises ``SubmitError``."""
        stores.copy(self.url, url, self.sha256)


def pack(call: Call, spec: JobSpec) -> Packed:
    """Pack ``call``. Raises ``SubmitError`` where it is too big to travel through the API."""
    if call.size > secrets.LIMIT_BYTES and spec.cluster.storage is None:
        raise _too_big(call, call.size)
    file, key = io.BytesIO(), os.urandom(32)
    size = archive.write(file, call, spec, key)
    if size > secrets.LIMIT_BYTES and spec.cluster.storage is None:
        raise _too_big(call, size)
    # Not its buffer: a BytesIO freed before its exported buffer complains on stderr (Python 3.13).
    return Packed(memoryview(file.getvalue()), key, identity.digest(call, spec))


def _too_big(call: Call, size: int) -> SubmitError:
    biggest = sorted(call.ships, key=lambda ship: ship.size, reverse=True)[:_NAMED]
    named = ", ".join(f"{ship.name} ({ship.type}, {ship.human})" for ship in biggest)
    return SubmitError(
        f"the payload is {words.size(size)}, but at most {words.size(secrets.LIMIT_BYTES)} can be sent "
        f"through the API; the biggest in it: {named}: load them on the ranks, or set --storage URL"
    )
