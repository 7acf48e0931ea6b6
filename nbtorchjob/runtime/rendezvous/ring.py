"""The nodes of one round, each of which looks whether the next one still beats."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Set

from nbtorchjob.runtime.facts.emit import LONGEST_FACT

LOOK_S = 0.5  # between two looks where something is awaited
_BEATS_S = 5.0  # between two beats of a node, at most
_BEATS = 3.5  # that go into a silence
_EARLY = 0.98  # of the time between two beats: a look that comes too soon soon comes again, so it stays close


class Ring:
    """What one node, ``node``, knows of a round, and when it beats and looks.

    A beat is looked for about when it is due, and then twice a second until it comes. So a silence is noticed
    as soon as if all nodes beat twice a second.
    """

    def __init__(self, number: int, nodes: Sequence[int], node: int, silence: float) -> None:
        self.number = number
        self.nodes = nodes
        self.node = node
        self.name = "%d of %s" % (number, ",".join(map(str, nodes)))
        place = nodes.index(node)
        self.after = [*nodes[place + 1 :], *nodes[:place]]
        self.next = self.after[0] if self.after else node
        self._silence = silence
        self._every = min(_BEATS_S, silence / _BEATS)
        self._beats = 0  # of the next one
        self._own_beats = 0
        self._beat_in = self._look_in = 0.0  # seconds
        self._silent = 0.0  # seconds since its last beat, as far as this node was awake
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
        return "%d/%s" % (self.number, word if node is None else "%s/%d" % (word, node))

    def keys(self, word: str) -> "list[str]":
        """Return the keys of all nodes' words."""
        return [self.key(word, node) for node in self.nodes]

    @property
    def pause(self) -> float:
        """Seconds until there is something to do."""
        if self.sample_looks > 0:
            return LOOK_S
        return max(0.01, min(self._beat_in, self._look_in))

    def pass_time(self, seconds: float) -> None:
        """Take in that this node was awake for so long."""
        self._beat_in -= seconds
        self._look_in -= seconds
        self._silent += seconds

    def beat(self, store: Any) -> None:
        """Give a sign of life, if it is due."""
        if self._beat_in <= LOOK_S:
            self._own_beats += 1
            store.set(self.key("beat", self.node), str(self._own_beats))
            self._beat_in = self._every

    def is_silent(self, store: Any) -> bool:
        """Look at the next node, if that is due; return whether it has been silent for too long."""
        if self._look_in > 0:
            return False
        key = self.key("beat", self.next)
        beats = int(store.get(key)) if self._beats or store.check([key]) else 0
        self._look_in = LOOK_S
        if beats > self._beats:
            self._beats, self._silent, self._look_in = beats, 0.0, self._every * _EARLY
        return self._silent >= self._silence
