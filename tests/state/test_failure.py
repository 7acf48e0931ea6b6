"""Every sign of an end or a wait has a cause, a line and a hint."""

import multiprocessing
import signal
import subprocess
import sys
from functools import reduce

import pytest

from nbtorchjob.runtime.api import rank_api
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import JobInfo, JobState, Phase, apply, failure
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts.events import Stage
from nbtorchjob.state.failure import Cause
from nbtorchjob.state.text import facts

STARTED = ev.NodeStarted(1.0, 0, "host", pod="a")
KILLED = ev.NodeExited(3.0, 0, 137, signal.SIGKILL, "a", "Error")
ENDED = ev.NodeExited(3.0, 0, 143, signal.SIGTERM, "a", "Error")


def end(*events):
    """Return the state of a job of one node after these events and its failure."""
    history = [STARTED, *events, ev.Verdict(8.0, False), ev.Closed(9.0)]
    return reduce(apply, history, JobState(JobInfo("job", "kubernetes", nodes=(1, 1))))


def taken(reason, last=KILLED):
    return ev.NodeDisrupted(2.0, 0, "a", reason), last


def told(reason, text="", code=137, number=None):
    return (ev.NodeExited(3.0, 0, code, number, "a", reason, text),)


def code(number, text=""):
    return told("Error", text, number, number - 128 if 128 < number <= 192 else None)


LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 9Mi. "
GREEDY = f"{LOW}Container main was using 9Gi, request is 1Gi, has larger consumption of memory. "
VOLUME = 'Usage of EmptyDir volume "s" exceeds the limit "3Mi". '
PODS_DISK = "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. "
ITS_DISK = 'Container main exceeded its local ephemeral storage limit "1.5Gi". '
TOO_BIG = "Node didn't have enough resource: nvidia.com/gpu, requested: 8, used: 6, capacity: 8"
LAMBDA = "Can't pickle <function <lambda> at 0x1>: attribute lookup <lambda> on __main__ failed"
LOST = "The container could not be located when the pod was terminated"

