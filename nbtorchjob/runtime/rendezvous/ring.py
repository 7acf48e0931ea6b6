"""The nodes of one round: each checks that the next one beats, waits for news, and reports what it does.

All nodes that wait for news get it at once, without polling: torch's store answers a wait for a key as soon
as the key is set. So a node that has written a word also sets the next of the keys ``news/0``,
``news/1``, …, each of which is set once; ``news`` holds the number of one that is set.

To ask a thousand nodes, a client asks one: the others seal their records in the store where they meet, and
that node gathers them. A node that doesn't answer in time is left out.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from datetime import timedelta
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from nbtorchjob.runtime.facts import LONGEST_FACT

LOOK_S = 0.5  # between two looks while something is awaited
_BEATS_S = 5.0  # between two beats of a node, at most
_BEATS = 3.5  # intervals between beats that a silence lasts
_LATE_BEATS = 1.5  # the same, for the silence of a node that another one replaces
_EARLY = 0.98  # of the time between two beats: a look that is too early is soon repeated, so looks stay close


class Beats:
    """Watches the beats of another node, which come ``every`` so many seconds, under a ``key``.

    It looks for a beat about when it is due, and then twice a second until it comes. So it notices a silence
    as soon as if all nodes beat twice a second.
    """

    def __init__(self, key: str, every: float, silence: float) -> None:
        self.look_in = 0.0  # seconds
        self._key = key
        self._every = every
        self._silence = silence
        self._beats = 0
        self._silent = 0.0  # seconds since the last one, as far as this node was awake

    @classmethod
    def of_former(cls, number: int, node: int, silence: float) -> Beats:
        """Return the beats of a node of an earlier round, which another node of its number replaces.

        It has ended or is about to, so one late beat is enough.
        """
        every = _every(silence)
        return cls(_key(number, "beat", node), every, _LATE_BEATS * every)

    def pass_time(self, seconds: float) -> None:
        """Record that this node was awake for ``seconds``."""
        self.look_in -= seconds
        self._silent += seconds

    def are_missing(self, store: Any) -> bool:
        """Look at the node, if that is due; return whether it has been silent for too long."""
        if self.look_in > 0:
            return False
        beats = int(store.get(self._key)) if self._beats or store.check([self._key]) else 0
        self.look_in = LOOK_S
        if beats > self._beats:
            self._beats, self._silent, self.look_in = beats, 0.0, self._every * _EARLY
        return self._silent >= self._silence


def _every(silence: float) -> float:
    return min(_BEATS_S, silence / _BEATS)


def _key(number: int, word: str, node: Optional[int] = None) -> str:
    return "%d/%s" % (number, word if node is None else "%s/%d" % (word, node))


class Ring:
    """What ``node`` knows of a round, and when it beats and looks."""

    def __init__(self, number: int, nodes: Sequence[int], node: int, silence: float) -> None:
        self.number = number
        self.nodes = nodes
        self.together: Sequence[int] = nodes  # those that run the same job: in a pool some of them
        self.node = node
        self.name = "%d of %s" % (number, ",".join(map(str, nodes)))
        place = nodes.index(node)
        self.after = [*nodes[place + 1 :], *nodes[:place]]
        self.next = self.after[0] if self.after else node
        self._every = _every(silence)
        self._next_beats = Beats(self.key("beat", self.next), self._every, silence)
        self._own_beats = 0
        self._beat_in = 0.0  # seconds
        self.is_read = False  # whether its words were read
        self.lost = False  # whether a node of it is gone
        self.sampled = b""  # the newest word ``sample``
        self.gathered = b""  # the name under which this node last gave what it does
        self.sample_looks = 0  # looks for the others' samples that are left
        self.seen: Dict[int, bytes] = {}  # by node
        self.room = LONGEST_FACT  # for the others' samples, in bytes
        self.asks = False
        self.leaves: Optional[float] = None
        self.joins = False
        self.own_words: Set[str] = set()
        self.above = place > 0  # whether a node is above this one in the tree
        self.below = [self.key("over", other) for other in nodes[2 * place + 1 : 2 * place + 3]]

    def leave(self, word: bytes) -> None:
        """Record the value of the word ``leave``."""
        self.joins = word.endswith(b" join")
        self.leaves = float(word.split()[0])

    def key(self, word: str, node: Optional[int] = None) -> str:
        """Return the key of a word of this round, or of one node's."""
        return _key(self.number, word, node)

    def keys(self, word: str, *, everywhere: bool = True) -> "list[str]":
        """Return the keys of all nodes' words, or only of nodes that run the same job."""
        return [self.key(word, node) for node in (self.nodes if everywhere else self.together)]

    @property
    def pause(self) -> float:
        """Seconds until there is something to do."""
        if self.sample_looks > 0:
            return LOOK_S
        return max(0.01, min(self._beat_in, self._next_beats.look_in))

    def pass_time(self, seconds: float) -> None:
        """Record that this node was awake for ``seconds``."""
        self._beat_in -= seconds
        self._next_beats.pass_time(seconds)

    def beat(self, store: Any) -> None:
        """Write a beat, if it is due."""
        if self._beat_in <= LOOK_S:
            self._own_beats += 1
            store.set(self.key("beat", self.node), str(self._own_beats))
            self._beat_in = self._every

    def is_silent(self, store: Any) -> bool:
        """Look at the next node, if that is due; return whether it has been silent for too long."""
        return self._next_beats.are_missing(store)


