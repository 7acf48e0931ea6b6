"""Real jobs on this machine: values, failures, restarts, elasticity, and nothing left behind."""

import contextvars
import itertools
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist

import nbtorchjob
from nbtorchjob import (
    Elastic,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    JobSpec,
    PyTorch,
    RecoverableError,
    ResultError,
    Retry,
    RunPolicy,
    Worker,
    api,
    attempt,
    capture,
    checkpoint_dir,
    report,
    submission,
)
from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.backends.local.launch import pool
from nbtorchjob.machine import folders, processes
from nbtorchjob.runtime.facts import errors as runtime_errors
from nbtorchjob.runtime.facts import exits
from nbtorchjob.state import Phase
from nbtorchjob.state.failure import Cause
from nbtorchjob.state.text import facts
from tests.backends.kubernetes.stage import until
from tests.backends.kubernetes.warm import children
from tests.backends.local.real import left_behind, seen, supervisor
from tests.interrupting import Interrupting
from tests.patience import LIMIT
from tests.programs import program

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

TWO = Elastic(nproc_per_node=2)
FORKS = 100


def submit(fn, *args, spec=TWO, **kwargs):
    return nbtorchjob.submit(fn, *args, spec=spec, **kwargs)


def failed(job):
    with pytest.raises(JobFailedError) as caught:
        job.result(LIMIT)
    return str(caught.value), job.state.failure


def agent_pids(job):
    return [node.pid for node in job.state.nodes.values()]


def gone(pids):
    """Wait until none of these processes runs: another process, which has to notice first, may end them."""
    return until(lambda: not any(running(pid) for pid in pids))


def running(pid):
    try:
        return processes.Process.of(pid).alive()
    except ProcessLookupError:
        return False


def summed():
    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    print("rank", dist.get_rank(), "of", dist.get_world_size())
    return total.item()


def forever(mark=None):
    dist.init_process_group("gloo")
    if mark:
        Path(f"{mark}-{dist.get_rank()}").write_text(str(os.getpid()))
    report(ready=1)
    while True:
        dist.barrier()
        time.sleep(0.02)


def watching(stop):
    """Run all_reduce with the other ranks until the file ``stop`` exists; return the world size."""
    dist.init_process_group("gloo")
    all_see(stop)  # a rank that reports has met the others
    report(world=dist.get_world_size())
    while not all_see(stop):
        time.sleep(0.02)
    return dist.get_world_size()


def all_see(path):
    flag = torch.tensor(float(Path(path).exists()))
    dist.all_reduce(flag)
    return flag.item() > 0


def ready(world):
    return lambda state: state.phase.terminal or sum(1 for s in state.series.values() if s.points) >= world


def beside():
    import lies_elsewhere  # type: ignore[import-not-found]

    return lies_elsewhere.READ


