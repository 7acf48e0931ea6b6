"""Supervises one job: starts its attempts, as far as its budgets go, and closes its record.

It is this machine's operator. ``state/`` decides what an attempt's end means, and whether another one
follows: the supervisor folds the job's own events, like every viewer of the job. It only decides when to tell
an attempt's other nodes that one is lost, and when to stop them.

A node is a fork that becomes an agent: it runs the same zipapp as any image would run.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import sys
import time
import types
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NoReturn

from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.backends.local.eventfile import EventFile
from nbtorchjob.machine import folders, processes
from nbtorchjob.machine.processes import Process
from nbtorchjob.payload import program
from nbtorchjob.runtime.facts import death, exits, injected
from nbtorchjob.runtime.facts.death import die_with_parent
from nbtorchjob.runtime.facts.errors import from_exception
from nbtorchjob.runtime.node import shortage
from nbtorchjob.runtime.rank import fresh
from nbtorchjob.runtime.rendezvous import groups
from nbtorchjob.runtime.store.payload import GIVEN, Payload, PayloadError
from nbtorchjob.state import US, JobInfo, JobState, Phase, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines
from nbtorchjob.state.failure import AGENT_KILLED

# Has torch ask for huge pages for tensors from 2 MiB on, unless the job says otherwise. At a rank's end the
# kernel then frees 128 pages for 256 MiB, not 65,536; a caller that waits for a value waits for that, too.
PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
_OF_PATH = "PYTHONPATH"  # its entries are in the request's path already


# The packages of a payload's program, and the CRC-32 of each member that is imported here.
_PROGRAM = ("nbtorchjob.runtime", "cloudpickle")
_imported: dict[str, int] = {}
# What is injected into pods alone.
_OF_PODS = frozenset(
    (
        *(injected.DOMAIN, injected.SWAPS, injected.UNSEEN, injected.STREAM),
        *(injected.FAILURES, injected.IGNORED, injected.RESTARTS),
    )
)


def import_program() -> None:
    """Import the program of payloads: this saves 20 ms in each node whose payload has the same program."""
    for name, _ in program.modules():
        module = name[: -len(".py")].replace("/", ".").replace(".__init__", "")
        if module.startswith(_PROGRAM):
            importlib.import_module(module)
    _imported.update((name, zlib.crc32(data)) for name, data in program.whole())


def become(job: JobDirectory, request: dict[str, Any], env: dict[str, str], index: int) -> NoReturn:
    """Run node ``index`` of the job in this process, and end with its exit code."""
    code = exits.INFRASTRUCTURE_ERROR
    try:
        die_with_parent()
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        log = job.node(index) / "agent.log"
        with open(os.devnull, "rb") as null, open(log, "ab") as file:
            os.dup2(null.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(request["cwd"])
        os.umask(request["umask"])
        processes.take(request["limits"])
        cpus = os.sched_getaffinity(0)
        os.sched_setaffinity(0, request["cpus"])
        # The program checks the rest of its payload, but can't check itself.
        payload = Payload(str(job.payload))
        payload.verify_signature(job.key.read_bytes())
        if job.run() != env[injected.RUN]:  # this supervisor is that of an earlier job with its name
            text = f"this node is of run {env[injected.RUN]}, but {job.payload} is of run {job.run()}"
            raise PayloadError(f"{text}: none of it was run; submit the job again")
        # With other CPUs than the pool's, torch must count them again, unless the number of threads is given.
        counted = cpus == set(request["cpus"]) or "OMP_NUM_THREADS" in env or job.info().nproc_per_node > 1
        # Some variables are read only when the interpreter, or torch, starts.
        names = {name for name in (*env, *os.environ) if fresh.too_late(name)} - {_OF_PATH}
        if not counted or any(env.get(name) != os.environ.get(name) for name in names):
            # What a fresh interpreter runs: the same as :func:`_run`, without a trace in its environment
            path = request["path"]
            program = f"import runpy, sys; sys.argv[:] = {[str(job.payload)]!r}; sys.path[:] = {path!r}; "
            program += f"runpy.run_path({str(job.payload)!r}, run_name='__main__')"
            os.execve(sys.executable, [sys.executable, "-c", program], env)
        os.environ.clear()
        os.environ.update({**env, "NBTORCHJOB_WARM": "1"})
        time.tzset()
        code = _run(payload, request["path"])
    except Exception as exc:  # before the node's own code could report the error
        code = exits.CONFIG_ERROR if isinstance(exc, PayloadError) else shortage.code_of(exc)
        error = shortage.explained(from_exception(exc), exc).to_json()
        job.emit("NodeFailed", node=index, code=code, error=error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _loaded(name: str) -> Iterator[str]:
    """Yield the names of a package and its modules, as far as they are imported.

    Searching all of ``sys.modules`` takes 4 ms: looking at a name unshares the page that it is on, which this
    process shared with the pool until then.
    """
    module = sys.modules.get(name)
    if module is not None:
        yield name
        for attribute in [*vars(module)] if hasattr(module, "__path__") else ():
            yield from _loaded(f"{name}.{attribute}")


def _run(payload: Payload, path: list[str]) -> int:
    sys.argv = [payload.path]
    sys.path[:] = path  # the payload comes first while it is run
    # The payload brings its own runtime and cloudpickle; the pool's imports are used if they are the same.
    same = bool(_imported) and _imported.items() <= payload.checksums().items()
    hidden = {}  # not freed: that would take 4 ms
    for name in [*_loaded("nbtorchjob"), *_loaded("cloudpickle")]:
        if not (same and name.startswith(_PROGRAM)):
            hidden[name] = sys.modules.pop(name)
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        runpy.run_path(payload.path, run_name="__main__")
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else exits.USER_ERROR
    return exits.OK


GRACE_S = 5  # from SIGTERM to SIGKILL for ranks; their agent gets a little more
_AGENT_GRACE_S = GRACE_S + 2.0
_OTHERS_GRACE_S = 1.0  # for other nodes to report their errors, once one has failed
PEER_LOST = signal.SIGUSR1
_ENDED_BY_SOMEBODY = (exits.CANCELLED, exits.LEFT)
_TOLD = (*_ENDED_BY_SOMEBODY, exits.INFRASTRUCTURE_ERROR)  # the last because another node ended


@dataclass
class _Node:
    index: int
    pid: int
    ended: bool = False
    code: int | None = None  # negative for a signal


class Attempt:
    """One attempt, numbered from 1; its ranks' rounds are numbered from ``first_round`` on."""

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
        # Without further attempts a node has only one life, which needs no name.
        self._pod = f"attempt-{number}" if info.retry_owner == US else ""
        self._nodes: dict[int, _Node] = {}  # by process id
        self._listener: socket.socket | None = None
        self._store: object = None
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._leave_sent = False  # whether its nodes were told to leave
        self._stopping = 0.0  # when nodes that were told to end have to have ended
        self._refuge, why = folders.refuge(request["env"])
        if why:
            job.emit("Notice", text=why)

    @property
    def live(self) -> list[_Node]:
        """The nodes that haven't ended."""
        return [node for node in self._nodes.values() if not node.ended]

    @property
    def ended_on_demand(self) -> bool:
        """Whether its nodes ended because they were told to: not all with success, and none by itself."""
        codes = {node.code for node in self._nodes.values()}
        return self._leave_sent and bool(codes - {exits.OK}) and codes <= {exits.OK, *_TOLD}

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
                become(self._job, self._request, self._environment(index), index)
            self._nodes[pid] = _Node(index, pid)
            where = {"host": socket.gethostname(), "pod": self._pod, "attempt": self._number}
            self._job.emit("NodeStarted", node=index, pid=pid, **where)
        if self._listener is not None:
            # The agents meet in a store of the supervisor's, so that any of them may be lost. It has threads,
            # so it is opened once there is nothing left to fork.
            self._store = groups.store_on(self._listener, "127.0.0.1")

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
            # All nodes start at once here, and a lost one is noticed at once: no need to wait long.
            own["PET_RDZV_CONF"] = (
                "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3,is_host=0"
            )
        # By default gloo listens at the address of the host's name, which other hosts may reach.
        defaults = {"GLOO_SOCKET_IFNAME": "lo", **PAGES, **folders.compiler_variables()}
        # Here the supervisor is the operator: what another one set in the notebook's pod isn't for this job.
        requested = {
            name: value
            for name, value in self._request["env"].items()
            if not name.startswith(("PET_", "VC_")) and name not in _OF_PODS
        }
        return {**defaults, **requested, **self._refuge, **own}

    def reap(self) -> None:
        """Record which nodes have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                for left in self.live:
                    left.ended = True
                return
            if pid == 0:
                return
            node, code = self._nodes.get(pid), os.waitstatus_to_exitcode(status)
            if node is None:
                continue
            node.ended, node.code = True, code
            if code >= 0:
                how: dict[str, Any] = {"code": code}
            elif self.due is not None:  # this process may well have sent it
                how = {"signal": -code}
            else:
                how = {"signal": -code, "reason": AGENT_KILLED, "text": signal.Signals(-code).name}
            self._job.emit("NodeExited", node=node.index, pod=self._pod, **how)
            if code == exits.OK:
                continue
            _kill_group(node.pid)  # its ranks would hold on to connections that others wait on
            enough = len(self.live) >= self._info.nodes[0]
            if (code < 0 or code in _ENDED_BY_SOMEBODY) and enough and self.due is None:
                for other in self.live:
                    _send(other.pid, PEER_LOST)
            elif self.due is None:
                self._stop_at = time.monotonic() + _OTHERS_GRACE_S

    def act(self) -> None:
        """Stop or kill the remaining nodes if it is time to."""
        now = time.monotonic()
        if self._stop_at is not None and now >= self._stop_at:
            self.stop()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = now + 1.0  # again, for what doesn't die at once
            for node in self.live:
                _kill_group(node.pid)

    def leave(self) -> None:
        """Tell the nodes that the job's deadline is near: their ranks have until then to save."""
        for node in [] if self._leave_sent else self.live:
            _send(node.pid, signal.SIGTERM)
        self._leave_sent = True

    def stop(self, *, gently: bool = False) -> None:
        """Ask the nodes to end, ``gently`` with time for their ranks to save; kill those that don't."""
        self._stop_at = None
        until = time.monotonic() + (self._info.grace_s if gently else _AGENT_GRACE_S)
        if self._kill_at is None or until < self._stopping:
            for node in self.live:
                _send(node.pid, signal.SIGTERM if gently else signal.SIGINT)
            self._stopping = self._kill_at = until

    def sweep(self) -> None:
        """Kill what is left: orphans of its nodes became this process's children."""
        self._store = None  # ends its threads, so that the next attempt can be forked
        death.kill_children()


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill_group(leader: int) -> None:
    """Kill a group of processes, except those that remove the shared memory that is left behind."""
    for pid in processes.of_group(leader):
        if not death.cleans(pid):
            _send(pid, signal.SIGKILL)


