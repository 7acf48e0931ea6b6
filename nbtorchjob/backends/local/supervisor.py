"""Keeps one job: starts its nodes, tells what becomes of them, and leaves no process behind.

A job's end is decided here only as far as processes go: when to tell the others that a node is lost,
when to stop the rest. What it *means* is for ``state.py``.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtorchjob.backends.local import nodes, processes
from nbtorchjob.backends.local.record import Folder
from nbtorchjob.runtime import exits
from nbtorchjob.runtime.emit import append
from nbtorchjob.runtime.errors import from_exception

GRACE_S = 5  # from SIGTERM to SIGKILL for ranks; their agent gets a little more
_AGENT_GRACE_S = GRACE_S + 2.0
_OTHERS_GRACE_S = 1.0  # for other nodes to say what they met, once one has failed
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
_PEER_LOST = signal.SIGUSR1


@dataclass
class _Node:
    index: int
    pid: int
    ended: bool = False


def supervise(folder: Path, request: dict[str, Any]) -> None:
    """Run the job in ``folder`` to its end; the calling process is its supervisor from here on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    signal.signal(_PEER_LOST, signal.SIG_IGN)  # also for agents, until they can do something with it
    processes.adopt_orphans()
    job = Folder(folder)
    try:
        job.keep(processes.Process.of(os.getpid()))
        keeper = Supervisor(job, request)
    except Exception as exc:
        # Nobody is known to keep the job, so nobody could miss its keeper: say the end.
        error = from_exception(exc).to_json()
        failed = {"event": "NodeFailed", "node": 0, "code": exits.INFRASTRUCTURE_ERROR, "error": error}
        append(str(job.events), {**failed, "time": time.time()})
        append(str(job.events), {"event": "Closed", "time": time.time()})
        raise
    keeper.run()


class Supervisor:
    """One job's processes."""

    def __init__(self, job: Folder, request: dict[str, Any]) -> None:
        self._job = job
        self._request = request
        self._info = job.info()
        self._nodes: dict[int, _Node] = {}  # by process id
        self._listener: socket.socket | None = None
        self._store: object = None
        deadline = job.deadline_s()
        self._deadline_s = deadline
        self._deadline = None if deadline is None else self._info.created + deadline
        self._stop_at: float | None = None
        self._kill_at: float | None = None

    def run(self) -> None:
        """Start the nodes, wait for them, clean up, and close the job's record."""
        try:
            if not self._cancelled_early():
                self._start()
            while self._live():
                self._wait()
        except Exception as exc:
            code, error = exits.INFRASTRUCTURE_ERROR, from_exception(exc).to_json()
            self._emit("NodeFailed", node=0, code=code, error=error)
            raise
        finally:
            self._sweep()
            self._emit("Closed")
            # Nobody reads the payload any more, and it may be the biggest file of all.
            for done in (self._job.path / "ballast", self._job.payload):
                done.unlink(missing_ok=True)

    def _cancelled_early(self) -> bool:
        if self._job.cancel.exists():
            self._emit("CancelRequested")
            return True
        return False

    def _start(self) -> None:
        most = self._info.nodes[1]
        if most > 1:
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=2 * most)
        for index in range(most):
            self._fork(index)
        if self._listener is not None:
            self._open_store(self._listener)

    def _open_store(self, listener: socket.socket) -> None:
        # The agents meet in a store of the supervisor's, so that any of them may be lost. It brings
        # threads, so it is opened when there is nothing left to fork.
        from torch.distributed import TCPStore

        port = listener.getsockname()[1]
        self._store = TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def _fork(self, index: int) -> None:
        self._job.node(index).mkdir(exist_ok=True)
        pid = os.fork()
        if pid == 0:
            nodes.become(self._job, self._request, self._environment(index), index)
        self._nodes[pid] = _Node(index, pid)
        self._emit("NodeStarted", node=index, host=socket.gethostname(), pid=pid)

    def _environment(self, index: int) -> dict[str, str]:
        own = {
            "NBTORCHJOB_NODE": str(index),
            "NBTORCHJOB_FOLDER": str(self._job.node(index)),
            "NBTORCHJOB_EVENTS": str(self._job.events),
            "NBTORCHJOB_KEY_FILE": str(self._job.key),
            "NBTORCHJOB_GRACE": str(GRACE_S),
            "PET_LOCAL_ADDR": "127.0.0.1",
        }
        if self._listener is not None:
            own["PET_RDZV_ENDPOINT"] = f"127.0.0.1:{self._listener.getsockname()[1]}"
            # All nodes start at once here, and a lost one is known at once: no need to wait long.
            own["PET_RDZV_CONF"] = (
                "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2,is_host=0"
            )
        return {**self._request["env"], **own}

    def _wait(self) -> None:
        """Wait for the next signal or time limit, and act on it."""
        limits = [t for t in (self._deadline, self._stop_at, self._kill_at) if t is not None]
        timeout = max(0.0, min(limits) - time.time()) if limits else 3600.0
        got = signal.sigtimedwait(_SIGNALS, timeout)
        if got is not None and got.si_signo != signal.SIGCHLD:
            self._emit("CancelRequested")
            self._stop()
        self._reap()
        now = time.time()
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._emit("DeadlineExceeded", seconds=self._deadline_s)
            self._stop()
        if self._stop_at is not None and now >= self._stop_at:
            self._stop()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                for left in self._live():
                    left.ended = True
                return
            if pid == 0:
                return
            node = self._nodes.get(pid)
            if node is not None:
                node.ended = True
                self._ended(node, os.waitstatus_to_exitcode(status))

    def _ended(self, node: _Node, code: int) -> None:
        how = {"signal": -code} if code < 0 else {"code": code}
        self._emit("NodeExited", node=node.index, **how)
        if code == exits.OK:
            return
        _kill_group(node.pid)  # its ranks would hold on to connections that others wait on
        enough = len(self._live()) >= self._info.nodes[0]
        if code < 0 and enough and not self._stopping():
            for other in self._live():
                _send(other.pid, _PEER_LOST)
        elif not self._stopping():
            self._stop_at = time.time() + _OTHERS_GRACE_S

    def _stopping(self) -> bool:
        return self._stop_at is not None or self._kill_at is not None

    def _stop(self) -> None:
        self._stop_at = None
        if self._kill_at is None:
            for node in self._live():
                _send(node.pid, signal.SIGTERM)
            self._kill_at = time.time() + _AGENT_GRACE_S

    def _kill(self) -> None:
        self._kill_at = time.time() + 1.0  # again, for what doesn't die at once
        for node in self._live():
            _kill_group(node.pid)

    def _live(self) -> list[_Node]:
        return [node for node in self._nodes.values() if not node.ended]

    def _sweep(self) -> None:
        """Kill what a node left behind: orphans became this process's children."""
        for node in self._nodes.values():
            _kill_group(node.pid)
        while True:
            left = list(processes.children())
            if not left:
                return
            for pid in left:
                _send(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _emit(self, event: str, **fields: Any) -> None:
        record = {"event": event, "time": time.time(), **fields}
        append(str(self._job.events), record)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
