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
    send-R       it has                      ``TurnEnded``; it puts the files back
    restore-R    it has                      ``_end_here``: the lead hears that this node is through

A node where a rank has failed has the others stop, by the nodes' store ("stop" in ``relay.py``): in a
collective their ranks would wait for ever.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, Dict, Optional, Sequence, Set

from nbtorchjob.runtime.ask.answering import Refused
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.lab.lab import Base, Lab, _Here
from nbtorchjob.runtime.pool.zygote import CLEAR, FILES, RESTORE, SEND
from nbtorchjob.runtime.rendezvous.alone import PeersEnded
from nbtorchjob.runtime.store.payload import Payload

_MODULES = "modules"  # as in ``start/modules.py``, which is another module in a payload
_TOLD = (exits.TOLD, exits.TOLD_RECOVERABLE, exits.TOLD_LOST_PEER)
_OTHER = "it runs another version of nbtorchjob: end it, and start a new one"


class Pool(Lab):
    """A node's part of a pool."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._program = Payload(self._path).checksums().get(_MODULES)
        self._processes: Dict[int, int] = {}  # of the job's ranks here
        self._cancelled: Set[int] = set()  # rounds whose end somebody asked for
        self._exceeded: Dict[int, int] = {}  # the deadlines of such that took longer
        self._deadlines: Dict[int, int] = {}  # in seconds, by the number of a payload

    def _begin(self, base: Base) -> None:
        super()._begin(base._replace(first=False))  # the pool's own call does nothing

    def _take(self, asked: Dict[str, Any], number: int, payload: Payload) -> "tuple[Dict[str, Any], bool]":
        if payload.checksums().get(_MODULES) != self._program:
            raise Refused(_OTHER)
        if payload.header["deadline"]:
            self._deadlines[number] = int(payload.header["deadline"])
        return super()._take(asked, number, payload)

    def _unlink(self, number: int) -> None:
        self._deadlines.pop(number, None)
        super()._unlink(number)

    def _files_of(self, round_: int) -> str:
        return "%s/round-%d/%s" % (self._folder, round_, FILES)

    def _run_here(self, number: int, ranks: Sequence[int], order: Dict[str, Any]) -> None:
        round_ = order["round"]
        self._processes = {}
        if self._relay is not None:
            stopped = partial(self._interrupt_here, round_)
            self._relay.watch(round_, partial(self._standing.post, stopped))
        if number in self._deadlines:  # on the lead
            seconds = self._deadlines[number]
            over = partial(self._standing.post, partial(self._expire, round_, seconds))
            timer = threading.Timer(seconds, over)
            timer.daemon = True
            timer.start()
        super()._run_here(number, ranks, order)

    def _expire(self, round_: int, seconds: int) -> None:
        if self._running is not None and self._running.round == round_:
            self._exceeded[round_] = seconds
            self._stop(round_)

    def _heard(self, rank: int, record: Dict[str, Any]) -> None:
        here = self._here
        if here is not None and "rank pid" in record and rank in here.left:
            self._processes[rank] = int(record["rank pid"])
            if self._processes.keys() >= here.left:
                self.agent.look_after(here.round, self._processes)
        if here is not None and record["done"] == here.done and rank in here.left:
            if record.get("failed"):
                self._tell_exit(rank, here.round, record.get("code"), record.get("signal"))
            if record.get("changed"):
                self._wear(here.round, record["changed"])
        super()._heard(rank, record)
        if here is not None and record.get("failed") and record["done"] == here.round:
            self._stop(here.round)

    def _tell_exit(self, rank: int, round_: int, code: Optional[int], signal: Optional[int]) -> None:
        if signal is not None or (code is not None and code not in _TOLD):
            how = {"code": code} if signal is None else {"signal": signal}
            self._tell("RankExited", node=self._node, rank=rank, restart=0, round=round_, stays=True, **how)

    def _wear(self, round_: int, changed: Sequence[str]) -> None:
        text = "the job of round %d changed files that only a fresh pod has as they were: %s" % (
            *(round_, ", ".join(changed)),
        )
        self._tell("Notice", text="node %d ends, as %s" % (self._node, text))
        self.agent.wear(text)

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
            self._order(here, RESTORE % here.round, [min(zygotes)])
        elif here.done:
            self._end_here(here)
        else:
            super()._over_here(here)

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
