"""A lab: a job whose ranks stay when its call is done, and then run turns that users send to its lead.

Theory of operation
===================

The lead is the node of rank 0. It takes turns, puts them in order, and tells the other nodes (``relay.py``);
each node tells its own ranks (``standing.py``). One turn runs at a time, in a pool one on each node: the next
one begins once the nodes that it needs are through. Each turn has its own round, so events of its ranks need
no other name for it. The *base* is the round in which the ranks were started. If they are started
anew they are empty: turns that were taken before aren't run any more.

Whether turns are taken is ``_why``, the reason why not:

    state        until                     a turn that is sent meanwhile
    -----------  ------------------------  ---------------------------------------------------------------
    NOT_YET      the ranks are started     refused, for now
    ""           one of the rows below     taken, on the lead
    ELSEWHERE    the lab ends              refused, with the lead's number; the state of all other nodes
    ANEW         the ranks are started     refused, and waiting turns are dropped: a rank ended, or all will
    _ENDS        the ranks return          refused; waiting turns run first, then all ranks return

A turn on the lead is *coming* (its payload is on its way), then in the *line*, then *running*, with the nodes
that are ``left``; on each node it is ``_current``, with the ranks that are ``left``. All of this changes in
one thread (``Standing``), to which the agent and the threads of questions post.

    from    to     message                    leads to
    ------  -----  -------------------------  -------------------------------------------------------------
    host    lead   turn, and its payload      the earlier answer, if it was taken; or the rows up to "taken"
    lead    host   bring: nodes               the host sends the payload to these, too
    host    node   bring, and the payload     a file that waits for its number
    lead    nodes  have: number, name         that file becomes the turn's; each answers ``have/N/NODE``
    lead    nodes  taken: round               the number isn't used again if the lead is lost
    lead    host   the answer                 the turn is in the line
    lead    nodes  run: number, ranks, order  each node tells its ranks (``_run_here``)
    rank    node   done, failed, names        the last one of a node ends the turn there (``_over_here``)
    node    lead   done/ROUND/NODE: names     the last node ends the turn (``_through``), and the next begins
    lead    nodes  through: round             the ranks are idle: nothing has to be saved
    host    lead   interrupt                  a turn in the line is dropped; else "interrupt" to the nodes,
                                              which signal the ranks that still run it
    lead    nodes  drop: number               a turn isn't run: its payload is deleted
    host    lead   end                        ``_ENDS``, as after ``--idle`` without a turn
    lead    nodes  end                        each tells its ranks to return
"""

from __future__ import annotations

import ast
import importlib
import itertools
import os
import queue
import time
from collections import OrderedDict, deque
from contextlib import suppress
from functools import partial
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from nbtorchjob.runtime.ask.answering import Handler, Question, Refused
from nbtorchjob.runtime.facts import emit, tear
from nbtorchjob.runtime.facts.errors import from_exception
from nbtorchjob.runtime.install import environment
from nbtorchjob.runtime.lab import ANEW, ELSEWHERE, NOT_YET, TEXT, TURN, turns
from nbtorchjob.runtime.lab.relay import Follower, Lead, brought, name_of, path_of
from nbtorchjob.runtime.lab.standing import Standing
from nbtorchjob.runtime.node import shortage
from nbtorchjob.runtime.node.kept import HEAR_S, received, room_for
from nbtorchjob.runtime.objects.wire import derived, sign
from nbtorchjob.runtime.rank.names import FUNCTIONS, set_outside, walk
from nbtorchjob.runtime.rendezvous.alone import PeersEnded, store_may_be_gone
from nbtorchjob.runtime.store.payload import FILES, Payload, PayloadError

_LEAVE_S = 5.0  # for the lab's thread to finish its current step, when ranks begin anew
_KNOWN = 1024  # turns that are recognized when they are sent twice
_WAITING = 1000  # turns
_BROUGHT = 64  # payloads that arrive before the lead names them
_BROUGHT_S = 600.0
_SHORT_S = 0.05  # a turn that ends sooner isn't shown to the agent
_ROOM_S = 1.0  # between two checks whether a full disk has room again
_MARK = 16  # hex digits of a name's mark
_ENDS = "it is ending"
_OF_JOBS = ("sweep", "number", "sent", "retry", "attempt", "paid")  # also reported, of a pool's jobs


