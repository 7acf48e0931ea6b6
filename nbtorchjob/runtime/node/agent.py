"""torch's elastic agent for one node, with six changes, five of them through public hooks.

It looks at its workers as often as a quick job needs, not once per ``monitor_interval``; it reports
what happens to them as events; it notices a worker that exited with code 0 without returning, for
which torch waits for ever; it ends with the other nodes' agents (``peers.py``); when it is told to
end, its ranks may save first (``departure.py``); and it isn't interrupted while it starts them.

Theory of operation
===================

torch's loop starts the ranks of a round, then calls ``_monitor_workers`` again and again, and acts on the
result: after HEALTHY it asks whether nodes wait to join or one is lost, and if so meets again; after FAILED
it starts the ranks anew if a restart is left; after SUCCEEDED it waits for the other nodes. ``_watched``
looks at the ranks every 2 to 50 ms, and the first row that applies counts:

    what is seen                               leads to
    -----------------------------------------  ---------------------------------------------------------------
    another node has ended the job             ``PeersEnded``, unless ranks save meanwhile
    ranks leave, on some node (``_leave``)     nothing else, until they have left: then this node ends with
                                               ``LEFT``, if it was told to end. Or until their time is over:
                                               then it ends as SIGTERM ends it
    all ranks have returned                    SUCCEEDED; their processes are killed, not awaited
    torch finds a rank that failed             it has ended the others: they are ``_torn``, and only exit
                                               codes other than SIGTERM's count
    a peer is lost                             HEALTHY
    the interval is over, a node waits to join ranks that call ``leaving()`` leave; then HEALTHY on all nodes
    the interval is over                       HEALTHY
    a rank is gone, and no reason will come    FAILED; an event, and a word to peers if no restart is left
    a rank is gone, and a reason may come      another look

A rank that loses its peers in a collective ends a moment before the reason is known. How long the agent waits
for the reason (``_may_hear_why``):

    what is known                                       waits
    --------------------------------------------------  ------------------------------------------------------
    all lost a peer; elastic, and that one rejoins      not at all
    all lost a peer; elastic, or no restart is left     ``peers.patience``: longer than a silence that means a
                                                        loss; 0.5 s once the others' ranks have returned
    anything else in an elastic group                   0.5 s
    anything else                                       not at all

SIGTERM, or the question "leave" before it, begins a ``Departure`` if ranks call ``leaving()``; otherwise
torch's handler ends the node. A signal that comes while ranks are being started is deferred: torch's handlers
raise wherever this process happens to be. In pickle's C code that exception would be replaced by one of
pickle's own, and the node would end as one whose agent failed.
"""

from __future__ import annotations

import glob
import os
import signal
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import connection
from typing import Any, ContextManager, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousGracefulExitError

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.api import checkpoints
from nbtorchjob.runtime.ask.answering import Handler
from nbtorchjob.runtime.facts import emit, exits
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.runtime.facts.injected import ATTEMPT, saving
from nbtorchjob.runtime.look.lookout import Lookout
from nbtorchjob.runtime.node import processes, shortage
from nbtorchjob.runtime.node.departure import Departure
from nbtorchjob.runtime.node.meter import Meter
from nbtorchjob.runtime.node.processes import LIMIT_S, Watchdog
from nbtorchjob.runtime.rendezvous import groups
from nbtorchjob.runtime.rendezvous.alone import Alone, PeersEnded


@contextmanager
def until_started() -> Iterator[List[int]]:
    """Defer the signals that torch handles, while it starts processes; yield the list of those that come.

    The caller has to raise them afterwards. If starting fails, the first one is raised instead.
    """
    handler, pid = torch_versions.SIGNAL_HANDLER.get(), os.getpid()
    came: List[int] = []
    if handler is None:
        yield came
        return

    def note(number: int, frame: object) -> None:
        if os.getpid() != pid:  # a forked rank, which inherits this handler
            handler(number, frame)
        came.append(number)

    torch_versions.SIGNAL_HANDLER.replace(note)
    failed = True
    try:
        yield came
        failed = False
    finally:
        torch_versions.SIGNAL_HANDLER.replace(handler)
        for number in signal.valid_signals():
            if signal.getsignal(number) is note:
                signal.signal(number, handler)
        if failed and came:
            handler(came[0], None)


