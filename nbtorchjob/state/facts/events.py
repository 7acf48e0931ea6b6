"""The facts a backend reports about one job. It concludes nothing from them: ``job.py`` does.

Times are seconds since the epoch. A *round* is one life of the worker group: it grows with every
restart and with every change of membership, while torch's count of *restarts* in place grows
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
    """A node's agent has started.

    On a cluster ``pod`` is the uid of the pod that the node lives in, and ``run`` counts the lives of
    its container, which the kubelet may start again in place (``restartPolicy: OnFailure``).
    ``attempt`` counts from 1 where attempts are numbered (``JobInfo.retry_owner``), else it is 1; on this
    machine a pod is the node's process in one attempt. ``image`` is its container's image, by digest.
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
    """A node's agent ended: with an exit ``code``, by a ``signal``, or in an unknown way.

    A container reports a signal as code 128 + signal, and then both are set. ``reason`` and ``text`` are
    the cluster's own words for the end: the container's (``OOMKilled``) or its pod's (``Evicted``).
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
    """A node's pod is being taken away, whatever its process does about it.

    ``reason`` is that of the pod's ``DisruptionTarget`` condition, or ``DELETED`` for a pod that was simply
    deleted: by a person, or by its operator, which cleans up that way. ``order``, the pod's resourceVersion
    (a number), orders two deletions in the same second.
    """

    time: float
    node: int
    pod: str
    reason: str
    text: str = ""
    order: str = ""

    @property
    def age(self) -> tuple[float, int, str]:
        """A key that sorts disruptions of different pods by their time."""
        return self.time, len(self.order), self.order


DELETED = "Deleted"


class NodeGone(FrozenDataclass):
    """A node's pod no longer exists; how it ended may never be known."""

    time: float
    node: int
    pod: str


class Stage(IntEnum):
    """How far a waiting node or job has come; a later stage replaces an earlier one."""

    QUEUED = 0  # there is no pod yet, or no scheduler is looking for its host
    PLACING = 1  # no host has been found
    STARTING = 2  # image, volumes, container
    RESTARTING = 3  # between two runs of one container


class Waiting(FrozenDataclass):
    """A node, or the whole job where ``node`` is None, doesn't run yet; ``text`` says why.

    ``reason`` is the cluster's own word for what is wrong; "" where nothing is. ``since`` is when that
    began, where the cluster says so; else 0. ``restarts`` is how often the operator had started all nodes
    again before this pod was made, where pods record that. ``holder`` is the job on this machine that has
    the places that this one waits for; ``stuck`` says that the holder hangs or is stopped in the debugger,
    so that the wait may never end, and ``exclusive`` that it has GPUs, which no other job can share.
    """

    time: float
    text: str
    node: int | None = None
    pod: str = ""
    reason: str = ""
    stage: Stage = Stage.QUEUED
    attempt: int = 1  # as in ``NodeStarted``
    run: int = 0  # between two runs: the one that ended
    since: float = 0.0
    restarts: int | None = None
    holder: str = ""
    stuck: bool = False
    exclusive: bool = False


GROUP = "PodGroupUnschedulable"


def group_waits(time: float, text: str) -> Waiting:
    """Return the wait of pods that are placed all at once; with an empty ``text``, they have been placed."""
    return Waiting(time, text, None, "", GROUP, Stage.PLACING, since=time if text else 0.0)


class NodeOutput(FrozenDataclass):
    """A line that a node's pod wrote outside any rank: Python's own errors, pip's output."""

    time: float
    node: int
    pod: str
    text: str


