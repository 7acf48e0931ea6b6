"""The warm pool: one process that has imported torch, and forks a supervisor for each job.

It does no work of its own and has one thread, so its forks are safe; a fork of the kernel isn't
(once a kernel has run a parallel operation, the first one in its fork hangs). Several notebooks
share it. It ends by itself after a while without requests; running jobs don't need it.

A request is one line of JSON on its socket: ``{"folder": …, "env": …, "cwd": …, "path": …}``; with
``{"import": true}`` it imports at once what it would import when it is idle, with ``{"stop": true}`` it ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from nbtorchjob import frozen
from nbtorchjob.backends.local import directory, liveness
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.backends.local.launch import supervisor
from nbtorchjob.errors import SubmitError
from nbtorchjob.machine import folders, processes
from nbtorchjob.machine.processes import Process, locked
from nbtorchjob.runtime.ask.questions import within
from nbtorchjob.runtime.facts import death
from nbtorchjob.runtime.node import shortage
from nbtorchjob.runtime.start import node

T = TypeVar("T")

IDLE = "NBTORCHJOB_POOL_IDLE_S"
_IDLE_S = 900.0
_START_S = 30.0
_PLAIN_SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_PRELOAD = (
    "nbtorchjob.backends.local.launch.pool_client",
    "torch",
    "torch.distributed",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "torch.multiprocessing.spawn",
    # Modules of the standard library that a node and its ranks import later.
    "asyncio",
    "encodings.idna",
    "inspect",
    "multiprocessing.forkserver",
    "multiprocessing.popen_forkserver",
    "multiprocessing.queues",
    "multiprocessing.synchronize",
    "runpy",
    "zipfile",
    "zipimport",
)
# What a rank's first optimizer imports, 1.0 CPU s, in the order in which they need each other.
_WHEN_IDLE = ("sympy", "torch.fx.experimental.symbolic_shapes", "torch._dynamo")
_PEER = struct.Struct("3i")  # of a Unix socket: the other end's process, user and group
_QUIET_S = 1.0  # without a request, before the next import when idle


def warm_up() -> None:
    """Start a pool in the background, if none runs; no-op if torch isn't installed."""
    if importlib.util.find_spec("torch") is not None:
        _connect().close()


@contextmanager
def connected() -> Iterator[tuple[Process, Callable[[dict[str, Any]], None]]]:
    """Connect to the pool, started if need be; yield its process, and a function that sends it a request.

    Raises ``SubmitError``.
    """
    try:
        with _connect() as connection:
            # Taken from the connection, not from a file beside the socket: through two paths, of which only
            # one is too long for a socket, two pools may serve from one folder.
            pid, _, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if not pid:
                raise SubmitError(
                    "this machine's pool runs in another container, which shares the folder "
                    f"{folders.state_dir()}: set {folders.STATE} to one of this container's own"
                )
            yield (
                Process.of(pid),
                lambda request: connection.sendall(json.dumps(request).encode() + b"\n"),
            )
    except OSError as exc:
        met = shortage.limit_met(exc)
        raise SubmitError(f"this machine's pool can't be reached: {exc}" + (met and f"; {met}")) from exc


