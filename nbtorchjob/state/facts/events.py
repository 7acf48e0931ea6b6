"""The facts a backend reports about one job. It concludes nothing from them: ``job.py`` does.

Times are seconds since the epoch. A *round* is one life of the worker group: it grows with every
restart and with every change of membership, where torch's count of *restarts* in place grows
only with the former (``torch.distributed.elastic.agent``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum
from typing import TypeAlias

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.runtime.facts.samples import GpuUse, RankSample, RankUse


class NodeStarted(FrozenDataclass):
    """A node's agent runs.

    On a cluster ``pod`` is the uid of the pod that the node lives in, and ``run`` counts the lives of
    its container, which the kubelet may start again in place (``restartPolicy: OnFailure``).
    ``attempt`` counts from 1 where attempts are numbered (``JobInfo.retry_owner``), else it is 1; on this
    machine a pod is the node's process in one attempt. ``image`` is what its container runs, by digest.
    """

    time: float
    node: int
    host: str
    pid: int = 0
    pod: str = ""
    run: int = 0
    attempt: int = 1
    image: str = ""


class NodeExited(FrozenDataclass):
    """A node's agent ended: with an exit ``code``, by a ``signal``, or nobody knows how.

    A container tells a signal as code 128 + signal, and then both are set. ``reason`` and ``text`` are
    the cluster's own words for it: the container's (``OOMKilled``) or its pod's (``Evicted``).
    """

    time: float
    node: int
    code: int | None = None
    signal: int | None = None
    pod: str = ""
    reason: str = ""
    text: str = ""
    run: int = 0


class NodeDisrupted(FrozenDataclass):
    """Somebody takes a node's pod away, whatever its process does about it.

    ``reason`` is that of the pod's ``DisruptionTarget`` condition, or ``DELETED`` for a pod that was
    just deleted: by a person, or by its operator, which cleans up that way. ``order`` tells which of two
    deletions of one second came first: the pod's resourceVersion, a number.
    """

    time: float
    node: int
    pod: str
    reason: str
    text: str = ""
    order: str = ""

    @property
    def age(self) -> tuple[float, int, str]:
        """What sorts disruptions of different pods by their time."""
        return self.time, len(self.order), self.order


DELETED = "Deleted"


class NodeGone(FrozenDataclass):
    """A node's pod no longer exists; how it ended may never be known."""

    time: float
    node: int
    pod: str


class Stage(IntEnum):
    """How far something had come that has to wait; a later stage replaces an earlier one."""

    QUEUED = 0  # there is no pod yet, or nobody looks for its place
    PLACING = 1  # no host has been found
    STARTING = 2  # image, volumes, container
    RESTARTING = 3  # between two runs of one container


class Waiting(FrozenDataclass):
    """A node, or the whole job where ``node`` is None, doesn't run yet; ``text`` says why.

    ``reason`` is the cluster's own word for what is wrong; "" where nothing is. ``since`` is when that
    began, where the cluster says so; else 0. ``restarts`` is how often the operator had started all nodes
    again before this pod was made, where pods say so. ``holder`` is the job of this machine that has the
    places that this one waits for; ``stuck`` says that it hangs or is stopped in the debugger, so that the
    wait may never end, and ``exclusive`` that it has GPUs, which no other job can use beside it.
    """

    time: float
    text: str
    node: int | None = None
    pod: str = ""
    reason: str = ""
    stage: Stage = Stage.QUEUED
    attempt: int = 1  # as that of ``NodeStarted``
    run: int = 0  # the one that ended, where it is between two
    since: float = 0.0
    restarts: int | None = None
    holder: str = ""
    stuck: bool = False
    exclusive: bool = False


GROUP = "PodGroupUnschedulable"


def group_waits(time: float, text: str) -> Waiting:
    """Return why all pods of a job wait that are placed at once; without ``text`` that they have places."""
    return Waiting(time, text, None, "", GROUP, Stage.PLACING, since=time if text else 0.0)


class NodeOutput(FrozenDataclass):
    """A line that a node's pod wrote, but no rank: Python's own errors, what pip says."""

    time: float
    node: int
    pod: str
    text: str


