"""This machine's processes and devices: which process an id means, its locks, memory and limits.

A job has the limits (ulimit) of the kernel that submitted it, not the pool's. Devices are counted as
``torchrun`` does, but without torch.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import takewhile
from pathlib import Path

from nbtorchjob.frozen import FrozenDataclass


class Process(FrozenDataclass):
    """A process id with the time it started, in clock ticks since boot, and the boot it belongs to."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """Identify a running process; raises ``ProcessLookupError``."""
        return cls(pid, int(_stat(pid)[19]), _boot())

    @classmethod
    def of_this_boot(cls, pid: int, started: int) -> Process:
        """Identify a process of this boot by its id and start time."""
        return cls(pid, started, _boot())

    def alive(self) -> bool:
        """Whether this very process still runs."""
        try:
            fields = _stat(self.pid)
        except ProcessLookupError:
            return False
        return fields[0] not in "ZX" and int(fields[19]) == self.started and _boot() == self.boot

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


NOBODY = Process(0, 0, "")  # never alive


def of_group(leader: int) -> Iterator[int]:
    """Yield the processes of a group."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(ProcessLookupError, PermissionError):  # the latter for others' with hidepid=1
                if int(_stat(int(name))[2]) == leader:
                    yield int(name)


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state (the third) on."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # a quarter of a Path's time
            text = file.read().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(pid) from None
    return text.rpartition(")")[2].split()


_locks: set[Lock] = set()


class Lock:
    """A file that this process locks until it releases it or ends.

    A fork, such as a worker of multiprocessing, inherits the lock and may outlive its kernel, so it gives up
    its copy.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _locks.add(self)

    def take(self, *, shared: bool = False, wait: bool = True) -> bool:
        """Lock it, alone or with others that share it; return whether that was possible without ``wait``."""
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._file, how if wait else how | fcntl.LOCK_NB)
        except OSError:  # others have it, or the file system has no locks
            if wait:
                raise
            return False
        return True

    def release(self) -> None:
        """Release it for others."""
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # a program that is just being started may still have it
            self.close()

    def close(self) -> None:
        """Close the file in this process only: the process that it was forked from keeps its lock."""
        _locks.discard(self)
        file, self._file = self._file, -1
        os.close(file)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Be the only process that has locked a file.

    Raises ``OSError`` if another one has and ``wait`` is False, or if there are no locks.
    """
    lock = Lock(path)
    try:
        if not lock.take(wait=wait):
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(path))
        yield
    finally:
        lock.release()


def _give_up_locks() -> None:
    for lock in tuple(_locks):
        lock.close()


os.register_at_fork(after_in_child=_give_up_locks)


_HUGE = 2 << 20  # bytes; of x86-64, and of arm64 with pages of 4 KiB
_MADV_COLLAPSE = 25
_RESERVED = 8  # files; removing a folder takes two for each level


def merge() -> None:
    """Move this process's memory into huge pages; does nothing if the kernel can't (Linux before 6.1).

    A fork of a process with torch and torch._dynamo in it, 220 MiB, then takes 1.5 ms instead of 7, and its
    end 4 instead of 11.
    """
    import ctypes  # late: only a pool asks for it

    libc = ctypes.CDLL(None)
    for start, end in _anonymous():
        for at in range(start, end, _HUGE):
            libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE)


def _anonymous() -> Iterator[tuple[int, int]]:
    """Yield the ranges of writable memory without a file that huge pages can cover."""
    with suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps.read().splitlines():
            addresses, permissions, _, _, inode, *_ = line.split()
            if permissions == "rw-p" and inode == "0":
                start, end = (int(address, 16) for address in addresses.split("-"))
                yield -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE


def of_this_process() -> dict[str, list[int]]:
    """Return this process's resource limits by name, each as soft and hard limit, as its user set them."""
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    limits = {name: list(resource.getrlimit(getattr(resource, name))) for name in names}  # lists, as in JSON
    # A limit that was set since then is the user's own.
    user_limits = {name: before for name, before in _raised.items() if limits[name] == [before[1], before[1]]}
    return {**limits, **user_limits}


_raised: dict[str, list[int]] = {}  # what limits were before they were raised here


def raise_open_files() -> None:
    """Raise this process's soft limit of open files, which exists for ``select``, to the hard one.

    Only for programs of ours, never for a user's: what they start, except jobs, inherits the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        _raised.setdefault("RLIMIT_NOFILE", [soft, hard])
        with suppress(ValueError, OSError):  # a hard limit beyond the system's own (fs.nr_open)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_open_files() -> int:
    """Return how many files this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def take(limits: Mapping[str, Sequence[int]]) -> None:
    """Set other limits for this process, as far as its own permit."""
    for name, (soft, hard) in limits.items():
        number = getattr(resource, name)
        with suppress(ValueError, PermissionError):
            resource.setrlimit(number, (soft, hard))
            continue
        most = _least(hard, resource.getrlimit(number)[1])
        resource.setrlimit(number, (_least(soft, most), most))


def _least(first: int, second: int) -> int:
    return min(first, second, key=lambda limit: math.inf if limit == resource.RLIM_INFINITY else limit)


@contextmanager
def files_in_reserve() -> Iterator[Callable[[], None]]:
    """Hold files open, and yield a function that closes them: tidying up after running out can use these.

    Raises ``OSError`` if this process may not open that many.
    """
    descriptors: list[int] = []

    def release() -> None:
        while descriptors:
            os.close(descriptors.pop())

    try:
        for _ in range(_RESERVED):
            descriptors.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        yield release
    finally:
        release()


VISIBLE = "CUDA_VISIBLE_DEVICES"


def cores() -> int:
    """Return how many CPU cores there are."""
    return os.cpu_count() or 1


def gpus() -> int:
    """Return how many NVIDIA GPUs this process may use."""
    return len(device_names())


def device_names(visible: str | None = None) -> tuple[str, ...]:
    """Return the names of the NVIDIA GPUs in ``visible``, or else of those that the environment leaves.

    As torch reads it, no GPU follows the first word that names none, and there is none at all if one is named
    twice. A container has device files only for its own GPUs.
    """
    visible = os.environ.get(VISIBLE) if visible is None else visible
    if visible is not None:
        names_gpu = re.compile(visible.strip()[:4] if visible.strip()[:4] in ("GPU-", "MIG-") else r"\+?\d")
        names = [*takewhile(names_gpu.match, (name.strip() for name in visible.split(",")))]
        return tuple(names) if len({*names}) == len(names) else ()
    number = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in os.listdir("/dev"))
    return tuple(map(str, range(number)))