def stop() -> None:
    """End the pool of this environment, if one runs; jobs go on."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        _at_socket(connection.connect)
        connection.sendall(b'{"stop": true}\n')
        connection.recv(1)  # comes back when the pool has ended


def import_all() -> None:
    """Have the pool import now what it otherwise imports when it is idle, and wait until it has.

    Raises ``SubmitError`` if none can be started, ``OSError`` if it ends meanwhile.
    """
    with _connect() as connection:
        connection.sendall(b'{"import": true}\n')
        connection.recv(1)  # comes back when all is imported


def process() -> Process:
    """Return the process of the pool, started if need be; raises as :func:`connected` does."""
    with connected() as (pool, _):
        return pool


def _connect() -> socket.socket:
    connection = _try()
    if connection is not None:
        return connection
    with locked(directory.pool_dir() / "lock"):  # if two notebooks find no pool, only one starts it
        connection = _try()
        if connection is not None:
            return connection
        pid = _start(str(directory.pool_dir()))
        until = time.monotonic() + _START_S
        while time.monotonic() < until and os.waitpid(pid, os.WNOHANG)[0] == 0:
            connection = _try()
            if connection is not None:
                return connection
            time.sleep(0.005)
    why = liveness.last_words(directory.pool_dir()) or "no reason given"
    raise SubmitError(f"this machine's pool didn't start: {why}")


def _start(folder: str) -> int:
    """Start a pool with that folder; return its process id."""
    # With the kernel's own sys.path it finds the torch that the notebook would import. Imports leave hardly
    # any garbage: without collecting it they take three quarters of the time.
    code = f"import gc, sys; gc.disable(); sys.path[:] = {[p for p in sys.path if p]!r}; "
    code += f"from nbtorchjob.backends.local.launch import pool; pool.main({folder!r})"
    log = os.path.join(folder, "log")
    # Not a Popen, which is for children to wait for: this one outlives its parent on purpose.
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", code],
        # A job that sets a number of threads gets it on each rank; others mustn't have this kernel's.
        {
            **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
            **supervisor.PAGES,
            **folders.compiler_variables(),  # torch makes its folder when it is imported
        },
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        # A launcher that ignores SIGCHLD passes that on, and then no child could be waited for.
        setsigdef=_PLAIN_SIGNALS,
        setsigmask=(),
    )


def _at_socket(act: Callable[[str], T]) -> T:
    path = directory.socket_path()
    return within(str(path.parent), path.name, act)


def _try() -> socket.socket | None:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.dup() if _at_socket(connection.connect_ex) == 0 else None


def main(folder: str) -> None:
    """Serve requests at the socket in ``folder`` until none came for a while."""
    path = os.path.join(folder, "socket")
    os.chdir("/")
    os.closerange(3, 1024)  # don't hold open what the kernel left inheritable
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    os.fchmod(listener.fileno(), 0o600)
    within(folder, "socket", listener.bind)
    listener.listen(64)
    # Bound first, imported after: a job that comes meanwhile waits in the socket's queue.
    for module in _PRELOAD:
        importlib.import_module(module)
    frozen.make_all()
    directory.environment()  # cached here, as wardens need it
    supervisor.import_program()
    node.plain_logging()
    # Else each agent would start its own tracker, a whole Python process: forkservers pass it to their forks.
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()
    gc.freeze()  # a job may wait: the megabyte of garbage is collected when there is time
    gc.enable()
    stopper = _serve(listener, float(os.environ.get(IDLE, _IDLE_S)), list(_WHEN_IDLE))
    # In this order: later clients find no socket and start a pool, earlier ones are served.
    os.unlink(path)
    _serve(listener, 0.0, [])
    if stopper is not None:
        stopper.close()
    else:
        folders.thin_out_caches()


def _serve(listener: socket.socket, idle_s: float, unimported: list[str]) -> socket.socket | None:
    """Serve until idle for ``idle_s``, or until asked to stop: then return the connection that asked."""
    while True:
        listener.settimeout(min(idle_s, _QUIET_S) if unimported else idle_s)
        try:
            connection, _ = listener.accept()
        except (TimeoutError, BlockingIOError):
            if not unimported or idle_s < _QUIET_S:
                return None
            _import(unimported, 1)
            continue
        request: dict[str, Any] | None = None
        with suppress(OSError, ValueError):
            connection.settimeout(10)
            with connection.makefile("rb") as file:
                line = file.readline()
            request = json.loads(line) if line.strip() else None
        if request and request.get("stop"):
            return connection
        if request and request.get("import"):
            _import(unimported, len(unimported))
        elif request:  # without one, the client only had a pool started
            _fork(request, listener, connection)
        connection.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _import(names: list[str], count: int) -> None:
    """Import the first of the names, and take them from the list."""
    with warnings.catch_warnings():  # a rank must have only its own filters, but sympy adds one
        for name in names[:count]:
            with suppress(Exception):  # not for the pool to report: a rank that needs the module will
                importlib.import_module(name)
    del names[:count]
    node.plain_logging()
    # Each fork must draw its own numbers: Python reseeds only ``random`` itself (sympy makes three more).
    for item in gc.get_objects():
        if type(item) is random.Random:
            os.register_at_fork(after_in_child=item.seed)
    # What is here now is left as it is, so that forks share its memory.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    processes.merge()


def _fork(request: dict[str, Any], *sockets: socket.socket) -> None:
    from nbtorchjob.backends.local.launch import pool_client  # late: that one needs this module

    job = JobDirectory(Path(request["folder"]))
    try:
        if os.fork():
            return
    except OSError as exc:  # perhaps this user's limit of processes: the pool goes on for other jobs
        pool_client.give_up(job, exc)
        return
    code = 1
    try:
        for descriptor in sockets:
            descriptor.close()
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        death.adopt_orphans()
        if pid := os.fork():
            # The warden: a killed supervisor adopts no orphans any more, so they come to this process.
            os.waitpid(pid, 0)
            death.kill_children()
            pool_client.step()  # a job that waited for this one's place may have it now
        else:
            supervisor.supervise(job.path, request)
        code = 0
    except Exception as exc:
        traceback.print_exc()
        pool_client.give_up(job, exc)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
