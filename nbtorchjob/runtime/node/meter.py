"""What a node's ranks use of their machine, reported now and then: memory, CPU, /dev/shm, GPUs.

It is measured once a second, beside the node's heartbeat, within a tenth of a millisecond. It is reported
rarely, and for a short job never. Numbers that only grow (CPU seconds, seconds in which a GPU was busy) stay
right if some of these reports are dropped later.

GPUs are read through NVML, the library that comes with NVIDIA's driver: no package is needed.
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
    """One GPU: the percentage of the last second in which it was busy, and bytes of its memory."""

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
    """The library, initialized; ``calls`` are its functions, which return 0 on success."""

    def __init__(self, calls: Any) -> None:
        self._calls = calls

    def read(self) -> List[Reading]:
        """Return a reading of each GPU that ranks see by number; one that can't be read is left out."""
        count = ctypes.c_uint()
        if self._calls.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        indices: Iterable[int] = range(min(count.value, _MOST))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        # Names of other kinds (UUIDs) aren't resolved here: then all GPUs are read.
        if visible is not None and not any(word.isalpha() for word in visible):
            # As CUDA reads it: everything from the first invalid number on is ignored, and "" means no GPU.
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
    """Return the library; None if it or its driver is missing."""
    try:
        calls = ctypes.CDLL(name)
        return None if calls.nvmlInit_v2() else Nvml(calls)
    except (OSError, AttributeError):
        return None


_FIRST, EVERY = 5.0, 10.0  # seconds
_GPUS_FROM = 3.0  # seconds; loading the driver's library takes a moment, too
# Fractions of the memory's limit: a rise that is reported at once, and a smaller one when nearly full.
_RISE, _FULL, _SMALL_RISE = 0.05, 0.75, 0.01
_WORKED = 0.02  # of the time: a thread that ran for less hasn't worked
_MAX_TASKS = 512  # threads of a rank that are looked at
_MAX_LINES = 32  # of /proc/cpuinfo for one CPU


class Roots(NamedTuple):
    """Where the kernel describes processes, cgroups and shared memory."""

    proc: str = "/proc"
    cgroup: str = "/sys/fs/cgroup"
    shm: str = "/dev/shm"


HERE = Roots()


class Meter:
    """Measures one node; :meth:`look` is to be called every second, and doesn't block."""

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
        self._began = self._reported_at = clock()
        self._seq = 0
        self._ticks: Dict[int, Dict[str, int]] = {}  # by rank: each thread's CPU time at the last report
        self._memory: Optional[Memory] = None
        self._last = 0  # bytes of memory, as last reported, or as first seen

    def begin(self, round_: int, pids: Mapping[int, int]) -> None:
        """Measure these processes from now on, by rank: a round has begun."""
        self._ranks = {}  # another thread may be in ``look``
        self._began = self._reported_at = self._clock()
        self._memory, self._last, self._seq, self._ticks = None, 0, 0, {}
        self._round = round_
        self._ranks = dict(pids)

    def look(self) -> None:
        """Measure what is used, and report it if that is due."""
        with suppress(Exception):  # the kernel's files may contain anything; that mustn't end a job
            if self._ranks:
                now = self._clock()
                if now - self._began >= _GPUS_FROM:
                    self._gpus.watch()
                self._memory = self._memory or Memory(self._roots)
                used, limit = self._memory.read()
                self._last = self._last or used
                due = now - self._reported_at >= (self.every if self._seq else _FIRST)
                least = _SMALL_RISE if used > _FULL * limit else _RISE
                if due or used - self._last > least * limit:
                    uses = [*self._uses(_WORKED * (now - self._reported_at))]
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
                    self._reported_at, self._last = now, used
                    self._seq += 1

    def _uses(self, least: float) -> Iterator[RankUse]:
        for rank, pid in self._ranks.items():
            with suppress(OSError):  # it has ended
                folder = os.path.join(self._roots.proc, str(pid))
                yield rank_use(rank, folder, self._ticks.setdefault(rank, {}), least)


