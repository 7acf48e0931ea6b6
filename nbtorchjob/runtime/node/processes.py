"""The processes of a node's ranks: how they are forked, return, and are watched.

They are forked from a template, a process that has imported torch and done nothing else. An agent that runs a
rendezvous has threads, and a fork of a process with threads can hang. So the agent forks this single-threaded
template before it starts any threads, and Python's own forkserver protocol then runs in it. A forkserver
started the usual way would import torch again, 1.9 s on two cores.

Ranks tell their agent that they returned, and wait for the others, through pipes, which need no /dev/shm.
torch uses multiprocessing's queues and events for that, whose locks are named semaphores: files in /dev/shm,
which may be read-only or full. ``torchrun`` needs none for the programs that it starts. Each queue here has
one writer and one reader, so it needs no lock, and no dead rank can hold one.

A watchdog thread ends an agent whose main thread is stuck, when nothing else can.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver
from typing import Any, Callable, Iterator, NoReturn, Optional, Sequence

from torch.distributed.elastic import multiprocessing as elastic

from nbtorchjob.runtime.facts.death import die_with_parent
from nbtorchjob.runtime.rank import fresh


class Queue:
    """Brings one rank's objects to the agent, in place of ``multiprocessing.SimpleQueue``."""

    def __init__(self) -> None:
        self._reader, self._writer = connection.Pipe(duplex=False)

    def __getstate__(self) -> Any:
        return self._writer

    def __setstate__(self, writer: Any) -> None:
        self._writer = writer

    def put(self, value: Any) -> None:
        """Send an object to the agent."""
        self._writer.send(value)

    def empty(self) -> bool:
        """Whether :meth:`get` would wait."""
        return not self._reader.poll()

    def get(self) -> Any:
        """Wait for the next object."""
        return self._reader.recv()


class Event:
    """Is set once by the agent and awaited by its ranks, in place of ``multiprocessing.Event``."""

    def __init__(self) -> None:
        self._reader, self._writer = connection.Pipe(duplex=False)

    def __getstate__(self) -> Any:
        return self._reader

    def __setstate__(self, reader: Any) -> None:
        self._reader = reader

    def set(self) -> None:
        """Release all ranks that wait."""
        self._writer.send_bytes(b"1")

    def wait(self) -> None:
        """Wait until it is set or the agent has ended; the byte stays in the pipe for the other ranks."""
        self._reader.poll(None)


def use_pipes() -> None:
    """Have torch's agent use these queues and events for its ranks."""
    elastic.MultiprocessContext = _Processes


class _Processes(elastic.MultiprocessContext):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Only while torch creates its own: a rank forked from here gets multiprocessing's unchanged context.
        context: Any = multiprocessing.get_context(kwargs["start_method"])
        context.SimpleQueue, context.Event = Queue, Event
        try:
            super().__init__(*args, **kwargs)
        finally:
            del context.SimpleQueue, context.Event


LIMIT_S = 10.0  # from the death of all ranks to the agent's end, if torch doesn't notice it


class Watchdog:
    """Calls ``stuck`` when torch polls ranks that are all dead, and doesn't return from the call.

    torch waits without limit for a lock that a dead rank held, or for that rank's value.
    ``every_second`` is called from the same thread, which never blocks.
    """

    def __init__(self, stuck: Callable[[], None], every_second: Callable[[], None]) -> None:
        self._stuck = stuck
        self._every_second = every_second
        self._call: Any = None  # what torch polls in the current call
        threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def over(self, pids: Sequence[int]) -> Iterator[None]:
        """Watch a call to torch that polls the processes ``pids``."""
        self._call = list(pids)
        try:
            yield
        finally:
            self._call = None

    def _watch(self) -> None:
        dead, seconds = None, 0.0
        while True:
            time.sleep(1)
            self._every_second()
            call = self._call
            if not call or any(alive(pid) for pid in call):
                dead, seconds = None, 0.0
            else:
                dead, seconds = call, seconds + 1 if call is dead else 0.0
            if seconds >= LIMIT_S:
                self._stuck()
                return


def alive(pid: int) -> bool:
    """Whether a process exists and isn't a zombie."""
    try:
        os.kill(pid, 0)
        with open("/proc/%d/stat" % pid, errors="replace") as file:  # a name may be cut within a character
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (ProcessLookupError, FileNotFoundError):
        return False
    except OSError:  # no /proc: only the signal's answer counts
        return True


_END_S = 1.0  # for the template to end, once its connection is closed
_SOCKET = "template.sock"


def start_template(folder: str) -> bool:
    """Fork the template and make the ``forkserver`` start method use it; return False if it can't.

    Its socket is in the node's private ``folder``: any process that can connect can run code, and the default
    socket of multiprocessing is open to every user of the machine (Python 3.10.0 to 3.10.8 and 3.11.0). The
    three attributes set here are private to CPython; if they are absent, the forkserver starts by itself when
    first used: slower, but correct.
    """
    server = getattr(forkserver, "_forkserver", None)
    names = ("_forkserver_address", "_forkserver_alive_fd", "_forkserver_pid")
    # 3.14 authenticates its clients with a key that the server reads from another pipe.
    if sys.version_info >= (3, 14) or not all(hasattr(server, name) for name in names):
        return False
    listener = socket.socket(socket.AF_UNIX)
    os.fchmod(listener.fileno(), 0o600)
    # It stays open: the agent connects through it, as the folder's path may be too long for a socket.
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    address = "/proc/self/fd/%d/%s" % (fd, _SOCKET)
    with suppress(FileNotFoundError):
        os.unlink(address)  # left by an earlier attempt
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


def _serve(listener: socket.socket, alive_r: int, alive_w: int) -> NoReturn:
    """Be the template, until its agent's end of the pipe is closed."""
    code = errno.EIO
    try:
        # Ranks hold the pipe open as well, so a killed agent wouldn't close it.
        die_with_parent()
        os.close(alive_w)
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


def end_template() -> None:
    """End the template, if there is one, while its agent ends: one after the other takes 4 ms longer."""
    pid = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def telling_why() -> Iterator[None]:
    """Have a rank that can't be started fail with the template's own reason.

    When a template fails to fork, its client sees only a closed connection.
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