PEER_LOST = signal.SIGUSR1
_NEW, _IN = -1, -2  # in place of a round: a new node, and one that was in the round before
_SHORTEST, _LONGEST = 0.002, 0.05  # seconds between two looks at the workers
_PEER_GRACE = 0.5  # seconds from a failure of any kind to the news that a peer is gone
_WHY = 300  # characters


class NodeAgent(LocalElasticAgent):  # type: ignore[misc]
    """The agent of one node; ``folder`` holds a folder for each of its rounds, from ``first_round`` on.

    Once it has run, ``code`` is the node's exit code. ``elastic`` says that the group can go on with fewer
    nodes, ``retried`` that the job is tried again after a failure. ``lookout`` watches the ranks. ``saved``
    is what they save.
    """

    def __init__(
        self,
        *args: Any,
        node: int,
        folder: str,
        first_round: int,
        attempt: int,
        interval: float,
        elastic: bool,
        retried: bool,
        lookout: Lookout,
        shutdown_timeout: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        processes.use_pipes()
        self._shutdown_timeout = shutdown_timeout
        self.code = exits.OK
        self._elastic = elastic
        self._retried = retried
        self._lookout = lookout
        self.saved = checkpoints.Saved()
        self._node = node
        self._folder = folder
        self._interval = interval
        self._round = first_round - 1
        self._attempt = attempt
        self._since = _NEW  # _IN once in a round; until then the round that lost its predecessor, if any
        self._paid: Set[int] = set()  # rounds that lost a node which has been replaced
        self._broken_at: Optional[float] = None  # when the first rank of the round was seen to be gone
        self._torn = False  # whether torch has ended the remaining ranks
        self._departure: Optional[Departure] = None  # of a round whose ranks run
        self.swaps: Any = None  # of the ranks' code, if it can be swapped (``swaps.py``)
        self._woken, self._wake = os.pipe()  # ends a wait, which is long when there is nothing to do
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._ranks_gone = False  # whether all have left or returned, and what they saved was sent
        self._meter = Meter(node)
        self._watchdog = Watchdog(self._on_stuck, self._every_second)

    def saving(self) -> ContextManager[checkpoints.Saved]:
        """Return the context that saves its ranks' checkpoints while it runs them."""
        return checkpoints.saving()

    @property
    def _peers(self) -> Any:
        return self._rdzv_handler.peers

    def _invoke_run(self, *args: Any) -> Any:
        try:
            return super()._invoke_run(*args)
        except SignalException:
            self._peers.tell(exits.CANCELLED)
            raise
        except (PeersEnded, RendezvousGracefulExitError):
            raise
        except Exception as exc:
            self._peers.check()  # what failed may have failed because of a peer
            own = shortage.code_of(exc)
            code = self._peers.tell(own)
            if code != own:  # the failed peer has announced its end, and that was read only now
                raise PeersEnded(code) from exc
            raise

    def _start_workers(self, worker_group: WorkerGroup) -> Dict[int, Any]:
        self._broken_at = None
        self._torn = self._ranks_gone = self.saved.held = False
        self._enter_round(worker_group)
        folder = self._folder_of(self._round)
        os.makedirs(folder, exist_ok=True)
        # A rank that was killed while it was stopped in the debugger (``debug``) left its mark.
        for mark in glob.glob(os.path.join(glob.escape(self._folder), "stopped-*")):
            os.unlink(mark)
        spec = worker_group.spec
        path, _, key, *_, act = spec.args
        meeting = groups.address(worker_group.store)
        spec.args = (path, folder, key, self._round, meeting, self._attempt, act)
        ranks = [worker.global_rank for worker in worker_group.workers]
        world_size = worker_group.workers[0].world_size
        emit("WorkersStarted", ranks=ranks, world_size=world_size, **self._where())
        departure = Departure(folder, self._node, self._round, len(ranks), self._peers)
        with until_started() as signals, processes.telling_why():
            started: Dict[int, Any] = super()._start_workers(worker_group)
        self._departure = departure
        self._may_swap(folder, range(len(ranks)))
        signal.signal(signal.SIGTERM, self._on_sigterm)  # in place of torch's own
        pids = {worker.global_rank: started[worker.local_rank] for worker in worker_group.workers}
        self._lookout.enter(self._round, folder, pids, self._peers)
        self._meter.begin(self._round, pids)
        for number in signals:
            signal.raise_signal(number)
        return started

    def _folder_of(self, round_: int) -> str:
        return os.path.join(self._folder, "round-%d" % round_)

    def _may_swap(self, folder: str, local: Iterable[int], all_ranks: Sequence[int] = ()) -> None:
        """Allow swaps of the code of these ranks of this node, in a round that has begun."""
        if self.swaps is not None and self._departure is not None:
            workers = {w.local_rank: w.global_rank for w in self._worker_group.workers}
            numbers = {rank: workers[rank] for rank in local}
            if all_ranks:
                numbers = {rank: all_ranks.index(number) for rank, number in numbers.items()}
            self.swaps.enter(self._round, folder, self._departure.page, numbers, self._peers)

    def wake(self) -> None:
        """Have the agent look at once for something to do; may be called from any thread."""
        with suppress(BlockingIOError):  # it is about to look
            os.write(self._wake, b"\0")

    def _on_sigterm(self, number: int, _frame: object) -> None:
        departure = self._departure
        if departure is None or not (departure.own or departure.may_begin):
            self._shutdown_timeout = saving()  # ranks may save on SIGTERM, too
            raise terminated()
        departure.begin()

    @property
    def questions(self) -> Dict[str, Handler]:
        """The questions that the agent answers."""
        return {"leave": self.leave, **(self.swaps.questions if self.swaps is not None else {})}

    def leave(self, question: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
        """Have ranks save ahead of SIGTERM, and end; yield whether they do. The caller passes ``why``.

        Ranks that never call ``leaving()`` are left alone: they have nothing to do before SIGTERM.
        """
        departure = self._departure
        leaves = departure is not None and (departure.own or departure.may_begin)
        if departure is not None and leaves:
            departure.begin(str(question.get("why", ""))[:_WHY])
        yield {"leaves": leaves}

    def _enter_round(self, worker_group: WorkerGroup) -> None:
        """Agree on the number of this round, and of its attempt: both rise."""
        store, group_rank = worker_group.store, worker_group.group_rank
        if self._since == _NEW and ATTEMPT not in os.environ:
            self._since = self._peers.replaces
        words = (self._round + 1, self._node, self._attempt, self._since)
        store.set("nbtorchjob/round/%d" % group_rank, "%d %d %d %d" % words)
        keys = ["nbtorchjob/round/%d" % rank for rank in range(worker_group.group_world_size)]
        rounds, nodes, attempts, since = zip(*(map(int, store.get(key).split()) for key in keys))
        self._round = max(rounds)
        if group_rank == 0:
            # An elastic group that goes on counts each replaced loss as an attempt. Nodes lost in one round
            # are one loss, as in ``state/attempts``.
            lost = {round_ for round_ in since if round_ >= 0} - self._paid
            self._paid |= lost
            old_attempts = [number for number, round_ in zip(attempts, since) if round_ == _IN]
            store.set("nbtorchjob/attempt", str(max([*attempts, max(old_attempts, default=0) + len(lost)])))
        self._attempt = int(store.get("nbtorchjob/attempt"))
        if self.swaps is not None:
            connect = getattr(self._rdzv_handler, "connect", None)  # only with several nodes
            count = self.swaps.kept.agree(store, group_rank, worker_group.group_world_size, connect)
            if count and group_rank == 0:
                times = "" if count == 1 else ", %d times" % count
                emit("Notice", text="the ranks begin with the code as it was swapped%s" % times)
        self._since = _IN
        self._peers.enter(self._round, nodes, self._node)

    def _stop_workers(self, worker_group: WorkerGroup, *args: Any, **kwargs: Any) -> None:
        self._end_swaps()
        self._end_round()
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: Optional[float] = None) -> None:
        """End the ranks with SIGTERM, whichever signal ends the node: SIGINT would raise in a rank."""
        timeout = self._shutdown_timeout if timeout is None else timeout
        if self._departure is not None and self._departure.own:
            timeout = min(timeout, self._departure.rest)
        if self._pcontext:
            end = time.monotonic() + timeout
            for process in self._processes:
                process.terminate()
            # A rank that heeds the signal and returns waits for all others to return.
            while self._awaits(end - time.monotonic()):
                pass
            self._pcontext.close(signal.SIGKILL, 1)
        # No rank is left to wait for, and not every version takes a time-out (``END_TIMEOUT``).
        super()._shutdown(signal.SIGTERM, **({"is_restart": True} if torch_versions.CLOSES.get() else {}))

    def _awaits(self, seconds: float) -> bool:
        """Wait for a rank to end or return, and end those that have returned; return whether it saw any."""
        returned, ends = self._returned(), []
        for local, queue in self._values[1].items():
            process = self._processes[local]
            if local in returned:
                process.kill()
            elif process.exitcode is None:
                ends += [process.sentinel, queue._reader]
        return seconds > 0 and bool(ends and connection.wait(ends, seconds))

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = self._watched(worker_group)
        if result.state != WorkerState.HEALTHY:
            self._end_swaps()
        if result.state == WorkerState.SUCCEEDED or (
            result.state != WorkerState.HEALTHY and self._remaining_restarts == 0
        ):
            self._departure = None  # the result is final
        elif result.state != WorkerState.HEALTHY:
            self._end_round()
        return result

    def _end_round(self) -> None:
        """Have SIGTERM end this node at once from here on; a node told to end begins no other round."""
        departure, self._departure = self._departure, None
        if departure is not None and departure.own:
            self._departure = departure  # it knows how much time its ranks have left
            raise terminated()

    def _watched(self, worker_group: WorkerGroup) -> RunResult:
        until, pause = time.monotonic() + self._interval, _SHORTEST
        while True:
            # Another node may end this one; ranks that were told to save may do so first.
            try:
                self._peers.check()
            except PeersEnded as exc:
                departure = self._departure
                saves = (
                    departure is not None
                    and departure.agreed
                    and departure.under_way
                    and not self._ranks_gone
                )
                if not saves or exc.code != exits.INFRASTRUCTURE_ERROR:
                    raise
            # Before torch looks: it ends the other ranks first, and names an arbitrary rank that failed.
            codes = self._ended()
            pause = _SHORTEST if self._see_to_swaps(codes) else pause
            if self._leave(codes):
                self._wait_for_an_end(pause)
                continue
            if not codes and not self._torn:
                if len(self._returned()) == len(self._worker_group.workers):
                    self._end_ranks()
                    return RunResult(state=WorkerState.SUCCEEDED)
                with self._watchdog.over([int(worker.id) for worker in worker_group.workers]):
                    result = super()._monitor_workers(worker_group)
                if result.state == WorkerState.SUCCEEDED:
                    return result
                self._torn = result.state != WorkerState.HEALTHY
                codes = self._ended()
            if time.monotonic() >= until and self._saves_for_new_nodes():
                continue
            if self._peers.peer_lost or time.monotonic() >= until:
                # A lost peer is a change of membership (``rendezvous.Watched``), whatever else failed.
                return RunResult(state=WorkerState.HEALTHY)
            if (codes or self._torn) and not self._may_hear_why(codes):
                return self._failed(codes)
            self._wait_for_an_end(pause)
            pause = min(pause * 1.1, _LONGEST)

    def _see_to_swaps(self, codes: Dict[int, int]) -> bool:
        """Advance swaps of the ranks' code; return whether one is under way."""
        departure = self._departure
        if self.swaps is None or departure is None or not self.swaps.busy:
            return False
        ended_ranks = {
            worker.local_rank for worker in self._worker_group.workers if worker.global_rank in codes
        }
        leaves = departure.own or self._peers.leaves is not None
        return bool(self.swaps.look(ended_ranks | self._returned(), leaves))

    def _saves_for_new_nodes(self) -> bool:
        """Whether nodes wait to join, and ranks save before these join."""
        departure = self._departure
        if departure is None or self._peers.peer_lost or not self._rdzv_handler.num_nodes_waiting():
            return False
        return departure.join()

    def _end_ranks(self) -> None:
        """End ranks that have returned, and so done all that a program does at its end.

        torch would tell them to end, and wait for one after the other: only the kernel has something left to
        take down, which it does while this process ends.
        """
        if self._worker_group.group_world_size > 1:  # others may wait for calls that these never made
            self._lookout.returned()
        for process in self._processes:
            process.kill()
        self._pcontext = None  # there is nothing left to close

    def _end_swaps(self) -> None:
        if self.swaps is not None:
            self.swaps.leave("its ranks have ended")

    def _leave(self, codes: Dict[int, int]) -> bool:
        """Whether ranks leave, so that nothing else counts; raises to end this node once they have left."""
        departure = self._departure
        if departure is None:
            return False
        departure.look(self._hold)
        if not departure.under_way:
            if departure.own and departure.over:
                raise terminated()
            return False
        asking = {
            worker.global_rank: worker.local_rank
            for worker in self._worker_group.workers
            if departure.asks(worker.local_rank, codes.get(worker.global_rank))
        }
        if {code for rank, code in codes.items() if rank in asking} - {exits.TOLD_LEFT}:
            return False
        returned = self._returned()
        if len(returned) == len(self._worker_group.workers):
            return False  # they were done before they were told
        stay = any(rank not in codes and local not in returned for rank, local in asking.items())
        if stay or not (asking or self._ranks_gone or departure.others_gone()):
            return not self._peers.peer_lost or departure.agreed
        if not self._ranks_gone:
            self._ranks_gone = True
            departure.say_gone()
            self.saved.send(departure.all_have_sent)  # before any node ends: others may go on from it at once
        everywhere = departure.have_left()
        if departure.own and (everywhere or self._peers.peer_lost):
            self.code = exits.LEFT
            raise terminated()
        if everywhere and self._peers.joins:
            self._peers.lose_peer()  # as after a loss, all meet again, even if the new node is gone by now
        return not self._peers.peer_lost

    def _hold(self) -> None:
        self.saved.held = True

    def _returned(self) -> Set[int]:
        """Return which ranks have returned, by local number: their processes stay until all have."""
        values, queues = self._values
        return {rank for rank, queue in queues.items() if rank in values or not queue.empty()}

    @property
    def _values(self) -> Tuple[Dict[int, Any], Dict[int, Any]]:
        """The values of ranks that torch has read so far, and the queues that bring them."""
        context = self._pcontext
        return torch_versions.RETURNED.get(context), torch_versions.RETURN_QUEUES.get(context)

    def _wait_for_an_end(self, seconds: float) -> bool:
        """Wait for ``seconds``, or until a rank ends or returns; return whether :meth:`wake` was called."""
        ends = [process.sentinel for process in self._processes if process.exitcode is None]
        returned, queues = self._values
        readers = [queue._reader for rank, queue in queues.items() if rank not in returned]
        connection.wait([*ends, *readers, self._woken], seconds)
        with suppress(BlockingIOError):
            return bool(os.read(self._woken, 4096))
        return False

    @property
    def _processes(self) -> Sequence[Any]:
        processes: Sequence[Any] = torch_versions.PROCESSES.get(self._pcontext)
        return processes

    def _ended(self) -> Dict[int, int]:
        """Return the exit codes of ranks that are gone; a rank that has returned stays until all have."""
        pairs = zip(self._worker_group.workers, self._processes)
        codes = {worker.global_rank: process.exitcode for worker, process in pairs}
        codes = {rank: code for rank, code in codes.items() if code is not None}
        self._lookout.ended(codes)
        by_itself = {rank: code for rank, code in codes.items() if code != -signal.SIGTERM}
        return by_itself or codes if self._torn else codes

    def _may_hear_why(self, codes: Dict[int, int]) -> bool:
        """Whether the reason for a failure may still come: ranks that lost a peer may end before it."""
        patience = _PEER_GRACE if self._elastic else 0.0
        if set(codes.values()) == {exits.TOLD_LOST_PEER}:
            if self._elastic and self._rdzv_handler.num_nodes_waiting():
                # That peer is about to start again, and so does this node; unless the news of its loss, which
                # counts as a waiting node, came just as the store was asked.
                return bool(self._peers.peer_lost)
            if self._elastic or self._remaining_restarts == 0:
                # Nodes whose ranks have all returned won't report a reason.
                patience = Alone.patience if self._peers.others_done() else self._peers.patience
        now = time.monotonic()
        self._broken_at = self._broken_at or now
        return now < self._broken_at + patience

    def _failed(self, codes: Dict[int, int]) -> RunResult:
        self._tell(codes)
        if {exits.TOLD_LOST_PEER, -signal.SIGABRT} & set(codes.values()):
            with suppress(Exception):  # a full disk, or another node that is gone
                self._lookout.gave_up()
        if self._remaining_restarts == 0:
            # Before the remaining ranks are ended, which may take their whole grace period.
            self.code = self._peers.tell(self._code(codes))
        return RunResult(state=WorkerState.FAILED)

    def _code(self, codes: Dict[int, int]) -> int:
        return exits.of_ranks(codes.values() or (exits.TOLD,), retried=self._retried)

    def _tell(self, codes: Dict[int, int]) -> None:
        for rank, code in codes.items():
            how = exits.untold(code)
            if how:
                emit("RankExited", rank=rank, **how, **self._where())

    def _where(self) -> Dict[str, int]:
        restart = int(self._worker_group.spec.max_restarts - self._remaining_restarts)
        return {"node": self._node, "restart": restart, "round": self._round}

    def _exit_barrier(self) -> None:
        """Wait for the other nodes; torch's own wait doesn't end with the job, nor on SIGTERM."""
        self._peers.finish(self._exit_barrier_timeout)

    def _record_worker_events(self, result: RunResult) -> None:
        """Leave out torch's own events: they go nowhere, and resolve the host's name for each."""

    def record_duration(self, state: str) -> ContextManager[None]:
        """Leave out the events on torch's own steps, too: with their logger they take 4 ms."""
        return nullcontext()

    def _every_second(self) -> None:
        ended = self._peers.pulse(self._shutdown_timeout + LIMIT_S)
        if ended is not None:
            self._give_up(self.code or ended.code, str(ended) or "another node of the job has ended")
        with suppress(OSError):  # a full disk
            self._meter.look()

    def _on_stuck(self) -> None:
        codes = self._ended()
        self._tell(codes)
        text = "all ranks of this node are gone, and torch's agent hasn't noticed for %d s" % LIMIT_S
        self._give_up(self._peers.tell(self._code(codes)), text)

    def _give_up(self, code: int, text: str) -> None:
        """End this process from a thread: the main thread waits for something that never comes."""
        error = Error("nbtorchjob.runtime.AgentStuck", text)
        emit("NodeFailed", node=self._node, code=code, error=error.to_json())
        sys.stderr.write("nbtorchjob: %s\n" % text)
        sys.stderr.flush()
        os._exit(code)


def terminated() -> SignalException:
    """Return the exception that ends this node as SIGTERM does."""
    return SignalException("this node was told to end", signal.SIGTERM)
