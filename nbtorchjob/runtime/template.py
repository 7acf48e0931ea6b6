"""The process that ranks are forked from: it has imported torch and done nothing else.

An agent that runs a rendezvous has threads, and a fork of a process with threads can hang. So the
agent forks this single-threaded template before it starts any, and Python's own forkserver protocol
then runs in it. A forkserver started the usual way would import torch again, 1.9 s on two cores.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing import connection, forkserver

from . import fresh
from .death import die_with_parent


def start() -> bool:
    """Fork the template and make the ``forkserver`` start method use it; return False if it can't.

    The three attributes set here are private to CPython; where they are absent, the forkserver
    starts by itself when first used: slower, but correct.
    """
    server = getattr(forkserver, "_forkserver", None)
    names = ("_forkserver_address", "_forkserver_alive_fd", "_forkserver_pid")
    # 3.14 authenticates its clients with a key that the server reads from a pipe of its own.
    if sys.version_info >= (3, 14) or not all(hasattr(server, name) for name in names):
        return False
    listener = socket.socket(socket.AF_UNIX)
    address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    try:
        listener.bind(address)
    except OSError:  # TMPDIR is too long for a socket's path
        listener.close()
        return False
    if address and address[0] != "\0":
        os.chmod(address, 0o600)
    listener.listen()
    alive_r, alive_w = os.pipe()
    fresh.use_threads()
    pid = os.fork()
    if pid == 0:
        _serve(listener, alive_r, alive_w)
    os.close(alive_r)
    listener.close()
    for name, value in zip(names, (address, alive_w, pid)):
        setattr(server, name, value)
    return True


def end() -> None:
    """End the template, if there is one, while its agent ends: one after the other takes 4 ms longer."""
    pid = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _serve(listener: socket.socket, alive_r: int, alive_w: int) -> None:
    code = 1
    try:
        # Ranks hold the pipe open as well, so its end alone wouldn't reveal a killed agent.
        die_with_parent()
        os.close(alive_w)  # the server ends when its agent's end of this pipe is closed
        for fd in (listener.fileno(), alive_r):
            os.set_inheritable(fd, True)
        forkserver.main(listener.detach(), alive_r, [])
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 0
    finally:
        os._exit(code)
