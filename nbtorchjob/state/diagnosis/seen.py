"""Where each rank stands according to its sample, and what the samples of all ranks show together.

For one rank: its place in the user's code, and what it waits in. For all ranks: which calls are waited in,
and which ranks aren't in them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from enum import Enum
from functools import lru_cache
from typing import ClassVar

from nbtorchjob.frozen import FrozenDataclass, cached_property
from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.runtime.facts.samples import (
    BEGINS,
    BUSY,
    ENDED,
    HAS_RETURNED,
    HELD,
    MAX_GROUPS,
    RUNS,
    STOPPED,
    Collective,
    Group,
    RankSample,
    Thread,
)
from nbtorchjob.state import failure
from nbtorchjob.state.jobfacts import Facts
from nbtorchjob.text.words import line

# A file name -> its label ("Cell In[3]") and its text, for the notebook's own code.
Sources = Mapping[str, tuple[str, str]]


class WaitsFor(Enum):
    """What a rank waits for according to its frames, other than a collective."""

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
# Functions that wait for other ranks, in Python and in C, and aren't recorded.
MEETS = "init_process_group"
MONITORED = "monitored_barrier"
_MEETS = (MEETS, "new_group")
POINT_TO_POINT = {"send": "dst", "recv": "src", "send_object_list": "dst", "recv_object_list": "src"}
_UNRECORDED = (*_MEETS, MONITORED, *POINT_TO_POINT)
# A line that waits for a call made earlier: by its handle, or by ``wait_tensor`` (tensors, compiled code),
# an operation that torch may dispatch in Python.
_HANDLE = re.compile(r"\.wait\(|\bwait_tensor\b")
DISPATCH = re.compile(r"torch/(?:_ops|_library/\w+)\.py$")
# What a library's frame anywhere in the stack says about a rank: a checkpoint may be written to a file object
# of the user's own, and compiled code runs without the compiler. But both may call collectives.
_ENDING = (
    (r"torch/_dynamo/convert_frame\.py", WaitsFor.COMPILER),
    (
        r"torch/serialization\.py|torch/distributed/checkpoint/.*\.py|/safetensors/torch\.py",
        WaitsFor.CHECKPOINT,
    ),
)
ENDS_BY_ITSELF = frozenset(work for _, work in _ENDING)
# And what a frame below the user's says about a rank that waits in it: the file's end and the function.
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
# What a line of the user's own code says about it: a call into C has no frame.
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
    that it waits in according to its stack, ``waits`` what else it waits for, None where nothing shows that.
    ``arguments`` are that operation's, as in ``runtime/facts/samples.Thread``. NCCL's sends and
    receives don't show in a stack: then ``inside`` and ``arguments`` come from torch's record, and ``beside``
    says that the rank may be at work meanwhile. ``recorded`` is whether its calls are known.
    """

    rank: int
    state: str
    time: float
    place: Frame | None = None
    inside: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    beside: bool = False
    waits: WaitsFor | None = None
    handle: bool = False  # whether its line waits for something, such as a call made earlier
    groups: tuple[Group, ...] = ()
    recorded: bool = False
    ddp: bool = False  # whether a collective that its backward pass waits for is one of DDP's buckets
    note: str = ""

    def entered(self, group: str) -> int | None:
        """Return the number of its newest call in a group; None where that is unknown."""
        own_group = next((candidate for candidate in self.groups if candidate.name == group), None)
        if own_group is None:
            return 0 if self.recorded and len(self.groups) < MAX_GROUPS else None
        return max((call.seq for call in own_group.calls if not call.p2p), default=0)

    @property
    def pending(self) -> list[tuple[Group, Collective]]:
        """Its collectives that aren't done, in the order in which it called them."""
        calls = [
            (group, call) for group in self.groups for call in group.calls if not call.done and not call.p2p
        ]
        return sorted(calls, key=lambda pair: (pair[1].since, pair[1].seq))

    @property
    def call(self) -> tuple[Group, Collective] | None:
        """The call that it waits in: the newest if its stack is in one, else perhaps the oldest.

        None where it waits for something else or in a call that isn't recorded, so that its earlier calls
        don't hold it.
        """
        pending = self.pending
        if not pending or self.waits or self.inside in _UNRECORDED:
            return None
        return pending[-1] if self.inside else pending[0]

    @property
    def unrecorded(self) -> bool:
        """Whether it waits in a call that isn't recorded, such as gloo's receive, or for its handle."""
        return self.call is None and not self.waits and bool(self.inside or self.handle)

    @property
    def peer(self) -> int | None:
        """The rank that it waits for in a send or receive; None if it is in neither, or accepts any rank."""
        which = POINT_TO_POINT.get(self.inside)
        peer = self.arguments.get(which, "") if which is not None else ""
        return int(peer) if peer.isdigit() else None

    @property
    def surely_waits(self) -> bool:
        """Whether it surely waits in its call; otherwise it may be at work meanwhile."""
        return self.call is not None and bool(self.inside or self.handle)