_WAITED_S = 5.0  # since its submission: a pool may take that long to start
_LOOK_S = 60.0  # between checks that the job's folder is still there
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}


def supervise(folder: Path, request: dict[str, Any]) -> None:
    """Run the job in ``folder`` to its end; the calling process is its supervisor from here on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    signal.signal(PEER_LOST, signal.SIG_IGN)  # also for agents, until they can handle it
    death.adopt_orphans()
    job = JobDirectory(folder)
    try:
        if not job.claim(Process.of(os.getpid())):
            return  # it was ended before it began
        supervisor = Supervisor(job, request)
    except Exception as exc:
        # There may be no record of a supervisor whose loss would be noticed, so report the end here.
        _failed(job, exc)
        job.emit("Closed")
        raise
    supervisor.run()


def _monotonic(at: float) -> float:
    """Return a wall-clock time as one of the monotonic clock, which is used for all waiting."""
    return time.monotonic() + max(0.0, at - time.time())


def _failed(job: JobDirectory, exc: Exception) -> None:
    error = shortage.explained(from_exception(exc), exc).to_json()
    job.emit("NodeFailed", node=0, code=shortage.code_of(exc), error=error)


class Supervisor:
    """One job's supervisor."""

    def __init__(self, job: JobDirectory, request: dict[str, Any]) -> None:
        self._job = job
        self._request = request
        self._info = job.info()
        self._events = EventFile(job)
        self._state = JobState(self._info)  # as of the last attempt's end
        self._gently = False
        self._over = False  # nothing is started any more: it was cancelled, or its deadline is over
        seconds = self._info.deadline_s
        if seconds is None:
            self._deadline = None
        else:
            # When the deadline's time begins: the time that a job waited for its turn doesn't count
            now = time.time()
            if 0 <= now - self._info.created < _WAITED_S:
                begins = self._info.created
            else:
                resumed = ev.Suspended(now, suspended=False)
                self._job.emit(**factlines.to_json(resumed))
                begins = now
            self._deadline = _monotonic(begins + seconds)
        before = self._info.leave_before_s
        self._leave_at = None if self._deadline is None or before is None else self._deadline - before

    def run(self) -> None:
        """Start attempts until one ends well or nothing may follow, and close the job's record."""
        try:
            if self._job.cancel.exists():
                self._end("CancelRequested", **self._job.early)
            else:
                self._try()
        except Exception as exc:
            _failed(self._job, exc)
            raise
        finally:
            directory.put_by(self._job)
            self._job.emit("Closed")
            directory.thin_out(self._job.path.parent)

    def _try(self) -> None:
        number = 1
        while True:
            # Rounds continue across attempts, so what a rank wrote in an earlier one stays.
            first = self._state.last_round + 1
            self._run(Attempt(self._job, self._info, self._request, number, first, self._deadline))
            if self._info.retry_owner != US or self._over:
                return
            now = time.time()
            self._state = reduce(apply, self._events.read(reports=False), self._state)
            if apply(self._state, ev.Closed(now)).phase is Phase.SUCCEEDED:
                return
            verdict = ev.Verdict(now, succeeded=False, reason="AttemptFailed", attempt=number)
            self._job.emit(**factlines.to_json(verdict))
            following = apply(self._state, verdict).next
            if following is None:
                return
            until = _monotonic(following.at)
            while not self._over and until > time.monotonic():
                self.wait(until)
            if self._over:
                return
            number = following.number

    def _run(self, attempt: Attempt) -> None:
        try:
            attempt.start()
            while attempt.live:
                self.wait(attempt.due)
                attempt.reap()
                if self._over:
                    attempt.stop(gently=self._gently)
                elif self._leave_at is not None and time.monotonic() >= self._leave_at:
                    attempt.leave()
                attempt.act()
            if attempt.ended_on_demand and not self._over:
                self._end("DeadlineExceeded", seconds=self._info.deadline_s)
        finally:
            attempt.sweep()

    def wait(self, until: float | None) -> None:
        """Wait for a signal, the deadline or ``until``; record a cancellation, or a passed deadline."""
        leaving = self._leave_at is None or self._leave_at <= time.monotonic()
        limits = [t for t in (self._deadline, until, None if leaving else self._leave_at) if t is not None]
        timeout = max(0.0, min([time.monotonic() + _LOOK_S, *limits]) - time.monotonic())
        got = signal.sigtimedwait(_SIGNALS, timeout)
        try:
            os.stat(self._job.path)
        except FileNotFoundError:  # without it the job can't be followed, or ended
            self._over = True
        except OSError:  # a disk that can't be reached at present
            pass
        if got is not None and got.si_signo != signal.SIGCHLD:
            self._gently = self._job.gently
            self._end("CancelRequested", **self._job.early)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._deadline = None
            self._end("DeadlineExceeded", seconds=self._info.deadline_s)

    def _end(self, event: str, **fields: Any) -> None:
        self._job.emit(event, **fields)
        self._over = True