def test_a_module_from_elsewhere_on_the_path_finds_what_lies_beside_it(tmp_path, monkeypatch):
    (tmp_path / "lies_elsewhere.txt").write_text("7")
    text = "from pathlib import Path\nREAD = Path(__file__).with_suffix('.txt').read_text()"
    (tmp_path / "lies_elsewhere.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    assert submit(beside, spec=Elastic()).result(LIMIT) == "7"


def test_two_ranks_sum_and_rank_zero_brings_the_value_back():
    job = submit(summed)

    assert job.result(LIMIT) == 3.0
    assert (job.logs(0), job.logs(1)) == ("rank 0 of 2\n", "rank 1 of 2\n")


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_every_start_method_works(method):
    assert submit(summed, spec=Elastic(nproc_per_node=2, start_method=method)).result(LIMIT) == 3.0


def test_all_ranks_bring_values_when_asked():
    job = submit(lambda: int(os.environ["RANK"]), spec=JobSpec(TWO, all_ranks=True))

    assert job.results(LIMIT) == [0, 1]
    with pytest.raises(ResultError, match="all_ranks"):
        submit(lambda: 1).results(LIMIT)


def test_several_nodes_meet_over_c10d():
    assert submit(summed, spec=Elastic(2)).result(LIMIT) == 3.0


def test_a_fixed_size_job_has_a_master_and_workers():
    job = submit(summed, spec=PyTorch(worker=Worker(replicas=1)))

    assert job.result(LIMIT) == 3.0
    assert len(job.state.nodes) == 2


def test_metrics_arrive_from_every_rank():
    def train():
        for step in range(3):
            report(step=step, loss=torch.tensor(1.0 / (step + 1)))

    job = submit(train)
    job.result(LIMIT)

    assert [p.metrics["loss"] for p in job.state.series[1].points] == pytest.approx([1, 1 / 2, 1 / 3])


def test_omp_threads_are_one_only_where_nothing_else_was_asked_for():
    def threads():
        return os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads()

    assert submit(threads).result(LIMIT) == ("1", 1)
    assert submit(threads, spec=Elastic()).result(LIMIT)[0] is None
    assert submit(threads, spec=JobSpec(TWO, env={"OMP_NUM_THREADS": "2"})).result(LIMIT) == ("2", 2)


def test_ranks_do_not_draw_the_same_random_numbers():
    def draw():
        import random

        import numpy as np

        return random.random(), float(np.random.random())

    first, second = submit(draw, spec=JobSpec(TWO, all_ranks=True)).results(LIMIT)

    assert first[0] != second[0]
    assert first[1] != second[1]


def test_the_first_failing_ranks_exception_is_raised_with_its_traceback():
    def train():
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            raise ValueError("no luck")
        dist.barrier()

    text, failure = failed(submit(train))

    assert (failure.rank, failure.reason.cause) == (1, Cause.USER)
    assert "rank 1: ValueError: no luck" in text
    assert 'raise ValueError("no luck")' in text


def test_a_failed_ranks_variables_come_home_unless_they_are_to_stay():
    class Stuck:
        def __repr__(self):
            threading.Event().wait()
            return ""

    held = [Stuck]

    def train():
        batch, password, stuck = torch.zeros(32, 0), "s3cret", held[0]()
        raise ValueError("no luck", type(stuck), batch.dim(), len(password))

    job, silent = submit(train, spec=JobSpec()), submit(train, spec=JobSpec(no_locals=True))
    [frame] = job.exception(LIMIT).error.frames

    assert dict(frame.variables) == {
        "batch": "float32[32, 0] cpu, finite",
        "password": "<masked str>",
        "stuck": "<takes too long to print>",
        "held": f"list of 1: [class {runtime_errors.type_name(Stuck)}]",
    }
    [frame] = silent.exception(LIMIT).error.frames
    assert frame.variables == ()


def test_what_a_longer_job_uses_is_told(folder):
    def train(gate):
        while not gate.exists():
            sum(range(10_000))

    job = submit(train, folder / "gate")

    try:
        assert until(lambda: job.state.uses)
    finally:
        (folder / "gate").touch()
    newest = job.state.uses[0].newest
    assert [use.rank for use in newest.uses] == [0, 1]
    assert all(use.cpu > 0.1 and use.resident > 10_000_000 and use.running for use in newest.uses)
    assert 0 < newest.memory < newest.limit
    assert job.result(LIMIT) is None


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGBUS), "killed by SIGBUS"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "crashed with SIGSEGV"),
        (os.abort, "aborted by SIGABRT"),
        (lambda: os._exit(9), "exited with code 9"),
        (lambda: os._exit(0), "exited with code 0"),
        (lambda: sys.exit(3), "exited with code 3"),
    ],
    ids=["SIGKILL", "SIGBUS", "SIGSEGV", "SIGABRT", "_exit(9)", "_exit(0)", "sys.exit(3)"],
)
def test_a_rank_that_dies_ends_the_job_and_says_how(end, line):
    def train(end):
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            end()
        dist.barrier()

    text, failure = failed(submit(train, end))

    assert (failure.rank, failure.reason.line) == (1, line)
    assert line in text


@pytest.mark.parametrize("code", [-1, exits.TOLD, exits.TOLD_RECOVERABLE, exits.TOLD_LOST_PEER])
def test_sys_exit_with_a_code_by_which_ranks_tell_something_else_is_still_told(code):
    def leave(code):
        sys.exit(code)

    text, failure = failed(submit(leave, code))

    assert f": SystemExit: sys.exit({code})\n" in text
    assert failure.error.frames[-1].line == "sys.exit(code)"
    assert failure.reason.cause is Cause.USER