class Verdict(FrozenDataclass):
    """What the job's operator concluded.

    ``every_node`` is False where one node that ended well is enough for it, as it is for an elastic
    PyTorchJob (training-operator 1.9): that node may have been evicted and have ended politely.
    ``pauses`` is True where the operator shows a suspended job in the same way. ``attempt`` is the one it is
    about, as that of ``NodeStarted``.
    """

    time: float
    succeeded: bool
    reason: str = ""
    text: str = ""
    every_node: bool = True
    attempt: int = 1
    pauses: bool = False


class AttemptBegan(FrozenDataclass):
    """An attempt after the first was started; its nodes may come later."""

    time: float
    attempt: int


class AttemptPaid(FrozenDataclass):
    """What the end of attempt ``attempt`` drew on, as whoever began the next one concluded, and why.

    ``budget`` is one of ``Budget``'s values. It holds, whatever else can still be had of that attempt.
    """

    time: float
    attempt: int
    budget: str
    text: str = ""


AWAITED, HELD = "awaited", "held"


class Suspended(FrozenDataclass):
    """Somebody took the job's nodes away for a while, or gave them back.

    ``turn``: it was sent so, a run whose turn comes when others of its group have ended, and which is
    ``AWAITED`` or ``HELD``: its user suspended it before that. ``began``: when the suspension that this ends
    began, where its operator says so; of the dates of one resume the first counts then.
    """

    time: float
    suspended: bool
    turn: str = ""
    began: float = 0.0


class Queued(FrozenDataclass):
    """Where the job stands in a queue that admits jobs: it has nodes only while it is ``admitted``.

    ``reason`` is the queue's own word for why it isn't, and ``text`` what it says; both may be unknown.
    ``held``: it won't be, until somebody resumes it. ``needs`` is what all its nodes request, by resource.
    ``order`` tells which of two is newer: the resourceVersion of what says so, a number.
    """

    time: float
    queue: str
    admitted: bool
    reason: str = ""
    text: str = ""
    held: bool = False
    needs: Mapping[str, str] = field(default_factory=dict)
    order: str = ""

    @property
    def age(self) -> tuple[int, str, float, bool]:
        """What sorts such facts: those that nothing numbers are the oldest."""
        return len(self.order), self.order, self.time, self.admitted


class Standing(FrozenDataclass):
    """The job's place among those that wait in its queue: from 1, of so many.

    ``used`` is what jobs hold there of each resource, of its ``quota``; without that only what those of the
    job's own namespace hold.
    """

    time: float
    place: int
    of: int
    used: Mapping[str, str] = field(default_factory=dict)
    quota: Mapping[str, str] = field(default_factory=dict)


class Evicted(FrozenDataclass):
    """The job's queue took its nodes away; ``reason`` and ``text`` are its own words."""

    time: float
    reason: str
    text: str = ""


DEACTIVATED = "Deactivated"  # a queue's word for what somebody took away: it is no loss
# The beginning of a queue's words for a job that it has given up: only somebody can have it tried again.
GIVEN_UP = "DeactivatedDueTo"


class Removed(FrozenDataclass):
    """The job's object no longer exists."""

    time: float


class NodeFailed(FrozenDataclass):
    """A node's agent gave up by itself, and is about to exit with ``code`` (``runtime/facts/exits.py``)."""

    time: float
    node: int
    code: int
    error: Error
    pod: str = ""


class EnvironmentTold(FrozenDataclass):
    """What a node can import: its Python, its platform (``x86_64 glibc 2.36``), versions by distribution.

    ``distributions`` are those of its image, ``modules`` what it has beside them by names of their own;
    ``installed`` are those that were installed for the job, in front.
    """

    time: float
    node: int
    python: str
    platform: str
    distributions: Mapping[str, str]
    modules: tuple[str, ...] = ()
    installed: Mapping[str, str] = field(default_factory=dict)
    pod: str = ""  # as that of ``NodeStarted``
    origins: Mapping[str, str] = field(default_factory=dict)  # of some, as PEP 610 has them


class CheckoutTold(FrozenDataclass):
    """What git says of the notebook's folder, just after the submission: its commit, and what isn't in it.

    ``changed`` are some of the files that differ from it, and ``more`` counts the others.
    """

    time: float
    commit: str
    branch: str = ""
    changed: tuple[str, ...] = ()
    more: int = 0