def rank_use(rank: int, folder: str, last_ticks: Dict[str, int], least: float) -> RankUse:
    """Return what the process whose folder in /proc this is uses.

    ``last_ticks`` holds the CPU time of its threads at the last call, and is updated; a thread has worked if
    that grew by more than ``least`` seconds.
    """
    fields = _stat(os.path.join(folder, "stat"))
    tasks = os.path.join(folder, "task")
    second, running, ticks = os.sysconf("SC_CLK_TCK"), 0, {}
    for task in os.listdir(tasks)[:_MAX_TASKS]:
        with suppress(OSError):
            of = _stat(os.path.join(tasks, task, "stat"))
            running += of[0] == "R"
            ticks[task] = int(of[11]) + int(of[12])
    worked = sum(ticks[task] - last_ticks.get(task, 0) > least * second for task in ticks)
    last_ticks.clear()
    last_ticks.update(ticks)
    seconds = (int(fields[11]) + int(fields[12])) / second
    resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return RankUse(rank, seconds, resident, int(fields[17]), running, worked)


def _stat(path: str) -> List[str]:
    """Return the fields of proc(5) from the state on: the name before it may contain anything."""
    return _read(path).rpartition(")")[2].split()


def _read(path: str) -> str:
    with open(path, errors="replace") as file:  # the kernel cuts a process's name at 15 bytes
        return file.read()


class Memory:
    """The memory of the cgroup that will be full first, or of the machine if no cgroup has a limit."""

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
        """Return how many bytes are used, and how many may be used."""
        pairs = [self._machine()]
        for folder in self._folders:
            limit = self._limit_of(folder)
            if limit:
                # As the kubelet counts: the kernel drops inactive file pages before it kills a process.
                stat = dict(line.split() for line in _read(os.path.join(folder, "memory.stat")).splitlines())
                used = int(_read(os.path.join(folder, self._current))) - int(stat.get(self._inactive, 0))
                pairs.append((max(0, used), limit))
        return min(pairs, key=lambda pair: pair[1] - pair[0])

    def _limit_of(self, folder: str) -> int:
        """Return a cgroup's limit; 0 if it has none."""
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
    """Return how many CPU cores this process may use, by its affinity or a smaller quota of its cgroup."""
    limits = [float(len(os.sched_getaffinity(0)))]
    version, folders = cgroups(roots, "cpu")
    for folder in folders:
        with suppress(OSError, ValueError):  # no such file; "max"
            if version == 2:
                quota, period = _read(os.path.join(folder, "cpu.max")).split()
            else:
                quota, period = (_read(os.path.join(folder, "cpu.cfs_%s_us" % name)) for name in _CFS)
            if int(quota) > 0:
                limits.append(int(quota) / int(period))
    return min(limits)


def cpu(roots: Roots = HERE) -> str:
    """Return the model of the machine's CPU; "" if the kernel doesn't name it."""
    with suppress(OSError), open(os.path.join(roots.proc, "cpuinfo")) as file:
        for line in islice(file, _MAX_LINES):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


_CFS = ("quota", "period")


def cgroups(roots: Roots, controller: str) -> Tuple[int, List[str]]:
    """Return the version of a controller's cgroups, and the folders of this process's cgroup and its parents.

    In a container their paths may be those of the host, which don't exist there: then only the root remains.
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
    """Return how many bytes of a file system are used, and its size."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0, 0
    return (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_blocks * status.f_frsize


class Gpus:
    """The GPUs' use, read by a separate thread: a driver may hang, a node's heartbeat mustn't."""

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
        """Begin to watch the GPUs, once; without the driver's library there is nothing to watch."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="gpus")
            self._thread.start()

    def _watch(self) -> None:
        with suppress(Exception):
            library = self._library()
            while library is not None:
                uses = {}
                for reading in library.read():
                    previous = self._uses.get(reading.gpu)
                    busy, watched = (previous.busy, previous.watched) if previous is not None else (0.0, 0.0)
                    busy += self._every * reading.percent / 100
                    uses[reading.gpu] = GpuUse(
                        reading.gpu, busy, watched + self._every, reading.used, reading.total, reading.model
                    )
                self._uses = uses
                time.sleep(self._every)