ENDS = [
    # condition DisruptionTarget, or a deletion
    (taken("PreemptionByScheduler"), Cause.INFRA, "higher priority", "run it again"),
    (taken("DeletionByTaintManager"), Cause.INFRA, "host that was lost or tainted", "run it again"),
    (taken("EvictionByEvictionAPI", ENDED), Cause.INFRA, "a host is drained", "run it again"),
    (
        taken("PreemptionByScheduler", *told("ContainerStatusUnknown", LOST, None)),
        Cause.INFRA,
        "higher priority",
        "run it again",
    ),
    (taken("DeletionByPodGC", ev.NodeGone(3.0, 0, "a")), Cause.INFRA, "no longer exists", "run it again"),
    (
        taken("TerminationByKubelet"),
        Cause.INFRA,
        "ran short of a resource or is shutting down",
        "run it again",
    ),
    (taken(ev.DELETED, ENDED), Cause.INFRA, "its pod was deleted", "run it again"),
    (taken("SomethingNew"), Cause.INFRA, "taken away (SomethingNew)", "run it again"),
    # the pod's reason
    (told("Evicted", LOW), Cause.INFRA, "by its host, which ran short of memory: The node", "run it again"),
    (told("Evicted", GREEDY), Cause.INFRA, "of memory: it used 9Gi and requested 1Gi", "raise --memory"),
    (told("Evicted"), Cause.INFRA, "evicted by its host", "run it again"),
    (told("Evicted", VOLUME), Cause.USER, "wrote more to its volume s than its limit of 3Mi", "Write less"),
    (told("Evicted", PODS_DISK), Cause.USER, "wrote more to its disk than its limit of 3Mi", "--limit"),
    (told("Evicted", ITS_DISK), Cause.USER, "wrote more to its disk than its limit of 1.5Gi", "--limit"),
    (told("Preempting"), Cause.INFRA, "preempted by its host for a critical pod", "run it again"),
    (told("Terminated"), Cause.INFRA, "its host is shutting down", "run it again"),
    (told("NodeShutdown"), Cause.INFRA, "its host is shutting down", "run it again"),
    (told("Shutdown"), Cause.INFRA, "its host is shutting down", "run it again"),
    (told("NodeAffinity", "no match", None), Cause.INFRA, "refused it (NodeAffinity): no match", "run it"),
    (told("OutOfcpu", "", None), Cause.INFRA, "refused it (OutOfcpu)", "run it again"),
    (told("OutOfnvidia.com/gpu", TOO_BIG, None), Cause.INFRA, "6 of 8 used, 8 requested", "run it again"),
    (told("UnexpectedAdmissionError", "", None), Cause.INFRA, "refused it", "run it again"),
    (told("NodePorts", "", None), Cause.INFRA, "refused it", "run it again"),
    (told("TopologyAffinityError", "", None), Cause.INFRA, "refused it", "run it again"),
    (told("NodeLost", "", None), Cause.INFRA, "its host was lost", "run it again"),
    (told("DeadlineExceeded"), Cause.DEADLINE, "its pod's deadline", "--active-deadline-seconds"),
    (told(failure.AGENT_KILLED, "SIGKILL"), Cause.INFRA, "its agent was killed: SIGKILL", "run it again"),
    (told("SomethingNew", "odd"), Cause.UNKNOWN, "its cluster only says SomethingNew: odd", ""),
    # the container's reason and exit code
    (told("OOMKilled", "its limit was 8Gi"), Cause.USER, "more memory than its limit", "Raise --memory"),
    (told("OOMKilled", "its limit was 8Gi", 1), Cause.USER, "its limit was 8Gi", "Raise --memory"),
    (told("OOMKilled", failure.NO_LIMIT), Cause.USER, "the memory of its host", "--memory"),
    ((KILLED,), Cause.UNKNOWN, "killed by SIGKILL", "Killed from outside, most likely"),
    (taken(ev.DELETED, KILLED), Cause.INFRA, "its pod was deleted", "run it again"),
    (told("ContainerStatusUnknown", LOST, None), Cause.INFRA, "lost (killed)", "run it again"),
    (told("", "", None), Cause.INFRA, "disappeared (killed)", "run it again"),
    (code(247), Cause.UNKNOWN, "killed by SIGKILL (exit code 247)", "Killed from outside, most likely"),
    ((ENDED,), Cause.USER, "ended by SIGTERM", "by the job, or by hand"),
    (taken("EvictionByEvictionAPI", ENDED), Cause.INFRA, "evicted", "run it again"),
    (code(134), Cause.USER, "aborted by SIGABRT", "most likely a collective timed out"),
    (code(139), Cause.USER, "crashed with SIGSEGV", "native extension"),
    (code(135), Cause.USER, "killed by SIGBUS", "--shm"),
    (code(159), Cause.USER, "ended by SIGSYS", ""),
    (code(exits.USER_ERROR), Cause.USER, "the code failed", ""),
    (code(exits.USER_ERROR, "no such file: x"), Cause.USER, "the code failed", "no such file: x"),
    (code(exits.CONFIG_ERROR), Cause.CONFIG, "the payload can't run", ""),
    (code(exits.RECOVERABLE_ERROR), Cause.USER, "may be tried again", ""),
    (code(exits.INFRASTRUCTURE_ERROR), Cause.INFRA, "a peer was lost", "run it again"),
    (code(exits.CANCELLED), Cause.INFRA, "told to end", "the job was not cancelled"),
    (code(3), Cause.USER, "exited with code 3", ""),
    (code(126), Cause.CONFIG, "can't be run (exit code 126)", "--image"),
    (code(127), Cause.CONFIG, "can't be run (exit code 127)", "--image"),
    (code(128), Cause.CONFIG, "can't be run (exit code 128)", "--image"),
    (told("StartError", "exec: no such file", 128), Cause.CONFIG, "start: exec: no such file", "a python"),
    (told("ContainerCannotRun", "", 127), Cause.CONFIG, "can't start", "a python"),
    (told(failure.INIT_FAILED, "init x", 5), Cause.CONFIG, "before its start: init x", "log"),
    # the job's own deadline
    ((ev.DeadlineExceeded(7.0, 6),), Cause.DEADLINE, "its deadline of 6 s", "--active-deadline-seconds"),
    ((ev.Verdict(8.5, False, "DeadlineExceeded"),), Cause.DEADLINE, "its deadline", "--active-deadline"),
]