def standing(sample: RankSample, time: float, sources: Sources, raised: Sequence[Frame] = ()) -> Standing:
    """Return the standing of a rank sampled at ``time``; its place may be where it ``raised`` its error."""
    main = next(iter(sample.threads), Thread("", ()))
    thread = next((thread for thread in sample.threads if _operation(thread)), main)
    frames, inside = thread.frames, _operation(thread)
    arguments = dict(thread.given) if inside else {}
    called = [frame for frame in frames if not DISPATCH.search(frame.filename)]
    waits = None if inside else _waiting(frames, sources)
    open_ = [call for group in sample.groups for call in group.calls if not call.done and not call.p2p]
    if waits in ENDS_BY_ITSELF and open_:
        waits = None
    beside = False
    if not inside and waits is None and sample.state == RUNS:
        inside, arguments = _transfer(sample, time)
        beside = bool(inside)
    ends = [thread.frames[-1] for thread in sample.threads if thread.frames]
    backward = any(end.name == "_engine_run_backward" and end.filename.endswith(_AUTOGRAD) for end in ends)
    # Collectives that Python code calls in a backward pass are FSDP's, or tensors', not DDP's.
    own = any("torch/distributed/" in frame.filename for thread in sample.threads for frame in thread.frames)
    return Standing(
        sample.rank,
        sample.state,
        time,
        place=users_frame(frames, sources) or users_frame(raised, sources),
        inside=inside,
        arguments=arguments,
        beside=beside,
        waits=waits,
        handle=bool(called and _HANDLE.search(_code(called[-1], sources))),
        groups=sample.groups,
        recorded=bool(sample.groups) or (sample.state in (RUNS, HELD) and not sample.note),
        ddp=backward and not own,
        note=sample.note,
    )


def _transfer(sample: RankSample, time: float) -> tuple[str, dict[str, str]]:
    """Return the send or receive that a rank has had under way for longest, and its arguments.

    Nothing if a collective has been under way for longer: it may hold up the transfer.
    """
    calls = [(group, call) for group in sample.groups for call in group.calls if not call.done]
    for group, call in sorted(calls, key=lambda pair: pair[1].since)[:1]:
        which = POINT_TO_POINT.get(call.op)
        if which is not None and call.peer is not None and time - call.since >= MOMENT_S:
            return call.op, {"group": group.name, which: str(call.peer)}
    return "", {}


def library(frame: Frame, sources: Sources) -> bool:
    """Whether a frame belongs to a library, or this project's runtime, and not to the user's code."""
    return frame.filename not in sources and (not frame.filename or _in_library(frame.filename))


# A thousand nodes have the same few hundred files and functions on their stacks.
_remembered = lru_cache(maxsize=1 << 13)


@_remembered
def _in_library(file: str) -> bool:
    return bool(_LIBRARY.search(file.replace("\\", "/")))


@_remembered
def _ends_by_itself(file: str) -> WaitsFor | None:
    return next((meaning for end, meaning in _ENDING if re.search(rf"(?:{end})$", file)), None)


@_remembered
def _waits_in(file: str, function: str) -> WaitsFor | None:
    for end, name, meaning in _WAITS:
        if re.search(rf"(?:{end})$", file) and re.fullmatch(name, function):
            return meaning
    return None


def users_frame(frames: Sequence[Frame], sources: Sources) -> Frame | None:
    """Return the innermost frame in a cell or, if there is none, in any file outside libraries."""
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
    source_line = lines[frame.lineno - 1] if 0 < frame.lineno <= len(lines) else ""
    return (frame.line or source_line).strip()


def _operation(thread: Thread) -> str:
    """Return the function of torch.distributed that a thread's stack ends in; if several, the outermost."""
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
        # A line with two calls may wait in either, unless it awaits something, whatever that is.
        return meanings[0] if meanings[:1] == [WaitsFor.AWAIT] or len(meanings) == 1 else None
    for frame in frames[own + 1 :]:  # from the user's frame inwards: a DataLoader waits for a queue
        if (meaning := _waits_in(frame.filename, frame.name)) is not None:
            return meaning
    return None


MOMENT_S = 1.0  # a call that takes no longer isn't waited in
ASKED = "asked"  # why there is a sample: it was requested, while its node saw no reason to take one
_MOST_WAITS = 256
_CANT = (STOPPED, HELD, BUSY, BEGINS)  # ranks in these states enter no calls