class Base(NamedTuple):
    """The ranks of a lab from when they were started until they are started anew.

    ``nodes`` are the nodes' numbers, the lead's first; ``where`` is each rank's node; ``first`` is whether
    the ranks run the job's own call. ``connect`` opens the store of several nodes, and ``hosts`` are their
    names.
    """

    round: int
    folder: str
    nodes: Sequence[int]
    where: Dict[int, int]
    first: bool
    connect: Optional[Callable[[], Any]]
    hosts: Sequence[str] = ()


class _Turn(NamedTuple):
    number: int  # in the name of its payload's file
    round: int
    ranks: Sequence[int]
    nodes: Sequence[int]
    label: str
    by: str
    sets: FrozenSet[str]  # the marks of the names that it is going to set
    order: Dict[str, Any]  # to its ranks
    left: Set[int]  # nodes that aren't through yet


class _LocalTurn(NamedTuple):
    """A turn on this node."""

    round: int
    number: int
    done: Any  # the round that a rank reports once it is through
    left: Set[int]
    failed: List[int]


class Lab:
    """A node's part of a lab; ``agent``, which starts its ranks, has to be set before it does.

    ``header`` and ``path`` are those of the job's payload; files of turns are written to ``files``.
    """

    def __init__(
        self, header: Dict[str, Any], path: str, key: bytes, folder: str, files: str, node: int
    ) -> None:
        self.agent: Any = None
        self.newest = 0  # the newest round that this node knows of
        self.idle = False  # whether all ranks of the lab wait, as far as this node knows
        self.first_is_over = False  # whether all ranks have finished the job's own call once
        self._header = header
        self._settings: Dict[str, Any] = header["lab"]
        self._path = path
        self._key = key
        self._marking = derived(key, "names") if key else os.urandom(32)
        self._folder = folder
        self._files = files
        self._node = node
        self._base: Optional[Base] = None
        self._why = NOT_YET  # why no turn is taken
        self._since = 0.0  # when the last turn was over
        self._current: Optional[_LocalTurn] = None
        self._wake_at: Optional[float] = None  # when to wake the agent for the turn
        self._running: Dict[int, _Turn] = {}  # by round
        self._line: Deque[_Turn] = deque()
        self._unwritten: Deque[Tuple[str, Dict[str, Any]]] = deque()  # facts that a full disk had no room for
        self._old_answers: "OrderedDict[str, Dict[str, Any]]" = OrderedDict()  # answers, by a turn's id
        self._numbers = itertools.count(1)
        self._coming: List[int] = []  # payloads
        self._brought: Dict[str, float] = {}  # when payloads came that the lead has yet to name
        self._names: Dict[int, FrozenSet[str]] = {}  # by rank: the marks of names in its ``__main__``
        self._news: Dict[str, List[str]] = {}  # those that the lead doesn't know yet
        self._pids: Dict[int, int] = {}
        self._page: Any = None
        self._relay: Any = None
        self._standing = Standing(folder, self._hear_rank, self._due)

    # The agent's thread

    def begin(self, base: Base) -> None:
        """Record that the ranks are about to start."""
        self.newest = max(self.newest, base.round)
        self.idle = False
        self._standing.done(partial(self._begin, base))

    def broken(self) -> None:
        """Record that a rank has ended: no turn is taken or begun until the ranks begin anew."""
        self.idle = False
        if self._why != ANEW:
            self._why = ANEW
            self._standing.post(self._drop_all)

    def leave(self) -> None:
        """Record that the ranks are about to be ended; nothing is begun after that."""
        self.broken()
        with suppress(queue.Empty):
            self._standing.done(self._leave, _LEAVE_S)

    def close(self) -> None:
        """Accept no more ranks, and remove payloads that no turn has taken."""
        self._standing.close()
        self._forget_brought(0.0)

    # Questions, each in its own thread

    @property
    def questions(self) -> Dict[str, Handler]:
        """The questions that a lab's node answers."""
        return {
            "names": partial(self._answer, self._has),
            "interrupt": partial(self._answer, self._interrupt),
            "end": partial(self._answer, self._ask_to_end),
            "bring": self.bring,
            "turn": self.turn,
            "lacks": self.lacks,
        }

    def _answer(
        self, act: Callable[[Dict[str, Any]], Dict[str, Any]], question: Question
    ) -> Iterator[Dict[str, Any]]:
        yield self._standing.done(partial(act, question))

    def lacks(self, question: Question) -> Iterator[Dict[str, Any]]:
        """Yield which modules this node lacks: no fact records what a cell has installed."""
        importlib.invalidate_caches()
        yield {"lacks": [module for module in question["of"] if environment.find(module) is None]}

    def turn(self, question: Question) -> Iterator[Dict[str, Any]]:
        """Take a turn, whose payload the client sends next.

        Before the answer, a first record names the nodes to which the client has to bring the payload, too.
        """
        old_answer = self._standing.done(partial(self._old_answer, question))
        if old_answer is not None:
            yield old_answer
            return
        number = next(self._numbers)
        self._coming.append(number)
        try:
            path = path_of(self._folder, number)
            try:
                payload = received(question, path, self._key)
                relay = self._relay
                if isinstance(relay, Lead):
                    yield {"bring": list(relay.others)}
                    message: Any = b""
                    while isinstance(message, bytes):  # keep-alives
                        message = question.hear(HEAR_S)
                    if message is None:
                        raise Refused("the payload didn't reach all nodes within %d s" % HEAR_S)
                    relay.all_have(number, name_of(question["id"]))
                answer, new = self._standing.done(partial(self._take, question, number, payload))
            except BaseException:
                self._forget(number)
                raise
            if not new:
                self._forget(number)
        finally:
            self._coming.remove(number)
            self._standing.post(lambda: None)  # it may be idle from now on
        yield answer

    def bring(self, question: Question) -> Iterator[Dict[str, Any]]:
        """Receive the payload of a turn that is being sent to the lead."""
        name = name_of(question["id"])
        path = brought(self._folder, "%s-%d" % (name, next(self._numbers)))
        try:
            received(question, path, self._key)
            os.replace(path, brought(self._folder, name))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)
        self._brought[name] = time.monotonic()
        self._forget_brought(_BROUGHT_S)
        yield {}

    def _forget_brought(self, seconds: float) -> None:
        """Remove payloads that came ``seconds`` ago or earlier; most often a turn has taken them."""
        arrivals = list(self._brought.items())
        for number, (name, since) in enumerate(arrivals):
            if len(arrivals) - number > _BROUGHT or time.monotonic() >= since + seconds:
                self._brought.pop(name, None)
                with suppress(FileNotFoundError):
                    os.unlink(brought(self._folder, name))

    def _forget(self, number: int) -> None:
        relay = self._relay
        if isinstance(relay, Lead):
            with store_may_be_gone():
                relay.say({"drop": number})
        self._unlink(number)

    def _unlink(self, number: int) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path_of(self._folder, number))

    # Everything below runs in the thread of ``Standing``

    def _begin(self, base: Base) -> None:
        self._base, lead = base, base.nodes[0] == self._node
        self._page = turns.page(base.folder)
        self._standing.enter(base.round)
        self._line.clear()
        self._names, self._pids, self._news = {}, {}, {}
        own_ranks = [rank for rank, node in base.where.items() if node == self._node]
        order: Dict[str, Any] = {"path": self._path, "round": base.round, "speaker": 0, "files": False}
        order.update((name, self._header[name]) for name in ("all_ranks", "locals"))
        self._current = _LocalTurn(base.round, 0, base.round if base.first else 0, set(own_ranks), [])
        if lead:
            self._since = time.monotonic()
            ranks, nodes = sorted(base.where), sorted(base.nodes)
            words = {name: self._settings[name] for name in TURN}
            sets = self._marks(_set_by(words["text"]) if base.first else ())
            own = _Turn(0, base.round, ranks, nodes, words["label"], words["by"], sets, order, set(nodes))
            self._running[base.round] = own
            if base.first:
                self._tell_taken(base, own, "", {**words, "pushed": []})
        if base.connect is not None and lead:
            others = base.nodes[1:]
            self._relay = Lead(base.connect, base.round, others, self._hear_node, self.agent.distrust)
            self._relay.expect(base.round, others)
        elif base.connect is not None:
            args = self._node, self._folder
            self._relay = Follower(
                base.connect, base.round, *args, partial(self._hear_lead, base), self.agent.distrust
            )
        if base.first:
            for rank in own_ranks:
                self._standing.tell(rank, order)
        self._why = "" if lead else ELSEWHERE % base.nodes[0]

    def _tell_taken(self, base: Base, turn: _Turn, known_as: str, words: Dict[str, Any]) -> None:
        emit(
            "TurnTaken",
            node=self._node,
            round=turn.round,
            base=base.round,
            id=known_as,
            ranks=turn.ranks,
            nodes=turn.nodes,
            label=turn.label,
            text=words["text"][:TEXT],
            filename=words["filename"],
            pushed=words["pushed"],
            arguments=words.get("arguments", "")[:TEXT],
            by=turn.by,
            **{name: words[name] for name in _OF_JOBS if words.get(name)},
        )

    def _leave(self) -> None:
        self._drop_all()
        self._base = self._current = None
        self._standing.enter(-1)
        if self._relay is not None:
            self._relay.close()
            self._relay = None

    def _drop_all(self) -> None:
        for turn in (*self._line, *self._running.values()):
            self._unlink(turn.number)
        if self._current is not None:
            self._unlink(self._current.number)
        self._line.clear()
        self._running.clear()

    def _mark(self, name: str) -> str:
        """Return the mark that stands for a name in the store of the nodes, which others can read."""
        return sign(name.encode("utf-8", "replace"), self._marking).hex()[:_MARK]

    def _marks(self, names: Iterable[str]) -> FrozenSet[str]:
        return frozenset(map(self._mark, names))

    # Messages from ranks and nodes

    def _hear_rank(self, rank: int, record: Dict[str, Any]) -> None:
        self._pids[rank] = int(record["pid"])
        if "names" in record:
            self._names[rank] = self._marks(record["names"])
            self._news[str(rank)] = sorted(self._names[rank])
        turn = self._current
        if turn is None or record["done"] != turn.done or rank not in turn.left:
            return
        turn.left.discard(rank)
        if record.get("failed"):
            turn.failed.append(rank)
        if "error" in record:
            tear()
            self._tell_failed(self._node, turn.round, [rank], record["error"])
        if not turn.left:
            self._current = None
            self._over_here(turn)

    def _over_here(self, turn: _LocalTurn) -> None:
        self.agent.leave_turn()
        if turn.done:
            self._tell_over(turn)
        self._end_here(turn)

    def _tell_over(self, turn: _LocalTurn) -> None:
        self._tell("TurnEnded", node=self._node, round=turn.round, failed=sorted(turn.failed))

    def _end_here(self, turn: _LocalTurn, **more: Any) -> None:
        """Tell the lead, so that the next turn begins once all nodes have done so."""
        self._unlink(turn.number)
        news, self._news = self._news, {}
        if isinstance(self._relay, Follower):
            self._relay.done(turn.round, {"names": news, **more})
        else:
            self._through(self._node, turn.round)

    def _hear_node(self, node: int, round_: int, record: Dict[str, Any]) -> None:
        def take() -> None:
            for rank, names in record["names"].items():
                self._names[int(rank)] = frozenset(names)
            self._through(node, round_)

        self._standing.post(take)

    def _hear_lead(self, base: Base, message: Dict[str, Any]) -> None:
        self._standing.post(partial(self._do, base, message))

    def _do(self, base: Base, message: Dict[str, Any]) -> None:
        if base is not self._base:
            return
        if "through" in message:
            self.first_is_over = True
            self.idle = message["idle"] and self._current is None
        elif "taken" in message:
            self.newest = max(self.newest, message["taken"])
        elif "run" in message:
            self._run_here(message["run"], message["ranks"], message["order"])
        elif "drop" in message:
            self._unlink(message["drop"])
        elif "interrupt" in message:
            self._interrupt_here(message["interrupt"])
        elif "end" in message:
            self._let_go()

    def _through(self, node: int, round_: int) -> None:
        turn = self._running.get(round_)
        if turn is None:
            return
        turn.left.discard(node)
        if not turn.left:
            del self._running[round_]
            self.first_is_over = True
            self.idle = not self._running
            self._say({"through": round_, "idle": self.idle})
            self._since = time.monotonic()
            self._next()

    # The next turn

    def _next(self) -> None:
        if self.agent.leaving or self._why == ANEW:
            return
        while self._line:
            turn = self._placed(self._line[0])
            if turn is None:
                return
            self._line.popleft()
            self._running[turn.round] = turn
            others = [node for node in turn.nodes if node != self._node]
            if not self._say({"run": turn.number, "ranks": turn.ranks, "order": turn.order}):
                return
            if others:
                self._relay.expect(turn.round, others)
            self._run_here(turn.number, turn.ranks, turn.order)
        if not self._running and self._why == _ENDS:
            self._let_all_go()

    def _placed(self, turn: _Turn) -> Optional[_Turn]:
        """Return the turn as it begins now; None if it has to wait."""
        return turn if not self._running else None

    def _say(self, message: Dict[str, Any]) -> bool:
        """Send a message to the other nodes; return whether that worked."""
        if self._relay is None:
            return True
        try:
            with store_may_be_gone():
                self._relay.say(message)
                return True
        except PeersEnded as exc:
            self.agent.distrust(exc)
        return False

    def _run_here(self, number: int, ranks: Sequence[int], order: Dict[str, Any]) -> None:
        assert self._base is not None
        round_ = order["round"]
        self.newest = max(self.newest, round_)
        own_ranks = [rank for rank in ranks if self._base.where[rank] == self._node]
        path = path_of(self._folder, number)
        self.idle = False
        if own_ranks:
            self._current = _LocalTurn(round_, number, round_, set(own_ranks), [])
        try:
            if order["files"]:
                Payload(path).extract(self._files)
            self._enter(own_ranks, order)
        except (OSError, PayloadError) as exc:
            if self._current is None:
                return
            self._fail(self._node, round_, own_ranks, exc)
            self._current.failed.extend(own_ranks)
            left, self._current = self._current, None
            self._over_here(left)
            return
        if not own_ranks:
            self._unlink(number)
        for rank in own_ranks:
            self._standing.tell(rank, {**self._order_of(rank, order), "path": path})
        self._wake_at = time.monotonic() + _SHORT_S

    def _enter(self, own_ranks: Sequence[int], order: Dict[str, Any]) -> None:
        self.agent.enter_turn(order["round"], own_ranks)

    def _order_of(self, rank: int, order: Dict[str, Any]) -> Dict[str, Any]:
        """Return the order that a rank receives for a turn that it runs."""
        return order

    def _fail(self, node: int, round_: int, ranks: Sequence[int], exc: BaseException) -> None:
        self._tell_failed(node, round_, ranks, shortage.explained(from_exception(exc), exc).to_json())

    def _tell_failed(self, node: int, round_: int, ranks: Sequence[int], error: Dict[str, Any]) -> None:
        for rank in ranks:
            self._tell("RankFailed", node=node, rank=rank, restart=0, round=round_, error=error, stays=True)

    def _tell(self, event: str, **fields: Any) -> None:
        """Emit a fact, after the earlier ones; on a full disk as soon as there is room again."""
        self._unwritten.append((event, {**fields, "time": time.time()}))
        self._tell_all()

    def _tell_all(self) -> None:
        while self._unwritten:
            event, fields = self._unwritten[0]
            try:
                emit(event, **fields)
            except OSError as exc:
                if shortage.number_of(exc) not in shortage.FULL:
                    raise
                return
            self._unwritten.popleft()

    def _due(self) -> Optional[float]:
        """Do what is due; return in how many seconds to look again."""
        self._tell_all()
        waking = self._wake_agent()
        # End a lab that has been idle for as long as it may
        limit = float(self._settings["idle"] or 0)
        busy = self._running or self._line or self._coming or self._why
        if busy or not limit or self._base is None:
            idle = None
        else:
            left = self._since + limit - time.monotonic()
            if left > 0:
                idle = left
            else:
                self._why = _ENDS
                self._tell("LabEnds", node=self._node, why="idle")
                self._let_all_go()
                idle = None
        waits = [idle, waking, _ROOM_S if self._unwritten else None]
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def _wake_agent(self) -> Optional[float]:
        """Wake the agent for a turn that isn't short; return in how many seconds that is due.

        Waking it for every turn would take time from the ranks, mostly for nothing.
        """
        if self._wake_at is None or self._current is None:
            self._wake_at = None
            return None
        left = self._wake_at - time.monotonic()
        if left > 0:
            return left
        self._wake_at = None
        self.agent.wake()
        return None

    def _let_all_go(self) -> None:
        self._say({"end": True})
        self._let_go()

    def _let_go(self) -> None:
        assert self._base is not None
        self.idle = False
        for rank, node in self._base.where.items():
            if node == self._node:
                self._standing.tell(rank, {"end": True})

    # Answers

    def _check(self, question: Dict[str, Any]) -> Base:
        base, base_round = self._base, question.get("base")
        if base is not None and base.nodes[0] != self._node:
            raise Refused(ELSEWHERE % base.nodes[0])
        if self._why or base is None:
            raise Refused(self._why or NOT_YET)
        if base_round is not None and base_round != base.round:
            raise Refused(ANEW)
        return base

    def _ranks(self, base: Base, question: Dict[str, Any]) -> List[int]:
        ranks = sorted(set(base.where if question.get("ranks") is None else question["ranks"]))
        missing = [rank for rank in ranks if rank not in base.where]
        if missing or not ranks:
            span = "ranks 0 to %d" % max(base.where) if len(base.where) > 1 else "rank 0 only"
            raise Refused("there is no rank %s: it has %s" % (", ".join(map(str, missing)) or "given", span))
        return ranks

    def _nodes_for(self, base: Base, ranks: Sequence[int]) -> List[int]:
        return sorted({base.where[rank] for rank in ranks})

    def _ahead(self) -> List[_Turn]:
        # Ranks that only start, with no call to run, aren't a turn to report.
        first = self._base is not None and self._base.first
        return [*(turn for turn in self._running.values() if turn.number or first), *self._line]

    def _has(self, question: Dict[str, Any]) -> Dict[str, Any]:
        base = self._check(question)
        ranks = self._ranks(base, question)
        has = frozenset.intersection(*(self._names.get(rank, frozenset()) for rank in ranks))
        for turn in self._ahead():
            if set(ranks) <= set(turn.ranks):
                has |= turn.sets
        return {
            "has": [name for name in question["of"] if self._mark(name) in has],
            "base": base.round,
            "ahead": _words(self._ahead()),
        }

    def _old_answer(self, question: Dict[str, Any]) -> Optional[Dict[str, Any]]:
        """Return the answer of a turn that was taken before; raises ``Refused``."""
        answer = self._old_answers.get(question["id"])
        if answer is None:
            self._ranks(self._check(question), question)
        return answer

    def _take(self, question: Dict[str, Any], number: int, payload: Payload) -> "tuple[Dict[str, Any], bool]":
        old_answer = self._old_answer(question)
        if old_answer is not None:
            return old_answer, False
        base = self._check(question)
        if len(self._line) >= _WAITING:
            raise Refused("%d others are already waiting" % _WAITING)
        ranks = self._ranks(base, question)
        nodes = self._nodes_for(base, ranks)
        self.newest += 1
        ahead = _words(self._ahead())
        header = payload.header
        words = {**header["turn"], "pushed": header["push"]}
        words.update((name, question[name]) for name in _OF_JOBS if name in question)
        order = {"all_ranks": header["all_ranks"], "locals": header["locals"]}
        order["files"] = any(name.startswith(FILES) for name in payload.checksums())
        order = {**order, "round": self.newest, "speaker": ranks[0], "id": question["id"]}
        sets = self._marks(_set_by(words["text"]) | frozenset(words["pushed"]))
        turn = _Turn(
            *(number, self.newest, ranks, nodes, words["label"], words["by"], sets, order),
            set(nodes),
        )
        answer = {"round": turn.round, "base": base.round, "ahead": ahead}
        self._say({"taken": turn.round})  # if this node is lost, the number isn't used again
        with room_for(self._folder):
            self._tell_taken(base, turn, question["id"], words)
        self._old_answers[question["id"]] = answer
        while len(self._old_answers) > _KNOWN:
            self._old_answers.popitem(last=False)
        self._line.append(turn)
        self._standing.post(self._next)  # after the answer, on which the client can go on meanwhile
        return answer, True

    def _interrupt(self, question: Dict[str, Any]) -> Dict[str, Any]:
        if self._why != _ENDS:
            self._check(question)
        round_ = question.get("round")
        for waiting in self._line:
            if waiting.round == round_:
                self._line.remove(waiting)
                assert self._base is not None
                for node in waiting.nodes:
                    ranks = [rank for rank in waiting.ranks if self._base.where[rank] == node]
                    self._drop(node, waiting.round, ranks)
                self._say({"drop": waiting.number})
                self._unlink(waiting.number)
                self._standing.post(self._next)  # it may have delayed jobs that need fewer nodes
                return {"interrupted": list(waiting.ranks)}
        running = [turn for turn in self._ahead() if turn.round in self._running]
        interrupted = [turn for turn in running if round_ in (None, turn.round)]
        for turn in interrupted:
            self._interrupt_all(turn.round)
        return {"interrupted": [rank for turn in interrupted for rank in turn.ranks]}

    def _interrupt_all(self, round_: int, **why: int) -> None:
        """Interrupt a turn on all nodes."""
        self._say({"interrupt": round_, **why})
        self._interrupt_here(round_)

    def _drop(self, node: int, round_: int, ranks: Sequence[int]) -> None:
        """Report a turn that was interrupted before it began."""
        self._fail(node, round_, ranks, KeyboardInterrupt())
        self._tell("TurnEnded", node=node, round=round_, failed=ranks, begun=False)

    def _interrupt_here(self, round_: int) -> None:
        turn = self._current
        if turn is None or turn.round != round_:
            return
        self._page[turns.ROUND] = round_
        self._page[turns.COUNT] += 1
        for rank in turn.left:
            with suppress(KeyError, ProcessLookupError):  # a rank that hasn't connected yet reads the page
                os.kill(self._pids[rank], turns.SIGNAL)

    def _ask_to_end(self, question: Dict[str, Any]) -> Dict[str, Any]:
        if self._why != _ENDS:
            self._check(question)
            self._why = _ENDS
            self._tell("LabEnds", node=self._node, why="asked")
            self._next()
        return {"ends": True}


def _words(ahead: Sequence[_Turn]) -> List[Dict[str, Any]]:
    return [{"round": turn.round, "label": turn.label, "by": turn.by} for turn in ahead]


def _set_by(text: str) -> FrozenSet[str]:
    """Return the names that a cell sets, as far as its text shows."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return frozenset()
    names = set_outside(tree)
    for node in walk(tree, ast.ClassDef, *FUNCTIONS):
        if isinstance(node, ast.NamedExpr):  # those of comprehensions aren't local to them
            names.add(node.target.id)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):  # most functions are called by the cell that defines them
            names.update(node.names)
    return frozenset(names)
