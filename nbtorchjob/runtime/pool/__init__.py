"""A pool: a lab whose turns are whole jobs, each of which runs in processes of its own.

Theory of operation
===================

The lab's code (``lab/lab.py``) brings a turn to its nodes, orders it and ends it. Where a lab's ranks run a
turn themselves, a pool's zygotes fork ranks for it (``zygote.py``). These ranks are as in a job with pods of
its own, except that torch is imported already. Their payload is a job's, with the program.

    in a lab                                      in a pool
    --------------------------------------------  -----------------------------------------------------------
    a rank that raises runs the next turn         the job has failed: all its other ranks are stopped
    ranks that end begin anew, all of them        a rank that ends is the job's failure; zygotes stay
    an interrupt raises KeyboardInterrupt         the ranks are ended, as SIGTERM ends a job's
    local modules stay for later turns            they go with the job
    one turn runs at a time                       jobs of fewer nodes run side by side, each on its own

The lead gives nodes to the first job in the line as soon as enough of them are free, and reports that
(``TurnPlaced``): no job overtakes another. The line is sorted by the jobs' numbers; a job that is sent again
keeps its first number. Until it is placed, a job has no nodes, though its payload is on all of them. Between
nodes and zygotes, ranks have the pool's numbers. In a job's events, and in its own processes, they are
counted from 0.

When all ranks of a node are through with a turn, the turn is cleared; after that the node is free:

    _current.done  until                     then
    -------------  ------------------------  ---------------------------------------------------------------
    round          its ranks are through     zygotes end what is left of the job
    clear-R        all zygotes have done so  one of them sends the job's artifacts
    send-R         it has                    the agent sends what is left of its checkpoints, ``TurnEnded``,
                                             and the agent puts the files back (``ground.py``)
    restore-R      it has                    ``_end_here``: the lead hears that this node is through

A node where a rank has failed stops the others through the nodes' store ("stop" in ``relay.py``): in a
collective their ranks would wait for ever.

A node whose files can't be put back is *worn*, and a fresh pod is to take its place. All nodes then begin
anew with it, as torch's nodes do: the lead starts no more jobs, and tells the node to end once none runs.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.utils.distributed import get_free_port

from nbtorchjob.runtime.api import checkpoints
from nbtorchjob.runtime.ask.answering import Refused
from nbtorchjob.runtime.facts import emit, exits, injected
from nbtorchjob.runtime.lab import ANEW
from nbtorchjob.runtime.lab.keeper import Keeper
from nbtorchjob.runtime.lab.lab import Base, Lab, _LocalTurn, _Turn
from nbtorchjob.runtime.node.agent import NodeAgent
from nbtorchjob.runtime.node.departure import Departure
from nbtorchjob.runtime.node.meter import EVERY
from nbtorchjob.runtime.pool.ground import Ground
from nbtorchjob.runtime.pool.zygote import CLEAR, SEND, call_with_files, stand
from nbtorchjob.runtime.rank import worker
from nbtorchjob.runtime.rendezvous.alone import PeersEnded
from nbtorchjob.runtime.store.payload import Payload

_RESTORE = "restore-%d"
_NAMED = 20  # changed files
_MODULES = "modules"  # as in ``start/modules.py``, which is another module in a payload
_OTHER = "it runs another version of nbtorchjob: end it, and start a new one"


class Pool(Lab):
    """A node's part of a pool."""

    def __init__(self, *args: Any) -> None:
        self._processes: Dict[int, int] = {}  # of the job's ranks on this node
        self._ranks_of: List[int] = []  # the pool's ranks that the job uses, in the order of its own ranks
        self._port = 0  # a free one for the job on this node
        self._due_at: Dict[int, float] = {}  # when the deadlines of running jobs are over, by round
        self._ended: Dict[int, int] = {}  # rounds that are to end, with the deadline in seconds, or 0
        self._worn: Set[int] = set()  # nodes that are to be replaced
        self._groups: Dict[int, Tuple[str, int]] = {}  # of runs, with how many runs may go on at a time
        self._early: Dict[int, str] = {}  # the reports that end runs early
        super().__init__(*args)  # its thread uses these
        self._program = Payload(self._path).checksums().get(_MODULES)

    def _begin(self, base: Base) -> None:
        self._due_at, self._worn = {}, set()
        super()._begin(base._replace(first=False))  # the pool's own call does nothing

    def _ranks(self, base: Base, question: Dict[str, Any]) -> List[int]:
        ranks, many = super()._ranks(base, question), question["nodes"]
        if many > len(base.nodes):
            raise Refused("it has %d nodes, not %d" % (len(base.nodes), many))
        return ranks[: len(ranks) * many // len(base.nodes)]

    def _nodes_for(self, base: Base, ranks: Sequence[int]) -> List[int]:
        return sorted(base.nodes)  # any of them, until it is placed

    def _take(self, question: Dict[str, Any], number: int, payload: Payload) -> "tuple[Dict[str, Any], bool]":
        if payload.checksums().get(_MODULES) != self._program:
            raise Refused(_OTHER)
        answer, new = super()._take(question, number, payload)
        if new:
            turn = self._line.pop()
            order = turn.order
            order["deadline"], order["attempt"] = payload.header["deadline"], question.get("attempt", 1)
            order["nodes"], order["number"] = question["nodes"], question.get("number", 0)
            place = order["number"] or inf
            later = (at for at, other in enumerate(self._line) if (other.order["number"] or inf) > place)
            self._line.insert(next(later, len(self._line)), turn)
            sweep = json.loads(payload.header["turn"]["sweep"] or "{}")
            if sweep.get("at_once"):
                self._groups[order["round"]] = (sweep["group"], sweep["at_once"])
        return answer, new

    def _placed(self, turn: _Turn) -> Optional[_Turn]:
        base = self._base
        assert base is not None
        busy = self._worn.union(*(other.left for other in self._running.values()))
        free = [node for node in base.nodes if node not in busy]
        group, most = self._groups.get(turn.round, ("", 0))
        alike = sum(self._groups.get(round_, ("", 0))[0] == group for round_ in self._running)
        if self._worn or len(free) < turn.order["nodes"] or (most and alike >= most):
            return None
        nodes = free[: turn.order["nodes"]]
        ranks = [rank for rank in sorted(base.where) if base.where[rank] in nodes]
        self._tell("TurnPlaced", node=self._node, round=turn.round, nodes=nodes)
        if turn.order["deadline"]:
            self._due_at[turn.round] = time.monotonic() + float(turn.order["deadline"])
        order = {**turn.order, "nodes": nodes, "ranks": ranks}
        return turn._replace(nodes=nodes, ranks=ranks, left=set(nodes), order=order)

    def _run_here(self, number: int, ranks: Sequence[int], order: Dict[str, Any]) -> None:
        if self._node not in order["nodes"]:
            self.newest = max(self.newest, order["round"])
            self.idle = False
            self._unlink(number)
            return
        self._processes, self._ranks_of, self._port = {}, order["ranks"], get_free_port()
        if self._relay is not None:
            stopped = partial(self._interrupt_here, order["round"])
            self._relay.watch(order["round"], partial(self._standing.post, stopped))
        super()._run_here(number, ranks, order)

    def _enter(self, own_ranks: Sequence[int], order: Dict[str, Any]) -> None:
        id_ = order["id"].partition(".")[0]
        self.agent.enter_job(order["round"], own_ranks, order["ranks"], order["nodes"], id_)

    def _order_of(self, rank: int, order: Dict[str, Any]) -> Dict[str, Any]:
        base, nodes = self._base, order["nodes"]
        assert base is not None
        words = {name: value for name, value in order.items() if name not in ("nodes", "number", "ranks")}
        if len(nodes) == len(base.nodes):
            return {**words, "place": {}}
        number, many = self._ranks_of.index(rank), len(self._ranks_of)
        env: Dict[str, Any] = {"GROUP_RANK": nodes.index(self._node), "GROUP_WORLD_SIZE": len(nodes)}
        env.update({"RANK": number, "ROLE_RANK": number, "WORLD_SIZE": many, "ROLE_WORLD_SIZE": many})
        if len(nodes) == 1:  # as in a job of one node
            env.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._port})
        else:
            env["MASTER_ADDR"] = base.hosts[base.nodes.index(nodes[0])]
        return {**words, "place": {name: str(value) for name, value in env.items()}}

    def _due(self) -> Optional[float]:
        waits = [super()._due()]
        for round_, at in list(self._due_at.items()):
            turn, left = self._running.get(round_), at - time.monotonic()
            if turn is None or left <= 0:
                del self._due_at[round_]
            if turn is not None and left <= 0:
                self._interrupt_all(round_, deadline=int(turn.order["deadline"]))
            elif turn is not None:
                waits.append(left)
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def _do(self, base: Base, message: Dict[str, Any]) -> None:
        if base is self._base and "interrupt" in message:
            self._ended[message["interrupt"]] = message.get("deadline", 0)
        if base is self._base and message.get("renew") == self._node:
            self.agent.renew()
        super()._do(base, message)

    def _interrupt_all(self, round_: int, **why: int) -> None:
        self._ended[round_] = why.get("deadline", 0)
        super()._interrupt_all(round_, **why)

    def _hear_rank(self, rank: int, record: Dict[str, Any]) -> None:
        turn = self._current
        if turn is not None and "rank pid" in record and rank in turn.left:
            self._processes[self._ranks_of.index(rank)] = int(record["rank pid"])
            if self._processes.keys() >= set(map(self._ranks_of.index, turn.left)):
                self.agent.look_after(turn.round, self._processes)
        if turn is not None and record["done"] == turn.done and rank in turn.left:
            how = exits.untold(record["code"]) if "code" in record else {}
            if how:
                where = {"node": self._node, "rank": self._ranks_of.index(rank), "restart": 0}
                self._tell("RankExited", **where, round=turn.round, **how, stays=True)
        super()._hear_rank(rank, record)
        if turn is not None and record.get("failed") and record["done"] == turn.round:
            self._stop(turn.round)

    def _fail(self, node: int, round_: int, ranks: Sequence[int], exc: BaseException) -> None:
        super()._fail(node, round_, ranks, exc)
        self._stop(round_)

    def _tell_failed(self, node: int, round_: int, ranks: Sequence[int], error: Dict[str, Any]) -> None:
        super()._tell_failed(node, round_, [*map(self._ranks_of.index, ranks)], error)

    def _over_here(self, turn: _LocalTurn) -> None:
        assert self._base is not None
        zygotes = [rank for rank, node in self._base.where.items() if node == self._node]
        if turn.done == turn.round:
            self.agent.leave_turn()
            self._order(turn, CLEAR % turn.round, zygotes)
        elif turn.done == CLEAR % turn.round:
            self._order(turn, SEND % turn.round, [min(zygotes)])
        elif turn.done == SEND % turn.round:
            waits = self._current = turn._replace(done=_RESTORE % turn.round)

            def restored(worn: bool) -> None:
                if self._current is waits:  # its ranks haven't begun anew since
                    self._current = None
                    if worn:
                        self._worn.add(self._node)
                    self._end_here(waits, worn=worn)

            self.agent.restore(
                partial(self._standing.post, partial(self._tell_over, turn)),
                lambda worn: self._standing.post(partial(restored, worn)),
            )
        else:
            super()._over_here(turn)

    def _order(self, turn: _LocalTurn, step: str, zygotes: Sequence[int]) -> None:
        """Give zygotes one more order before the turn is through on this node."""
        self._current = turn._replace(done=step, left=set(zygotes))
        for rank in zygotes:
            self._standing.tell(rank, {"round": step})

    def _tell_over(self, turn: _LocalTurn) -> None:
        deadline = self._ended.pop(turn.round, None)
        self._tell(
            "TurnEnded",
            node=self._node,
            round=turn.round,
            failed=sorted(map(self._ranks_of.index, turn.failed)),
            cancelled=deadline == 0,
            deadline=deadline or 0,
            early=self._early.pop(turn.round, ""),
        )

    def _drop_all(self) -> None:
        for turn in self._line:
            self._tell("TurnPlaced", node=self._node, round=turn.round, nodes=[])
        super()._drop_all()

    def _drop(self, node: int, round_: int, ranks: Sequence[int]) -> None:
        early = self._early.get(round_, "")
        self._tell("TurnEnded", node=node, round=round_, failed=ranks, cancelled=True, early=early)

    def _interrupt(self, question: Dict[str, Any]) -> Dict[str, Any]:
        early, turn = question.get("early"), self._running.get(question.get("round", -1))
        if early:
            self._early[question["round"]] = early
        answer = super()._interrupt(question)
        if early and turn is not None and self._node not in turn.nodes:
            ends = {"failed": [], "cancelled": True, "early": self._early.pop(turn.round)}
            self._tell("TurnEnded", node=self._node, round=turn.round, **ends)
        return answer

    def _hear_node(self, node: int, round_: int, record: Dict[str, Any]) -> None:
        if record.get("worn"):
            self._standing.post(partial(self._worn.add, node))
        super()._hear_node(node, round_, record)

    def _through(self, node: int, round_: int) -> None:
        turn = self._running.get(round_)
        super()._through(node, round_)
        if turn is not None and round_ not in self._running and turn.number:
            self._groups.pop(round_, None)
            self._stop(round_)  # nodes need no longer watch it
        elif turn is not None and turn.left:
            self._next()  # this node is free

    def _next(self) -> None:
        if self._worn and not self._running and (self._line or not self._why):
            node, self._why = min(self._worn), ANEW
            self._drop_all()
            if node == self._node:
                self.agent.renew()
            else:
                self._say({"renew": node})
        else:
            super()._next()

    def _stop(self, round_: int) -> None:
        """Stop what is left of a job, on all nodes."""
        self._interrupt_here(round_)
        if self._relay is not None:
            try:
                self._relay.stop(round_)
            except PeersEnded as exc:
                self.agent.distrust(exc)


