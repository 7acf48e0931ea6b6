"""What a node's ranks use of their machine, told now and then: memory, CPU, /dev/shm, GPUs.

It is looked at beside the node's sign of life, once a second and for a tenth of a millisecond. It is told of
rarely: of a short job never. Numbers that only grow (CPU seconds, seconds in which a GPU was busy) stay right
where some of what was told is left out later.

What NVIDIA's driver tells of its GPUs by its library NVML, which comes with it: no package is needed.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from itertools import islice, takewhile
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from nbtorchjob.runtime.facts import emit
from nbtorchjob.runtime.facts.samples import GpuUse, RankUse

_NAME = "libnvidia-ml.so.1"
_MOST = 64  # GPUs of a node
_NAME_BYTES = 96


class Reading(NamedTuple):
    """One GPU: how much of the last second something ran on it, and bytes of its memory."""

    gpu: int
    percent: int
    used: int
    total: int
    model: str


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """The library, initialized; ``calls`` are its functions, which return 0 when they could do it."""

    def __init__(self, calls: Any) -> None:
        self._calls = calls

    def read(self) -> List[Reading]:
        """Return a reading of each GPU that ranks see by number; one that can't be read is left out."""
        count = ctypes.c_uint()
        if self._calls.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        indices: Iterable[int] = range(min(count.value, _MOST))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        # Names of other kinds (UUIDs) are NVML's to resolve: then all are read.
        if visible is not None and not any(word.isalpha() for word in visible):
            # As CUDA reads it: what comes behind a number that can't be is ignored, and nothing means no GPU.
            numbers = takewhile(str.isdigit, (name.strip() for name in visible.split(",")))
            indices = sorted({*indices}.intersection(map(int, numbers)))
        return [reading for reading in map(self._read, indices) if reading is not None]

    def _read(self, index: int) -> Optional[Reading]:
        device, use, memory = ctypes.c_void_p(), _Utilization(), _Memory()
        name = ctypes.create_string_buffer(_NAME_BYTES)
        if (
            self._calls.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
            or self._calls.nvmlDeviceGetUtilizationRates(device, ctypes.byref(use))
            or self._calls.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
            or self._calls.nvmlDeviceGetName(device, name, len(name))
        ):
            return None
        model = name.value.decode(errors="replace")
        return Reading(index, min(use.gpu, 100), memory.used, memory.total, model)


def load(name: str = _NAME) -> Optional[Nvml]:
    """Return the library; None where there is none, or no driver that it could ask."""
    try:
        calls = ctypes.CDLL(name)
        return None if calls.nvmlInit_v2() else Nvml(calls)
    except (OSError, AttributeError):
        return None


_FIRST, EVERY = 5.0, 10.0  # seconds
_GPUS_FROM = 3.0  # seconds; to load the driver's library takes a moment, too
# Of the memory's limit: a rise that is told of at once, and, where it is nearly full, a smaller one.
_RISE, _FULL, _SMALL_RISE = 0.05, 0.75, 0.01
_WORKED = 0.02  # of the time: less isn't work
_MAX_TASKS = 512  # threads of a rank that are looked at
_MAX_LINES = 32  # of one CPU


class Roots(NamedTuple):
    """Where the kernel tells of processes, cgroups and shared memory."""

    proc: str = "/proc"
    cgroup: str = "/sys/fs/cgroup"
    shm: str = "/dev/shm"


HERE = Roots()