class Verdict(FrozenDataclass):
    """What the job's operator concluded.

    ``every_node`` is False where one node that ended well is enough for the operator, as for an elastic
    PyTorchJob (training-operator 1.9): that node may have been evicted and have ended politely.
    ``pauses`` is True where the operator shows a suspended job in the same way. ``attempt`` is the attempt
    that the verdict is about, as in ``NodeStarted``.
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
    """What the end of attempt ``attempt`` drew on, and why, as concluded by the process that began the next.

    ``budget`` is one of ``Budget``'s values. It holds, whatever other facts of that attempt are still left.
    """

    time: float
    attempt: int
    budget: str
    text: str = ""


AWAITED, HELD = "awaited", "held"


class Suspended(FrozenDataclass):
    """The job was suspended, which takes its nodes away for a while, or resumed.

    ``turn`` is set for a run that was submitted suspended, as its turn comes once others of its group have
    ended: ``AWAITED``, or ``HELD`` if its user suspended it before that. ``began`` is when the suspension
    that ends here began, if the operator records that: then the first of several dates of a resume counts.
    """

    time: float
    suspended: bool
    turn: str = ""
    began: float = 0.0


class Queued(FrozenDataclass):
    """Where the job stands in a queue that admits jobs: it has nodes only while it is ``admitted``.

    ``reason`` is the queue's own word for why it isn't, and ``text`` its message; both may be unknown.
    ``held``: it won't be admitted until it is resumed. ``needs`` is what all its nodes request, by resource.
    ``order``, the resourceVersion (a number) of the object that says so, tells which of two facts is newer.
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
        """A key that sorts such facts by age: those without an ``order`` are the oldest."""
        return len(self.order), self.order, self.time, self.admitted


class Standing(FrozenDataclass):
    """The job's place among the ``of`` jobs that wait in its queue, from 1.

    ``used`` is what jobs hold there of each resource's ``quota``; without a quota, only what the jobs in the
    job's own namespace hold.
    """

    time: float
    place: int
    of: int
    used: Mapping[str, str] = field(default_factory=dict)
    quota: Mapping[str, str] = field(default_factory=dict)


class Evicted(FrozenDataclass):
    """The job's queue took its nodes away; ``reason`` and ``text`` are the queue's own words."""

    time: float
    reason: str
    text: str = ""


DEACTIVATED = "Deactivated"  # a queue's word for a job that a person took out of it: no loss
# What a queue's reason begins with once it has given up a job: only a person can have it tried again.
GIVEN_UP = "DeactivatedDueTo"


class Removed(FrozenDataclass):
    """The job's object no longer exists."""

    time: float


class NodeFailed(FrozenDataclass):
    """A node's agent gave up, and is about to exit with ``code`` (``runtime/facts/exits.py``)."""

    time: float
    node: int
    code: int
    error: Error
    pod: str = ""


class EnvironmentTold(FrozenDataclass):
    """What a node can import: its Python, its platform (``x86_64 glibc 2.36``), versions by distribution.

    ``distributions`` are those of its image, ``modules`` the modules there not named like a distribution;
    ``installed`` are the distributions that were installed for the job, which come first.
    """

    time: float
    node: int
    python: str
    platform: str
    distributions: Mapping[str, str]
    modules: tuple[str, ...] = ()
    installed: Mapping[str, str] = field(default_factory=dict)
    pod: str = ""  # as in ``NodeStarted``
    origins: Mapping[str, str] = field(default_factory=dict)  # of some distributions, as in PEP 610


class CheckoutTold(FrozenDataclass):
    """The state of the notebook's folder in git just after the submission: its commit, and what isn't in it.

    ``changed`` are some of the files that differ from the commit, and ``more`` counts the others.
    """

    time: float
    commit: str
    branch: str = ""
    changed: tuple[str, ...] = ()
    more: int = 0


# What ``FilesSeen`` reports, as ``runtime/api/artifacts`` names it.
CHECKPOINT, CURVES = "checkpoint", "tensorboard"


class FilesSeen(FrozenDataclass):
    """A node's ranks have written a first file of some kind; reported once in each life of the node.

    ``what`` is ``CHECKPOINT`` for a whole checkpoint below ``checkpoint_dir()``, ``CURVES`` for TensorBoard's
    event files below ``artifacts_dir()``.
    """

    time: float
    node: int
    what: str