def test_sys_exit_without_a_code_is_a_good_end():
    def leave():
        sys.exit()

    assert submit(leave).result(LIMIT) is None


def test_a_program_that_silences_its_streams_succeeds():
    def silence():
        sys.stdout = sys.stderr = None
        return 7

    assert submit(silence).result(LIMIT) == 7


def test_a_traceback_is_in_the_log_though_the_program_has_replaced_stderr():
    def fail():
        sys.stderr = None
        raise ValueError("the reason")

    job = submit(fail)
    failed(job)

    # Only the rank that failed first: its agent may end the other one before that prints anything.
    assert job.logs(job.state.failure.rank).endswith("ValueError: the reason\n")


def test_an_import_that_raises_is_told():
    def train():
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401

    text, _ = failed(submit(train))

    assert "ModuleNotFoundError: No module named 'no_such_module'" in text


@pytest.mark.parametrize("asked", ["__str__", "__getattribute__"])
def test_an_exception_that_raises_when_it_is_asked_is_told_with_its_line(asked):
    def fail(asked):
        def refuse(self, *name):
            raise KeyError(asked)

        raise type("Refusing", (Exception,), {asked: refuse})("the reason")

    job = submit(fail, asked)
    error = job.exception(LIMIT).error

    assert error.type.endswith("Refusing")
    assert error.message == (
        "the reason" if asked == "__getattribute__" else "<KeyError while printing the exception>"
    )
    assert error.frames[-1].line == 'raise type("Refusing", (Exception,), {asked: refuse})("the reason")'
    # Only the rank that failed first: its agent may end the other one before that prints anything.
    assert job.logs(job.state.failure.rank).startswith("Traceback (most recent call last):\n")


def test_a_recoverable_error_restarts_within_max_restarts():
    def train():
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise RecoverableError("once more")
        return "done"

    job = submit(train, spec=Elastic(max_restarts=1))

    assert job.result(LIMIT) == "done"
    assert (job.state.restarts, job.state.errors[0].error.message) == (1, "once more")
    assert "once more" in job.logs(0)
    assert failed(submit(train))[1].error.recoverable


def test_a_deadline_ends_a_job_that_hangs():
    job = submit(lambda: time.sleep(600), spec=Elastic(run_policy=RunPolicy(active_deadline_seconds=1)))

    _, failure = failed(job)

    assert failure.reason.cause is Cause.DEADLINE
    assert left_behind(job) == []


def test_cancel_stops_every_process_also_grandchildren(folder):
    def parent(mark):
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
        )
        Path(mark).write_text(str(child.pid))
        report(ready=1)
        time.sleep(600)

    job = submit(parent, str(folder / "child"), spec=Elastic())
    seen(job, ready(1))
    child = int((folder / "child").read_text())
    job.cancel()
    job.cancel()

    with pytest.raises(JobCancelledError):
        job.result(LIMIT)
    assert gone([child, *agent_pids(job)])
    assert left_behind(job) == []


def test_a_rank_that_ignores_sigterm_is_killed(folder):
    def stubborn():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        report(ready=1)
        while True:
            time.sleep(1)

    job = submit(stubborn, spec=Elastic())
    seen(job, ready(1))
    job.cancel()

    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED
    assert left_behind(job) == []


def test_a_node_that_must_end_does_not_wait_for_a_rank_that_has_returned():
    def obedient():
        stop = []
        signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
        report(ready=1)
        while not stop:
            time.sleep(0.01)

    job = submit(obedient, spec=Elastic(nproc_per_node=2))
    seen(job, ready(2))
    os.kill(job.state.nodes[0].life.start.pid, signal.SIGTERM)

    assert job.wait(15)  # its ranks would be killed after 30 s
    assert job.state.phase is Phase.FAILED
    assert left_behind(job) == []


