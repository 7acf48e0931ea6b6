"""A node that is about to end gives the ranks of all nodes time to save (``api/points.py``).

A SIGTERM announces the end, or a question that comes before it (``NodeAgent.leave``). If ranks call
``leaving()``, the node

1. tells the other nodes, in their store;
2. like each other node, finds a call that none of its ranks has passed, and learns the largest of these: at
   that call, all ranks are told;
3. waits until the ranks of all nodes have left and what they saved was sent, or until their time is over.

If no rank calls it, the node ends at once. Ranks that never call it, such as all but rank 0, aren't waited
for: they are ended once the others have left. An elastic job goes on with the nodes that weren't told to end.

The ranks of an elastic job leave in the same way when a node waits to join it. Then no node ends: all of
them meet again, with the new one, once their ranks have left.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from nbtorchjob.runtime.api.points import AT, LEAVE, LEAVING, Agreement, Page
from nbtorchjob.runtime.facts import emit, exits, injected

_PAUSE_S = 0.02  # between two looks at what other nodes say
# Time to send, as a fraction of the time to save: in a pod, ``init.py`` kills a node after 8/9 of its time.
_FOR_SENDING = 1 / 3
# Calls of other ranks after which a rank without a call won't call; before, it may be in a long first step.
_ENOUGH = 10
_BY_THEMSELVES = 0.9  # of the ranks' time; in the rest they are ended


class Departure:
    """How the ``ranks`` of a node leave in one round, whose folder is ``folder``."""

    def __init__(self, folder: str, node: int, round_: int, ranks: int, peers: Any) -> None:
        self.page = Page.create(folder, ranks)
        self._node = node
        self._round = round_
        self._grace = self._seconds = 0.0  # for ranks: in all, and before they are ended
        self._peers = peers
        self._asked_at: Optional[float] = None  # when this node was told to end
        self._why = ""  # the reason, if it came along
        self._until: Optional[float] = None
        self._agreement: Optional[Agreement] = None
        self.agreed = False  # whether the ranks know at which call they leave

    @property
    def may_begin(self) -> bool:
        """Whether ranks on any node call ``leaving()`` or leave, or still may before the job's deadline."""
        leave = self._peers.leaves is not None
        return leave or self.page.asks or self._peers.asks or injected.ends_soon()

    def begin(self, why: str = "") -> None:
        """Record that this node has to end, in a signal handler or a thread; the first call counts."""
        if self._asked_at is None:
            self._why = why
            self._grace = injected.saving()
            self._seconds = self._grace * _BY_THEMSELVES
            self._asked_at = time.monotonic()

    def join(self) -> bool:
        """Have ranks that call ``leaving()`` save for a node that waits to join; return whether they do."""
        if self._peers.leaves is None and (self.page.asks or self._peers.asks):
            self._peers.want_leave(injected.saving() * _BY_THEMSELVES, joins=True)
        return self._peers.leaves is not None and not self.over

    @property
    def own(self) -> bool:
        """Whether it is this node that has to end."""
        return self._asked_at is not None

    @property
    def under_way(self) -> bool:
        """Whether ranks are leaving, and still have time."""
        return self._until is not None and time.monotonic() < self._until

    @property
    def over(self) -> bool:
        """Whether the ranks' time to leave is over."""
        return self._until is not None and time.monotonic() >= self._until

    @property
    def rest(self) -> float:
        """How many seconds are left to end the ranks that haven't left."""
        since = 0.0 if self._asked_at is None else time.monotonic() - self._asked_at
        return max(self._grace - self._seconds, self._grace - since)

    def look(self, before: Callable[[], None]) -> None:
        """Take the next step, once a node has to end; ``before`` is called before ranks are told."""
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
        """Whether this node's ``rank``, from 0, calls ``leaving()`` or may yet; ``code`` is its exit code."""
        may = self.page[AT + LEAVE] <= _ENOUGH and code != exits.TOLD_LOST_PEER
        calls = self.page.calls(LEAVING)
        return rank < len(calls) and (calls[rank] > 0 or may)

    def say_gone(self) -> None:
        """Tell the other nodes that this node's ranks that call ``leaving()`` have left."""
        self._peers.say("gone", "1")

    def others_gone(self) -> bool:
        """Whether such ranks of all nodes have left."""
        bounds = self._agreement.bounds if self._agreement is not None else []
        pairs = zip(bounds, self._peers.have_said("gone"))
        return all(announced for bound, announced in pairs if bound > 1)

    def all_have_sent(self) -> bool:
        """Tell the other nodes that what was saved here is in the store; return whether the save counts.

        It counts once all nodes have sent theirs. A node that waits in vain decides for all that it doesn't.
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
        """Tell the other nodes that this one's ranks have left; return whether those of all nodes have."""
        return self._peers.say("left", "1", everywhere=True) is not None