# What ``FilesSeen`` tells of, as ``runtime/api/artifacts`` names it.
CHECKPOINT, CURVES = "checkpoint", "tensorboard"


class FilesSeen(FrozenDataclass):
    """A node's ranks have written the first of such files, told once in each life of the node.

    ``what`` is ``CHECKPOINT`` for a whole one below ``checkpoint_dir()``, ``CURVES`` for files of events for
    TensorBoard below ``artifacts_dir()``.
    """

    time: float
    node: int
    what: str


class Annotated(FrozenDataclass):
    """A person's note on the job and its tags, all of them each time; the newest replaces those before."""

    time: float
    note: str = ""
    tags: tuple[str, ...] = ()


class WorkersStarted(FrozenDataclass):
    """A node started its workers for one round; ``ranks`` are the global ranks it has there."""

    time: float
    node: int
    restart: int
    round: int
    ranks: tuple[int, ...]
    world_size: int
    pod: str = ""  # as that of ``NodeStarted``, where it is known


class TurnTaken(FrozenDataclass):
    """A lab's lead has accepted a turn, which may have to wait for those before it.

    Its ``round`` is its own, larger than any before; ``base`` is the one in which the lab's ranks began.
    ``ranks`` and ``nodes`` are all that run it. ``text`` is its cell's source, "" for a function's call;
    ``pushed`` are the names that came with it and were laid over the ranks' own. ``by`` says whose it is,
    in words. The first one, the lab's own call, has no ``id``.

    A job of a pool may run on any of ``nodes``, until it is placed (``TurnPlaced``). Its sender tells what
    nobody else may know: its ``number``, which no other job of the pool has, or 0; when it was ``sent``
    first; its budgets (``retry``, as JSON), which ``attempt`` it is, and what those before it drew on
    (``paid``). Of a run of a group ``sweep`` are the fields of its record that say so, as JSON.
    """

    time: float
    node: int
    round: int
    base: int
    id: str
    ranks: tuple[int, ...]
    nodes: tuple[int, ...]
    label: str
    text: str
    filename: str
    pushed: tuple[str, ...] = ()
    by: str = ""
    sweep: str = ""
    number: int = 0
    sent: float = 0.0
    retry: str = ""
    attempt: int = 1
    paid: tuple[AttemptPaid, ...] = ()


class TurnPlaced(FrozenDataclass):
    """A pool's lead has given a job its nodes: it begins there. With none it won't: the pool begins anew."""

    time: float
    node: int
    round: int
    nodes: tuple[int, ...]


class TurnEnded(FrozenDataclass):
    """All ranks of a node are through with a turn; ``failed`` are those whose code raised.

    Of a job in a pool it says whether somebody asked for its end (``cancelled``), and which deadline the job
    has exceeded, in seconds. ``early`` is what a run has reported that ends it; only the lead says so, also
    where it isn't one of the job's nodes.
    """

    time: float
    node: int
    round: int
    failed: tuple[int, ...] = ()
    cancelled: bool = False
    deadline: int = 0
    early: str = ""


class LabEnds(FrozenDataclass):
    """A lab takes no further turn, and ends once those that it has taken are through.

    ``why``: ``asked`` by somebody, or ``idle`` for as long as it may be.
    """

    time: float
    node: int
    why: str


class Installing(FrozenDataclass):
    """A node installs packages before its ranks start; ``packages`` are known once it has decided on them."""

    time: float
    node: int
    packages: tuple[str, ...] = ()


class Installed(FrozenDataclass):
    """A node has them: ``by`` is what installed them, "" where they were there from an earlier job."""

    time: float
    node: int
    packages: tuple[str, ...] = ()
    by: str = ""
    seconds: float = 0.0


class Fetching(FrozenDataclass):
    """A node fetches data before its ranks start: ``done`` of ``size`` bytes, 0 where that is unknown.

    ``began`` is when it began, ``had`` how many bytes were there then, and ``waits`` whether another node, or
    job, fetches it for this one.
    """

    time: float
    node: int
    name: str
    done: int = 0
    size: int = 0
    began: float = 0.0
    had: int = 0
    waits: bool = False


