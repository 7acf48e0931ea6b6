"""The table of causes: how the emulator brings each about, and what must be known of it.

A cause is acted by a program (``part``, in the words of ``parts/causes.py``) or done to a pod (``strike``).
It happens twice, and the third try succeeds: a budget of one is used up, and an unlimited one goes on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbtorchjob.state import Budget
from nbtorchjob.state.failure import Cause

TIMES = 2
PODS = "api/v1/{}/pods"

HANG = "begin(); wait('never')"


@dataclass(frozen=True)
class Row:
    """A cause, and what must be known of a job that it ends; its message contains ``line`` and ``hint``.

    ``like`` names the row that looks the same to an operator: another kind of job would show nothing new.
    ``again`` is the number of an operator's retries if it differs from what the budget allows, ``apart`` the
    reason why nothing is compared: both by the owner of the retries and the kind.
    """

    name: str
    cause: Cause
    budget: Budget | None
    line: str
    hint: str = ""
    part: str = HANG
    strike: Callable[..., Any] | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""  # instead of a part
    hosts: tuple[str, ...] = ("localhost",)
    like: str = ""
    again: Mapping[Any, Any] = field(default_factory=dict)
    apart: Mapping[Any, Any] = field(default_factory=dict)


def evict(reason, message="told by the test"):
    return lambda stage, pod: stage.cluster.evict(stage.namespace, pod, why=(reason, message))


def fail(reason, message, disrupted=""):
    """Return a strike that ends a pod as a kubelet does; with ``disrupted``, not through its own fault."""

    def strike(stage, pod):
        stage.cluster.fail_pods(stage.namespace, pod, why=(reason, message), disrupted=disrupted)

    return strike


def refuse(reason, message):
    """Return a strike that makes the host refuse a pod: its kubelet ends it before it has a container."""
    return lambda stage, pod: change(stage, pod, {"phase": "Failed", "reason": reason, "message": message})


def change(stage, pod, status):
    path = f"/{PODS.format(f'namespaces/{stage.namespace}')}/{pod}/status"
    stage.cluster.request("PATCH", path, {"status": status})


def delete(stage, pod):
    stage.delete(PODS, pod)


def oom(stage, pod):
    stage.cluster.oom_kill(stage.namespace, pod)


def signalled(name, cause, line, hint):
    part = f"begin(); leave(AGAIN, signal=int(signal.{name}))"
    return Row(f"{name} of a rank", cause, Budget.FAILURES, line, hint, part, like="a recoverable error")


USER, CONFIG, INFRA, UNKNOWN = Cause.USER, Cause.CONFIG, Cause.INFRA, Cause.UNKNOWN
FAILURES, PREEMPTIONS = Budget.FAILURES, Budget.PREEMPTIONS
EMPTY_DIR = 'Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". '
PRESSURE = (
    "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. "
    "Container main was using 9Gi, request is 1Gi, has larger consumption of memory. "
)
FULL = "Node didn't have enough resource: cpu, requested: 4000, used: 61000, capacity: 64000"

CODE = (
    Row("an exception", USER, None, "ValueError", part="begin(); fail()"),
    Row("a recoverable error", USER, FAILURES, "RecoverableError", "",
        "begin(); fail(recoverable=True, code=AGAIN, kind='nbtorchjob.RecoverableError')"),
    Row("an exception of retry_on", USER, FAILURES, "OSError",
        part="begin(); fail(recoverable=True, code=AGAIN, kind='OSError')", like="a recoverable error"),
    Row("sys.exit(3)", USER, None, "exited with code 3", "sys.exit",
        "begin(); leave(exits.USER_ERROR, code=3)", like="an exception"),
    Row("os._exit(0)", USER, None, "exited with code 0", "os._exit",
        "begin(); leave(exits.USER_ERROR, code=0)", like="an exception"),
    signalled("SIGKILL", UNKNOWN, "killed by SIGKILL", "--memory"),
    signalled("SIGSEGV", USER, "crashed with SIGSEGV", "native"),
    signalled("SIGABRT", USER, "aborted by SIGABRT", "NCCL"),
    signalled("SIGBUS", USER, "killed by SIGBUS", "--shm"),
    signalled("SIGTERM", USER, "ended by SIGTERM", "by hand"),
)  # fmt: skip

# Volcano restarts a job after the exit codes that its policies name; these aren't among them.
# A JobSet restarts a container unless somebody stops it, which happens only if another try can't help.
UNNAMED = {("operator", "volcano"): 0, ("plain", "trainjob"): TIMES}
# A Job's policy tells failures apart by exit code, and this one looks like a crash.
LIKE_A_CRASH = {("operator", "indexedjob"): 1}
# A Job counts a pod that a host refuses as a failure: no condition of the pod says otherwise.
COUNTED = {("operator", "indexedjob"): 1, ("plain", "indexedjob"): 0}
EITHER = {("plain", "pytorchjob"): "its operator replaces a pod that is gone before it saw it being deleted"}
ENDLESS = {("plain", "trainjob"): "its JobSet makes pods until one isn't refused"}

CONTAINER = (
    Row("out of memory", USER, FAILURES, "its limit was 1Gi", "--memory", strike=oom, asked={"memory": "1Gi"},
        again=UNNAMED),
    Row("out of memory without a limit", USER, FAILURES, "memory of its host", "no limit", strike=oom,
        like="out of memory"),
    Row("SIGKILL with nothing said", UNKNOWN, FAILURES, "SIGKILL", "--memory",
        "begin(); os.kill(os.getpid(), signal.SIGKILL); wait('never')", again=UNNAMED),
    Row("wrote more than its own limit", USER, None, "scratch than its limit of 1Gi", "Write less",
        strike=fail("Evicted", EMPTY_DIR), again=LIKE_A_CRASH),
    Row("a container that can't start", CONFIG, None, "its container can't start", "python", command="nope",
        hosts=()),
    Row("a command that isn't found", CONFIG, None, "exit code 127", "--image", "os._exit(127)",
        like="a payload that can't run"),
    Row("a payload that can't run", CONFIG, None, "the payload can't run", "",
        "give_up(exits.CONFIG_ERROR, 'RuntimeError')"),
)  # fmt: skip

TAKEN = (
    Row("eviction by the API", INFRA, PREEMPTIONS, "evicted", "run it again",
        strike=evict("EvictionByEvictionAPI"), apart=EITHER),
    Row("preemption by the scheduler", INFRA, PREEMPTIONS, "higher priority", "run it again",
        strike=evict("PreemptionByScheduler"), like="eviction by the API"),
    Row("a host that is lost", INFRA, PREEMPTIONS, "lost or tainted", "run it again",
        strike=evict("DeletionByTaintManager"), like="eviction by the API"),
    Row("a host that is gone", INFRA, PREEMPTIONS, "no longer exists", "run it again",
        strike=evict("DeletionByPodGC"), like="eviction by the API"),
    Row("a host that runs short", INFRA, PREEMPTIONS, "short of memory: it used 9Gi", "--memory",
        strike=fail("Evicted", PRESSURE, "TerminationByKubelet")),
    Row("a pod that is deleted", INFRA, PREEMPTIONS, "its pod was deleted", "run it again", strike=delete,
        apart=EITHER),
    Row("a host that refuses the pod", INFRA, PREEMPTIONS, "too little cpu: 61000 of 64000", "run it again",
        strike=refuse("OutOfcpu", FULL), asked={"node_selector": {"nowhere": "yes"}}, hosts=(),
        again=COUNTED, apart=ENDLESS),
    Row("a rendezvous that fails", INFRA, PREEMPTIONS, "rendezvous", "run it again",
        "give_up(exits.INFRASTRUCTURE_ERROR, 'torch.distributed.DistNetworkError')"),
)  # fmt: skip

ROWS = (*CODE, *CONTAINER, *TAKEN)
# The rows that operators tell apart, by exit code, reason or condition.
APART = tuple(row for row in ROWS if not row.like)
