"""Programs forked from a warm Python (``interpreter.py``), which imports torch once for all of them.

All workers of pytest share one warm Python for each executable.
"""

import atexit
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.patience import LIMIT

SERVER = Path(__file__).with_name("interpreter.py")
# Modules of torch and of the standard library that a node and its ranks import.
MODULES = (
    *("torch", "torch.distributed", "torch.multiprocessing.spawn"),
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    *("asyncio", "hashlib", "inspect", "multiprocessing.forkserver", "multiprocessing.popen_forkserver"),
    *("multiprocessing.synchronize", "runpy", "zipfile", "zipimport"),
)
# A rank's first optimizer imports it (2.13), for 2 s. Only images' pods train, so only their Python has it.
TRAINING = ("torch._dynamo",)
ANSWER = struct.Struct("<iii")  # as in ``interpreter.py``
ERROR = 0
# The variable with the path of the folder that pytest's workers share.
SHARED = "TESTS_WARM"
LIFE, LOCK = "life", "lock"


def share() -> None:
    """Make the folder that this process shares with its child processes, for as long as this one lives."""
    path = Path(tempfile.mkdtemp(prefix="warm-"))
    os.mkfifo(path / LIFE)
    life = os.open(path / LIFE, os.O_RDWR)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    atexit.register(os.close, life)  # its readers end now, or when this process is killed
    os.environ[SHARED] = str(path)


@contextlib.contextmanager
def making() -> Iterator[Path]:
    """Yield the shared folder, to add what it lacks: no other process does so meanwhile."""
    if SHARED not in os.environ:
        share()
    folder = Path(os.environ[SHARED])
    with open(folder / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@functools.cache
def _server(python: str) -> str:
    """Start the warm Python of an executable, unless it was started; return its socket."""
    modules = MODULES if python == sys.executable else MODULES + TRAINING
    with making() as folder:
        place = folder / hashlib.sha256(python.encode()).hexdigest()[:16]
        address = str(place / "socket")
        if not place.exists():
            place.mkdir()
            with open(folder / LIFE) as life:
                server = subprocess.Popen(
                    [python, str(SERVER), address, *modules],
                    stdin=life,
                    env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                    start_new_session=True,
                )
            server.returncode = 0  # nobody waits for it
    return address


def _connect(address: str) -> socket.socket:
    until = time.monotonic() + LIMIT
    while True:
        connection = socket.socket(socket.AF_UNIX)
        if connection.connect_ex(address) == 0:
            return connection
        connection.close()
        assert time.monotonic() < until, "the warm Python doesn't listen"
        time.sleep(0.01)


class Program:
    """A running program, started by the warm Python of the executable ``python``.

    Raises OSError if it can't be started. Once it has ended, :meth:`close` kills what it left.
    """

    def __init__(
        self,
        python: str,
        argv: Sequence[str | os.PathLike[str]],
        env: Mapping[str, str | os.PathLike[str]],
        cwd: str | os.PathLike[str],
        stdout: int,
        stderr: int | None = None,
    ) -> None:
        self.returncode: int | None = None
        self._connection = _connect(_server(python))
        words = {name: os.fspath(value) for name, value in env.items()}
        request = json.dumps(
            {"argv": [os.fspath(word) for word in argv], "env": words, "cwd": os.fspath(cwd)}
        ).encode()
        socket.send_fds(
            self._connection, [b"%16d" % len(request)], [stdout, stdout if stderr is None else stderr]
        )
        self._connection.sendall(request)
        kind, number, self._keeper = self._answer()
        if kind == ERROR:
            self.close()
            raise OSError(number, os.strerror(number))
        self.pid = number

    def fileno(self) -> int:
        """Return a file descriptor that is readable when the program has ended."""
        return self._connection.fileno()

    def poll(self) -> int | None:
        """Return the exit code, or the signal's negative number, if it has ended."""
        if self.returncode is None and select.select([self], [], [], 0)[0]:
            return self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for the end; return the same as :meth:`poll`."""
        if self.returncode is None:
            self._connection.settimeout(LIMIT)
            self.returncode = os.waitstatus_to_exitcode(self._answer()[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, if it runs."""
        self.send_signal(signal.SIGKILL)

    def left(self) -> list[int]:
        """Return the processes that it has left, itself included while it runs."""
        return [*_descendants(self._keeper)]

    def close(self) -> None:
        """Kill all that it left."""
        self._connection.close()

    def _answer(self) -> "tuple[int, int, int]":
        # One at a time: data that was read ahead would wake no selector.
        data = self._connection.recv(ANSWER.size, socket.MSG_WAITALL)
        if not data:
            raise ConnectionError("the warm Python is gone")
        answer: tuple[int, int, int] = ANSWER.unpack(data)
        return answer


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _descendants(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from _descendants(child)