@pytest.mark.parametrize(("events", "cause", "line", "hint"), ENDS)
def test_an_end_has_a_cause_and_says_what_to_do(events, cause, line, hint):
    state = end(*events)

    assert state.phase is Phase.FAILED
    assert state.failure.reason.cause is cause
    assert line in state.failure.reason.line
    assert hint in state.failure.reason.hint
    assert bool(hint) == bool(state.failure.reason.hint)


@pytest.mark.parametrize("last", [ENDED, KILLED, *told("ContainerStatusUnknown", LOST, None)])
def test_what_we_asked_for_is_no_failure(last):
    state = end(ev.CancelRequested(2.0), *taken(ev.DELETED, last))

    assert (state.phase, state.failure.reason.cause) == (Phase.CANCELLED, Cause.CANCELLED)


def test_what_a_rank_raises_once_its_node_is_told_to_end_is_no_cause():
    raised = ev.RankFailed(3.0, 0, 0, 0, 0, Error("Preempted", "saved"))

    told_to_end = end(raised, *code(exits.CANCELLED)).failure
    by_itself = end(raised, *code(exits.USER_ERROR)).failure

    assert told_to_end is not None
    assert by_itself is not None
    assert (told_to_end.reason.cause, told_to_end.error) == (Cause.INFRA, None)
    assert (by_itself.reason.cause, by_itself.rank) == (Cause.USER, 0)


@pytest.mark.parametrize("recoverable", [False, True])
def test_a_retry_of_a_recoverable_error_may_end_otherwise(recoverable):
    raised = ev.RankFailed(3.0, 0, 0, 0, 0, Error("E", "away", recoverable=recoverable))
    state = end(raised, *code(exits.USER_ERROR))

    assert state.failure is not None
    assert ("a retry would fail the same way" in facts.cause(state.failure, state)) != recoverable


def test_an_exit_code_is_explained_by_the_exception_that_was_told():
    error = Error("ValueError", "no luck", time=2.0)
    state = end(ev.RankFailed(2.0, 0, 0, 0, 0, error), *code(exits.USER_ERROR))

    assert (state.failure.reason.cause, state.failure.error) == (Cause.USER, error)


def test_a_pod_that_vanished_isnt_the_codes_fault():
    assert (failure.of_gone().cause, failure.of_gone().line) == (
        Cause.INFRA,
        "its pod disappeared (killed)",
    )


PULL = 'failed to pull and unpack image "reg/x:1": '
NOT_THERE = f"{PULL}failed to resolve reference: reg/x:1: not found"
DENIED = f"{PULL}pull access denied, repository does not exist or may require authorization"
LIMITED = f"{PULL}unexpected status from HEAD request: 429 Too Many Requests"
UNREACHABLE = f'{PULL}Head "https://reg/v2": dial tcp 10.0.0.1:443: i/o timeout'
NO_NAME = f"{PULL}dial tcp: lookup reg: no such host"
OTHER_CPU = f"{PULL}no match for platform in manifest: not found"
UNSYNCED = "MountVolume.SetUp failed for volume x: failed to sync secret cache: timed out"
NO_SECRET = 'MountVolume.SetUp failed for volume "x" : secret "absent" not found'