def test_an_interrupt_while_it_is_waited_for_keeps_a_job_from_nobody_whenever_it_comes():
    job = submit(forever)
    seen(job, ready(2))
    for moment in itertools.count():
        with Interrupting(moment) as interrupt:
            job.wait(0)
        if not interrupt.interrupted:
            break
    job.cancel()
    waiter = threading.Thread(target=job.wait, daemon=True)
    waiter.start()
    waiter.join(LIMIT)

    assert moment > 10
    assert not waiter.is_alive()
    assert job.state.phase is Phase.CANCELLED


def test_the_rest_of_an_elastic_job_re_forms_when_an_agent_is_killed(folder):
    stop = folder / "stop"

    job = submit(watching, str(stop), spec=Elastic("1:3"))
    state = seen(job, lambda s: s.world_size == 3 and ready(3)(s))
    # The leading node: its ranks held the group's address.
    lead = next(node for node in state.members if 0 in node.ranks)
    os.kill(lead.pid, signal.SIGKILL)
    seen(job, lambda s: s.phase.terminal or (s.round > state.round and s.world_size == 2))
    stop.touch()

    assert job.result(LIMIT) == 2
    assert job.state.restarts == 0


def test_word_of_a_lost_peer_may_come_after_the_collective_has_failed(folder):
    stop = folder / "stop"
    job = submit(watching, str(stop), spec=Elastic("1:2"))
    state = seen(job, lambda s: s.world_size == 2 and ready(2)(s))
    stopped = supervisor(job)
    stopped.signal(signal.SIGSTOP)
    try:
        os.kill(state.nodes[1].pid, signal.SIGKILL)
        seen(job, lambda s: s.errors)
    finally:
        stopped.signal(signal.SIGCONT)
    seen(job, lambda s: s.phase.terminal or (s.round > state.round and s.world_size == 1))
    stop.touch()

    assert job.result(LIMIT) == 1


def test_a_fixed_size_job_fails_when_an_agent_is_killed():
    job = submit(forever, spec=Elastic(2))
    state = seen(job, ready(2))
    os.kill(state.nodes[1].pid, signal.SIGKILL)

    _, failure = failed(job)

    assert (failure.node, failure.reason.line) == (1, "its agent was killed: SIGKILL")
    assert failure.reason.cause is Cause.INFRA
    assert left_behind(job) == []


def leaving():
    """Leave a process that nobody waits for, in a session of its own."""
    subprocess.run(["sh", "-c", "setsid sleep 1000 &"], start_new_session=True, check=True)
    forever()


def test_a_killed_supervisor_takes_its_job_along_and_the_loss_is_told():
    job = submit(leaving)
    seen(job, ready(2))
    supervisor(job).signal(signal.SIGKILL)

    text, failure = failed(job)

    assert "the job's supervisor was killed" in text
    assert failure.reason.cause is Cause.INFRA
    assert gone(agent_pids(job))
    until(lambda: not left_behind(job))


def test_a_failure_in_an_object_that_raises_whatever_it_is_asked_for_is_told():
    def work():
        class Sealed:
            def __getattr__(self, name):
                raise RuntimeError(name)

            def fail(self):
                raise ValueError("lost")

        Sealed().fail()

    text, failure = failed(submit(work))

    assert "ValueError: lost" in text
    assert failure.reason.cause is Cause.USER


def test_a_result_that_can_not_be_pickled_leaves_a_succeeded_job():
    def thread():
        return threading.Thread()

    job = submit(thread)

    with pytest.raises(ResultError, match="can't be pickled"):
        job.result(LIMIT)
    assert job.state.phase is Phase.SUCCEEDED


def test_what_has_locks_that_nobody_holds_goes_to_ranks_and_comes_home():
    class Tracker:
        def __init__(self):
            self.lock = threading.Lock()
            self.changed = threading.Condition(self.lock)
            self.jobs: queue.Queue[str] = queue.Queue()

    tracker, user = Tracker(), contextvars.ContextVar[str]("user")
    tracker.jobs.put("here")
    user.set("me")

    def work(held=False):
        with tracker.changed:
            tracker.jobs.put(user.get())
        assert not held or tracker.lock.acquire()
        return tracker

    home = submit(work).result(LIMIT)

    assert (home.jobs.get(), home.jobs.get(), home.changed._lock is home.lock) == ("here", "me", True)
    assert home.lock.acquire(blocking=False)
    assert not tracker.lock.locked()
    with pytest.raises(ResultError, match=r"Tracker, which can't be pickled .*it is held, release it first"):
        submit(work, True).result(LIMIT)


