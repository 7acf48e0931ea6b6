"""What a node's ranks do and use at one moment, as data: stacks, collectives, CPU, memory and GPUs.

Written by a node, read by the client. Source lines are text, as the node had them; nothing here is a pickle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nbtorchjob.runtime.facts.errors import Frame

# The state of a rank. RUNS: it answered by itself. BUSY: it couldn't, as something in C held Python's lock;
# its frames were read from outside, without their source lines. STOPPED: by SIGSTOP or a debugger, so that
# nothing in it can run; there are no frames.
RUNS, BUSY, STOPPED, BEGINS, ENDED, UNKNOWN = "runs", "busy", "stopped", "begins", "ended", "unknown"
HELD = "held"  # it answered by itself, and waits in the debugger for a user
HAS_RETURNED = "it has returned"  # the note of a rank that has, and waits for the others

MAX_BYTES = 1 << 16  # of one rank's sample as JSON: the outermost frames of the last threads are left out
MAX_THREADS = 16  # of a rank: main, and the newest
MAX_CALLS = 16  # of a group: the last ones
MAX_GROUPS = 64  # of a rank: those with a pending call first, then the last used


@dataclass(frozen=True)
class Collective:
    """One call of a collective on a rank, from torch's flight recorder.

    ``seq`` counts the calls in the group, from 1, and is the same on every rank that takes part. ``since`` is
    when the rank called it, in seconds since the epoch; ``timeout`` is in seconds. ``peer`` is the other
    rank (of the whole job) of a send or a receive, which are counted apart; None for a collective, or if
    unknown.
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
    """A process group that a rank is in: its ranks, as ranks of the whole job, and its last calls, in order.

    For a group that the rank has left, no ranks are known, and no call is pending.
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
    """A thread, and its frames, outermost first.

    If it is in a call of torch.distributed, ``given`` has the arguments that must match those of other ranks:
    the ``group``'s name, the ranks (of the whole job) ``src`` and ``dst``, the ``op`` of a reduction and a
    ``tag``.
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
    note: str = ""  # what is missing, and why, in one line

    def to_json(self) -> dict[str, Any]:
        """Return what :class:`nbtorchjob.state.facts.events.Sampled` is made from."""
        return asdict(self)


@dataclass(frozen=True)
class RankUse:
    """What one rank uses: seconds of CPU time since it began, bytes, and threads (the kernel's tasks).

    ``running`` counts the threads that were computing at that moment, ``worked`` those that have computed
    since the last report: threads that share work wait for each other now and then.
    """

    rank: int
    cpu: float
    resident: int
    tasks: int
    running: int
    worked: int = 0


@dataclass(frozen=True)
class GpuUse:
    """The use of one GPU: bytes, and the seconds in which something ran on it while it was watched."""

    index: int
    busy: float
    watched: float
    memory: int
    limit: int
    model: str = ""
