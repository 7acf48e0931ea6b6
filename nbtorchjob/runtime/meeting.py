"""What the nodes of a rendezvous know of each other, as JSON where torch would write a pickle.

torch unpickles whatever lies in the store under a name that is always the same. Here what is
unpickled was pickled by this very process, a moment before.
"""

from __future__ import annotations

import json
import pickle
from datetime import datetime
from typing import Any, Optional, Tuple

from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from .peers import Peers

_TAG = "$"


class Meeting(C10dRendezvousBackend):  # type: ignore[misc]
    """Holds the state of the rendezvous; whoever waits in it for others learns here that they are gone."""

    def __init__(self, store: Any, run_id: str, peers: Peers) -> None:
        super().__init__(store, run_id)
        self._peers = peers

    def get_state(self) -> "Optional[Tuple[bytes, Any]]":
        """See the base class. Raises ``PeersEnded``."""
        self._peers.check()
        found = super().get_state()
        return None if found is None else (_pickled(found[0]), found[1])

    def set_state(self, state: bytes, token: Any = None) -> "Optional[Tuple[bytes, Any, bool]]":
        """See the base class. Raises ``PeersEnded``."""
        found = super().set_state(encode(pickle.loads(state)), token)
        return None if found is None else (_pickled(found[0]), found[1], found[2])


def _pickled(text: bytes) -> bytes:
    return pickle.dumps(decode(text))


def encode(state: Any) -> bytes:
    """Write a rendezvous' state; raises ``TypeError`` for what another torch may have put there."""
    return json.dumps(_plain(vars(state)), sort_keys=True).encode()


def decode(text: bytes) -> Any:
    """Read what :func:`encode` wrote. Raises ``RendezvousStateError``."""
    state = _RendezvousState()
    try:
        found = _rebuilt(json.loads(text.decode()))
        if found.keys() != vars(state).keys():
            raise ValueError("it has %s" % ", ".join(sorted(found)))
    except Exception as exc:  # whatever another version wrote
        raise RendezvousStateError(
            "what the nodes of the job know of each other is damaged: %s" % exc
        ) from exc
    vars(state).update(found)
    return state


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(item) for key, item in value.items()}
        return {_TAG: "dict", "of": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if isinstance(value, set):
        return {_TAG: "set", "of": [_plain(item) for item in sorted(value)]}
    if isinstance(value, datetime):
        return {_TAG: "time", "of": value.isoformat()}
    if isinstance(value, _NodeDesc):
        return {_TAG: "node", "of": [value.addr, value.pid, value.local_id]}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError("a rendezvous' state holds a %s" % type(value).__name__)


def _rebuilt(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _rebuilt(item) for key, item in value.items()}
    kind, parts = value[_TAG], value["of"]
    if kind == "dict":
        return {_rebuilt(key): _rebuilt(item) for key, item in parts}
    if kind == "set":
        return {_rebuilt(item) for item in parts}
    if kind == "time":
        return datetime.fromisoformat(parts)
    addr, pid, local_id = parts
    return _NodeDesc(addr, pid, local_id)
