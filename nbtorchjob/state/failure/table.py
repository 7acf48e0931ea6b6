"""The table of causes: the sign of an end or a wait -> whose fault it is, what to say, what to do.

The signs are those of Kubernetes 1.36 and containerd 2.1, and of torch. The first row that fits counts;
``Row`` documents the columns. A sign that no row fits is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.api import rank_api
from nbtorchjob.runtime.facts import errors, exits
from nbtorchjob.state.facts.events import DEACTIVATED, DELETED, GIVEN_UP


class Cause(Enum):
    """Whose fault an end or a wait is."""

    USER = "user"  # the code, or what it needs
    CONFIG = "config"  # the job as requested can't run there
    INFRA = "infrastructure"  # the machine, the network, somebody else's preemption
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    WAIT = "wait"  # nobody's fault: it goes on by itself
    UNKNOWN = "unknown"


class Reason(FrozenDataclass):
    """A cause, one line that says what happened, and one that says what to do about it.

    ``crash`` is True for a process that a signal ended, or the kernel over memory, and False for one that
    raised or exited.
    """

    cause: Cause
    line: str
    hint: str = ""
    crash: bool = False


class Row(FrozenDataclass):
    """What a sign means.

    ``word`` and ``text`` are patterns: for the whole sign, and for a part of the message with it. In
    ``line``, ``{word}`` stands for the sign, ``{text}`` for the message, ``{name}`` for a blank and the first
    quoted text in the message, and the named groups of ``text`` for what they match, also in ``hint``. A
    wait may last for ``grace_s`` seconds before it is anyone's fault.
    """

    word: str
    cause: Cause
    line: str
    hint: str = ""
    text: str = ""
    grace_s: float = 0.0
    crash: bool = False

    def fits(self, word: str, text: str) -> bool:
        """Whether the row fits a sign and its message."""
        return bool(re.fullmatch(self.word, word, re.DOTALL)) and self._match(text) is not None

    def reason(self, word: str, text: str) -> Reason:
        """Return its cause, with its line and hint filled in."""
        match = self._match(text)
        hint = self.hint.format(**match.groupdict()) if match and match.groupdict() else self.hint
        return Reason(self.cause, self.say(word, text), hint, self.crash)

    def say(self, word: str, text: str) -> str:
        """Return its line filled in."""
        match = self._match(text)
        quoted = re.search(r'"([^"]+)"', text)
        parts = {**(match.groupdict() if match else {}), "name": f" {quoted[1]}" if quoted else ""}
        return self.line.format(word=word, text=text, **parts).rstrip(": ")

    def _match(self, text: str) -> re.Match[str] | None:
        return re.search(self.text, text, re.DOTALL)


def find(rows: Iterable[Row], word: str, text: str = "") -> Row | None:
    """Return the first row that fits a sign and its message; None where none does."""
    return next((row for row in rows if row.fits(word, text)), None)


DEADLINE_EXCEEDED = "DeadlineExceeded"
# nbtorchjob's own words, as clusters have no common one:
NEVER_STARTED = "NeverStarted"  # an attempt was held back for longer than allowed
INIT_FAILED = "InitContainerFailed"
PODS_REFUSED = "PodsRefused"  # an operator can't request pods, whatever it calls that
AGENT_KILLED = "AgentKilled"  # of a node on this machine
VANISHED = "Vanished"  # a pod no longer exists
NO_LIMIT = "it has no limit"  # a container ran out of memory

_USER, _CONFIG, _INFRA, _UNKNOWN, _WAIT = Cause.USER, Cause.CONFIG, Cause.INFRA, Cause.UNKNOWN, Cause.WAIT

# What to do, where several rows say the same.
_TOLD = "It received SIGTERM, but the job was not cancelled."
_NOTICED = "It received SIGTERM, or its host was about to end, but the job was not cancelled."
_AGAIN = "Nothing is wrong with the code: run it again."
_GREEDY = (
    "Pods that use more than they requested are evicted first: raise --memory or "
    "--limit ephemeral-storage=SIZE, and run it again."
)
_LATER = "Raise --active-deadline-seconds, or make the work smaller."
_MEMORY = "Use a smaller batch or fewer ranks; on a cluster raise --memory."
_KILLED = f"Killed from outside, most likely because memory ran out. {_MEMORY}"
_ACCELERATOR = "The accelerator's memory ran out: use a smaller batch, or more nodes."
_SHM = "Raise --shm (on this machine /dev/shm), or use fewer DataLoader workers."
_DISK = "Write less, or ask for more with --limit ephemeral-storage=SIZE."
_FULL = f"The disk is full: free some space on the disk with the job's folder. On a cluster: {_DISK}"
_FILES = (
    "Raise the limit where Jupyter or the command is started (ulimit -n 65536), on a cluster in the image or "
    "its runtime. Fewer ranks per node need fewer files."
)
_PROCESSES = (
    "Use fewer ranks per node, or raise the limit: ulimit -u, or on a cluster the pod's limit on processes."
)
_LATER_THERE = "End the processes that hold them open, or choose another host."
_SLOW = "If it is just slow, raise timeout= of init_process_group."
_HUNG = f"A rank hung, or not all ranks took part: their logs show where each was. {_SLOW}"
_STUCK = (
    "A CUDA call hung, or something held the GIL for too long: "
    "raise the timeout with --env TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=N."
)
_NATIVE = "A native library gave up; with NCCL, most likely a collective timed out: see the rank's log."
_MISMATCH = (
    "Ranks called it with different sizes or types, or called different collectives. gloo aborts the rank "
    "that receives the data, which may not be at fault; with --env TORCH_DISTRIBUTED_DEBUG=DETAIL torch "
    "reports what each rank called."
)
_SEGFAULT = (
    "A native extension accessed invalid memory: the rank's log has the stack below 'Current thread', its "
    "innermost call first."
)
_GONE = "No node is known to be lost: do all ranks take part in the same collectives, equally often?"
# What to say instead where it is known what each rank called.
KNOWN = {_MISMATCH: "", _GONE: "", _HUNG: _SLOW}
_LEFT = "The code called sys.exit or os._exit: a rank succeeds by returning, or with sys.exit(0)."
_PYTHON = "Is there a python in the image?"
_COMMAND = "Check --image: it must have the command, and be built for the host's processor."
_PULL = "Check --image, and that the cluster may pull it (--image-pull-secret)."
_SPELLING = "Check --image: its spelling, its tag, and that it was pushed."
_GOES_ON = "Nothing is wrong with the job: the cluster keeps trying."
_MOUNT = "Check that the Secret, ConfigMap or claim it names exists in the namespace."
_RUN_AS = (
    "Set --run-as UID to a user other than root that can read the image's files, or choose another namespace."
)

_CLOSED = "Ask an administrator, or choose another --queue."
_ADMITTED_LATER = "Nothing is wrong with the code: it is admitted again when there is quota."

_UNINSTALLED = "its packages can't be installed"
_NO_DATA = "its data can't be fetched"
_INDEX = (
    "The node's own settings say where packages come from, and with what credentials: "
    "PIP_INDEX_URL, UV_INDEX_URL, pip.conf."
)

_SPAWNED = (
    "A process that is started with spawn or forkserver finds a function by its name: define it with def, "
    "in a cell and not inside a function."
)

# The same to the kubelet, which shows the first at each try and the second between tries.
_PULLS = "ErrImagePull|ImagePullBackOff"
_NO_IMAGE = "its image{name} can't be pulled"
_GRACE_S = 180.0  # Flyte's: a first pull may fail while a registry or a network comes up

# fmt: off
# What a job's operator says about its end.
VERDICTS = (
    Row(DEADLINE_EXCEEDED, Cause.DEADLINE, "ran longer than its deadline", _LATER),
)

# What takes a pod away: the reason of its DisruptionTarget condition, or a bare deletion.
TAKEN = (
    Row("PreemptionByScheduler", _INFRA, "preempted by a pod of higher priority", _AGAIN),
    Row("DeletionByTaintManager", _INFRA, "taken from a host that was lost or tainted", _AGAIN),
    Row("EvictionByEvictionAPI", _INFRA, "evicted, as when a host is drained", _AGAIN),
    Row("DeletionByPodGC", _INFRA, "lost with its host, which no longer exists", _AGAIN),
    Row("TerminationByKubelet", _INFRA,
        "ended by its host, which ran short of a resource or is shutting down", _AGAIN),
    Row(DELETED, _INFRA, "its pod was deleted", _AGAIN),
    Row(VANISHED, _INFRA, "its pod disappeared (killed)", _AGAIN),
    Row(".*", _INFRA, "its pod was taken away ({word})", _AGAIN),
)

# Why a queue doesn't admit a job, or took its nodes away, by the reasons of Kueue's Workloads (0.19).
QUEUES = (
    Row("Inadmissible", _CONFIG, "there is no queue {queue} in its namespace",
        "Choose another --queue (doctor lists them), or have it created: then the job is admitted.",
        text=r"LocalQueue (?P<queue>\S+) doesn't exist"),
    Row("Inadmissible", _CONFIG, "its queue belongs to a ClusterQueue {queue}, which doesn't exist", _CLOSED,
        text=r"ClusterQueue (?P<queue>\S+) doesn't exist"),
    Row("Inadmissible", _WAIT, "its queue is closed ({what} is inactive)", _CLOSED,
        text=r"(?P<what>(?:Local|Cluster)Queue \S+) is (?:inactive|stopped)"),
    Row("Pending", _CONFIG,
        "it can never be admitted: it needs {asked} {what}, and its queue has {all} in all",
        "Ask for less, or choose another --queue.",
        text=r"quota for (?P<what>\S+) in .*request \((?P<asked>[^)]+)\) > maximum capacity \((?P<all>\w+)"),
    Row("Pending", _WAIT, "{more} more {what} must be free in its queue's quota",
        text=r"insufficient unused quota for (?P<what>\S+) in flavor \S+, (?P<more>\S+) more needed"),
    Row("Pending", _WAIT, "", text="[Tt]he workload is deactivated"),  # it was deactivated until a moment ago
    Row("Pending|Preempted", _INFRA, "preempted by a job of higher priority in its queue", _ADMITTED_LATER,
        text="due to prioritization in the ClusterQueue"),
    Row("Pending|Preempted", _INFRA, "preempted: its queue had borrowed quota that its owner took back",
        _ADMITTED_LATER, text="due to reclamation within the cohort"),
    Row("Pending|Preempted", _INFRA, "preempted for another queue, which has used less than its share",
        _ADMITTED_LATER, text="due to Fair Sharing"),
    Row("Pending|Preempted", _INFRA, "preempted by another job in its queue: {text}", _ADMITTED_LATER,
        text="Preempted to accommodate"),
    Row("PodsReadyTimeout", _INFRA, "its pods weren't all ready in time, and its queue took its quota back",
        "It is tried again later: find out why its pods weren't ready."),
    Row("(?:Cluster|Local)QueueStopped", _INFRA, "its queue was closed and emptied",
        "It is admitted again when an administrator opens the queue."),
    Row("NodeFailures", _INFRA, "a host of its topology failed", _ADMITTED_LATER),
    Row("AdmissionCheck", _INFRA, "an admission check of its queue took its quota back", _ADMITTED_LATER),
    Row(DEACTIVATED, _WAIT, "it was deactivated in its queue", "Resume it to have it admitted again."),
    Row(f"{GIVEN_UP}MaximumExecutionTimeExceeded", Cause.DEADLINE,
        "ran longer than its maximum execution time in its queue",
        "Raise the label kueue.x-k8s.io/max-exec-time-seconds, or make the work smaller."),
    Row(f"{GIVEN_UP}RequeuingLimitExceeded", Cause.DEADLINE,
        "its queue gave up on it: too often, its pods weren't all ready in time",
        "Find out why its pods weren't ready: does a host have room for each?"),
    Row(f"{GIVEN_UP}.*", Cause.DEADLINE, "its queue gave up on it ({word}): {text}"),
    Row(".*", _WAIT, "{text}"),
)

# How a pod or its container ended, by the reason that the cluster gives.
ENDS = (
    Row("Evicted", _USER, "wrote more to its volume {volume} than its limit of {limit}",
        "Write less there, or give the volume more.",
        text=r'EmptyDir volume "(?P<volume>[^"]+)" exceeds the limit "(?P<limit>[^"]+)"'),
    Row("Evicted", _USER, "wrote more to its disk than its limit of {limit}", _DISK,
        text=r'(?:the total limit of containers|local ephemeral storage limit) "?(?P<limit>[\w.]*\w)'),
    Row("Evicted", _USER, "evicted because it used more than its limit: {text}", _DISK, text="exceed.*limit"),
    Row("Evicted", _INFRA,
        "evicted by its host, which ran short of {what}: it used {used} and requested {asked}", _GREEDY,
        text=r"resource: (?P<what>[\w-]+)\. .* was using (?P<used>\S+), request is (?P<asked>[^\s,]+)"),
    Row("Evicted", _INFRA, "evicted by its host, which ran short of {what}: {text}", _AGAIN,
        text=r"low on resource: (?P<what>[\w-]+)"),
    Row("Evicted", _INFRA, "evicted by its host: {text}", _AGAIN),
    Row("Preempting", _INFRA, "preempted by its host for a critical pod: {text}", _AGAIN),
    Row("Terminated|NodeShutdown|Shutdown", _INFRA, "its host is shutting down: {text}", _AGAIN),
    Row("NodeLost", _INFRA, "its host was lost: {text}", _AGAIN),
    Row("OutOf.+", _INFRA, "its host had too little {what}: {used} of {all} used, {asked} requested", _AGAIN,
        text=r"e: (?P<what>\S+), requested: (?P<asked>\d+), used: (?P<used>\d+), capacity: (?P<all>\d+)"),
    Row("OutOf.+|NodeAffinity|NodePorts|UnexpectedAdmissionError|Topology.+", _INFRA,
        "its host refused it ({word}): {text}", _AGAIN),
    # On this machine a node is its agent. The code runs in the ranks, so it isn't what killed the agent.
    Row(AGENT_KILLED, _INFRA, "its agent was killed: {text}", _AGAIN),
    Row(DEADLINE_EXCEEDED, Cause.DEADLINE, "ran longer than its pod's deadline", _LATER),
    Row("OOMKilled", _USER, "used up the memory of its host (OOMKilled)",
        "It has no limit: --memory reserves memory on its host.", text=NO_LIMIT, crash=True),
    Row("OOMKilled", _USER, "used more memory than its limit (OOMKilled): {text}",
        "Raise --memory, or use a smaller batch or fewer ranks.", crash=True),
    # Also shown for every pod that is deleted before its container started.
    Row("ContainerStatusUnknown", _INFRA, "its container was lost (killed)", _AGAIN),
    Row("StartError|ContainerCannotRun", _CONFIG, "its container can't start: {text}", _PYTHON),
    Row(INIT_FAILED, _CONFIG, "failed before its start: {text}", "See the init container's log."),
    Row(".+", _UNKNOWN, "ended, and its cluster only says {word}: {text}"),
)

# The signal that ended a process; the message is the end of its log.
SIGNALS = (
    Row("SIGKILL", _UNKNOWN, "killed by SIGKILL", _KILLED, crash=True),
    Row("SIGTERM", _USER, "ended by SIGTERM",
        "Its node wasn't taken away: the signal was sent by the job, or by hand.", crash=True),
    Row("SIGBUS", _USER, "killed by SIGBUS", f"Most likely shared memory is full. {_SHM}", crash=True),
    # As written by faulthandler, which torch enables: the next thread's first line has a parenthesis, too.
    Row("SIGSEGV", _USER, "crashed with SIGSEGV in Cell In[{cell}], line {number}", _SEGFAULT, crash=True,
        text=r'Current thread [^(]+\(most recent call first\):[^(]*?'
        r'File "<torchjob cell (?P<cell>\d+)>", line (?P<number>\d+)'),
    Row("SIGSEGV", _USER, "crashed with SIGSEGV", _SEGFAULT, crash=True),
    Row("SIGABRT", _UNKNOWN, "aborted by SIGABRT: a collective timed out ({what})", _HUNG, crash=True,
        text=r"Watchdog caught collective operation timeout: .*?OpType=(?P<what>\w+)"),
    Row("SIGABRT", _UNKNOWN, "aborted by SIGABRT: a collective timed out", _HUNG, crash=True,
        text="collective operation timeout"),
    Row("SIGABRT", _USER, "aborted by SIGABRT: NCCL's watchdog got stuck", _STUCK, crash=True,
        text="watchdog got stuck|Heartbeat monitor timed out"),
    Row("SIGABRT", _USER, "aborted by SIGABRT: a collective received data of an unexpected size", _MISMATCH,
        crash=True, text="Received data size doesn't match expected size"),
    Row("SIGABRT", _USER, "aborted by SIGABRT", _NATIVE, crash=True),
    Row(".*", _USER, "ended by {word}", crash=True),
)

# The exit code of a node: first the agent's, then a container's own; None where it is unknown.
CODES = (
    Row(str(exits.USER_ERROR), _USER, "the code failed"),
    Row(str(exits.CONFIG_ERROR), _CONFIG, "the payload can't run on this node"),
    # Maybe not a crash, but its agent says that another try may succeed, as after a crash.
    Row(str(exits.RECOVERABLE_ERROR), _USER, "the code failed, and may be tried again", crash=True),
    Row(str(exits.INFRASTRUCTURE_ERROR), _INFRA, "the rendezvous failed or a peer was lost", _AGAIN),
    Row(str(exits.CANCELLED), _INFRA, "the node was told to end", _TOLD),
    Row(str(exits.LEFT), _INFRA, "the node was told to end, and its ranks left", _NOTICED),
    Row("126|127|128", _CONFIG, "its command can't be run (exit code {word})", _COMMAND),
    # -9, as some runtimes write it.
    Row("247", _UNKNOWN, "killed by SIGKILL (exit code 247)", _KILLED, crash=True),
    Row("None", _INFRA, "disappeared (killed)", _AGAIN),
    Row(".*", _USER, "exited with code {word}"),
)

# The code that a node ended with, and the type of the exception behind it, where that says more.
NODE_ERRORS = (
    Row(rf"{exits.CONFIG_ERROR} (?:.*\.)?InstallError", _CONFIG, _UNINSTALLED,
        "The image's own torch stays: choose versions that go with it, or another --image.",
        text=r"\btorch(?:==| \d)|belongs to the image"),
    Row(rf"{exits.CONFIG_ERROR} (?:.*\.)?InstallError", _CONFIG, _UNINSTALLED,
        "A wheel is for one Python and one kind of machine: choose another version, or another --image.",
        text=r"no wheels (?:with|for)|not a supported wheel"),
    Row(rf"{exits.CONFIG_ERROR} (?:.*\.)?InstallError", _CONFIG, _UNINSTALLED, _INDEX,
        text=r"No matching distribution|not found in the package registry|\b40[134]\b|find a version|"
        r"Failed to fetch|didn't install"),
    Row(rf"{exits.CONFIG_ERROR} (?:.*\.)?InstallError", _CONFIG, _UNINSTALLED),
    Row(rf"{exits.RECOVERABLE_ERROR} (?:.*\.)?InstallError", _UNKNOWN, _UNINSTALLED, _INDEX),
    Row(rf"{exits.CONFIG_ERROR} (?:.*\.)?DataError", _CONFIG, "its disk has no room for its data",
        "Free some of it, or choose fewer files with ?include=.",
        text=r"MiB are free|the disk of .* is full"),
    Row(rf"{exits.CONFIG_ERROR} (?:.*\.)?DataError", _CONFIG, _NO_DATA),
    Row(rf"{exits.RECOVERABLE_ERROR} (?:.*\.)?DataError", _UNKNOWN, _NO_DATA,
        "What was fetched so far is kept for the next attempt."),
)

# What the machine refused, as ``runtime/node/shortage`` notes on an exception that ended a node's agent.
SHORTAGES = (
    Row(".*", _CONFIG, "a process may have only {most} files open there", _FILES,
        text=r"may have this many files open: (?P<most>\d+) \(RLIMIT"),
    Row(".*", _INFRA, "its machine has reached its limit on open files", _LATER_THERE,
        text=r"\(fs\.file-max\)"),
    Row(".*", _INFRA, "it may start no more processes or threads", _PROCESSES,
        text="no more processes or threads may be started"),
    Row(".*", _INFRA, "it has no memory for another process", _MEMORY, text="there is no memory for it"),
    Row(".*", _INFRA, "its disk is full", _FULL, text=r"is full: .* are free"),
    Row(".*", _CONFIG, "it can't write to {folder}", "Set TMPDIR to a folder that can be written to.",
        text="(?P<folder>.*) is read-only"),
    Row(".*", _INFRA, "it can't connect to itself", "Bring its loopback interface up: ip link set lo up.",
        text="its ranks meet at that address"),
)

# The type of an exception that ended a node's agent with the code for infrastructure.
AGENT_ERRORS = (
    Row(r"(?:.*\.)?DataError", _INFRA, "its disk has no room for its data",
        "Free some of it, or name a bigger place with --data-cache."),
    Row(r"(?:.*\.)?PeersEnded", _INFRA, "a peer was lost: {text}", _AGAIN),
    Row(r"(?:.*\.)?(?:Rendezvous|Dist|Connection|Timeout|BrokenPipe)\w*Error", _INFRA,
        "the rendezvous failed or a peer was lost", _AGAIN),
    Row(".*", _UNKNOWN, "the node's agent failed"),
)

# The exit code of a rank that reported no exception.
RANK_CODES = (
    Row(str(exits.UNSEEN), _UNKNOWN, "disappeared (killed)",
        f"It called os._exit(255), or the process that started it was killed. {_KILLED}", crash=True),
    Row(".*", _USER, "exited with code {word}", _LEFT),
)

# The type of an exception, and its message; no row where there is nothing to add.
ERRORS = (
    Row(".*OutOfMemoryError", _USER, "{word}", _ACCELERATOR),
    Row(".*", _USER, "{word}", _ACCELERATOR, text=r"\b(?:CUDA|HIP|MPS|XPU)\b[\w ]*:? out of memory"),
    Row(".*", _USER, "{word}",
        "Most likely an index was out of range. A GPU reports it late: with --env CUDA_LAUNCH_BLOCKING=1 the "
        "traceback has the right line.",
        text="device-side assert triggered|illegal memory access|misaligned address"),
    Row(".*", _USER, "{word}", "A node with N GPUs has cuda:0 to cuda:N-1: use cuda:LOCAL_RANK.",
        text="invalid device ordinal"),
    Row(".*", _USER, "{word}", f"Shared memory is full. {_SHM}",
        text=r"[Bb]us error|unable to \w+ shared memory|to file </torch_|/dev/shm/nccl|No space.*/dev/shm"),
    Row(".*", _USER, "{word}", _FULL, text="No space left on device|Disk quota exceeded"),
    Row(".*MemoryError", _USER, "{word}", f"The memory ran out. {_MEMORY}"),
    Row(".*", _USER, "{word}", f"Most likely the memory ran out. {_MEMORY}",
        text="Cannot allocate memory|DataLoader worker .*: Killed"),
    Row(".*", _USER, "{word}", _FILES, text="Too many open files"),
    Row(".*", _USER, "{word}", _PROCESSES, text="can't start new thread|Resource temporarily unavailable"),
    Row("NameError", _USER, "{word}", "Import it: from nbtorchjob import {what}.",
        text=f"name '(?P<what>{'|'.join(rank_api.__all__)})' is not defined"),
    Row("ModuleNotFoundError", _USER, "{word}",
        "A module beside the notebook travels if the code names it: import {what} in the cell. "
        "An installed package has to be in the image, or requested with --package.",
        text=r"No module named '(?P<what>[\w.]+)'"),
    Row("AttributeError", _USER, "{word}", "If that is a module: import {home}.{what} in the cell.",
        text=r"^module '(?P<home>[\w.]+)' has no attribute '(?P<what>\w+)'$"),
    Row("ValueError|AttributeError", _USER, "{word}",
        "An Accelerator, or a Trainer, which has one, belongs to its process: create it on the ranks.",
        text="properly initialize your accelerator|PartialState.* (?:not re|must be )initialized"),
    Row("EOFError", _USER, "{word}", "A rank has no keyboard: set a variable in the notebook.",
        text="EOF when reading a line"),
    # multiprocessing's, without a message: from a pipe, a queue, or a tensor that a worker sends.
    Row("EOFError", _USER, "{word}",
        "A process that this rank exchanged data with has ended, such as a DataLoader's worker: see the log.",
        text="^$"),
    Row("TypeError|AttributeError", _USER, "{word}",
        "The value of an async function has to be awaited: put await before the call.",
        text=r"'(?:coroutine|async_generator)'"),
    Row(".*PicklingError|AttributeError", _USER, "{word}", _SPAWNED,
        text=r"pickle.*(?:<lambda>|<locals>)|pickle local object"),
    Row(".*", _USER, "{word}", "A port is in use: don't set MASTER_PORT yourself.",
        text="Address already in use|EADDRINUSE"),
    Row(".*", _UNKNOWN, "{word}", _HUNG, text=errors.TIMED_OUT),
    Row(".*", _USER, "{word}",
        "The ranks have no GPU, or a torch without NCCL: init_process_group('gloo') works there.",
        text="doesn't have NCCL built in|ProcessGroupNCCL is only supported with GPUs"),
    # NCCL raises one type for everything; the rows here, which aren't about a peer, come before PEERS.
    Row("DistBackendError", _CONFIG, "{word}", "Give each rank a GPU of its own: set_device(LOCAL_RANK).",
        text="Duplicate GPU detected"),
    Row("DistBackendError", _UNKNOWN, "{word}", "NCCL failed; for a detailed log, use --env NCCL_DEBUG=INFO.",
        text=r"nccl(?:UnhandledCuda|System|Internal)Error|ncclInvalid"),
)

# The type of an exception, and the line that raised it; no row where there is nothing to add.
LINES = (
    Row("KeyError", _USER, "{word}",
        "On ranks, globals() has only what the submitted code names: name the variable in the cell.",
        text=r"\bglobals\(\)"),
)

# An exception that only says that another rank is gone, if nothing else is known.
PEERS = (Row(".*", _UNKNOWN, "a peer left", _GONE),)

# Why something doesn't run yet.
WAITS = (
    Row(_PULLS, _INFRA, f"{_NO_IMAGE}, because its registry limits the rate of pulls",
        f"{_GOES_ON} Authenticated pulls have a higher limit (--image-pull-secret).",
        text="429 Too Many Requests|toomanyrequests", grace_s=_GRACE_S),
    Row(_PULLS, _CONFIG, f"{_NO_IMAGE}, because its registry denies access", _PULL,
        text="denied|[Uu]nauthorized|authorization failed|403 Forbidden", grace_s=_GRACE_S),
    Row(_PULLS, _CONFIG, f"{_NO_IMAGE}, because it isn't built for its host's processor", _COMMAND,
        text="no match for platform", grace_s=_GRACE_S),
    Row(_PULLS, _CONFIG, f"{_NO_IMAGE}, because its registry has no such image", _SPELLING,
        text="not found|manifest unknown", grace_s=_GRACE_S),
    Row(_PULLS, _CONFIG, f"{_NO_IMAGE}, because there is no such registry", _SPELLING,
        text="no such host", grace_s=_GRACE_S),
    Row(_PULLS, _INFRA, f"{_NO_IMAGE}, because its registry can't be reached", _GOES_ON,
        text="timeout|connection (?:refused|reset)|50[0234] [A-Z]", grace_s=_GRACE_S),
    Row(_PULLS, _INFRA, f"{_NO_IMAGE}, because the disk of its host is full", _GOES_ON,
        text="no space left on device", grace_s=_GRACE_S),
    Row(_PULLS, _CONFIG, _NO_IMAGE, _PULL, grace_s=_GRACE_S),
    Row("ErrImageNeverPull", _CONFIG, "its image{name} isn't on its host, and may not be pulled",
        "The pull policy is Never, and the host doesn't have the image."),
    Row("InvalidImageName", _CONFIG, "its image{name} has an invalid name", "Check the spelling of --image."),
    Row("CreateContainerConfigError", _CONFIG, "its image would run as root, which the pod forbids", _RUN_AS,
        text="runAsNonRoot"),
    Row("CreateContainerConfigError", _CONFIG, "its container can't be configured", _MOUNT),
    Row("CreateContainerError", _CONFIG, "its container can't be created",
        "The container runtime refuses the container: see its message.", grace_s=_GRACE_S),
    Row("RunContainerError", _CONFIG, "its container can't start", _PYTHON, grace_s=_GRACE_S),
    # How it ended is a fact of its own: the container's last end.
    Row("CrashLoopBackOff", _WAIT, "its container ended, and is started again"),
    Row("FailedMount", _WAIT, "a volume isn't ready yet", text="failed to sync|not registered"),
    Row("FailedMount", _CONFIG, "a volume can't be mounted", _MOUNT, grace_s=_GRACE_S),
    Row("FailedAttachVolume", _CONFIG, "a volume can't be attached", _MOUNT, grace_s=_GRACE_S),
    Row("FailedCreatePodSandBox", _INFRA, "its network can't be set up",
        f"{_GOES_ON} Ask an administrator if it lasts.", grace_s=_GRACE_S),
    Row("FailedCreate", _CONFIG, "a pod can't be created", text="doesn't exist: choose|violates PodSecurity"),
    Row("FailedCreateService", _CONFIG, "its Service can't be created", "Give the job a shorter --name."),
    Row(PODS_REFUSED, _CONFIG, "its pods can't be requested"),
    Row("Unschedulable|SchedulingGated|FailedCreate", _WAIT, "it isn't scheduled yet"),
)
# fmt: on