class Worn(Exception):
    """A job left something that only a fresh pod gets rid of, such as a changed file of the image."""


class PoolKeeper(Keeper):
    """The agent of one node of a pool: what torch's agent takes for ranks are zygotes."""

    def __init__(self, *args: Any, ground: Callable[[], Ground], **options: Any) -> None:
        super().__init__(*args, **options)
        self._left = ""  # what a job left that can't be put back
        self._worn = ""  # the same, once this node is to end
        self._look_at_ground = ground
        self._ground: Optional[Ground] = None

    def _start_workers(self, worker_group: WorkerGroup) -> Dict[int, Any]:
        if self._ground is not None:  # what a job had left when they ended wasn't cleared
            raise Worn("the processes of its jobs have ended")
        self._ground = self._look_at_ground()
        return super()._start_workers(worker_group)

    @contextmanager
    def saving(self) -> Iterator[checkpoints.Saved]:
        """See the base class. Each job saves to its own place; this only checks that saving works."""
        checkpoints.sender(os.environ.get(checkpoints.CHECKPOINTS, "")).finish()
        try:
            yield self.saved
        finally:
            with checkpoints.unstopped():
                self.saved.finish()

    def restore(self, over: Callable[[], None], then: Callable[[bool], None]) -> None:
        """End a job in another thread: send its checkpoints, call ``over``, and put the node's files back.

        ``then`` is called with whether a fresh pod is needed.
        """

        def act() -> None:
            assert self._ground is not None
            self.saved.finish()
            over()
            try:
                changed = self._ground.restore()
            except Exception as exc:  # of any kind: else the pool would wait for this node for ever
                changed = [repr(exc)]
            if changed:
                more = " and %d more" % len(changed[_NAMED:]) if changed[_NAMED:] else ""
                self._left = "a job left changes that can't be undone: %s%s" % (
                    ", ".join(changed[:_NAMED]),
                    more,
                )
                with suppress(OSError):  # a full disk
                    emit("Notice", text="node %d has to be replaced: %s" % (self._node, self._left))
            then(bool(changed))

        threading.Thread(target=act, daemon=True, name="ground").start()

    def renew(self) -> None:
        """End this node, so that a fresh pod takes its place; called in the thread of the lab."""
        self._worn = self._left
        self.wake()

    def look_after(self, round_: int, pids: Dict[int, int]) -> None:
        """Watch the processes of a job's ranks on this node, by rank; called in the thread of the lab."""
        self._meter.every = EVERY
        self._lookout.enter(round_, self._folder_of(round_), pids, self._peers)
        self._meter.begin(round_, pids)

    def enter_job(
        self, round_: int, ranks: Sequence[int], all_ranks: Sequence[int], nodes: Sequence[int], id_: str
    ) -> None:
        """Begin the job ``id_``: ``ranks`` run it on this node, out of ``all_ranks`` on ``nodes``."""
        self.saved = checkpoints.sender(checkpoints.of_job(id_))
        self._peers.go_with(nodes)
        self.enter_turn(round_, ranks, all_ranks)
        self._meter.begin(round_, {})

    def leave_turn(self) -> None:
        """See the base class."""
        folder = self._folder_of(self._round)
        self._lookout.enter(self._round, folder, {}, self._peers)
        self._meter.begin(self._round, {})
        super().leave_turn()
        if not self.leaving:  # jobs on other nodes may save, but nothing on this one
            self._peers.go_with([self._node])
            idle = os.path.join(self._folder, "idle")
            os.makedirs(idle, exist_ok=True)
            self._departure = Departure(idle, self._node, self._round, 0, self._peers)

    def _wait_for_an_end(self, seconds: float) -> bool:
        if self._worn:
            raise Worn(self._worn)
        return super()._wait_for_an_end(seconds)


def keeper(
    payload: Payload, key: bytes, folder: str, files: str, node: int
) -> Tuple[Callable[..., NodeAgent], Callable[..., None], Callable[[worker.Rank], None]]:
    """Return for a pool's node what ``lab/keeper`` returns for a lab's."""
    pool = Pool(payload.header, payload.path, key, folder, files, node)
    unseen = bool(os.environ.get(injected.UNSEEN))
    ground = partial(Ground, folder, **payload.header["lab"]["ground"], unseen=unseen)
    return partial(PoolKeeper, lab=pool, ground=ground), stand, call_with_files