def test_a_name_runs_again_once_its_job_has_ended_under_a_number():
    spec = JobSpec(name="named")
    first = submit(forever, spec=spec)
    again = submit(forever, spec=spec)

    assert (again.joined, again.info.run) == (True, first.info.run)
    with pytest.raises(nbtorchjob.NameTakenError, match="named is still running, with other code"):
        submit(lambda: 2, spec=spec)
    first.cancel()
    second = submit(lambda: 2, spec=spec)
    assert (second.name, second.joined, second.result(LIMIT)) == ("named-2", False, 2)
    third = submit(lambda: 3, spec=spec)
    assert (third.name, third.result(LIMIT)) == ("named-3", 3)
    first.delete()
    assert submit(lambda: 4, spec=spec).name == "named"


def test_delete_ends_a_running_job_and_removes_its_record():
    job = submit(forever)
    seen(job, ready(2))
    follower = nbtorchjob.attach(job.name)
    job.delete()

    assert follower.wait(LIMIT)
    assert facts.phase(follower.state) == "DELETED"
    assert gone(agent_pids(job))
    assert not (directory.jobs_dir() / job.name).exists()
    with pytest.raises(JobNotFoundError):
        nbtorchjob.attach(job.name)


def test_a_value_outlives_its_deleted_job():
    job = submit(lambda: torch.arange(100_000.0))
    value = job.result(LIMIT)
    job.delete()

    assert value.sum() == torch.arange(100_000.0).sum()


def test_attach_names_what_is_near():
    submit(lambda: 1, spec=JobSpec(name="near-miss")).result(LIMIT)

    with pytest.raises(JobNotFoundError, match="did you mean near-miss"):
        nbtorchjob.attach("near-mist")
    with pytest.raises(JobNotFoundError, match=r"the newest are .*near-miss"):
        nbtorchjob.attach("0")


def orphan(name, stop):
    """Submit a job from a kernel and kill that kernel; the job counts until the file ``stop`` exists."""
    with subprocess.Popen(program("orphan", name, stop), stdout=subprocess.PIPE) as kernel:
        assert kernel.stdout is not None
        assert kernel.stdout.readline() == b"ready\n"
        kernel.kill()


def test_a_job_goes_on_when_its_kernel_is_killed_and_can_be_attached(folder):
    orphan("orphan", folder / "stop")

    job = nbtorchjob.attach("orphan")
    seen(job, lambda s: 0 in s.logs)
    (folder / "stop").touch()
    count = job.result(LIMIT)

    assert job.logs(0) == "".join(f"line {n}\n" for n in range(count))


def test_a_job_that_nobody_follows_ends_once_its_folder_is_removed(folder):
    orphan("removed", folder / "stop")
    job = JobDirectory(directory.jobs_dir() / "removed")
    keeper = until(job.supervisor)
    until(lambda: any(log.stat().st_size for log in job.path.rglob("rank-0.log")))
    pids = [keeper.pid, *children(keeper.pid)]

    shutil.rmtree(job.path)
    os.kill(keeper.pid, signal.SIGCHLD)  # without a signal it looks once a minute

    assert gone(pids)


def test_jobs_lists_all_with_their_phase():
    job = submit(lambda: 1, spec=JobSpec(name="listed"))
    job.result(LIMIT)

    assert {s.info.name: s.phase for s in nbtorchjob.jobs()}["listed"] is Phase.SUCCEEDED


def test_a_job_is_removed_when_its_time_to_live_is_over():
    job = submit(
        lambda: 1, spec=JobSpec(Elastic(run_policy=RunPolicy(ttl_seconds_after_finished=0)), name="brief")
    )
    job.result(LIMIT)

    assert "brief" not in {s.info.name for s in nbtorchjob.jobs()}


