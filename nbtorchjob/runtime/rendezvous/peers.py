"""The agents of a job watch each other, so that none waits for one that is gone.

Theory of operation
===================

torch's agents share a store to meet, and then look only at their own ranks: when one rank has ended,
the others wait in a collective until it times out, 10 to 30 minutes. So each agent writes a *word* to
that store when it ends, and beats while it lives. The words are:

    end        the first exit code that ends the job for all of its nodes; 0 once it has succeeded
    told/W     the node that wakes the others for word W, of many nodes that write it at once
    newest     the round that was begun last: a node of an elastic job that isn't in it was given up
    R/lost     a node of round R is gone; the others of an elastic job meet again
    R/beat/N   counts up while node N of round R lives; the node before it, in a ring, looks at it
    R/done/N   the ranks of node N have returned
    R/over/N   so have those of all nodes below N in a tree, whose root writes ``R/over`` for all: of many
               nodes, each asks for only three keys while it waits, not for one of every node
    was/N      the newest round that node N was in: a node of its number that comes later replaces it
    R/asks     ranks of a node call ``leaving()``, or are going to
    R/leave    how many seconds the ranks of all nodes have, as a node is about to end; followed by "join" if
               a node waits to join instead (``departure.py``)
    R/bound/N  the first call of ``leaving()`` that no rank of node N has passed
    R/gone/N   the ranks of node N that call ``leaving()`` have left
    R/sent/N   what ranks of node N saved is in the job's store
    R/counts/T 1 if that counts, as all have sent theirs; 0 if not
    R/left/N   node N may end: its ranks have left
    R/swap/…   how nodes agree on code that their ranks go on with (``swaps.py``)
    R/sample   why all nodes should sample their ranks (``lookout.py``), with the node's number and a time
    R/seen/N   what node N saw of its ranks then, sealed. The nodes before it in the ring emit it, too: a
               cluster may take its log away as soon as another node has failed
    R/gather   the name under which all nodes store what they do, for the node that asks (``ring.py``)
    R/bye/N    node N has read the last word, or is gone; the node that hosts the store waits for that

One thread of each agent waits for news of these words (``ring.py``). Another beats and looks at the next node
(``ring.py``), with less than one call a second to the store. They never end the node themselves: they note
the end, and the main thread raises it at its next ``check``.

    what is read, or isn't                   leads to
    ---------------------------------------  -----------------------------------------------------------------
    end, and all ranks have returned         nothing: this node ends as it would anyway (``_settled``)
    end, after this node told its own end    nothing, for the same reason
    end, otherwise                           ``PeersEnded`` with the code that a peer's end stands for
    lost, or newest names another round      ``peer_lost``: an elastic group meets again (``rendezvous.py``)
    no beat for ``silence`` seconds          lost, in an elastic job; otherwise end, for all of its nodes
    no beat of a node that is replaced       the same, after one and a half beats: the new node writes it
    sample                                   a sample of this node's ranks, which goes into seen
    asks, leave                              the ranks of this node save, and leave
    a value that isn't signed                ``PeersEnded``: a stranger writes to the store
    an error of the store                    ``PeersEnded``: its host is gone
    no answer for ``silence`` seconds        the same, from ``pulse``: a host that is gone may never answer

The main thread writes each word once, and goes on if the store is gone (``store_may_be_gone``). If
it doesn't come to ``check`` in time, ``pulse`` has the process ended from a third thread.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import zlib
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

from nbtorchjob.runtime.facts import emit, exits
from nbtorchjob.runtime.rendezvous.alone import Alone, PeersEnded, store_may_be_gone
from nbtorchjob.runtime.rendezvous.ring import GATHER, LOOK_S, Beats, News, Ring, announce, gather, give

PREFIX = "nbtorchjob/peers"
END = "end"
_NEWEST = "newest"
LINGER_S = 10.0  # at most, for the others to read the last word: on a busy machine they look late
_FEW = 16  # nodes: up to this many, each asks for a key of every other
_EVERY = 128  # looks after which a node in a tree asks for all keys: a node below it may have left
_WORD_S = 3.0  # for a word of a peer to come, once a collective has failed
_SAMPLE_LOOKS = 30  # for the others' samples, which take up to 4 s, once they are wanted
_UNHEARD = 8  # looks after which words are read even without news
_SEEN = 16  # nodes whose samples a node emits
_SEEN_BYTES = 1 << 16  # of one sample, compressed


class Peers(Alone):
    """Nodes of one job, which meet in ``store``, where only their signed values count (``signed.py``).

    ``connect`` opens a second connection to it, on which a thread waits for news; a third one, ``beats``,
    is only for short calls, as calls on one connection wait for each other.
    ``node`` is this node's number, which an earlier node may have had.
    ``hosted`` says that the store ends with this node; ``silence`` is how many seconds without a beat
    mean that a node is lost.
    """

    def __init__(
        self,
        store: Any,
        connect: Callable[[], Any],
        beats: Any,
        node: int,
        *,
        elastic: bool,
        hosted: bool,
        silence: float,
    ) -> None:
        self._store = store.below(PREFIX)
        was = "was/%d" % node
        self.replaces = int(self._store.get(was)) if self._store.check([was]) else -1
        self._elastic = elastic
        self._hosted = hosted
        self._silence = silence
        self.patience = silence + _WORD_S  # a node that was killed writes no word; it only falls silent
        self._ring: Optional[Ring] = None
        self._former = Beats.of_former(self.replaces, node, silence) if self.replaces >= 0 else None
        self._node = node
        self._ended: Optional[PeersEnded] = None
        self._ended_at = 0.0
        self._heeded = self._has_told = False
        self._settled = False  # whether this node's end is decided, even if the store goes away
        self._connected = False
        self._looks, self._looks_seen, self._unanswered = 0, 0, 0
        self._closed, self._stirred = threading.Event(), threading.Event()
        self._hearing, self._gathering = threading.Lock(), threading.Lock()
        self._threads = [
            threading.Thread(target=self._listen, args=(connect,), daemon=True),
            threading.Thread(target=self._live, args=(beats.below(PREFIX),), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def peer_lost(self) -> bool:  # type: ignore[override]
        """Whether a node of this round is gone, and the others may go on without it."""
        return self._ring is not None and self._ring.lost

    def enter(self, number: int, nodes: Sequence[int], node: int) -> None:
        """See the base class."""
        ring = Ring(number, nodes, node, self._silence)
        self._store.set("was/%d" % node, str(number))
        if self._elastic:
            newest = self._store.get(_NEWEST) if self._store.check([_NEWEST]) else b"0"
            # Otherwise another node has written it, or the others are in a later round already.
            if newest.decode() != ring.name and int(newest.split()[0]) <= number:
                self._store.set(_NEWEST, ring.name)
                announce(self._store, "%s %s" % (_NEWEST, ring.name))
        self._ring = ring
        self._stirred.set()

    @property
    def joined(self) -> bool:
        """Whether this node has been in a round."""
        return self._ring is not None

    def lose_peer(self) -> None:
        """See the base class."""
        if self._ring is not None:
            self._ring.lost = True
            self._stirred.set()

    def check(self) -> None:
        """See the base class."""
        if self._ended is not None:
            self._heeded = True
            self.on_end()
            raise self._ended

    def tell(self, code: int) -> int:
        """See the base class; the first word that ends the job stands."""
        self._has_told = True
        with store_may_be_gone(PeersEnded):  # raised if a stranger writes there
            if code in (*exits.FINAL, exits.RECOVERABLE_ERROR):
                return self._tell_end(code)
            if self._ring is not None:  # before that no node relies on this one: another may take its place
                ring = self._ring
                if self._elastic and not self._hosted:
                    self._store.set(ring.key("lost"), "1")
                    announce(self._store, ring.key("lost"))
                else:
                    code = self._tell_end(code)
                self._store.set(self._ring.key("bye", self._ring.node), "1")  # it ends in any case
        return code

    def _tell_end(self, code: int) -> int:
        end = int(self._store.compare_set(END, "", str(code)))
        announce(self._store, END)
        return code if end == code else exits.of_peer(end)

    def want_sample(self, why: str) -> None:
        """See the base class."""
        ring = self._ring
        if ring is not None:
            ring.sampled = ("%s %d %d" % (why, ring.node, time.time_ns())).encode()
            with store_may_be_gone():
                self._store.set(ring.key("sample"), ring.sampled)
                announce(self._store)

    def show_sample(self, record: Dict[str, Any]) -> None:
        """See the base class."""
        ring, data = self._ring, zlib.compress(json.dumps(record).encode())
        if ring is not None and len(data) <= _SEEN_BYTES:
            ring.sample_looks = _SAMPLE_LOOKS
            self._stirred.set()
            with store_may_be_gone():
                self._store.seal(ring.key("seen", ring.node), data)

    def gather(self, seconds: float) -> Iterator[Tuple[int, bytes]]:
        """See the base class; a call waits for one that is under way."""
        until = time.monotonic() + seconds
        if not self._gathering.acquire(timeout=max(0.0, seconds)):
            return
        try:
            if self._ring is not None:
                with store_may_be_gone(PeersEnded):
                    for node, data in gather(self._store, self._ring, until - time.monotonic()):
                        if node in self._ring.together:
                            yield node, data
        finally:
            self._gathering.release()

    @property
    def asks(self) -> bool:  # type: ignore[override]
        """See the base class."""
        return self._ring is not None and self._ring.asks

    def say_asks(self) -> None:
        """See the base class."""
        ring = self._ring
        if ring is not None and not ring.asks:  # otherwise all nodes know it already
            with store_may_be_gone():
                self._store.set(ring.key("asks"), "1")
                ring.asks = True
                announce(self._store, ring.key("asks"))

    @property
    def leaves(self) -> Optional[float]:  # type: ignore[override]
        """See the base class."""
        return None if self._ring is None else self._ring.leaves

    @property
    def joins(self) -> bool:  # type: ignore[override]
        """See the base class."""
        return self._ring is not None and self._ring.joins

    def want_leave(self, seconds: float, *, joins: bool = False) -> None:
        """See the base class; the first word stands."""
        ring = self._ring
        assert ring is not None
        word = "%s join" % seconds if joins else str(seconds)
        decision = word.encode()  # without the store, each node's ranks leave on their own
        with store_may_be_gone():
            decision = self._store.compare_set(ring.key("leave"), "", word)
            announce(self._store, ring.key("leave"))
        ring.leave(decision)

    def go_with(self, nodes: Sequence[int]) -> None:
        """See the base class."""
        assert self._ring is not None
        self._ring.together = [*nodes]

    def say(self, word: str, value: str, *, everywhere: bool = False) -> "Optional[list[str]]":
        """See the base class."""
        ring = self._ring
        assert ring is not None
        keys = ring.keys(word, everywhere=everywhere)
        with store_may_be_gone():
            self._say_once(ring, word, value)
            if self._store.check(keys):
                return [self._store.get(key).decode() for key in keys]
        return None

    def _say_once(self, ring: Ring, word: str, value: str) -> None:
        if word not in ring.own_words:
            self._store.set(ring.key(word, ring.node), value)
            ring.own_words.add(word)

    def have_said(self, word: str) -> "list[bool]":
        """See the base class."""
        ring = self._ring
        assert ring is not None
        with store_may_be_gone():
            return [self._store.check([key]) for key in ring.keys(word, everywhere=False)]
        return [False] * len(ring.together)

    def decide(self, word: str, value: str) -> str:
        """See the base class."""
        assert self._ring is not None
        with store_may_be_gone():
            return str(self._store.compare_set(self._ring.key(word), "", value).decode())
        return ""

    def decision(self, word: str) -> str:
        """See the base class."""
        assert self._ring is not None
        key = self._ring.key(word)
        with store_may_be_gone():
            return str(self._store.get(key).decode()) if self._store.check([key]) else ""
        return ""

    def others_done(self) -> bool:
        """See the base class."""
        ring = self._ring
        with store_may_be_gone():
            return ring is not None and self._store.check([ring.key("done", node) for node in ring.after])
        return False

    def finish(self, limit: float) -> None:
        """See the base class. Raises ``PeersEnded``."""
        ring, until, pause = self._ring, time.monotonic() + limit, 0.002
        if ring is None:
            return
        try:
            self._store.set(ring.key("done", ring.node), "1")
            # Its ranks need no further words; nodes whose ranks still run shouldn't wait for this one's.
            for word, value in (("bound", "0"), ("sent", "1"), ("left", "1")):
                self._say_once(ring, word, value)
            for look in itertools.count(1):
                if len(ring.nodes) <= _FEW or look % _EVERY == 0:
                    all_done = bool(self._store.check(ring.keys("done")))
                else:
                    if "over" not in ring.own_words and (not ring.below or self._store.check(ring.below)):
                        self._store.set(ring.key("over", ring.node) if ring.above else ring.key("over"), "1")
                        ring.own_words.add("over")
                    all_done = bool(self._store.check([ring.key("over")]))
                if all_done:
                    break
                self.check()
                if ring.lost or time.monotonic() > until:
                    return
                time.sleep(pause)
                pause = min(pause * 1.1, 0.05)
            # For a node that torch has given up, which would wait for the others, or begin anew without them.
            if not self._store.check([END]):
                self._store.compare_set(END, "", str(exits.OK))
                announce(self._store, END)
            self._store.set(ring.key("bye", ring.node), "1")
        except RuntimeError as exc:
            self._store_is_gone(exc)
            self.check()

    def close(self) -> None:
        """See the base class."""
        if self._hosted and self._ring is not None:
            until = time.monotonic() + LINGER_S
            others = [self._ring.key("bye", node) for node in self._ring.nodes if node != self._ring.node]
            with store_may_be_gone(PeersEnded):
                while not self._store.check(others) and time.monotonic() < until:
                    time.sleep(0.02)
        self._closed.set()
        self._stirred.set()
        if self._ended is None and not self._settled:
            # Wake the thread that waits for news: if it is in torch when the interpreter ends, that aborts.
            with store_may_be_gone(PeersEnded):
                announce(self._store)
        for thread in self._threads:
            thread.join(LOOK_S)

    def pulse(self, limit: float) -> Optional[PeersEnded]:
        """See the base class."""
        # A store whose host vanished never answers: reads have no timeout.
        # The listening thread may take as long to connect as torch allows, and ends the node if it can't.
        answered = self._looks != self._looks_seen or not self._connected
        self._looks_seen = self._looks
        self._unanswered = 0 if answered else self._unanswered + 1
        if self._unanswered > self._silence:
            self._store_is_gone("no answer for %d s" % self._silence)
        late = not self._heeded and time.monotonic() - self._ended_at > limit
        return self._ended if late else None

    def _listen(self, connect: Callable[[], Any]) -> None:
        with self._ending():
            store = connect().below(PREFIX)
            self._connected = True
            news = News(store)
            while self._ended is None:
                if self._hear(store):
                    if self._closed.wait(LOOK_S):
                        self._look_for_samples(store)
                        return
                elif self._closed.is_set():
                    return
                else:
                    news.wait()

    def _live(self, store: Any) -> None:
        with self._ending():
            while self._ended is None and not self._settled:
                ring = self._ring
                # A node may be killed between a word and its news; a round may have words as it begins.
                # Even before the first round, the host of the store may vanish.
                if self._looks % _UNHEARD == 0 or (ring is not None and not ring.is_read):
                    self._hear(store)
                if ring is not None and self._ended is None and not self._settled:
                    self._beat(store, ring)
                elif ring is None and self._former is not None and self._former.are_missing(store):
                    self._tell_former(store)
                self._looks += 1
                pause, began = LOOK_S if ring is None else ring.pause, time.monotonic()
                self._stirred.wait(pause)
                self._stirred.clear()
                if self._closed.is_set():
                    return
                # A node that was stopped or starved hasn't been looking in the meantime.
                seconds = min(pause, time.monotonic() - began)
                if ring is not None:
                    ring.pass_time(seconds)
                elif self._former is not None:
                    self._former.pass_time(seconds)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End the node if the store can't be read."""
        try:
            yield
        except PeersEnded as exc:
            self._end(exc.code, str(exc))
        except RuntimeError as exc:
            self._store_is_gone(exc)

    def _hear(self, store: Any) -> bool:
        """Read the words; return whether the job has ended."""
        with self._hearing:
            over = store.check([END])
            ring = self._ring  # read after that call, during which this node may have joined a round
            if over:
                word = int(store.get(END))
                if ring is not None:
                    self._look_for_wish(ring, store)  # the node that ended the job may have asked just before
                    self._tell_samples(ring, store)
                # Once the ranks of all nodes have returned, the end can be ignored; of many nodes, the root
                # has usually written that for all.
                if self._has_told or (
                    ring is not None
                    and (
                        (len(ring.nodes) > _FEW and store.check([ring.key("over")]))
                        or store.check(ring.keys("done"))
                    )
                ):
                    self._settled = True
                else:
                    self._end(exits.of_peer(word))
                if ring is not None:  # last of all: from then on the store may go at any moment
                    store.set(ring.key("bye", ring.node), "1")
                return True
            if ring is not None:
                ring.is_read = True
                ring.lost = ring.lost or store.check([ring.key("lost")])
                # torch lets the others begin anew without a node whose heartbeats are late, and doesn't tell
                # that node.
                ring.lost = ring.lost or (self._elastic and store.get(_NEWEST).decode() != ring.name)
                self._look_for_wish(ring, store)
                self._look_for_gathering(ring, store)
                ring.asks = ring.asks or store.check([ring.key("asks")])
                if ring.leaves is None and store.check([ring.key("leave")]):
                    ring.leave(store.get(ring.key("leave")))
            return False

    def _beat(self, store: Any, ring: Ring) -> None:
        ring.beat(store)
        self._look_for_samples(store)
        if ring.is_silent(store) and not ring.lost:
            text = "node %d has been silent for %d s" % (ring.next, self._silence)
            store.set(ring.key("bye", ring.next), "1")
            if self._elastic:
                emit("Notice", text=text)
                store.set(ring.key("lost"), "1")
                ring.lost = True
                announce(store, ring.key("lost"))
            else:
                with self._hearing:  # otherwise the listening thread may read that word first, without a text
                    end = int(store.compare_set(END, "", str(exits.INFRASTRUCTURE_ERROR)))
                    self._end(exits.of_peer(end), text if end == exits.INFRASTRUCTURE_ERROR else "")
                announce(store, END)

    def _tell_former(self, store: Any) -> None:
        """Report that the former node of this number is gone, long before the others would notice."""
        self._former = None
        store.set("%d/bye/%d" % (self.replaces, self._node), "1")
        lost = "%d/lost" % self.replaces
        if self._elastic:
            store.set(lost, "1")
        else:
            store.compare_set(END, "", str(exits.INFRASTRUCTURE_ERROR))
        announce(store, lost if self._elastic else END)

    def _look_for_gathering(self, ring: Ring, store: Any) -> None:
        name = store.get(ring.key(GATHER)) if ring.gathered or store.check([ring.key(GATHER)]) else b""
        if name and name != ring.gathered:
            ring.gathered = name

            def tell(record: Dict[str, Any]) -> None:
                with store_may_be_gone(PeersEnded):
                    give(self._store, ring, name.decode(), record)

            self.on_gather(tell)

    def _look_for_wish(self, ring: Ring, store: Any) -> None:
        wish = ring.key("sample")
        word = store.get(wish) if ring.sampled or store.check([wish]) else b""
        # Another thread may have published this node's own wish since.
        if word and word != ring.sampled:
            ring.sampled = word
            why, node, _ = word.split()
            if int(node) in ring.together:
                self.on_sample_wanted(why.decode())

    def _look_for_samples(self, store: Any) -> None:
        with self._hearing:
            if self._ring is not None:
                self._tell_samples(self._ring, store)

    def _tell_samples(self, ring: Ring, store: Any) -> None:
        if ring.sample_looks <= 0:
            return
        ring.sample_looks -= 1
        for node in ring.after[:_SEEN]:
            key = ring.key("seen", node)
            data = store.unseal(key) if store.check([key]) else b""
            if data != ring.seen.get(node, b""):
                ring.seen[node] = data
                text = zlib.decompress(data)
                ring.room -= len(text)
                if ring.room >= 0:
                    emit(**json.loads(text))

    def _store_is_gone(self, why: object) -> None:
        why = str(why).partition("\n")[0]  # torch adds a C++ backtrace
        self._end(exits.INFRASTRUCTURE_ERROR, "the store where the nodes meet can't be reached: %s" % why)

    def _end(self, code: int, text: str = "") -> None:
        if self._ended is None and not self._settled:
            self._ended_at = time.monotonic()
            self._ended = PeersEnded(code, text)
