"""The nodes of one round: each looks whether the next one still beats, hears news, and tells what it does.

All who wait for news hear of it at once, and ask for nothing meanwhile: torch's store answers whoever waits
for a key as soon as that is set. So a node that has said something sets the next of the keys ``news/0``,
``news/1``, … as well, each set once; ``news`` names one that is set.

Whoever asks a thousand nodes asks one: each of the others seals what it does where they meet, and that node
gathers it. A node that doesn't answer in time is one of which nothing came.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from datetime import timedelta
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from nbtorchjob.runtime.facts import LONGEST_FACT

LOOK_S = 0.5  # between two looks where something is awaited
_BEATS_S = 5.0  # between two beats of a node, at most
_BEATS = 3.5  # that go into a silence
_LATE_BEATS = 1.5  # into a silence that is told of a node which another one replaces
_EARLY = 0.98  # of the time between two beats: a look that comes too soon soon comes again, so it stays close


class Beats:
    """What one node hears of the beats of another, which are ``every`` so many seconds, under a ``key``.

    A beat is looked for about when it is due, and then twice a second until it comes. So a silence is noticed
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
        """Return those of the node that was in that round, and that another one of its number replaces.

        It has ended or is about to, so that a beat is late is enough.
        """
        every = _every(silence)
        return cls(_key(number, "beat", node), every, _LATE_BEATS * every)

    def pass_time(self, seconds: float) -> None:
        """Take in that this node was awake for so long."""
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
    """What one node, ``node``, knows of a round, and when it beats and looks."""

    def __init__(self, number: int, nodes: Sequence[int], node: int, silence: float) -> None:
        self.number = number
        self.nodes = nodes
        self.together: Sequence[int] = nodes  # those that run what this node runs: of a pool's job some
        self.node = node
        self.name = "%d of %s" % (number, ",".join(map(str, nodes)))
        place = nodes.index(node)
        self.after = [*nodes[place + 1 :], *nodes[:place]]
        self.next = self.after[0] if self.after else node
        self._every = _every(silence)
        self._next_beats = Beats(self.key("beat", self.next), self._every, silence)
        self._own_beats = 0
        self._beat_in = 0.0  # seconds
        self.heard = False  # whether its words were read
        self.lost = False  # whether a node of it is gone
        self.sampled = b""  # the newest word on that
        self.gathered = b""  # under which name this node told last what it does
        self.sample_looks = 0  # that are left
        self.seen: Dict[int, bytes] = {}  # by node
        self.room = LONGEST_FACT  # for what others have seen, in bytes
        self.asks = False
        self.leaves: Optional[float] = None
        self.joins = False
        self.said: Set[str] = set()
        self.above = place > 0  # whether a node is, in the tree
        self.below = [self.key("over", other) for other in nodes[2 * place + 1 : 2 * place + 3]]

    def leave(self, word: bytes) -> None:
        """Take in what stands at ``leave``."""
        self.joins = word.endswith(b" join")
        self.leaves = float(word.split()[0])

    def key(self, word: str, node: Optional[int] = None) -> str:
        """Return the key of a word of this round, or of one node's."""
        return _key(self.number, word, node)

    def keys(self, word: str, *, everywhere: bool = True) -> "list[str]":
        """Return the keys of all nodes' words, or of those that run the same."""
        return [self.key(word, node) for node in (self.nodes if everywhere else self.together)]

    @property
    def pause(self) -> float:
        """Seconds until there is something to do."""
        if self.sample_looks > 0:
            return LOOK_S
        return max(0.01, min(self._beat_in, self._next_beats.look_in))

    def pass_time(self, seconds: float) -> None:
        """Take in that this node was awake for so long."""
        self._beat_in -= seconds
        self._next_beats.pass_time(seconds)

    def beat(self, store: Any) -> None:
        """Give a sign of life, if it is due."""
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
    """Wake all nodes that wait for news; raises ``RuntimeError`` where the store is gone.

    Of many that say the same ``word`` at once, as they do when a job ends, one wakes the others: else each
    node would be woken by each.
    """
    mine = os.urandom(8).hex()
    if word and store.compare_set("told/%s" % word, "", mine) != mine.encode():
        return
    number = _latest(store)
    while store.compare_set(_news_key(number), "", mine) != mine.encode():
        number += 1
    store.set(_LATEST, str(number))


class News:
    """What a node hears by a connection to the store of its own, on which nothing else is said meanwhile."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._next = _latest(store)

    def wait(self) -> None:
        """Wait for news, however many came at once; raises ``RuntimeError`` where the store is gone."""
        # torch warns of a wait that is over without an answer, so there is none in a job's time.
        self._store.wait([_news_key(self._next)], _FOR_EVER)
        self._next = max(self._next, _latest(self._store)) + 1


def _latest(store: Any) -> int:
    return int(store.get(_LATEST)) if store.check([_LATEST]) else 0


def _news_key(number: int) -> str:
    return "%s/%d" % (_LATEST, number)


GATHER = "gather"
_MOST_BYTES = 1 << 18  # of one node, compressed
_TOGETHER = 32  # nodes that are asked after at once, as long as none of them is late
_LATE_S = 1.0
_GATHER_LOOK_S = 0.05


def give(store: Any, ring: Ring, name: str, record: Dict[str, Any]) -> None:
    """Tell what this node does to whoever gathers it under this ``name``."""
    data = zlib.compress(json.dumps(record).encode())
    if len(data) <= _MOST_BYTES:
        store.seal(_gathered_key(ring, name, ring.node), data)
        if store.get(ring.key(GATHER)) != name.encode():  # it comes too late for whoever would delete it
            store.delete_key(_gathered_key(ring, name, ring.node))


def gather(store: Any, ring: Ring, seconds: float) -> Iterator[Tuple[int, bytes]]:
    """Have all other nodes tell what they do; yield each one's number and what it gave, compressed."""
    name, began = os.urandom(8).hex(), time.monotonic()
    ring.gathered = name.encode()  # this node needn't tell itself
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
        # In this order: who tells something from now on sees that, and deletes it.
        store.compare_set(ring.key(GATHER), name, "")
        for node in left:
            store.delete_key(_gathered_key(ring, name, node))


def _gathered_key(ring: Ring, name: str, node: int) -> str:
    return ring.key("gathered/%s" % name, node)
