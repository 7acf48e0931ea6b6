"""What all nodes of a round do, told to one of them: each seals it where they meet, and that one collects it.

So whoever asks a thousand nodes asks one. A node that doesn't answer in time is one of which nothing came.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from typing import Any, Dict, Iterator, List, Tuple

from nbtorchjob.runtime.rendezvous.news import announce
from nbtorchjob.runtime.rendezvous.ring import Ring

WORD = "gather"
_MOST_BYTES = 1 << 18  # of one node, compressed
_TOGETHER = 32  # nodes that are asked after at once, as long as none of them is late
_LATE_S = 1.0
_LOOK_S = 0.05


def give(store: Any, ring: Ring, name: str, record: Dict[str, Any]) -> None:
    """Tell what this node does to whoever gathers it under this ``name``."""
    data = zlib.compress(json.dumps(record).encode())
    if len(data) <= _MOST_BYTES:
        store.seal(_key(ring, name, ring.node), data)
        if store.get(ring.key(WORD)) != name.encode():  # it comes too late for whoever would delete it
            store.delete_key(_key(ring, name, ring.node))


def gather(store: Any, ring: Ring, seconds: float) -> Iterator[Tuple[int, bytes]]:
    """Have all other nodes tell what they do; yield each one's number and what it gave, compressed."""
    name, began = os.urandom(8).hex(), time.monotonic()
    ring.gathered = name.encode()  # this node needn't tell itself
    store.set(ring.key(WORD), name)
    announce(store)
    left = ring.after
    try:
        while left and time.monotonic() - began < seconds:
            together = _TOGETHER if time.monotonic() - began < _LATE_S else 1
            still: List[int] = []
            for at in range(0, len(left), together):
                nodes = left[at : at + together]
                keys = [_key(ring, name, node) for node in nodes]
                if not store.check(keys):
                    still += nodes
                    continue
                for node, key in zip(nodes, keys):
                    yield node, store.unseal(key)
                    store.delete_key(key)
            if len(still) == len(left):
                time.sleep(_LOOK_S)
            left = still
    finally:
        # In this order: who tells something from now on sees that, and deletes it.
        store.compare_set(ring.key(WORD), name, "")
        for node in left:
            store.delete_key(_key(ring, name, node))


def _key(ring: Ring, name: str, node: int) -> str:
    return ring.key("gathered/%s" % name, node)
