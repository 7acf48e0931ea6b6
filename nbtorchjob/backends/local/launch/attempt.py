"""The processes of one attempt of a job: its nodes are started, told of each other's loss, and ended.

Here it is decided only when to tell the others that a node is lost, and when to stop the rest. What an
end *means* is for ``state/``.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.backends.local.launch import node_process
from nbtorchjob.machine import cache, processes
from nbtorchjob.runtime.facts import death, exits, injected
from nbtorchjob.runtime.rank.given import GIVEN
from nbtorchjob.runtime.rendezvous import listening
from nbtorchjob.state import US, JobInfo
from nbtorchjob.state.failure import AGENT_KILLED

GRACE_S = 5  # from SIGTERM to SIGKILL for ranks; their agent gets a little more
_AGENT_GRACE_S = GRACE_S + 2.0
_OTHERS_GRACE_S = 1.0  # for other nodes to say what they met, once one has failed
PEER_LOST = signal.SIGUSR1
_ENDED_BY_SOMEBODY = (exits.CANCELLED, exits.LEFT)
_TOLD = (*_ENDED_BY_SOMEBODY, exits.INFRASTRUCTURE_ERROR)  # or because another one did


@dataclass
class _Node:
    index: int
    pid: int
    ended: bool = False
    code: int | None = None  # negative for a signal


class Attempt:
    """One attempt, from 1; its ranks' rounds are numbered from ``first_round`` on."""

    def __init__(
        self,
        job: JobDirectory,
        info: JobInfo,
        request: dict[str, Any],
        number: int,
        first_round: int,
        deadline: float | None,
    ) -> None:
        self._job = job
        self._deadline = deadline  # by the monotonic clock, which the nodes share
        self._info = info
        self._request = request
        self._number = number
        self._first_round = first_round
        # Without attempts a node has one life, and needs no name for it.
        self._pod = f"attempt-{number}" if info.retry_owner == US else ""
        self._nodes: dict[int, _Node] = {}  # by process id
        self._listener: socket.socket | None = None
        self._store: object = None
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._told = False  # its nodes, to leave
        self._stopping = 0.0  # until when nodes that are told to end have to
        self._refuge, why = cache.refuge(request["env"])
        if why:
            job.emit("Notice", text=why)

    @property
    def live(self) -> list[_Node]:
        """The nodes that haven't ended."""
        return [node for node in self._nodes.values() if not node.ended]

    @property
    def ended_on_demand(self) -> bool:
        """Whether nodes ended as they were told to: not all well, and none by itself."""
        codes = {node.code for node in self._nodes.values()}
        return self._told and bool(codes - {exits.OK}) and codes <= {exits.OK, *_TOLD}

    @property
    def due(self) -> float | None:
        """When :meth:`act` has something to do, by the monotonic clock."""
        return min((t for t in (self._stop_at, self._kill_at) if t is not None), default=None)

    def start(self) -> None:
        """Start all nodes."""
        most = self._info.nodes[1]
        if most > 1:
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=2 * most)
        for index in range(most):
            self._job.node(index).mkdir(exist_ok=True)
            pid = os.fork()
            if pid == 0:
                node_process.become(self._job, self._request, self._environment(index), index)
            self._nodes[pid] = _Node(index, pid)
            where = {"host": socket.gethostname(), "pod": self._pod, "attempt": self._number}
            self._job.emit("NodeStarted", node=index, pid=pid, **where)
        if self._listener is not None:
            # The agents meet in a store of the supervisor's, so that any of them may be lost. It brings
            # threads, so it is opened when there is nothing left to fork.
            self._store = listening.store(self._listener, "127.0.0.1")

    def _environment(self, index: int) -> dict[str, str]:
        own = {
            "NBTORCHJOB_NODE": str(index),
            "NBTORCHJOB_FOLDER": str(self._job.node(index)),
            "NBTORCHJOB_EVENTS": str(self._job.events),
            "NBTORCHJOB_KEY_FILE": str(self._job.key),
            "NBTORCHJOB_JOB": self._info.name,
            injected.RUN: self._info.run,
            "NBTORCHJOB_STOP_WITHIN": str(GRACE_S),
            "NBTORCHJOB_SAVE_WITHIN": str(injected.of_grace(self._info.grace_s)),
            "NBTORCHJOB_ATTEMPT": str(self._number),
            "NBTORCHJOB_FIRST_ROUND": str(self._first_round),
            "NBTORCHJOB_CHECKPOINTS": str(self._job.checkpoints),
            "PET_LOCAL_ADDR": "127.0.0.1",
        }
        before = self._info.leave_before_s
        if self._deadline is not None and before is not None:
            own[injected.DEADLINE] = f"{self._deadline} {before}"
        if self._info.variant:
            own[GIVEN] = self._info.variant
        if self._listener is not None:
            own["PET_RDZV_ENDPOINT"] = f"127.0.0.1:{self._listener.getsockname()[1]}"
            # All nodes start at once here, and a lost one is known at once: no need to wait long.
            own["PET_RDZV_CONF"] = (
                "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3,is_host=0"
            )
        # By itself gloo listens where the host's name leads to, which others may reach.
        ours = {"GLOO_SOCKET_IFNAME": "lo", **node_process.PAGES, **cache.variables()}
        return {**ours, **self._request["env"], **self._refuge, **own}

    def reap(self) -> None:
        """Take note of what has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                for left in self.live:
                    left.ended = True
                return
            if pid == 0:
                return
            node = self._nodes.get(pid)
            if node is not None:
                node.ended = True
                node.code = os.waitstatus_to_exitcode(status)
                self._ended(node, node.code)

    def _ended(self, node: _Node, code: int) -> None:
        self._job.emit("NodeExited", node=node.index, pod=self._pod, **self._how(code))
        if code == exits.OK:
            return
        _kill_group(node.pid)  # its ranks would hold on to connections that others wait on
        enough = len(self.live) >= self._info.nodes[0]
        if (code < 0 or code in _ENDED_BY_SOMEBODY) and enough and self.due is None:
            for other in self.live:
                _send(other.pid, PEER_LOST)
        elif self.due is None:
            self._stop_at = time.monotonic() + _OTHERS_GRACE_S

    def _how(self, code: int) -> dict[str, Any]:
        if code >= 0:
            return {"code": code}
        if self.due is not None:  # it may well have been us
            return {"signal": -code}
        return {"signal": -code, "reason": AGENT_KILLED, "text": signal.Signals(-code).name}

    def act(self) -> None:
        """Stop or kill what is left, where it is time to."""
        now = time.monotonic()
        if self._stop_at is not None and now >= self._stop_at:
            self.stop()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = now + 1.0  # again, for what doesn't die at once
            for node in self.live:
                _kill_group(node.pid)

    def leave(self) -> None:
        """Tell the nodes that the job's deadline is near: their ranks have until then to save."""
        for node in [] if self._told else self.live:
            _send(node.pid, signal.SIGTERM)
        self._told = True

    def stop(self, *, gently: bool = False) -> None:
        """Ask the nodes to end, ``gently`` with time for their ranks to save; those that don't are killed."""
        self._stop_at = None
        until = time.monotonic() + (self._info.grace_s if gently else _AGENT_GRACE_S)
        if self._kill_at is None or until < self._stopping:
            for node in self.live:
                _send(node.pid, signal.SIGTERM if gently else signal.SIGINT)
            self._stopping = self._kill_at = until

    def sweep(self) -> None:
        """Leave nothing behind: orphans of its nodes became this process's children."""
        self._store = None  # ends its threads, so that the next attempt can be forked
        death.kill_children()


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill_group(leader: int) -> None:
    """Kill a group of processes, but for what removes the shared memory that they leave behind."""
    for pid in processes.of_group(leader):
        if not death.cleans(pid):
            _send(pid, signal.SIGKILL)