class Fetched(FrozenDataclass):
    """A node has data, in ``place``, in words; ``kept`` is whether an earlier job or another node left it."""

    time: float
    node: int
    name: str
    size: int = 0
    files: int = 0
    place: str = ""
    kept: bool = False
    seconds: float = 0.0


class NodeMeets(FrozenDataclass):
    """A node has imported torch, and looks for the others."""

    time: float
    node: int


class RankBegan(FrozenDataclass):
    """A rank has imported what it needs, and begins the call."""

    time: float
    rank: int
    round: int


class NodeLeaves(FrozenDataclass):
    """A node has to end, and its ranks have so many seconds to save, as do those of the other nodes.

    ``why`` is known where somebody told it ahead of SIGTERM.
    """

    time: float
    node: int
    round: int
    seconds: float
    why: str = ""


class RankLeft(FrozenDataclass):
    """A rank has saved, and left; it was told by its ``call`` of ``leaving()``, counted from 1.

    ``metrics`` are what it had reported last.
    """

    time: float
    node: int
    rank: int
    round: int
    call: int
    metrics: Mapping[str, float] = field(default_factory=dict)


class Swapped(FrozenDataclass):
    """Ranks went on with other code: the ``number``-th swap of the job, of a lab's turn in its ``round``.

    They did so at the ``call``-th ``point``, "leaving()" or the like, of that round, all at the same.
    ``names`` says how each changed (``runtime/rank/swapped``), ``text`` is the cell and ``diff`` what it
    makes of the code before it. ``metrics`` are what rank 0 had reported last, ``by`` says whose it is, in
    words. ``back`` is why what was there was put back; "" where the new code stays. ``payload`` is what
    brought it, sealed and in Base64, unless that is too big to be told.
    """

    time: float
    node: int
    round: int
    number: int
    id: str
    by: str
    text: str
    diff: str
    names: Mapping[str, str]
    point: str
    call: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    back: str = ""
    payload: str = ""


class RankFailed(FrozenDataclass):
    """An exception left the user's code on a rank; its node ``stays`` where it runs a lab's further turns."""

    time: float
    node: int
    rank: int
    restart: int
    round: int
    error: Error
    stays: bool = False


BREAKPOINT, FAILURE = "breakpoint", "failure"


class RankStops(FrozenDataclass):
    """A rank is stopped in the debugger: ``why`` is ``BREAKPOINT``, or ``FAILURE`` for one that is held."""

    time: float
    node: int
    rank: int
    round: int
    lineno: int
    function: str
    filename: str
    why: str


STEPS = "steps"


class RankGoesOn(FrozenDataclass):
    """A rank that was stopped goes on.

    It "continues" or ``STEPS``, was "released" or "interrupted", or "nobody" came.
    """

    time: float
    node: int
    rank: int
    round: int
    how: str


class RankExited(FrozenDataclass):
    """A worker process ended by itself without having said why: ``os._exit`` or a signal.

    Where its node ``stays``, it was the rank of a job in a pool.
    """

    time: float
    node: int
    rank: int
    restart: int
    round: int
    code: int | None = None
    signal: int | None = None
    stays: bool = False


class Reported(FrozenDataclass):
    """One ``report(...)`` of a rank; ``seq`` counts them within the rank's round, from 0."""

    time: float
    rank: int
    round: int
    seq: int
    metrics: Mapping[str, float]


class TrainerStatus(FrozenDataclass):
    """What the job's operator was told of how far it is: in percent, and seconds that are left.

    ``metrics`` are the newest ones; ``attempt`` is as that of ``Verdict``.
    """

    time: float
    percent: int | None = None
    left: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    attempt: int = 1


class Displayed(FrozenDataclass):
    """What a rank displays, by MIME type; images are in base64. ``seq`` counts within its round, from 0."""

    time: float
    rank: int
    round: int
    seq: int
    data: Mapping[str, str]