class Annotated(FrozenDataclass):
    """A person's note on the job, and all of its tags; the newest such fact replaces those before."""

    time: float
    note: str = ""
    tags: tuple[str, ...] = ()


class WorkersStarted(FrozenDataclass):
    """A node started its workers for one round; ``ranks`` are their global ranks."""

    time: float
    node: int
    restart: int
    round: int
    ranks: tuple[int, ...]
    world_size: int
    pod: str = ""  # as in ``NodeStarted``, where it is known


class TurnTaken(FrozenDataclass):
    """A lab's lead has accepted a turn, which may have to wait for those before it.

    Its ``round`` is its own, larger than any before; ``base`` is the round in which the lab's ranks began.
    ``ranks`` and ``nodes`` are all that run it. ``text`` is its cell's source, "" for a function's call;
    ``arguments`` are the cell's, as on its line, and ``pushed`` the names that came with it and replaced the
    ranks' own. ``by`` says whose it is, in words. The first turn, the lab's own call, has no ``id``.

    A job of a pool may run on any of ``nodes`` until it is placed (``TurnPlaced``). Its sender adds what only
    it knows: the job's ``number``, which no other job of the pool has, or 0; when it was ``sent`` first; its
    budgets (``retry``, as JSON), which ``attempt`` it is, and what the attempts before it drew on (``paid``).
    For a run of a group, ``sweep`` has the fields of its record that describe the group, as JSON.
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
    arguments: str = ""


class TurnPlaced(FrozenDataclass):
    """A pool's lead has given a job its nodes, and it begins; with none it won't, as the pool begins anew."""

    time: float
    node: int
    round: int
    nodes: tuple[int, ...]


class TurnEnded(FrozenDataclass):
    """All ranks of a node are through with a turn; ``failed`` are those whose code raised.

    For a job in a pool it says whether its end was requested (``cancelled``), and which deadline the job has
    exceeded, in seconds. ``early`` is what a run has reported that ends it; only the lead sets it, even where
    the lead isn't one of the job's nodes. A cell that was withdrawn as it waited hasn't ``begun``.
    """

    time: float
    node: int
    round: int
    failed: tuple[int, ...] = ()
    cancelled: bool = False
    deadline: int = 0
    early: str = ""
    begun: bool = True


class LabEnds(FrozenDataclass):
    """A lab takes no further turns, and ends once those that it has taken are through.

    ``why``: it was ``asked`` to end, or was ``idle`` for as long as it may be.
    """

    time: float
    node: int
    why: str


class Installing(FrozenDataclass):
    """A node installs packages before its ranks start; ``packages`` is empty until it has chosen them."""

    time: float
    node: int
    packages: tuple[str, ...] = ()


class Installed(FrozenDataclass):
    """A node has its packages: ``by`` is what installed them, "" where they were left by an earlier job."""

    time: float
    node: int
    packages: tuple[str, ...] = ()
    by: str = ""
    seconds: float = 0.0


class Fetching(FrozenDataclass):
    """A node fetches data before its ranks start: ``done`` of ``size`` bytes, 0 where the size is unknown.

    ``began`` is when it began, ``had`` how many bytes it had then, and ``waits`` whether another node or job
    fetches the data for it.
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
    """A node has its data; ``place`` is where, in words, and ``kept`` whether another job or node left it."""

    time: float
    node: int
    name: str
    size: int = 0
    files: int = 0
    place: str = ""
    kept: bool = False
    seconds: float = 0.0


class NodeMeets(FrozenDataclass):
    """A node has imported torch, and looks for the other nodes."""

    time: float
    node: int


class RankBegan(FrozenDataclass):
    """A rank has imported what it needs, and begins the call."""

    time: float
    rank: int
    round: int


class NodeLeaves(FrozenDataclass):
    """A node has to end, and the ranks of all nodes have ``seconds`` to save.

    ``why`` is set where the reason was announced ahead of SIGTERM.
    """

    time: float
    node: int
    round: int
    seconds: float
    why: str = ""