@pytest.fixture
def small_disk(state_dir, monkeypatch):
    """Yield a function that mounts a state folder of a given size, with the pool that all tests share."""
    pool.warm_up()
    # Not in the test's own folder: a path that is too long for a socket would lead to another pool.
    disk = Path(tempfile.mkdtemp(prefix="disk-"))

    def mount(size):
        options = f"size={size},mode=700"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=False)
        if done.returncode:
            pytest.skip("mounting a small file system takes root")
        shared = disk / "pool"
        shared.mkdir(mode=0o700)
        subprocess.run(["mount", "--bind", str(state_dir / "pool"), str(shared)], check=True)
        monkeypatch.setenv(folders.STATE, str(disk))
        return disk

    yield mount
    subprocess.run(["umount", "--lazy", "--recursive", str(disk)], check=True)
    shutil.rmtree(disk, ignore_errors=True)  # files written there since


def test_a_payload_that_a_full_disk_does_not_take_leaves_nothing(small_disk):
    disk = small_disk("200k")

    with pytest.raises(nbtorchjob.SubmitError, match="No space left on device"):
        submit(len, os.urandom(1_000_000))

    assert list((disk / "jobs").iterdir()) == []


def test_a_disk_that_fills_up_while_the_job_runs_is_told(small_disk):
    def chatty():
        while True:
            print("x" * 1000)

    small_disk("2m")

    text, failure = failed(submit(chatty, spec=Elastic()))

    assert "No space left on device" in text
    assert "free some space" in failure.reason.hint


