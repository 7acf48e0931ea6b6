"""A pool: a lab whose turns are whole jobs, each of which runs in processes of its own.

Theory of operation
===================

All that brings a turn to its nodes, puts it in order and ends it is the lab's (``lab/lab.py``). Where a lab's
ranks run a turn themselves, a pool's zygotes fork ranks for it (``zygote.py``). These are what they would be
in a job with pods of its own, except that torch is imported already. Their payload is a job's, with the
program.

    in a lab                                      in a pool
    --------------------------------------------  -----------------------------------------------------------
    a rank that raises runs the next turn         the job has failed: all its other ranks are stopped
    ranks that end begin anew, all of them        a rank that ends is the job's failure; zygotes stay
    an interrupt raises KeyboardInterrupt         the ranks are ended, as SIGTERM ends a job's
    local modules stay for later turns            they go with the job

When all ranks of a node are through with a turn, it is cleared; once each node is, the next turn begins:

    _here.done   until                       then
    -----------  --------------------------  ---------------------------------------------------------------
    round        its ranks are through       zygotes end what is left of the job
    clear-R      all zygotes have done so    one of them sends the job's artifacts
    send-R       it has                      ``TurnEnded``; the agent puts the files back (``ground.py``)
    restore-R    it has                      ``_end_here``: the lead hears that this node is through

A node where a rank has failed has the others stop, by the nodes' store ("stop" in ``relay.py``): in a
collective their ranks would wait for ever.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Dict, Optional, Sequence, Set

from nbtorchjob.runtime.ask.answering import Refused
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.lab.lab import Base, Lab, _Here
from nbtorchjob.runtime.pool.zygote import CLEAR, SEND
from nbtorchjob.runtime.rendezvous.alone import PeersEnded
from nbtorchjob.runtime.store.payload import Payload

_RESTORE = "restore-%d"
_MODULES = "modules"  # as in ``start/modules.py``, which is another module in a payload
_OTHER = "it runs another version of nbtorchjob: end it, and start a new one"


class Pool(Lab):
    """A node's part of a pool."""

    def __init__(self, *args: Any) -> None:
        self._processes: Dict[int, int] = {}  # of the job's ranks here
        self._began = 0.0  # when the job did
        self._cancelled: Set[int] = set()  # rounds whose end somebody asked for
        self._exceeded: Dict[int, int] = {}  # the deadlines of such that took longer, in seconds
        super().__init__(*args)  # whose thread uses these
        self._program = Payload(self._path).checksums().get(_MODULES)

    def _begin(self, base: Base) -> None:
        super()._begin(base._replace(first=False))  # the pool's own call does nothing

    def _take(self, asked: Dict[str, Any], number: int, payload: Payload) -> "tuple[Dict[str, Any], bool]":
        if payload.checksums().get(_MODULES) != self._program:
            raise Refused(_OTHER)
        answer, new = super()._take(asked, number, payload)
        if new:
            order = self._line[-1].order
            order["deadline"], order["attempt"] = payload.header["deadline"], asked.get("attempt", 1)
        return answer, new

    def _run_here(self, number: int, ranks: Sequence[int], order: Dict[str, Any]) -> None:
        self._processes = {}
        self._began = time.monotonic()
        if self._relay is not None:
            stopped = partial(self._interrupt_here, order["round"])
            self._relay.watch(order["round"], partial(self._standing.post, stopped))
        super()._run_here(number, ranks, order)

    def _due(self) -> Optional[float]:
        due, turn = super()._due(), self._running
        seconds = turn.order.get("deadline") if turn is not None else None
        if turn is None or not seconds or turn.round in self._exceeded:
            return due
        left = self._began + float(seconds) - time.monotonic()
        if left > 0:
            return left if due is None else min(left, due)
        self._exceeded[turn.round] = int(seconds)
        self._stop(turn.round)
        return due

    def _heard(self, rank: int, record: Dict[str, Any]) -> None:
        here = self._here
        if here is not None and "rank pid" in record and rank in here.left:
            self._processes[rank] = int(record["rank pid"])
            if self._processes.keys() >= here.left:
                self.agent.look_after(here.round, self._processes)
        if here is not None and record["done"] == here.done and rank in here.left:
            how = exits.untold(record["code"]) if "code" in record else {}
            if how:
                where = {"node": self._node, "rank": rank, "restart": 0, "round": here.round}
                self._tell("RankExited", **where, **how, stays=True)
        super()._heard(rank, record)
        if here is not None and record.get("failed") and record["done"] == here.round:
            self._stop(here.round)

    def _over_here(self, here: _Here) -> None:
        assert self._base is not None
        zygotes = [rank for rank, node in self._base.where.items() if node == self._node]
        if here.done == here.round:
            self.agent.leave_turn()
            self._order(here, CLEAR % here.round, zygotes)
        elif here.done == CLEAR % here.round:
            self._order(here, SEND % here.round, [min(zygotes)])
        elif here.done == SEND % here.round:
            self._tell_over(here)
            self._here = here._replace(done=_RESTORE % here.round)
            self.agent.restore(partial(self._standing.post, partial(self._restored, self._here)))
        else:
            super()._over_here(here)

    def _restored(self, here: _Here) -> None:
        if self._here is here:  # its ranks haven't begun anew since
            self._here = None
            self._end_here(here)

    def _order(self, here: _Here, what: str, zygotes: Sequence[int]) -> None:
        """Have these zygotes do something more before the turn is through here."""
        self._here = here._replace(done=what, left=set(zygotes))
        for rank in zygotes:
            self._standing.tell(rank, {"round": what})

    def _tell_over(self, here: _Here) -> None:
        self._tell(
            "TurnEnded",
            node=self._node,
            round=here.round,
            failed=sorted(here.failed),
            cancelled=here.round in self._cancelled,
            deadline=self._exceeded.get(here.round, 0),
        )

    def _drop(self, node: int, round_: int, ranks: Sequence[int]) -> None:
        self._tell("TurnEnded", node=node, round=round_, failed=ranks, cancelled=True)

    def _interrupt(self, asked: Dict[str, Any]) -> Dict[str, Any]:
        answer = super()._interrupt(asked)
        if answer["interrupted"] and self._running is not None and asked.get("round") == self._running.round:
            self._cancelled.add(self._running.round)
        return answer

    def _through(self, node: int, round_: int) -> None:
        turn = self._running
        super()._through(node, round_)
        if turn is not None and turn is not self._running and turn.number:
            self._stop(round_)  # nobody need watch it any more

    def _stop(self, round_: int) -> None:
        """Stop what is left of a job, on all nodes."""
        self._interrupt_here(round_)
        if self._relay is not None:
            try:
                self._relay.stop(round_)
            except PeersEnded as exc:
                self.agent.distrust(exc)