class RankLeft(FrozenDataclass):
    """A rank has saved and left, as its ``call``-th call of ``leaving()`` told it to; counted from 1.

    ``metrics`` are those of its last report.
    """

    time: float
    node: int
    rank: int
    round: int
    call: int
    metrics: Mapping[str, float] = field(default_factory=dict)


class Swapped(FrozenDataclass):
    """Ranks went on with other code: the ``number``-th swap of the job, or of the lab's turn in ``round``.

    All of them did so at the ``call``-th ``point`` ("leaving()" or the like) of that round. ``names`` says
    how each name changed (``runtime/rank/swapped``), ``text`` is the cell and ``diff`` how it changes the
    code before it. ``metrics`` are those of rank 0's last report, ``by`` says whose swap it is, in words.
    ``back`` is why the old code was put back; "" where the new code stays. ``payload`` is what brought the
    code, sealed and in Base64, unless that is too big for a fact.
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
    """The user's code raised on a rank; its node ``stays`` if it goes on to run further turns of a lab."""

    time: float
    node: int
    rank: int
    restart: int
    round: int
    error: Error
    stays: bool = False


BREAKPOINT, FAILURE = "breakpoint", "failure"


class RankStops(FrozenDataclass):
    """A rank is stopped in the debugger: ``why`` is ``BREAKPOINT``, or ``FAILURE`` for a held rank."""

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
    """A stopped rank goes on.

    ``how``: it "continues" or ``STEPS``, was "released" or "interrupted", or "nobody" came.
    """

    time: float
    node: int
    rank: int
    round: int
    how: str


class RankExited(FrozenDataclass):
    """A worker process ended without reporting why: ``os._exit`` or a signal.

    If its node ``stays``, it was the rank of a job in a pool.
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
    """The job's progress as its operator has it: ``percent`` done, and seconds ``left``.

    ``metrics`` are the newest ones; ``attempt`` is as in ``Verdict``.
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

    ``why`` they were sampled: ``asked`` on request, ``quiet`` as nothing had moved for long, or ``timeout``
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

    ``times`` are (offset, seconds) in ascending order: the bytes from the previous offset up to this one were
    written by then. The last offset is the chunk's end; ``times`` is empty where the times are unknown.
    ``stderr`` are the spans, as pairs of offsets, that were written to stderr.
    """

    rank: int
    round: int
    offset: int
    data: bytes
    times: tuple[tuple[int, float], ...] = ()
    stderr: tuple[tuple[int, int], ...] = ()


class Wrote(FrozenDataclass):
    """A sign of life: a rank wrote to its log or, on a cluster, reported any fact.

    What a node reports about its ranks by itself (``LOOKED``) doesn't count.
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
    """A node's artifacts of an attempt lie at ``ref``: ``files`` files, in a zip archive of ``size`` bytes.

    ``total`` is the size of all files together.
    """

    time: float
    node: int
    attempt: int
    ref: str
    size: int
    files: int
    total: int


class Notice(FrozenDataclass):
    """Something worth a line in the cell, which changes nothing in the state."""

    time: float
    text: str


class Refused(FrozenDataclass):
    """A fact that isn't believed, and ``why``: no honest node reports it. ``digest`` is that of its line."""

    digest: str
    why: str


class CancelRequested(FrozenDataclass):
    """The job is to end; for a run that was stopped early, ``early`` is what it reported that ended it."""

    time: float
    early: str = ""


class DeadlineExceeded(FrozenDataclass):
    """The job ran longer than its ``active_deadline_seconds``."""

    time: float
    seconds: int


class Lost(FrozenDataclass):
    """The backend can't say how the job ended; ``reason`` says why."""

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

# The facts that say that a file was sent home.
Sent: TypeAlias = ValueReady | ArtifactsReady
# What a node reports about its ranks by itself, which doesn't mean that they are making progress.
LOOKED = (Sampled.__name__, Used.__name__)
