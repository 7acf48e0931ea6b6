"""The only node of a job: it has no others to meet, tell or lose.

What several nodes need in addition (``rendezvous.py``, ``peers.py``) travels only with jobs that have them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple, Type

from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.utils.distributed import get_free_port

from nbtorchjob.runtime.rendezvous import groups


class PeersEnded(RendezvousError):  # type: ignore[misc]
    """This node has to end with ``code`` because of another; the text is "" if that other node reports why.

    A rendezvous error, as torch's thread that keeps a node alive in a rendezvous expects no other kind.
    """

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code


def store_may_be_gone(*others: "Type[Exception]") -> "suppress":
    """Skip a step if the store can't be reached (torch: ``RuntimeError``), or for ``others``.

    Nothing else needs to be done: the thread of :class:`Peers` that looks at the store ends the node.
    """
    return suppress(RuntimeError, *others)


class Alone:
    """The peers of a job of one node: none."""

    peer_lost = False
    replaces = -1  # the newest round of an earlier node with this node's number; -1 for none
    patience = 0.5  # seconds from a collective's failure until a rank on the same node reports the reason
    on_sample_wanted: "Callable[[str], None]" = staticmethod(lambda why: None)  # called in another thread
    on_end: "Callable[[], None]" = staticmethod(lambda: None)  # called before ranks end because of a peer

    def enter(self, number: int, nodes: Sequence[int], node: int) -> None:
        """Go on as ``node``, one of the ``nodes`` (by rank) of round ``number``."""

    def go_with(self, nodes: Sequence[int]) -> None:
        """Agree only with these nodes of the round from now on: they run one job of a pool."""

    def lose_peer(self) -> None:
        """Record that another node of this round is gone."""

    def check(self) -> None:
        """Raise ``PeersEnded`` once this node has to end."""

    def tell(self, code: int) -> int:
        """Tell the others that this node ends with ``code``; return the code to end with."""
        return code

    def want_sample(self, why: str) -> None:
        """Have the other nodes of this round take a sample."""

    on_gather: "Callable[[Callable[[Dict[str, Any]], None]], None]" = staticmethod(lambda give: None)
    """Called in another thread, with a function that takes a record of what this node does."""

    def gather(self, seconds: float) -> "Iterator[Tuple[int, bytes]]":
        """Yield what each other node of this round does: its number, and a record as compressed JSON."""
        return iter(())

    def show_sample(self, record: Dict[str, Any]) -> None:
        """Have other nodes of this round emit this one's sample as well."""

    asks = False  # whether ranks of another node call ``leaving()``
    leaves: Optional[float] = None  # how many seconds ranks had to leave this round, when that was announced
    joins = False  # whether ranks leave because a node waits to join, not because one is about to end

    def say_asks(self) -> None:
        """Tell the other nodes that ranks of this one call ``leaving()``."""

    def want_leave(self, seconds: float, *, joins: bool = False) -> None:
        """Tell the other nodes that a node is about to end, or ``joins``; ranks have ``seconds`` to leave."""
        self.leaves = seconds

    def say(self, word: str, value: str, *, everywhere: bool = False) -> "Optional[list[str]]":
        """Write a word for this node in this round; return what all nodes wrote, None until they have.

        In a pool these are the nodes of its job, unless ``everywhere`` is set.
        """
        return [value]

    def have_said(self, word: str) -> "list[bool]":
        """Return for each node of this round whether it has written the word."""
        return [True]

    def decide(self, word: str, value: str) -> str:
        """Write a word for all nodes of this round, unless another node has; return its value."""
        return value

    def decision(self, word: str) -> str:
        """Return the word written for all nodes of this round; "" until a node has written it."""
        return ""

    def others_done(self) -> bool:
        """Whether the ranks of all other nodes of this round have returned."""
        return True

    def finish(self, limit: float) -> None:
        """Wait until the ranks of all nodes have returned, ``limit`` seconds at most."""

    def close(self) -> None:
        """End; if the store ends with this node, wait until the others have read the last word."""

    def pulse(self, limit: float) -> Optional[PeersEnded]:
        """Return why this node has to end, if its main thread hasn't come to ``check`` for ``limit`` seconds.

        To be called once a second by a thread that nothing can block.
        """


class SoloRendezvous(RendezvousHandler):  # type: ignore[misc]
    """A rendezvous of one agent, without waiting: c10d would sleep up to 0.3 s before its first round."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.peers = Alone()
        self._store: Any = None

    def get_backend(self) -> str:
        """See the base class."""
        return "solo"

    @property
    def use_agent_store(self) -> bool:
        """See the base class: ranks meet in the agent's store, but not in torch's way (``groups``)."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a world of one agent at once."""
        shared = HashStore()
        self._store = groups.open_store(shared, "", "127.0.0.1")
        return RendezvousInfo(shared, 0, 1, RendezvousStoreInfo("127.0.0.1", get_free_port()))

    def is_closed(self) -> bool:
        """See the base class."""
        return False

    def set_closed(self) -> None:
        """See the base class."""

    def num_nodes_waiting(self) -> int:
        """Return 0: no node ever joins."""
        return 0

    def get_run_id(self) -> str:
        """See the base class."""
        return self._run_id

    def shutdown(self) -> bool:
        """Close the store."""
        self._store = None
        return True
