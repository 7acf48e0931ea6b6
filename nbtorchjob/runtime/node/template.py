"""The process that ranks are forked from: it has imported torch and done nothing else.

An agent that runs a rendezvous has threads, and a fork of a process with threads can hang. So the
agent forks this single-threaded template before it starts any, and Python's own forkserver protocol
then runs in it. A forkserver started the usual way would import torch again, 1.9 s on two cores.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from typing import Iterator, Optional

from nbtorchjob.runtime.facts.death import die_with_parent
from nbtorchjob.runtime.rank import fresh

_END_S = 1.0  # for the template to end, once its connection has
_SOCKET = "template.sock"


def start(folder: str) -> bool:
    """Fork the template and make the ``forkserver`` start method use it; return False if it can't.

    Its socket is in ``folder``, the node's own: whoever reaches it has code run, and multiprocessing's own
    choice is one that every user of the machine reaches (Python 3.10.0 to 3.10.8 and 3.11.0). The three
    attributes set here are private to CPython; where they are absent, the forkserver starts by itself when
    first used: slower, but correct.
    """
    server = getattr(forkserver, "_forkserver", None)
    names = ("_forkserver_address", "_forkserver_alive_fd", "_forkserver_pid")
    # 3.14 authenticates its clients with a key that the server reads from a pipe of its own.
    if sys.version_info >= (3, 14) or not all(hasattr(server, name) for name in names):
        return False
    listener = socket.socket(socket.AF_UNIX)
    os.fchmod(listener.fileno(), 0o600)
    # It stays open: by it the agent reaches the socket, as the folder's path may be longer than a socket's.
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    address = "/proc/self/fd/%d/%s" % (fd, _SOCKET)
    with suppress(FileNotFoundError):
        os.unlink(address)  # of an earlier attempt
    try:
        listener.bind(address)
    except OSError:  # a file system without sockets
        listener.close()
        os.close(fd)
        return False
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


@contextmanager
def telling_why() -> Iterator[None]:
    """Have a rank that can't be started fail with the template's own reason.

    Of a template that fails as it forks, its client sees no more than the end of a connection.
    """
    try:
        yield
    except (EOFError, ConnectionError) as exc:
        why = _end_of_template()
        if why is None:
            raise
        raise why from exc


def _end_of_template() -> Optional[OSError]:
    pid = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
    if pid is None:
        return None
    with suppress(ChildProcessError):  # multiprocessing has waited for it
        until = time.monotonic() + _END_S
        while time.monotonic() < until:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended and os.WIFSIGNALED(status):
                name = signal.Signals(os.WTERMSIG(status)).name
                return ChildProcessError("the process that starts ranks was ended by %s" % name)
            if ended:
                number = os.WEXITSTATUS(status)
                return OSError(number, "%s, as a rank was started" % os.strerror(number))
            time.sleep(0.005)
    return None


def _serve(listener: socket.socket, alive_r: int, alive_w: int) -> None:
    code = errno.EIO
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
    except OSError as exc:
        code = exc.errno or code
        raise
    finally:
        os._exit(code)
