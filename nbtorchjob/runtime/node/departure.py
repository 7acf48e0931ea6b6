"""A node that is about to end gives the ranks of all nodes the time to save (``api/points.py``).

Somebody's SIGTERM is the word, or ahead of it a question (``NodeAgent.leave``). Where ranks call
``leaving()``, the node

1. tells the other nodes, in their store;
2. as each of them does, finds a call that none of its ranks has passed, and learns the largest of all: there
   all ranks are told;
3. waits until they have left, on all nodes, and what they saved was sent, or their time is over.

Where none calls, it ends at once. Where some never do, such as all but rank 0, nobody waits for these: they
are ended once the others have left. An elastic job goes on with the nodes that nobody has told to end.

The ranks of an elastic job leave in the same way when a node waits to join it. Then no node ends: all of
them meet again, with the new one, once their ranks have left.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from nbtorchjob.runtime.api.points import AT, LEAVE, LEAVING, Agreement, Page
from nbtorchjob.runtime.facts import emit, exits, injected

_PAUSE_S = 0.02  # between two looks at what other nodes say
# After that, as a part of that: a node on a cluster is killed after eight ninths of its time (``init.py``).
_FOR_SENDING = 1 / 3
# Calls of other ranks: one that hasn't called by then never does. Before that it may be in a long first step.
_ENOUGH = 10
_BY_THEMSELVES = 0.9  # of their time; in the rest they are ended


class Departure:
    """How the ``ranks`` of a node leave in one round, whose folder is ``folder``."""

    def __init__(self, folder: str, node: int, round_: int, ranks: int, peers: Any) -> None:
        self.page = Page.create(folder, ranks)
        self._node = node
        self._round = round_
        self._grace = self._seconds = 0.0  # for ranks, of which they have the second by themselves
        self._peers = peers
        self._asked_at: Optional[float] = None  # when somebody told this node to end
        self._why = ""  # as far as whoever told it said so
        self._until: Optional[float] = None
        self._agreement: Optional[Agreement] = None
        self.agreed = False  # whether ranks know at which call they are told

    @property
    def may_begin(self) -> bool:
        """Whether ranks ask, on any node, already leave, or still may ask before the job's deadline."""
        leave = self._peers.leaves is not None
        return leave or self.page.asks or self._peers.asks or injected.ends_soon()

    def begin(self, why: str = "") -> None:
        """Take in that this node has to end, in a signal's handler or a thread; the first time counts."""
        if self._asked_at is None:
            self._why = why
            self._grace = injected.saving()
            self._seconds = self._grace * _BY_THEMSELVES
            self._asked_at = time.monotonic()

    def join(self) -> bool:
        """Have ranks save for a node that waits to join, if they ask; return whether they do, in time."""
        if self._peers.leaves is None and (self.page.asks or self._peers.asks):
            self._peers.want_leave(injected.saving() * _BY_THEMSELVES, joins=True)
        return self._peers.leaves is not None and not self.over

    @property
    def own(self) -> bool:
        """Whether it is this node that has to end."""
        return self._asked_at is not None

    @property
    def under_way(self) -> bool:
        """Whether ranks leave, and still have time."""
        return self._until is not None and time.monotonic() < self._until

    @property
    def over(self) -> bool:
        """Whether their time is over."""
        return self._until is not None and time.monotonic() >= self._until

    @property
    def rest(self) -> float:
        """How many seconds there still are to end the ranks that haven't left."""
        since = 0.0 if self._asked_at is None else time.monotonic() - self._asked_at
        return max(self._grace - self._seconds, self._grace - since)

    def look(self, before: Callable[[], None]) -> None:
        """Do what is next, once a node has to end; ``before`` is called before ranks are told."""
        if self.page.asks:
            self._peers.say_asks()
        if self._asked_at is not None and self._peers.leaves is None:
            self._peers.want_leave(self._seconds)
            fields = {"node": self._node, "round": self._round, "seconds": self._seconds, "why": self._why}
            emit("NodeLeaves", **fields)
        if self._peers.leaves is not None and self._until is None:
            self._until = time.monotonic() + self._peers.leaves
            self._agreement = Agreement(self.page, LEAVE, LEAVING, self._peers, "bound")
        if self._agreement is not None and self._until is not None and not self.agreed:
            call = self._agreement.look()
            if call:
                before()
                self.page.tell(call, self._until - time.monotonic())
                self.agreed = True

    def asks(self, rank: int, code: Optional[int]) -> bool:
        """Whether this node's ``rank``, from 0, calls, or still may; ``code`` is what it has ended with."""
        may = self.page[AT + LEAVE] <= _ENOUGH and code != exits.TOLD_LOST_PEER
        calls = self.page.calls(LEAVING)
        return rank < len(calls) and (calls[rank] > 0 or may)

    def say_gone(self) -> None:
        """Tell the other nodes that those ranks of this one have left that ask."""
        self._peers.say("gone", "1")

    def others_gone(self) -> bool:
        """Return whether that is so for all nodes where ranks ask."""
        bounds = self._agreement.bounds if self._agreement is not None else []
        gone = zip(bounds, self._peers.have_said("gone"))
        return all(announced for bound, announced in gone if bound > 1)

    def all_have_sent(self) -> bool:
        """Tell the other nodes that what was saved here is in the store; return whether that counts.

        That is so once all have sent theirs. One that waits in vain says for all that it isn't.
        """
        assert self._until is not None
        until = self._until + self._peers.leaves * _FOR_SENDING
        counts = "counts/%d" % self._round
        while self._peers.say("sent", "1") is None:
            if time.monotonic() > until:
                return bool(self._peers.decide(counts, "0") == "1")
            time.sleep(_PAUSE_S)
        return bool(self._peers.decide(counts, "1") == "1")

    def have_left(self) -> bool:
        """Tell the other nodes that this one is done with that; return whether all are."""
        return self._peers.say("left", "1", everywhere=True) is not None
