"""The first process of a node on a cluster, PID 1 of its container.

It stays small: the node proper, with torch, is its child. So it outlives any process that the kernel kills
for memory, reports what happened, forwards SIGTERM, and copies the node's output to stdout. It blocks
signals and polls for them: PID 1 ignores a signal without a handler, but a blocked one stays pending.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any, Callable, Optional

from nbtorchjob.runtime.facts import EVENTS, emit, exits
from nbtorchjob.runtime.facts.death import (
    TERMINATION_LOG,
    LastWords,
    adopt_orphans,
    die_with_parent,
    kill_children,
)
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.runtime.facts.injected import FOLDER, GRACE, grace, node_index
from nbtorchjob.runtime.store.stream import Pump

_GRACE_S = 30  # for ranks, from SIGTERM to SIGKILL: two thirds of the 45 s that a pod has
_AGENT = 4 / 3  # of that for their agent, which sends what they saved; the rest is for reading the log
SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


def run_node(run: Callable[[], None]) -> int:
    """Run the node as a child, with ``run``, and return an exit code that says how it ended.

    ``SIGNALS`` must be blocked. No process of the node is left when this returns.
    """
    try:
        folder = tempfile.mkdtemp(prefix="nbtorchjob-", dir=os.environ.get(FOLDER))
    except OSError as exc:  # a read-only root file system, a full disk
        sys.stderr.write("nbtorchjob: this container has no place for files, mount one at /tmp: %s\n" % exc)
        return exits.CONFIG_ERROR
    output = os.path.join(folder, "node.log")
    os.environ.setdefault(GRACE, str(_GRACE_S))
    os.environ.update({FOLDER: folder, EVENTS: os.path.join(folder, "events.jsonl")})
    for number in (signal.SIGTERM, signal.SIGINT):
        # It never runs, as both are blocked, but it shows other processes that they aren't ignored.
        signal.signal(number, lambda *_: None)
    adopt_orphans()
    child = os.fork()
    if child == 0:
        try:
            die_with_parent()
            fd = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            os.close(fd)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            run()
        finally:
            os._exit(exits.INFRASTRUCTURE_ERROR)
    listeners = [LastWords(os.environ.get(TERMINATION_LOG)).note]
    poster: Any = None
    if "KUBEFLOW_TRAINER_SERVER_URL" in os.environ:
        with suppress(ImportError):  # only in payloads whose code may report
            from nbtorchjob.runtime.api.trainerstatus import Poster

            poster = Poster()
    if poster:
        listeners.append(poster.note)
        poster.start()
    pump = Pump(folder, os.environ[EVENTS], output, 1, listeners)
    pump.start()
    code = _wait(child, grace() * _AGENT)
    kill_children()
    pump.finish()
    if poster:
        poster.finish()
    shutil.rmtree(folder, ignore_errors=True)
    return code


def _wait(child: int, limit: float) -> int:
    """Wait for the node to end, forwarding the first SIGTERM or SIGINT; return the exit code."""
    kill_at: Optional[float] = None
    ended: Optional[int] = None  # the child's wait status; orphans are reaped on the way
    while True:
        timeout = 3600.0 if kill_at is None else max(0.0, kill_at - time.monotonic())
        got = signal.sigtimedwait(SIGNALS, timeout)
        with suppress(ChildProcessError):
            pid = -1
            while pid:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == child:
                    ended = status
        if ended is not None:
            break
        if got is not None and got.si_signo != signal.SIGCHLD and kill_at is None:
            os.kill(child, signal.SIGTERM)
            kill_at = time.monotonic() + limit
        if kill_at is not None and time.monotonic() >= kill_at:
            os.kill(child, signal.SIGKILL)
    stopped = kill_at is not None
    if os.WIFEXITED(ended):
        code = os.WEXITSTATUS(ended)
        # One node that ends with 0 makes a whole PyTorchJob succeed (elastic, 1.9), stopped or not.
        return exits.CANCELLED if stopped and code == exits.OK else code
    if stopped:
        return exits.CANCELLED
    number = os.WTERMSIG(ended)  # of a signal that wasn't requested
    text = "the node's agent was killed by %s" % signal.Signals(number).name
    code = 128 + number  # as a container reports it when its first process was killed
    error = Error("nbtorchjob.runtime.NodeKilled", text).to_json()
    emit("NodeFailed", node=node_index(), code=code, error=error)
    return code