class Sampled(FrozenDataclass):
    """What the ranks of a node were doing at one moment, by rank.

    ``why`` it was looked at: ``asked`` by somebody, ``quiet`` as nothing had moved for long, or ``timeout``
    as a collective was about to give up.
    """

    time: float
    node: int
    round: int
    why: str
    samples: tuple[RankSample, ...]


class Used(FrozenDataclass):
    """What a node uses: bytes of ``memory`` and of /dev/shm, each with its ``limit``; its ranks, its GPUs.

    ``seq`` counts within the round, from 0; ``cores`` is how many the node may use, ``model`` the CPU's name.
    """

    time: float
    node: int
    round: int
    seq: int
    cores: float
    memory: int
    limit: int
    shm: int = 0
    shm_limit: int = 0
    uses: tuple[RankUse, ...] = ()
    gpus: tuple[GpuUse, ...] = ()
    model: str = ""


class LogChunk(FrozenDataclass):
    """Bytes of a rank's log, at ``offset`` in the log of that round.

    ``times`` are (offset, seconds), in ascending order: what lies before that offset, down to the one
    before, was written by then. The last one reaches to the chunk's end; none are there where nobody knows.
    ``stderr`` are the spans of it, from an offset to another, that were written to stderr.
    """

    rank: int
    round: int
    offset: int
    data: bytes
    times: tuple[tuple[int, float], ...] = ()
    stderr: tuple[tuple[int, int], ...] = ()


class Wrote(FrozenDataclass):
    """Something was heard of a node: a rank wrote to its log, or, on a cluster, told any fact.

    What a node tells of its ranks by itself (``LOOKED``) doesn't count.
    """

    time: float


class ValueReady(FrozenDataclass):
    """A rank's value lies at ``ref`` (for the backend's ``fetch``), ``size`` bytes long."""

    time: float
    rank: int
    round: int
    ref: str
    size: int


class ArtifactsReady(FrozenDataclass):
    """A node's artifacts of an attempt lie at ``ref``: ``files``, in a zip archive of ``size`` bytes.

    ``total`` is what the files have together.
    """

    time: float
    node: int
    attempt: int
    ref: str
    size: int
    files: int
    total: int


class Notice(FrozenDataclass):
    """Something worth a line in the cell that changes nothing."""

    time: float
    text: str


class Refused(FrozenDataclass):
    """A fact that isn't believed, and ``why``: nothing honest tells it. ``digest`` is that of its line."""

    digest: str
    why: str


class CancelRequested(FrozenDataclass):
    """Somebody asked for the job's end; ``early`` is why a run was stopped early, by what it reported."""

    time: float
    early: str = ""


class DeadlineExceeded(FrozenDataclass):
    """The job ran longer than its ``active_deadline_seconds``."""

    time: float
    seconds: int


class Lost(FrozenDataclass):
    """The backend can't say how the job ended, and ``reason`` says why it can't."""

    time: float
    reason: str


class Closed(FrozenDataclass):
    """Every process of the job has ended; no further fact will come."""

    time: float


Event: TypeAlias = (
    NodeStarted
    | NodeExited
    | NodeDisrupted
    | NodeGone
    | NodeFailed
    | NodeOutput
    | Waiting
    | Fetched
    | Fetching
    | Installing
    | Installed
    | NodeMeets
    | EnvironmentTold
    | CheckoutTold
    | Annotated
    | FilesSeen
    | WorkersStarted
    | TurnTaken
    | TurnPlaced
    | TurnEnded
    | LabEnds
    | RankBegan
    | NodeLeaves
    | RankLeft
    | Swapped
    | RankFailed
    | RankStops
    | RankGoesOn
    | RankExited
    | Reported
    | TrainerStatus
    | Displayed
    | Sampled
    | Used
    | LogChunk
    | Wrote
    | ValueReady
    | ArtifactsReady
    | Notice
    | Refused
    | CancelRequested
    | DeadlineExceeded
    | Verdict
    | AttemptBegan
    | AttemptPaid
    | Suspended
    | Queued
    | Standing
    | Evicted
    | Removed
    | Lost
    | Closed
)

# What says that a file was sent home.
Sent: TypeAlias = ValueReady | ArtifactsReady
# What a node tells of its ranks by itself: it doesn't say that they move.
LOOKED = (Sampled.__name__, Used.__name__)
