"""The one node of a job that has no other: nobody to meet, to tell or to lose.

What several nodes need besides (``rendezvous.py``, ``peers.py``) travels only with their jobs.
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
    """This node has to end with ``code``, because of another one; the text is "" if that one tells why.

    A rendezvous error, as torch's thread that keeps a node alive in a rendezvous expects no other.
    """

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code


def store_may_be_gone(*others: "Type[Exception]") -> "suppress":
    """Leave off a step if the store can't be reached (torch: ``RuntimeError``), or for ``others``.

    Nothing else has to be done about it: the thread of :class:`Peers` that looks at the store ends the node.
    """
    return suppress(RuntimeError, *others)


class Alone:
    """The peers of a job of one node: nobody to tell, nobody to lose."""

    peer_lost = False
    replaces = -1  # the newest round that another node of this one's number was in before; -1 for none
    patience = 0.5  # seconds from a collective's failure to the word of a rank on the same node
    on_sample_wanted: "Callable[[str], None]" = staticmethod(lambda why: None)  # called in another thread
    on_end: "Callable[[], None]" = staticmethod(lambda: None)  # called before ranks end because of a peer

    def enter(self, number: int, nodes: Sequence[int], node: int) -> None:
        """Go on as ``node``, one of the ``nodes`` (by rank) of round ``number``."""

    def go_with(self, nodes: Sequence[int]) -> None:
        """Agree with these nodes of the round alone from now on: they run one job of a pool."""

    def lose_peer(self) -> None:
        """Take in that another node of this round is gone."""

    def check(self) -> None:
        """Raise ``PeersEnded`` once this node has to end."""

    def tell(self, code: int) -> int:
        """Tell the others that this node ends with ``code``; return the code to end with."""
        return code

    def want_sample(self, why: str) -> None:
        """Have the other nodes of this round take a sample."""

    on_gather: "Callable[[Callable[[Dict[str, Any]], None]], None]" = staticmethod(lambda give: None)
    """Called in another thread, with what takes a record of what this node does."""

    def gather(self, seconds: float) -> "Iterator[Tuple[int, bytes]]":
        """Yield what each other node of this round does: its number, and a record as compressed JSON."""
        return iter(())

    def show_sample(self, record: Dict[str, Any]) -> None:
        """Have other nodes of this round tell this one's sample as well."""

    asks = False  # whether ranks of another node call ``leaving()``
    leaves: Optional[float] = None  # how many seconds ranks had to leave this round, when it was told
    joins = False  # whether they do so for a node that waits to join, and not because one is about to end

    def say_asks(self) -> None:
        """Tell the other nodes that ranks of this one call ``leaving()``."""

    def want_leave(self, seconds: float, *, joins: bool = False) -> None:
        """Tell the other nodes that a node is about to end, or ``joins``; ranks have so many seconds."""
        self.leaves = seconds

    def say(self, word: str, value: str, *, everywhere: bool = False) -> "Optional[list[str]]":
        """Say it for this node in this round; return what all nodes have said, None until they have.

        Of a pool these are the nodes of its job, unless it is ``everywhere``.
        """
        return [value]

    def have_said(self, word: str) -> "list[bool]":
        """Return which nodes of this round have said it."""
        return [True]

    def decide(self, word: str, value: str) -> str:
        """Say it for all nodes of this round, unless another one has; return what stands."""
        return value

    def heard(self, word: str) -> str:
        """Return what was said for all nodes of this round; "" as long as nobody has."""
        return ""

    def others_done(self) -> bool:
        """Whether the ranks of all other nodes of this round have returned."""
        return True

    def finish(self, limit: float) -> None:
        """Wait until the ranks of all nodes have returned, ``limit`` seconds at most."""

    def close(self) -> None:
        """End, once the others have read the last word if the store goes with this node."""

    def pulse(self, limit: float) -> Optional[PeersEnded]:
        """Return why this node has to end, if its main thread hasn't come to ``check`` for ``limit`` seconds.

        To be called once a second by a thread that nothing can block.
        """


class Solo(RendezvousHandler):  # type: ignore[misc]
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
        """Nobody ever joins."""
        return 0

    def get_run_id(self) -> str:
        """See the base class."""
        return self._run_id

    def shutdown(self) -> bool:
        """Close the store."""
        self._store = None
        return True