_LATEST = "news"
_FOR_EVER = timedelta(days=365)


def announce(store: Any, word: str = "") -> None:
    """Wake all nodes that wait for news; raises ``RuntimeError`` if the store is gone.

    If many write the same ``word`` at once, as when a job ends, only one wakes the others: otherwise each
    node would be woken by every other.
    """
    token = os.urandom(8).hex()
    if word and store.compare_set("told/%s" % word, "", token) != token.encode():
        return
    number = _latest(store)
    while store.compare_set(_news_key(number), "", token) != token.encode():
        number += 1
    store.set(_LATEST, str(number))


class News:
    """Waits for news in ``store``, over a connection that nothing else uses meanwhile."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._next = _latest(store)

    def wait(self) -> None:
        """Wait for news, taking all that came at once; raises ``RuntimeError`` if the store is gone."""
        # torch warns if a wait times out, so this one lasts longer than any job.
        self._store.wait([_news_key(self._next)], _FOR_EVER)
        self._next = max(self._next, _latest(self._store)) + 1


def _latest(store: Any) -> int:
    return int(store.get(_LATEST)) if store.check([_LATEST]) else 0


def _news_key(number: int) -> str:
    return "%s/%d" % (_LATEST, number)


GATHER = "gather"
_MOST_BYTES = 1 << 18  # of one node's record, compressed
_TOGETHER = 32  # nodes whose keys are checked at once, until nodes are late
_LATE_S = 1.0
_GATHER_LOOK_S = 0.05


def give(store: Any, ring: Ring, name: str, record: Dict[str, Any]) -> None:
    """Give a record of what this node does to the node that gathers such records under ``name``."""
    data = zlib.compress(json.dumps(record).encode())
    if len(data) <= _MOST_BYTES:
        store.seal(_gathered_key(ring, name, ring.node), data)
        if store.get(ring.key(GATHER)) != name.encode():  # too late: the gathering node won't delete it
            store.delete_key(_gathered_key(ring, name, ring.node))


def gather(store: Any, ring: Ring, seconds: float) -> Iterator[Tuple[int, bytes]]:
    """Have all other nodes report what they do; yield each node's number and its record, compressed."""
    name, began = os.urandom(8).hex(), time.monotonic()
    ring.gathered = name.encode()  # this node needn't give a record to itself
    store.set(ring.key(GATHER), name)
    announce(store)
    left = ring.after
    try:
        while left and time.monotonic() - began < seconds:
            together = _TOGETHER if time.monotonic() - began < _LATE_S else 1
            still: List[int] = []
            for at in range(0, len(left), together):
                nodes = left[at : at + together]
                keys = [_gathered_key(ring, name, node) for node in nodes]
                if not store.check(keys):
                    still += nodes
                    continue
                for node, key in zip(nodes, keys):
                    yield node, store.unseal(key)
                    store.delete_key(key)
            if len(still) == len(left):
                time.sleep(_GATHER_LOOK_S)
            left = still
    finally:
        # In this order: a node that gives its record from now on sees that, and deletes the record.
        store.compare_set(ring.key(GATHER), name, "")
        for node in left:
            store.delete_key(_gathered_key(ring, name, node))


def _gathered_key(ring: Ring, name: str, node: int) -> str:
    return ring.key("gathered/%s" % name, node)