GRACE = 180.0
WAITS = [
    # reason, message; the cause at once, and once it has lasted; words of the line, of the hint
    (
        "ErrImagePull",
        NOT_THERE,
        Cause.WAIT,
        Cause.CONFIG,
        "reg/x:1 can't be pulled, because",
        "Check --image",
    ),
    ("ImagePullBackOff", NOT_THERE, Cause.WAIT, Cause.CONFIG, "has no such image", "spelling"),
    ("ImagePullBackOff", DENIED, Cause.WAIT, Cause.CONFIG, "denies access", "--image-pull-secret"),
    ("ImagePullBackOff", NO_NAME, Cause.WAIT, Cause.CONFIG, "no such registry", "spelling"),
    ("ImagePullBackOff", OTHER_CPU, Cause.WAIT, Cause.CONFIG, "its host's processor", "--image"),
    ("ImagePullBackOff", LIMITED, Cause.WAIT, Cause.INFRA, "limits the rate", "keeps trying"),
    ("ImagePullBackOff", UNREACHABLE, Cause.WAIT, Cause.INFRA, "can't be reached", "keeps trying"),
    ("ErrImagePull", "something new", Cause.WAIT, Cause.CONFIG, "its image can't be pulled", "--image"),
    (
        "InvalidImageName",
        'image "Bad:::1"',
        Cause.CONFIG,
        Cause.CONFIG,
        "Bad:::1 has an invalid name",
        "spelling",
    ),
    ("ErrImageNeverPull", "", Cause.CONFIG, Cause.CONFIG, "isn't on its host", "Never"),
    ("CreateContainerConfigError", "", Cause.CONFIG, Cause.CONFIG, "can't be configured", "Secret"),
    ("CreateContainerError", "", Cause.WAIT, Cause.CONFIG, "can't be created", "its message"),
    ("RunContainerError", "", Cause.WAIT, Cause.CONFIG, "can't start", "python"),
    ("FailedMount", NO_SECRET, Cause.WAIT, Cause.CONFIG, "can't be mounted", "Secret"),
    ("FailedMount", UNSYNCED, Cause.WAIT, Cause.WAIT, "isn't ready yet", ""),
    ("FailedCreatePodSandBox", "", Cause.WAIT, Cause.INFRA, "network", "administrator"),
    ("CrashLoopBackOff", "", Cause.WAIT, Cause.WAIT, "started again", ""),
    ("Unschedulable", "", Cause.WAIT, Cause.WAIT, "isn't scheduled yet", ""),
    ("SchedulingGated", "", Cause.WAIT, Cause.WAIT, "isn't scheduled yet", ""),
    ("SomethingNew", "", Cause.WAIT, Cause.WAIT, "SomethingNew", ""),
]


@pytest.mark.parametrize(("reason", "message", "first", "last", "line", "hint"), WAITS)
def test_a_wait_has_a_cause_once_its_grace_is_over(reason, message, first, last, line, hint):
    event = ev.Waiting(1.0, f"{failure.trouble(reason, message)}: {message}", 0, "a", reason, Stage.STARTING)

    assert failure.of_waiting(event, 0.0).cause is first
    assert failure.of_waiting(event, GRACE - 1).cause is first
    assert failure.of_waiting(event, GRACE) == failure.of_waiting(event)
    assert failure.of_waiting(event).cause is last
    assert line in event.text
    assert hint in failure.of_waiting(event).hint
    assert bool(hint) == bool(failure.of_waiting(event).hint)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [("OOMKilled", Cause.USER), ("StartError", Cause.CONFIG), ("CrashLoopBackOff", Cause.WAIT)],
)
def test_between_two_runs_the_last_end_says_why(reason, cause):
    assert failure.of_waiting(ev.Waiting(1.0, "again", 0, "a", reason, Stage.RESTARTING)).cause is cause


TIMED_OUT = (
    "[rank1]:[E1218 20:27 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000) ran for 600081 milliseconds\n"
)
MISMATCH = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at gloo/"
    "transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match ex"
    "pected size. Is there a distributed collective mismatch in your code?\nFatal Python error: Aborted\n"
)
SLOW = "timeout= of init_process_group"
HEARTBEAT = "[Rank 0] Heartbeat monitor timed out! Process will be terminated after dumping debug info.\n"


