"""What a node's ranks do and use at one moment, as data: where each stands, in which collective, and GPUs.

Written by a node, read at home. Source lines are texts as the node knew them; nothing here is a pickle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nbtorchjob.runtime.facts.errors import Frame

# How a rank was found. RUNS: it told by itself. BUSY: it couldn't, as something in C held Python's lock; its
# frames were read from outside, without their source lines. STOPPED: by SIGSTOP or a debugger, so that
# nothing in it can run; there are no frames.
RUNS, BUSY, STOPPED, BEGINS, ENDED, UNKNOWN = "runs", "busy", "stopped", "begins", "ended", "unknown"
HELD = "held"  # it told by itself, and waits for somebody in the debugger
HAS_RETURNED = "it has returned"  # the note of one that has, and waits for the others to

MAX_BYTES = 1 << 16  # of one rank's sample as JSON: the outermost frames of the last threads are left out
MAX_THREADS = 16  # of a rank: main, and the newest
MAX_CALLS = 16  # of a group: the last ones
MAX_GROUPS = 64  # of a rank: those that a call is pending in first, then the last used


@dataclass(frozen=True)
class Collective:
    """One call of a collective on a rank, as torch's flight recorder has it.

    ``seq`` counts the calls in the group, from 1, and is the same on every rank that takes part. ``since`` is
    when the rank called it, in seconds since the epoch; ``timeout`` is in seconds. ``peer`` is the other
    rank (of the whole job) of a send or a receive, which is counted apart; None for a collective, or where
    that isn't known.
    """

    seq: int
    op: str  # "all_reduce"
    since: float
    done: bool
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    timeout: float = 0.0
    p2p: bool = False
    peer: int | None = None


@dataclass(frozen=True)
class Group:
    """A process group that a rank is in: the ranks of the whole job in it, and its last calls, in order.

    Of one that it has left no ranks are known, and none of its calls is pending.
    """

    name: str
    ranks: tuple[int, ...]
    calls: tuple[Collective, ...] = ()
    backend: str = ""
    label: str = ""  # what the code calls it, if anything: "mesh_dp"

    @property
    def left(self) -> bool:
        """Whether the rank has left it."""
        return not self.ranks


@dataclass(frozen=True)
class Thread:
    """A thread, and its frames, the outermost first.

    Of a call of torch.distributed that it is in, ``given`` has what must go with what other ranks give: the
    ``group``'s name, the ranks (of the whole job) ``src`` and ``dst``, the ``op`` of a reduction, a ``tag``.
    """

    name: str
    frames: tuple[Frame, ...]
    given: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class RankSample:
    """What a rank was doing: ``state`` is one of the words above; its main thread comes first."""

    rank: int
    state: str
    pid: int = 0
    threads: tuple[Thread, ...] = ()
    groups: tuple[Group, ...] = ()
    note: str = ""  # what couldn't be had, and why, in one line

    def to_json(self) -> dict[str, Any]:
        """Return what :class:`nbtorchjob.state.facts.events.Sampled` is made from."""
        return asdict(self)


@dataclass(frozen=True)
class RankUse:
    """What one rank uses: seconds of CPU time since it began, bytes, and threads (the kernel's tasks).

    ``running`` are those of them that had something to compute at that moment, ``worked`` those that have had
    since it was told last: threads that share work wait for each other now and then.
    """

    rank: int
    cpu: float
    resident: int
    tasks: int
    running: int
    worked: int = 0


@dataclass(frozen=True)
class GpuUse:
    """What is used of one GPU: bytes, and the seconds in which something ran on it while it was watched."""

    index: int
    busy: float
    watched: float
    memory: int
    limit: int
    model: str = ""