class Meter:
    """Looks at one node; :meth:`look` is to be called every second, and waits for nothing."""

    def __init__(
        self,
        node: int,
        roots: Roots = HERE,
        clock: Callable[[], float] = time.monotonic,
        library: Callable[[], Optional[Nvml]] = load,
    ) -> None:
        self.every = EVERY
        self._node = node
        self._roots = roots
        self._clock = clock
        self._gpus = Gpus(library)
        self._round = -1
        self._ranks: Mapping[int, int] = {}
        self._began = self._told = clock()
        self._seq = 0
        self._ticks: Dict[int, Dict[str, int]] = {}  # of CPU time of each thread when last told, by rank
        self._memory: Optional[Memory] = None
        self._last = 0  # bytes of memory, as last told, or as first seen

    def begin(self, round_: int, pids: Mapping[int, int]) -> None:
        """Look at these processes from now on, by rank: a round has begun."""
        self._ranks = {}  # another thread may be looking
        self._began = self._told = self._clock()
        self._memory, self._last, self._seq, self._ticks = None, 0, 0, {}
        self._round = round_
        self._ranks = dict(pids)

    def look(self) -> None:
        """Look, and tell what is used if it is time for that."""
        with suppress(Exception):  # the kernel's files may say anything; a job isn't ended over that
            if self._ranks:
                now = self._clock()
                if now - self._began >= _GPUS_FROM:
                    self._gpus.watch()
                self._memory = self._memory or Memory(self._roots)
                used, limit = self._memory.read()
                self._last = self._last or used
                due = now - self._told >= (self.every if self._seq else _FIRST)
                least = _SMALL_RISE if used > _FULL * limit else _RISE
                if due or used - self._last > least * limit:
                    uses = [*self._uses(_WORKED * (now - self._told))]
                    if not uses:
                        return
                    shm, shm_limit = _filled(self._roots.shm)
                    emit(
                        "Used",
                        node=self._node,
                        round=self._round,
                        seq=self._seq,
                        cores=cores(self._roots),
                        model=cpu(self._roots),
                        memory=used,
                        limit=limit,
                        shm=shm,
                        shm_limit=shm_limit,
                        uses=[asdict(use) for use in uses],
                        gpus=[asdict(use) for use in self._gpus.uses],
                    )
                    self._told, self._last = now, used
                    self._seq += 1

    def _uses(self, least: float) -> Iterator[RankUse]:
        for rank, pid in self._ranks.items():
            with suppress(OSError):  # it has ended
                folder = os.path.join(self._roots.proc, str(pid))
                yield rank_use(rank, folder, self._ticks.setdefault(rank, {}), least)


def rank_use(rank: int, folder: str, known: Dict[str, int], least: float) -> RankUse:
    """Return what the process of that folder in /proc uses.

    ``known`` is what CPU time its threads had taken before, and then what they have now; a thread that worked
    has more than ``least`` seconds more.
    """
    fields = _stat(os.path.join(folder, "stat"))
    tasks = os.path.join(folder, "task")
    second, running, ticks = os.sysconf("SC_CLK_TCK"), 0, {}
    for task in os.listdir(tasks)[:_MAX_TASKS]:
        with suppress(OSError):
            of = _stat(os.path.join(tasks, task, "stat"))
            running += of[0] == "R"
            ticks[task] = int(of[11]) + int(of[12])
    worked = sum(ticks[task] - known.get(task, 0) > least * second for task in ticks)
    known.clear()
    known.update(ticks)
    seconds = (int(fields[11]) + int(fields[12])) / second
    resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return RankUse(rank, seconds, resident, int(fields[17]), running, worked)


def _stat(path: str) -> List[str]:
    """Return the fields of proc(5) from the state on: before it is a name that may hold anything."""
    return _read(path).rpartition(")")[2].split()


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