@pytest.mark.parametrize(
    ("log", "cause", "line", "hint"),
    [
        (TIMED_OUT, Cause.UNKNOWN, "a collective timed out (ALLREDUCE)", "timeout= of init_process_group"),
        ("a collective operation timeout", Cause.UNKNOWN, "a collective timed out", "init_process_group"),
        (HEARTBEAT, Cause.USER, "NCCL's watchdog got stuck", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
        (MISMATCH, Cause.USER, "a collective received data of an unexpected size", "may not be at fault"),
        ("", Cause.USER, "aborted by SIGABRT", "most likely a collective timed out"),
    ],
)
def test_why_a_rank_was_aborted_is_known_by_what_it_wrote(log, cause, line, hint):
    reason = failure.of_signal(signal.SIGABRT, f"step 1\n{log}")

    assert (reason.cause, line in reason.line, hint in reason.hint) == (cause, True, True)


CALLED = '  File "/lib/ctypes/__init__.py", line 519 in string_at\n'
OF_CELL = '  File "<torchjob cell 22>", line 3 in load\n  File "<torchjob cell 22>", line 7 in <module>\n'
THREAD, CURRENT = (
    f"\n{what} 0x00007f8584dff6c0 (most recent call first):\n" for what in ("Thread", "Current thread")
)


@pytest.mark.parametrize(
    ("stacks", "line"),
    [
        (THREAD + CALLED + CURRENT + CALLED + OF_CELL, "crashed with SIGSEGV in Cell In[22], line 3"),
        (CURRENT + CALLED + THREAD + OF_CELL, "crashed with SIGSEGV"),
        ("", "crashed with SIGSEGV"),
    ],
)
def test_the_line_of_a_cell_that_called_what_crashed_is_told(stacks, line):
    log = f"Fatal Python error: Segmentation fault\n{stacks}\nExtension modules: torch._C (total: 1)\n"
    reason = failure.of_signal(signal.SIGSEGV, log)

    assert (reason.cause, reason.line, "'Current thread'" in reason.hint) == (Cause.USER, line, True)


def test_a_signal_without_a_name_is_told_by_its_number():
    assert failure.of_signal(77).line == "ended by signal 77"


BUS = "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that workers are out of ..."
NCCL = "NCCL error in: ProcessGroupNCCL.cpp:1, {}, NCCL version 2.27"


@pytest.mark.parametrize(
    ("type_", "message", "cause", "hint"),
    [
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate", Cause.USER, "smaller batch"),
        ("RuntimeError", "CUDA error: out of memory", Cause.USER, "smaller batch"),
        ("MemoryError", "", Cause.USER, "--memory"),
        ("numpy._core._exceptions._ArrayMemoryError", "Unable to allocate", Cause.USER, "--memory"),
        ("OSError", "[Errno 12] Cannot allocate memory", Cause.USER, "most likely the memory"),
        ("OSError", "[Errno 28] No space left on device", Cause.USER, "free some space"),
        ("RuntimeError", "unable to write to file </torch_1>: No space left on device", Cause.USER, "--shm"),
        ("RuntimeError", BUS, Cause.USER, "--shm"),
        ("OSError", "[Errno 28] No space left on device: '/dev/shm/x'", Cause.USER, "--shm"),
        ("RuntimeError", "unable to open shared memory object </torch_1>", Cause.USER, "--shm"),
        # This is the shared memory of a GPU's cores.
        ("triton.OutOfResources", "out of resource: shared memory, Required: 147456", Cause.USER, ""),
        ("OSError", "[Errno 98] Address already in use", Cause.USER, "MASTER_PORT"),
        *(
            ("NameError", f"name '{name}' is not defined", Cause.USER, f"from nbtorchjob import {name}.")
            for name in rank_api.__all__
        ),
        ("NameError", "name 'lr' is not defined", Cause.USER, ""),
        ("ModuleNotFoundError", "No module named 'mine'", Cause.USER, "import mine in the cell"),
        ("AttributeError", "module 'xml' has no attribute 'dom'", Cause.USER, "import xml.dom in the cell."),
        ("AttributeError", "'A' object has no attribute 'dom'", Cause.USER, ""),
        ("EOFError", "EOF when reading a line", Cause.USER, "no keyboard"),
        ("EOFError", "", Cause.USER, "such as a DataLoader's worker"),
        ("EOFError", "Ran out of input", Cause.USER, ""),
        ("TypeError", "'coroutine' object is not subscriptable", Cause.USER, "put await before the call"),
        (
            "AttributeError",
            "'coroutine' object has no attribute 'x'",
            Cause.USER,
            "put await before the call",
        ),
        ("_pickle.PicklingError", LAMBDA, Cause.USER, "define it with def"),
        ("AttributeError", "Can't pickle local object 'f.<locals>.g'", Cause.USER, "define it with def"),
        ("RuntimeError", "Distributed package doesn't have NCCL built in", Cause.USER, "'gloo'"),
        (
            "ValueError",
            "Please make sure to properly initialize your accelerator via",
            Cause.USER,
            "create it",
        ),
        (
            "ValueError",
            "ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            Cause.USER,
            "'gloo'",
        ),
        ("torch.AcceleratorError", "CUDA error: device-side assert triggered", Cause.USER, "launch_blocking"),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered", Cause.USER, "out of range"),
        ("torch.AcceleratorError", "CUDA error: invalid device ordinal", Cause.USER, "cuda:local_rank"),
        ("nbtorchjob.RecoverableError", "again", Cause.USER, ""),
        ("ValueError", "no luck", Cause.USER, ""),
        ("RuntimeError", "Timed out waiting 1800000ms for recv operation", Cause.UNKNOWN, SLOW),
        ("TimeoutError", "Timed out waiting for the lock", Cause.USER, ""),
        ("torch.distributed.DistBackendError", TIMED_OUT, Cause.UNKNOWN, "init_process_group"),
        ("RuntimeError", "Connection closed by peer [10.0.0.1]:1", Cause.UNKNOWN, "the same collectives"),
        ("torch.distributed.DistNetworkError", "timed out", Cause.UNKNOWN, "the same collectives"),
        (
            "torch.distributed.DistBackendError",
            NCCL.format("remote process exited\nncclRemoteError: A call failed"),
            Cause.UNKNOWN,
            "the same collectives",
        ),
        (
            "torch.distributed.DistBackendError",
            NCCL.format("unhandled cuda error\nncclUnhandledCudaError: Call to CUDA failed"),
            Cause.UNKNOWN,
            "NCCL_DEBUG",
        ),
        (
            "torch.distributed.DistBackendError",
            NCCL.format("invalid usage\nncclInvalidUsage: Duplicate GPU detected"),
            Cause.CONFIG,
            "GPU of its own",
        ),
    ],
)
def test_an_exception_has_a_cause_and_a_hint(type_, message, cause, hint):
    reason = failure.of_error(Error(type_, message))

    assert reason.cause is cause
    assert hint.lower() in reason.hint.lower()
    assert bool(hint) == bool(reason.hint)
    assert reason.line in (type_, "a peer left")


@pytest.mark.parametrize(
    ("events", "crash"),
    [
        ((KILLED,), True),
        (code(135), True),
        (code(247), True),
        (told("OOMKilled"), True),
        ((ev.RankExited(2.0, 0, 0, 0, 0, signal=11),), True),
        ((ev.RankExited(2.0, 0, 0, 0, 0, code=3),), False),
        ((ev.RankFailed(2.0, 0, 0, 0, 0, Error("ValueError", "", time=2.0)),), False),
        (code(exits.USER_ERROR), False),
        (code(exits.RECOVERABLE_ERROR), True),
        (taken("EvictionByEvictionAPI"), False),
    ],
)
def test_a_crash_is_told_from_an_exit_and_an_exception(events, crash):
    assert end(*events).failure.reason.crash is crash


def test_what_an_exception_says_cant_break_the_line():
    assert failure.of_error(Error("{text}", "{0} {name}")).line == "{text}"
    assert "{0}" in failure.of_end(ev.NodeExited(1.0, 0, None, None, "a", "Preempting", "{0}\n{x}")).line
    assert failure.of_end(ev.NodeExited(1.0, 0, None, None, "a", "odd\nword")).cause is Cause.UNKNOWN


def test_only_a_keyboard_that_is_missing_has_words_of_its_own_for_a_missing_end():
    """The rows for EOFError rely on this: input() gives a message, a broken connection gives none."""
    asks = subprocess.run([sys.executable, "-c", "input()"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    end, other_end = multiprocessing.Pipe()
    other_end.close()

    assert asks.stderr.decode().rstrip().endswith("EOFError: EOF when reading a line")
    with pytest.raises(EOFError, match=r"^$"):
        end.recv()