def test_a_disk_that_is_full_between_attempts_ends_the_job(small_disk):
    def fill():
        with suppress(OSError), open(checkpoint_dir() / f"big-{attempt()}", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        os.kill(os.getpid(), signal.SIGKILL)

    small_disk("2m")
    job = submit(fill, spec=JobSpec(Elastic(), retry=Retry(retries=100, backoff=0)))

    assert job.wait(LIMIT)
    assert job.state.phase is Phase.FAILED
    assert left_behind(job) == []


def test_a_job_that_does_not_say_is_kept_for_a_week(monkeypatch):
    job = submit(lambda: 1, spec=JobSpec(name="kept"))
    job.result(LIMIT)
    events = directory.jobs_dir() / "kept" / "events.jsonl"
    week = 7 * 24 * 3600

    os.utime(events, (0, time.time() - week + 60))
    assert "kept" in {s.info.name for s in nbtorchjob.jobs()}
    os.utime(events, (0, time.time() - week - 60))
    assert "kept" not in {s.info.name for s in nbtorchjob.jobs()}


def test_a_notebook_folder_that_is_gone_is_told(folder, monkeypatch):
    home = folder / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    home.rmdir()
    monkeypatch.setattr(os, "getcwd", lambda: str(home))  # as if the folder vanished after the submission

    text, _ = failed(submit(len, "abc"))

    assert "FileNotFoundError" in text
    assert str(home) in text


@pytest.mark.parametrize(("ends", "code"), [("pass", 0), ("raise SystemExit(3)", 3), ("raise ValueError", 1)])
def test_a_process_that_a_rank_forks_ends_where_the_call_ends(ends, code):
    def forks():
        pid = os.fork()
        if pid:
            time.sleep(0.2)  # so that the other process, were it the rank, would send its value first
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        exec(ends)
        return "the other process's"

    job = nbtorchjob.submit(forks, spec=nbtorchjob.Elastic())
    assert job.result(LIMIT) == code
    assert job.state.failure is None


def test_a_process_that_a_rank_forks_can_print_at_once():
    def fork():
        for n in range(FORKS):
            print("parent", n)
            child = os.fork()
            if child == 0:
                print("child", n, flush=True)
                os._exit(0)
            os.waitpid(child, 0)

    job = submit(fork, spec=Elastic())
    job.result(LIMIT)

    lines = job.logs(0).splitlines()
    assert lines == [f"{who} {n}" for n in range(FORKS) for who in ("parent", "child")]


def test_an_agent_that_is_killed_before_the_others_are_ready_is_done_without():
    job = submit(lambda: int(os.environ["WORLD_SIZE"]), spec=Elastic("1:2"))
    state = seen(job, lambda s: len(s.nodes) == 2)
    os.kill(state.nodes[0].pid, signal.SIGKILL)

    assert job.result(LIMIT) == 1


def test_what_a_job_may_see_of_the_kernel_reaches_a_warm_rank(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    before, cpus = os.umask(0o027), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        job = submit(lambda: (time.strftime("%z"), os.umask(0), os.sched_getaffinity(0)))
        assert job.result(LIMIT) == ("+0900", 0o027, {min(cpus)})
    finally:
        os.umask(before)
        os.sched_setaffinity(0, cpus)


def test_what_is_no_job_in_the_jobs_folder_harms_nobody():
    stray, damaged = directory.jobs_dir() / "stray", directory.jobs_dir() / "damaged"
    stray.touch()
    damaged.mkdir()
    for name in ("job.json", "events.jsonl", "job.pyz"):
        (damaged / name).touch()
        os.utime(damaged / name, (0, 0))

    assert submit(lambda: 1).result(LIMIT) == 1
    assert not {"stray", "damaged"} & {s.info.name for s in nbtorchjob.jobs()}


def test_a_job_deleted_elsewhere_is_told_to_those_who_follow_it():
    job = submit(lambda: 1)
    job.result(LIMIT)
    follower = nbtorchjob.attach(job.name)
    job.delete()

    assert follower.wait(LIMIT)


def test_many_reports_are_followed_as_fast_as_they_come():
    def many():
        for n in range(20_000):
            report(loss=n)

    job = submit(many, spec=Elastic())
    job.result(LIMIT)

    assert job.state.series[0].points[-1].metrics == {"loss": 19_999}


HELPED = """
import multiprocessing, torch

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor(float(index**2))

def square(n):
    return n * n

loader = torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=2)
with multiprocessing.Pool(2) as workers:
    found = sum(batch.sum().item() for batch in loader), workers.map(square, range(4))
found
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_processes_that_a_rank_starts_find_the_notebooks_classes(method):
    call = capture.from_cell(HELPED, {"__name__": "__main__"})

    job = submission.submit(call, JobSpec(Elastic(start_method=method)))

    assert job.result(LIMIT) == (55.0, [0, 1, 4, 9])


def test_what_is_done_to_an_ended_job_may_be_repeated():
    job = submit(lambda: 1)
    job.result(LIMIT)

    job.cancel()
    job.delete()
    job.delete()
    job.cancel()


def test_the_doctor_says_what_this_machine_refuses():
    findings = api.doctor(JobSpec(cluster=nbtorchjob.Cluster(gpu=1)))

    assert [finding.text for finding in findings if not finding.good] == [
        "gpu can't be given on the local backend: it is for --backend kubernetes"
    ]


@pytest.fixture
def few_files():
    """Yield a function that leaves this process room for so many more open files, and one to undo that."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = []

    def leave(many):
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 40, before[1]))
        with suppress(OSError):
            while True:
                descriptors.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(many):
            os.close(descriptors.pop())

    def give_back():
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        while descriptors:
            os.close(descriptors.pop())

    yield leave, give_back
    give_back()


def test_a_process_that_may_open_no_more_files_submits_nothing_and_says_so(few_files):
    leave, give_back = few_files
    submit(len, "four").result(LIMIT)
    messages = []
    for room in range(26):
        before = sorted(os.listdir(directory.jobs_dir()))
        leave(room)
        try:
            job = submit(len, "four")
        except nbtorchjob.SubmitError as exc:
            give_back()
            messages.append(str(exc))
            assert sorted(os.listdir(directory.jobs_dir())) == before
        else:
            give_back()
            assert job.result(LIMIT) == 4

    assert len(messages) > 16
    assert [text for text in messages if "Too many open files" not in text or "\n" in text] == []
    assert any("RLIMIT_NOFILE" in text for text in messages)


def clears(divisor):
    os.environ.clear()
    return 5 // divisor


def test_a_job_that_clears_its_environment_reports_its_value_and_its_error():
    assert submit(clears, 1, spec=Elastic()).result(LIMIT) == 5
    assert "rank 0: ZeroDivisionError" in str(submit(clears, 0, spec=Elastic()).exception(LIMIT))