class Memory:
    """The memory of the cgroup that will be full first, or of the machine where none has a limit."""

    def __init__(self, roots: Roots = HERE) -> None:
        self._proc = roots.proc
        version, folders = cgroups(roots, "memory")
        names = ("memory.max", "memory.current", "inactive_file")
        if version == 1:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        self._limit, self._current, self._inactive = names
        self._total = self._machine()[1]
        self._folders = [folder for folder in folders if self._limit_of(folder)]

    def read(self) -> Tuple[int, int]:
        """Return how many bytes are used, and how many may be."""
        pairs = [self._machine()]
        for folder in self._folders:
            limit = self._limit_of(folder)
            if limit:
                # As the kubelet counts: pages of files that were read long ago go before a process is killed.
                stat = dict(line.split() for line in _read(os.path.join(folder, "memory.stat")).splitlines())
                used = int(_read(os.path.join(folder, self._current))) - int(stat.get(self._inactive, 0))
                pairs.append((max(0, used), limit))
        return min(pairs, key=lambda pair: pair[1] - pair[0])

    def _limit_of(self, folder: str) -> int:
        """Return a cgroup's limit; 0 for one that has none."""
        try:
            limit = int(_read(os.path.join(folder, self._limit)))
        except (OSError, ValueError):  # "max"
            return 0
        return limit if limit < self._total else 0

    def _machine(self) -> Tuple[int, int]:
        lines = (line.split() for line in _read(os.path.join(self._proc, "meminfo")).splitlines())
        kilobytes = {words[0]: int(words[1]) for words in lines if len(words) > 1}
        total = kilobytes["MemTotal:"]
        return 1024 * (total - kilobytes["MemAvailable:"]), 1024 * total


def cores(roots: Roots = HERE) -> float:
    """Return how many CPU cores this process may use: its affinity's, or its cgroup's smaller quota."""
    limits = [float(len(os.sched_getaffinity(0)))]
    version, folders = cgroups(roots, "cpu")
    for folder in folders:
        with suppress(OSError, ValueError):  # no such file; "max"
            if version == 2:
                quota, period = _read(os.path.join(folder, "cpu.max")).split()
            else:
                quota, period = (_read(os.path.join(folder, "cpu.cfs_%s_us" % what)) for what in _CFS)
            if int(quota) > 0:
                limits.append(int(quota) / int(period))
    return min(limits)


def cpu(roots: Roots = HERE) -> str:
    """Return the model of the machine's CPU, as far as the kernel tells it."""
    with suppress(OSError), open(os.path.join(roots.proc, "cpuinfo")) as file:
        for line in islice(file, _MAX_LINES):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


_CFS = ("quota", "period")


def cgroups(roots: Roots, controller: str) -> Tuple[int, List[str]]:
    """Return the version of a controller's cgroups, and the folders of this process's one and those above.

    In a container they lie below paths of the host that aren't there: then only the root is its own.
    """
    version, path, root = 2, "/", roots.cgroup
    with suppress(OSError):
        for line in _read(os.path.join(roots.proc, "self", "cgroup")).splitlines():
            _, controllers, below = line.split(":", 2)
            if controller in controllers.split(","):
                version, path, root = 1, below, os.path.join(roots.cgroup, controller)
                break
            if not controllers:
                path = below
    names = [name for name in os.path.normpath("/" + path.replace("..", "")).split("/") if name]
    folders = [os.path.join(root, *names[:many]) for many in range(len(names), -1, -1)]
    return version, [folder for folder in folders if os.path.isdir(folder)]


def _filled(folder: str) -> Tuple[int, int]:
    """Return how many bytes of a file system are used, and how many it has."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0, 0
    return (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_blocks * status.f_frsize


class Gpus:
    """The GPUs' use, read by a thread of their own: a driver may hang, a node's sign of life mustn't."""

    def __init__(self, library: Callable[[], Optional[Nvml]], every: float = 1.0) -> None:
        self._library = library
        self._every = every
        self._thread: Optional[threading.Thread] = None
        self._uses: Dict[int, GpuUse] = {}

    @property
    def uses(self) -> Tuple[GpuUse, ...]:
        """The newest reading of each GPU."""
        return tuple(self._uses.values())

    def watch(self) -> None:
        """Begin to watch them, once; without the driver's library there is nothing to watch."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="gpus")
            self._thread.start()

    def _watch(self) -> None:
        with suppress(Exception):
            library = self._library()
            while library is not None:
                uses = {}
                for reading in library.read():
                    known = self._uses.get(reading.gpu)
                    busy, watched = (known.busy, known.watched) if known is not None else (0.0, 0.0)
                    busy += self._every * reading.percent / 100
                    uses[reading.gpu] = GpuUse(
                        reading.gpu, busy, watched + self._every, reading.used, reading.total, reading.model
                    )
                self._uses = uses
                time.sleep(self._every)