class End(FrozenDataclass):
    """How a rank ended: ``RETURNED``, ``EXITED`` (perhaps by a signal) or ``FAILED``, and why if known."""

    RETURNED: ClassVar = "returned"
    EXITED: ClassVar = "ended"
    FAILED: ClassVar = "failed"

    how: str
    why: str = ""


class Wait(FrozenDataclass):
    """A call that ranks have waited in for ``seconds``, and which ranks of its group aren't in it."""

    group: Group
    call: Collective
    waiters: tuple[int, ...]
    absent: tuple[int, ...]
    unknown: tuple[int, ...]  # ranks of the group that may or may not be in it
    seconds: float


class Seen(FrozenDataclass):
    """The standing of every sampled rank, and what follows from all of them together."""

    facts: Facts
    standings: Sequence[Standing]

    @cached_property
    def of(self) -> Mapping[int, Standing]:
        """The newest standing of each rank."""
        return {
            stand.rank: stand for stand in sorted(self.standings, key=lambda stand: (stand.time, stand.rank))
        }

    @property
    def settled(self) -> bool:
        """Whether nothing had moved for long when the newest sample was taken: it wasn't just requested."""
        newest = max(self.facts.samples.values(), key=lambda fact: fact.time, default=None)
        return newest is not None and newest.why != ASKED

    @property
    def unseen(self) -> list[int]:
        """The ranks of the round without a sample."""
        # Bounded: a longer list would be unreadable, and a forged fact can claim a world of any size.
        return [rank for rank in range(min(self.facts.world_size, 1 << 13)) if rank not in self.of]

    @cached_property
    def ended(self) -> Mapping[int, End]:
        """How ranks had ended when the samples were taken."""
        last, now = max(standing.time for standing in self.standings), self.facts.round
        ended: dict[int, End] = {}
        for stand in self.of.values():
            if stand.state == ENDED:
                well = stand.note.partition(";")[0] in (HAS_RETURNED, "exit code 0")
                ended[stand.rank] = End(End.RETURNED) if well else End(End.EXITED, line(stand.note, 80))
        for exit_ in self.facts.exits:
            if exit_.round == now and exit_.time <= last:
                why = failure.of_signal(exit_.signal) if exit_.signal else failure.of_exit(exit_.code or 0)
                ended[exit_.rank] = End(End.EXITED, why.line)
        for failed in self.facts.errors:
            if failed.round == now and failed.error.time <= last:
                ended[failed.rank] = End(End.FAILED, failed.error.type.rpartition(".")[2])
        return ended

    def returned(self, rank: int) -> bool:
        """Whether a rank had ended well."""
        return rank in self.ended and self.ended[rank].how == End.RETURNED

    def has_left(self, rank: int, name: str) -> bool:
        """Whether a rank had ended well, or had destroyed the group and gone on."""
        if rank in self.ended:
            return self.returned(rank)
        return rank in self.of and any(group.name == name and group.left for group in self.of[rank].groups)

    @cached_property
    def pending(self) -> Mapping[str, list[tuple[int, Group, Collective]]]:
        """The calls that aren't done, each with its rank, by group."""
        calls: dict[str, list[tuple[int, Group, Collective]]] = {}
        for stand in self.of.values():
            for group, call in stand.pending if stand.rank not in self.ended else ():
                calls.setdefault(group.name, []).append((stand.rank, group, call))
        return calls

    @cached_property
    def broken(self) -> Sequence[tuple[Group, Collective]]:
        """The newest calls of ranks that ended in them, in order; the ranks reported them as they ended."""
        newest = []
        for stand in self.of.values():
            calls = [(g, call) for g in stand.groups for call in g.calls if not call.p2p]
            if calls and stand.state == ENDED and not self.returned(stand.rank):
                newest.append(max(calls, key=lambda pair: pair[1].since))
        return sorted(newest, key=lambda pair: pair[1].since)

    def calls(self, rank: int, name: str) -> Sequence[Collective]:
        """Return the known calls of a rank in a group."""
        groups = self.of[rank].groups if rank in self.of else ()
        return [call for group in groups if group.name == name for call in group.calls if not call.p2p]

    def late(self, rank: int, wait: Wait) -> Sequence[float]:
        """Return by how many seconds a rank was late to the calls before the one that others wait in.

        The newest call comes first. It goes back only as far as the rank was late by more than a moment.
        """
        begun = {
            waiter: {c.seq: c.since for c in self.calls(waiter, wait.group.name)} for waiter in wait.waiters
        }
        own_times = {call.seq: call.since for call in self.calls(rank, wait.group.name)}
        delays: list[float] = []
        for seq in range(wait.call.seq - 1, 0, -1):
            others = [calls[seq] for calls in begun.values() if seq in calls]
            if seq not in own_times or len(others) < len(begun) or own_times[seq] - max(others) < MOMENT_S:
                break
            delays.append(own_times[seq] - max(others))
        return delays

    @cached_property
    def moves(self) -> bool:
        """Whether a rank made a call just before it was sampled, or has one that isn't done."""
        calls = (
            (stand, call) for stand in self.of.values() for group in stand.groups for call in group.calls
        )
        return any(not call.done or stand.time - call.since < MOMENT_S for stand, call in calls)

    @cached_property
    def waits(self) -> Sequence[Wait]:
        """For each group, one call that is waited in; the longest wait comes first."""
        waits = [wait for name in self.pending if (wait := self._wait(name)).seconds >= MOMENT_S]
        return sorted(waits, key=lambda wait: (-wait.seconds, wait.group.name))[:_MOST_WAITS]

    def _wait(self, name: str) -> Wait:
        """Return the first call of a group that a rank is, or may be, absent from; else the first call."""
        calls = self.pending[name]
        waits = []
        for seq in sorted({call.seq for _, _, call in calls}):
            entries = [call for call in calls if call[2].seq == seq]
            _, group, first = min(entries, key=lambda item: item[2].since)
            waiters = tuple(sorted({rank for rank, _, _ in entries}))
            presence = {
                rank: self._has_entered(rank, group.name, seq, first.since)
                for rank in self.members(group.name)
                if rank not in waiters
            }
            absent = tuple(rank for rank, present in presence.items() if present is False)
            unknown = tuple(rank for rank, present in presence.items() if present is None)
            seconds = max(self.of[rank].time - call.since for rank, _, call in entries)
            waits.append(Wait(group, first, waiters, absent, unknown, seconds))
        return next((wait for wait in waits if wait.absent or wait.unknown), waits[0])

    def _has_entered(self, rank: int, group: str, seq: int, since: float) -> bool | None:
        """Whether a rank has entered a call that others have been in ``since``; None where unknown."""
        stand = self.of.get(rank)
        if rank in self.ended:
            return False
        if stand is None or stand.time < since:
            return None
        entered = stand.entered(group)
        if entered is None:
            return False if stand.state in _CANT else None
        return entered >= seq

    def members(self, name: str) -> list[int]:
        """Return the ranks of a group."""
        listed = [(stand.rank, g) for stand in self.of.values() for g in stand.groups if g.name == name]
        return sorted({rank for rank, _ in listed}.union(*(group.ranks for _, group in listed)))

    def are_all(self, ranks: Collection[int], name: str) -> bool:
        """Whether these are surely all ranks of a group; a rank that left it doesn't report its members."""
        groups = [group for stand in self.of.values() for group in stand.groups if group.name == name]
        all_tell = not self.unseen and all(stand.recorded for stand in self.of.values())
        complete = all_tell or not all(group.left for group in groups)
        return complete and {*ranks} == {*self.members(name)}

    def free(self, rank: int) -> bool:
        """Whether a rank surely waits for no other rank."""
        stand = self.of.get(rank)
        if rank in self.ended or (stand is not None and self.cant(rank)):
            return True
        return stand is not None and stand.state == RUNS and stand.call is None and not stand.unrecorded

    def cant(self, rank: int) -> bool:
        """Whether a rank can't enter a call, as it is stopped, held or the like."""
        return self.of[rank].state in _CANT

    def silent(self, rank: int) -> bool:
        """Whether a rank can't report which calls it has entered."""
        return rank not in self.ended and self.cant(rank) and not self.of[rank].recorded

    def awaited(self, rank: int) -> Sequence[int]:
        """Return the ranks that a rank surely waits for, in a send, a receive or a collective."""
        stand = self.of.get(rank)
        if stand is None or rank in self.ended or stand.state != RUNS:
            return ()
        if stand.peer is not None:
            other = self.of.get(stand.peer)
            if other is None or other.rank in self.ended or other.peer != rank:
                return (stand.peer,)
            # If one sends what the other receives, the transfer is under way.
            # A record has no tag: NCCL doesn't have tags.
            both = {*other.arguments} & {*stand.arguments} & {"group", "tag"}
            alike = all(other.arguments[name] == stand.arguments[name] for name in both)
            return () if alike and other.inside != stand.inside else (stand.peer,)
        wait = self.held_in(rank)
        return wait.absent if wait is not None else ()

    def held_in(self, rank: int) -> Wait | None:
        """Return the call among ``waits`` that a rank surely waits in."""
        stand = self.of.get(rank)
        if stand is None or stand.call is None or not stand.surely_waits:
            return None
        name = stand.call[0].name
        return next((wait for wait in self.waits if wait.group.name == name and rank in wait.waiters), None)
