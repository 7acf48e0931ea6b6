"""A store in which only values signed with the job's key count.

torch's TCPStore has no authentication, and its keys are the same in every job: anyone who reaches
its port may write what agents then act on. So a value carries an HMAC-SHA256 over its name and itself,
and is used only once that has been checked. An old value of the same job under its own name passes:
replaying one can disturb a job, but no more.

Anyone who reaches that port may also read. Confidential values are sealed (``objects/wire``), and then
signed like every other value.
"""

from __future__ import annotations

import hmac
from datetime import timedelta
from typing import Any, List, Optional, Sequence, Union

from torch.distributed import PrefixStore, Store

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.objects.wire import derived, sealed, sign, unsealed
from nbtorchjob.runtime.rendezvous.alone import PeersEnded

_MARK = 32  # bytes, in front of each value


class SignedStore(Store):  # type: ignore[misc]
    """Wraps ``store``; only the agents of one job have ``key``.

    Reading raises ``PeersEnded`` for a value that no agent of this job wrote. A ``PrefixStore`` on top of it
    refers only to its C++ side: keep another reference to it, or it is freed.
    """

    def __init__(self, store: Any, key: bytes) -> None:
        super().__init__()
        self._store = store
        self._key = key

    def below(self, prefix: str) -> SignedStore:
        """Return the part of the store whose names have this prefix, like a ``PrefixStore``."""
        return SignedStore(PrefixStore(prefix, self._store), derived(self._key, "below", prefix))

    def set(self, name: str, value: Union[bytes, str]) -> None:
        """See the base class."""
        self._store.set(name, self._marked(name, value))

    def get(self, name: str) -> bytes:
        """See the base class."""
        return self._checked(name, self._store.get(name))

    def seal(self, name: str, value: bytes) -> None:
        """Set a value that only agents of this job can read, with :meth:`unseal`."""
        self.set(name, sealed(value, derived(self._key, "seal")))

    def unseal(self, name: str) -> bytes:
        """Return what was sealed under this name; raises ``PeersEnded`` like any read."""
        return unsealed(self.get(name), derived(self._key, "seal"))

    def compare_set(self, name: str, expected: Union[bytes, str], desired: Union[bytes, str]) -> bytes:
        """See the base class."""
        expectation = self._marked(name, expected) if expected else b""
        return self._checked(name, self._store.compare_set(name, expectation, self._marked(name, desired)))

    def check(self, names: Sequence[str]) -> bool:
        """Whether agents of this job have written all of these."""
        return bool(self._store.check(names) and (self.multi_get(names) or not names))

    def multi_get(self, names: Sequence[str]) -> List[bytes]:
        """See the base class."""
        return [self._checked(*pair) for pair in zip(names, self._store.multi_get(names))]

    def multi_set(self, names: Sequence[str], values: "Sequence[Union[bytes, str]]") -> None:
        """See the base class."""
        self._store.multi_set(names, [self._marked(*pair) for pair in zip(names, values)])

    def delete_key(self, name: str) -> bool:
        """See the base class."""
        return bool(self._store.delete_key(name))

    def wait(self, names: Sequence[str], timeout: Optional[timedelta] = None) -> None:
        """See the base class; a value is checked when it is read."""
        self._store.wait(names, *([] if timeout is None else [timeout]))

    def set_timeout(self, timeout: timedelta) -> None:
        """See the base class."""
        self._store.set_timeout(timeout)

    def has_extended_api(self) -> bool:
        """See the base class."""
        return True

    def _marked(self, name: str, value: Union[bytes, str]) -> bytes:
        data = value.encode() if isinstance(value, str) else value
        return self._mark(name, data) + data

    def _checked(self, name: str, signed: bytes) -> bytes:
        data = signed[_MARK:]
        if not hmac.compare_digest(signed[:_MARK], self._mark(name, data)):
            text = "something outside this job wrote to the store where its nodes meet: %s isn't signed"
            raise PeersEnded(exits.INFRASTRUCTURE_ERROR, text % name)
        return data

    def _mark(self, name: str, data: bytes) -> bytes:
        return sign(b"%d %s" % (len(name), name.encode()) + data, self._key)
