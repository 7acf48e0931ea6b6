"""Where each rank stands, read from its sample: its place in the user's code, and what it waits in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from functools import lru_cache

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.runtime.facts.samples import HELD, MAX_GROUPS, RUNS, Collective, Group, RankSample, Thread
from nbtorchjob.text.words import line

# A file name -> what to call it ("Cell In[3]") and its text, where it is the notebook's own.
Sources = Mapping[str, tuple[str, str]]


class WaitsFor(Enum):
    """What a rank's frames show it to wait for, other than a collective."""

    AWAIT = "await"
    CHECKPOINT = "checkpoint"  # saving or loading one ends by itself, and so does compiling
    COMPILER = "compiler"
    DATALOADER = "dataloader"
    FILE_LOCK = "file lock"
    FUTURE = "future"
    LOCK = "lock"
    PIPE = "pipe"
    POOL = "pool of processes"
    PROCESS = "process"
    QUEUE = "queue"
    READ = "read"
    SERVER = "server"
    SLEEP = "sleep"
    STORE = "store"
    THREAD = "thread"


_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3|^<|/?nbtorchjob/runtime/|\.pyz/")
_AUTOGRAD = "torch/autograd/graph.py"
_C10D = "torch/distributed/distributed_c10d.py"
# They wait for other ranks in Python and in C, and record nothing.
MEETS = "init_process_group"
MONITORED = "monitored_barrier"
_MEETS = (MEETS, "new_group")
POINT_TO_POINT = {"send": "dst", "recv": "src", "send_object_list": "dst", "recv_object_list": "src"}
# What a library's frame says of a rank, wherever it is in its stack: a checkpoint may be written to a file of
# the user's own, and code that is compiled runs without the compiler.
_ENDS_BY_ITSELF = (
    (r"torch/_dynamo/convert_frame\.py", WaitsFor.COMPILER),
    (
        r"torch/serialization\.py|torch/distributed/checkpoint/.*\.py|/safetensors/torch\.py",
        WaitsFor.CHECKPOINT,
    ),
)
# And what one below the user's frame says of a rank that waits in it: the file's end and the function.
_WAITS = (
    (r"asyncio/(?!runners|base_events).*\.py", r".*", WaitsFor.AWAIT),
    (r"torch/utils/data/dataloader\.py", r".*", WaitsFor.DATALOADER),
    (r"torch/distributed/rendezvous\.py", r".*", WaitsFor.STORE),
    (r"multiprocessing/queues\.py|/queue\.py", r"get|put", WaitsFor.QUEUE),
    (r"subprocess\.py", r".*", WaitsFor.PROCESS),
    (r"multiprocessing/process\.py", r"join", WaitsFor.PROCESS),
    (r"multiprocessing/pool\.py", r"get|wait|join|next", WaitsFor.POOL),
    (r"multiprocessing/(?:connection|managers)\.py", r".*", WaitsFor.PIPE),
    (r"/filelock/.*\.py", r".*", WaitsFor.FILE_LOCK),
    (
        r"(?:http/client|/socket|/ssl)\.py|/(?:requests|urllib3|httpx|httpcore|botocore)/.*\.py",
        r".*",
        WaitsFor.SERVER,
    ),
    (r"concurrent/futures/.*\.py", r"result|wait|as_completed", WaitsFor.FUTURE),
    (r"threading\.py", r"join|_wait_for_tstate_lock", WaitsFor.THREAD),
    (r"threading\.py", r".*", WaitsFor.LOCK),
)
# What a line of the user's own says of it; a call into C has no frame.
_LINES = (
    (r"\bawait\b", WaitsFor.AWAIT),
    (r"\bsleep\(", WaitsFor.SLEEP),
    (r"\bos\.(system|wait|waitpid)\(", WaitsFor.PROCESS),
    (r"store(\(\))?\.(get|wait)\(", WaitsFor.STORE),
    (r"\b(?:flock|lockf)\(", WaitsFor.FILE_LOCK),
    (r"\bacquire\(|^with \w*(lock|mutex|semaphore)\w*\s*:", WaitsFor.LOCK),
    (r"\binput\(|\bread(line|lines)?\(|\brecv\(", WaitsFor.READ),
)
_MAX_LINE = 120


class Standing(FrozenDataclass):
    """A rank as its sample found it at ``time``; ``state`` is one of the words of ``runtime/facts/samples``.

    ``place`` is the innermost frame of the user's code, ``inside`` the operation of ``torch.distributed``
    that it waits in, as its stack tells, ``waits`` what else it waits for; None where nothing says so.
    ``given`` is what that operation was given, as ``runtime/samples.Thread`` has it. ``recorded`` is whether
    its calls are known.
    """

    rank: int
    state: str
    time: float
    place: Frame | None = None
    inside: str = ""
    given: Mapping[str, str] = field(default_factory=dict)
    waits: WaitsFor | None = None
    handle: bool = False  # whether its line waits for something by ``.wait()``, such as a call made before
    groups: tuple[Group, ...] = ()
    recorded: bool = False
    ddp: bool = False  # whether its backward pass waits for DDP's buckets, if for a collective
    note: str = ""

    def entered(self, group: str) -> int | None:
        """Return the number of its newest call in a group; None where nobody knows."""
        mine = next((candidate for candidate in self.groups if candidate.name == group), None)
        if mine is None:
            return 0 if self.recorded and len(self.groups) < MAX_GROUPS else None
        return max((call.seq for call in mine.calls if not call.p2p), default=0)

    @property
    def pending(self) -> list[tuple[Group, Collective]]:
        """Its collectives that aren't done, the one that it called first at the front."""
        calls = [
            (group, call) for group in self.groups for call in group.calls if not call.done and not call.p2p
        ]
        return sorted(calls, key=lambda pair: (pair[1].since, pair[1].seq))

    @property
    def call(self) -> tuple[Group, Collective] | None:
        """The call that it waits in: the newest where its stack is in one, else perhaps the oldest.

        None where it waits for something else, and so isn't held by what it has called before.
        """
        pending = self.pending
        if not pending or self.waits:
            return None
        return pending[-1] if self.inside else pending[0]

    @property
    def unrecorded(self) -> bool:
        """Whether it waits in a call of which there is no record: a receive of gloo's, also by its handle."""
        return self.call is None and not self.waits and bool(self.inside or self.handle)

    @property
    def peer(self) -> int | None:
        """The rank that it waits for in a send or a receive; None where it is in none, or from any rank."""
        which = POINT_TO_POINT.get(self.inside)
        known = self.given.get(which, "") if which is not None and self.call is None else ""
        return int(known) if known.isdigit() else None

    @property
    def held(self) -> bool:
        """Whether it surely waits in its call; else it may be at work meanwhile."""
        return self.call is not None and bool(self.inside or self.handle)


def standing(sample: RankSample, time: float, sources: Sources, raised: Sequence[Frame] = ()) -> Standing:
    """Return where a rank stood that was sampled at ``time``, or where it ``raised`` what it failed of."""
    inside = next((thread for thread in sample.threads if _operation(thread)), None)
    frames = (inside or next(iter(sample.threads), Thread("", ()))).frames
    code = _code(frames[-1], sources) if frames else ""
    return Standing(
        sample.rank,
        sample.state,
        time,
        place=users_frame(frames, sources) or users_frame(raised, sources),
        inside=_operation(inside) if inside is not None else "",
        given=dict(inside.given) if inside is not None else {},
        waits=None if inside is not None else _waiting(frames, sources),
        handle=".wait(" in code,
        groups=sample.groups,
        recorded=bool(sample.groups) or (sample.state in (RUNS, HELD) and not sample.note),
        ddp=_in_backward(sample.threads),
        note=sample.note,
    )


def _in_backward(threads: Sequence[Thread]) -> bool:
    """Whether a rank is in a backward pass, and no collective of that is Python code's (FSDP's, tensors').

    DDP's reducer calls its collectives from C++, and leaves no frame.
    """
    frames = [frame for thread in threads for frame in thread.frames]
    ends = [thread.frames[-1] for thread in threads if thread.frames]
    engine = any(end.name == "_engine_run_backward" and end.filename.endswith(_AUTOGRAD) for end in ends)
    return engine and not any("torch/distributed/" in frame.filename for frame in frames)


def library(frame: Frame, sources: Sources) -> bool:
    """Whether a frame is of a library, or of this project's runtime, and not of the user's code."""
    return frame.filename not in sources and (not frame.filename or _in_library(frame.filename))


# A thousand nodes have the same few hundred files and functions on their stacks.
_remembered = lru_cache(maxsize=1 << 13)


@_remembered
def _in_library(file: str) -> bool:
    return bool(_LIBRARY.search(file.replace("\\", "/")))


@_remembered
def _ends_by_itself(file: str) -> WaitsFor | None:
    return next((meaning for end, meaning in _ENDS_BY_ITSELF if re.search(rf"(?:{end})$", file)), None)


@_remembered
def _waits_in(file: str, function: str) -> WaitsFor | None:
    for end, name, meaning in _WAITS:
        if re.search(rf"(?:{end})$", file) and re.fullmatch(name, function):
            return meaning
    return None


def users_frame(frames: Sequence[Frame], sources: Sources) -> Frame | None:
    """Return the innermost frame in a cell; where there is none, in any file that is no library's."""
    inner = [*reversed(frames)]
    cells = (frame for frame in inner if frame.filename in sources)
    own = (frame for frame in inner if not library(frame, sources))
    return next(cells, None) or next(own, None)


def place(frame: Frame, sources: Sources) -> str:
    """Return where a frame is: ``Cell In[3], line 14: next(loader)``."""
    label, _ = sources.get(frame.filename, ("", ""))
    where = f"{label or frame.filename.rpartition('/')[2]}, line {frame.lineno}"
    code = _code(frame, sources)
    return line(f"{where}: {code}" if code else where, _MAX_LINE)


def _code(frame: Frame, sources: Sources) -> str:
    lines = sources.get(frame.filename, ("", ""))[1].split("\n")
    known = lines[frame.lineno - 1] if 0 < frame.lineno <= len(lines) else ""
    return (frame.line or known).strip()


def _operation(thread: Thread) -> str:
    """Return the function of torch.distributed that a thread's stack ends in: the outermost of them."""
    if not thread.frames:
        return ""
    names = [frame.name for frame in thread.frames if frame.filename.endswith(_C10D)]
    meets = next((name for name in names if name in _MEETS), "")
    return meets or (names[0] if thread.frames[-1].filename.endswith(_C10D) else "")


def _waiting(frames: Sequence[Frame], sources: Sources) -> WaitsFor | None:
    for frame in frames:
        meaning = _ends_by_itself(frame.filename)
        if meaning is not None and library(frame, sources):
            return meaning
    own = max((at for at, frame in enumerate(frames) if not library(frame, sources)), default=-1)
    if own == len(frames) - 1 and frames:
        code = _code(frames[own], sources)
        meanings = [meaning for pattern, meaning in _LINES if re.search(pattern, code)]
        # Of a line with two calls it may be either, unless it awaits something, whatever that is.
        return meanings[0] if meanings[:1] == [WaitsFor.AWAIT] or len(meanings) == 1 else None
    for frame in frames[own + 1 :]:  # from the user's frame inwards: a DataLoader waits for a queue
        if (meaning := _waits_in(frame.filename, frame.name)) is not None:
            return meaning
    return None
