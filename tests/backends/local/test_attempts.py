"""Attempts of real jobs on this machine: what ended each, which budget paid for the next, and the outcome."""

import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist

import nbtorchjob
from nbtorchjob import (
    CleanPodPolicy,
    Elastic,
    JobCancelledError,
    JobFailedError,
    JobSpec,
    RecoverableError,
    Retry,
    RunPolicy,
    SpecError,
    attempt,
    checkpoint_dir,
    report,
)
from nbtorchjob.backends.local import directory
from nbtorchjob.runtime.facts import exits
from nbtorchjob.state import Budget, Phase
from nbtorchjob.state.failure import Cause
from tests.backends.local.real import left_behind, seen, supervisor
from tests.patience import LIMIT
from tests.programs import program

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

ONCE_MORE = Retry(retries=1, preemptions=1, backoff=0)


@pytest.fixture(autouse=True)
def nothing_goes_on():
    """Cancel jobs that a failed test left: they might be tried again for ever."""
    yield
    for state in nbtorchjob.jobs():
        if state.ended is None:
            nbtorchjob.attach(state.info.name).cancel()


def submit(fn, *args, retry=ONCE_MORE, launch=None, **kwargs):
    return nbtorchjob.submit(fn, *args, spec=JobSpec(launch or Elastic(), retry=retry, **kwargs))


def ended(job):
    assert job.wait(LIMIT), job.state
    return job.state


def test_a_node_refuses_a_folder_that_is_another_runs_by_now():
    def once_more():
        begin = Path(checkpoint_dir()) / "begun"
        if not begin.exists():
            begin.touch()
            raise RecoverableError("again")
        return "ran"

    job = submit(once_more, retry=Retry(retries=1, preemptions=1, backoff=3))
    seen(job, lambda state: any(attempt.failure for attempt in state.attempts))
    record = directory.jobs_dir() / job.name / "job.json"
    text = record.read_text()
    record.write_text(text.replace(f'"created":{job.info.created}', '"created":1.5'))
    assert record.read_text() != text
    state = ended(job)
    record.write_text(text)

    assert f"this node is of run {job.info.run}, but" in str(state.failure.error.message)


def reported(state):
    return any(series.points for series in state.series.values())


def told(state):
    """Return each attempt's number, its cause, and the budget that its end draws on."""
    return [(a.number, a.failure and a.failure.reason.cause, a.budget) for a in state.attempts]


def first(end, *args):
    """End the first attempt by ``end``; return the number of the next one."""
    if attempt() == 1:
        end(*args)
    return attempt()


def hang():
    report(ready=1)
    while True:
        time.sleep(1)


def raise_(error):
    raise error


def kill(number):
    os.kill(os.getpid(), number)
    hang()


def exhaust_memory():
    soft = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (soft, soft))
    bytearray(1 << 30)


def write_where_nothing_fits(path):
    with open(path, "w+b") as file:
        file.truncate(1 << 20)
        mmap.mmap(file.fileno(), 1 << 20)[:] = b"x" * (1 << 20)


def outgrow(group):
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    kept = bytearray(256 << 20)
    for at in range(0, len(kept), 4096):
        kept[at] = 1


def known_of_its_job():
    first(raise_, RecoverableError("again"))
    return os.environ["NBTORCHJOB_JOB"], os.environ["TORCHELASTIC_RUN_ID"]


def test_a_rank_knows_its_job_and_torchs_run_id_is_of_the_job_and_its_attempt():
    job = submit(known_of_its_job)

    assert job.result(LIMIT) == (job.name, f"{job.name}-a2")


@pytest.mark.parametrize(
    ("end", "args", "cause"),
    [
        (raise_, (RecoverableError("again"),), Cause.USER),
        (kill, (signal.SIGKILL,), Cause.UNKNOWN),
        (kill, (signal.SIGSEGV,), Cause.USER),
        (os.abort, (), Cause.USER),
    ],
    ids=["RecoverableError", "SIGKILL", "SIGSEGV", "abort"],
)
def test_a_recoverable_error_or_a_crash_uses_the_failure_budget(end, args, cause):
    job = submit(first, end, *args)

    assert job.result(LIMIT) == 2
    assert told(job.state) == [(1, cause, Budget.FAILURES), (2, None, None)]
    assert [(s.budget, s.used) for s in job.state.budgets] == [(Budget.FAILURES, 1), (Budget.PREEMPTIONS, 0)]
    assert job.state.phase is Phase.SUCCEEDED


@pytest.mark.parametrize(
    ("end", "args"),
    [
        (raise_, (ValueError("no luck"),)),
        (exhaust_memory, ()),
        (os._exit, (9,)),
        (os._exit, (0,)),
        (sys.exit, (3,)),
        (sys.exit, (-1,)),
        (sys.exit, (exits.TOLD_LEFT,)),
        (sys.exit, (256,)),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_another_exception_or_exit_ends_the_job_at_once(end, args):
    state = ended(submit(first, end, *args))

    assert (state.phase, told(state)) == (Phase.FAILED, [(1, Cause.USER, None)])
    assert args != (256,) or state.failure.error.message == "sys.exit(256)"


@pytest.mark.parametrize(
    ("end", "args", "name"),
    [
        (raise_, (FileNotFoundError("gone"),), "FileNotFoundError"),
        (raise_, (FileNotFoundError("gone"),), "OSError"),
        (sys.exit, (3,), "SystemExit"),
    ],
    ids=["itself", "its base", "sys.exit(3)"],
)
def test_an_exception_named_in_retry_on_is_tried_again_and_so_are_its_subclasses(end, args, name):
    job = submit(first, end, *args, retry=Retry(retries=1, backoff=0, retry_on=[name]))

    assert job.result(LIMIT) == 2
    assert told(job.state)[0] == (1, Cause.USER, Budget.FAILURES)


def test_a_collective_that_times_out_is_tried_again():
    def summed():
        dist.init_process_group("gloo", timeout=timedelta(seconds=1 if attempt() == 1 else LIMIT))
        total = torch.ones(1)
        if (attempt(), dist.get_rank()) == (1, 1):
            threading.Event().wait()
        dist.all_reduce(total)
        return total.item()

    job = submit(summed, launch=Elastic(2), retry=Retry(retries=1, backoff=0))

    assert job.result(LIMIT) == 2.0
    assert told(job.state)[0] == (1, Cause.UNKNOWN, Budget.FAILURES)
    (life,) = [life for life in job.state.nodes[0].lives.values() if life.attempt == 1]
    assert life.exit.code == exits.RECOVERABLE_ERROR  # operators decide by this code


def test_a_rank_that_something_asked_to_end_is_tried_again():
    job = submit(first, kill, signal.SIGTERM)

    assert job.result(LIMIT) == 2


@pytest.fixture
def tiny_disk(folder):
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", folder], check=False)
    if done.returncode:
        pytest.skip("mounting a small file system takes root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_shared_memory_ends_a_rank_by_sigbus(tiny_disk):
    job = submit(first, write_where_nothing_fits, str(tiny_disk / "shared"))

    assert job.result(LIMIT) == 2
    attempt = job.state.attempts[0]
    assert (attempt.failure.reason.cause, attempt.budget) == (Cause.USER, Budget.FAILURES)
    assert "SIGBUS" in attempt.failure.reason.line


@pytest.fixture
def small_group():
    """Yield a memory cgroup of 32 MiB, of version 1 or 2."""
    root = Path("/sys/fs/cgroup")
    old = (root / "memory").is_dir()
    group = (root / "memory" if old else root) / f"nbtorchjob-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.limit_in_bytes" if old else "memory.max")
        limit.write_text(str(32 << 20))
    except OSError as exc:
        pytest.skip(f"making a memory cgroup isn't permitted here: {exc}")
    yield group
    group.rmdir()


def test_a_rank_that_the_kernel_kills_for_its_memory_is_tried_again(small_group):
    job = submit(first, outgrow, str(small_group))

    assert job.result(LIMIT) == 2
    assert told(job.state)[0] == (1, Cause.UNKNOWN, Budget.FAILURES)
    assert "memory" in job.state.attempts[0].failure.reason.hint


def test_a_lost_node_uses_the_preemption_budget():
    job = submit(first, hang, retry=Retry(preemptions=1, backoff=0))
    os.kill(seen(job, reported).nodes[0].pid, signal.SIGKILL)

    assert job.result(LIMIT) == 2
    assert told(job.state) == [(1, Cause.INFRA, Budget.PREEMPTIONS), (2, None, None)]


def test_without_a_preemption_left_a_lost_node_ends_the_job():
    job = submit(first, hang, retry=Retry(retries=5, preemptions=0, backoff=0))
    os.kill(seen(job, reported).nodes[0].pid, signal.SIGKILL)

    state = ended(job)
    assert (state.phase, told(state)) == (Phase.FAILED, [(1, Cause.INFRA, Budget.PREEMPTIONS)])


def test_a_hang_ends_by_the_deadline_which_counts_over_all_attempts():
    policy = RunPolicy(active_deadline_seconds=1)
    state = ended(submit(hang, launch=Elastic(run_policy=policy), retry=Retry(retries=9, backoff=0)))

    assert (state.phase, told(state)) == (Phase.FAILED, [(1, Cause.DEADLINE, None)])


def test_no_attempt_is_waited_for_that_would_start_after_the_deadline():
    policy = RunPolicy(active_deadline_seconds=30)
    job = submit(
        first, raise_, RecoverableError(), launch=Elastic(run_policy=policy), retry=Retry(1, backoff=60)
    )

    state = ended(job)
    assert (state.phase, state.next, len(state.attempts)) == (Phase.FAILED, None, 1)


def test_a_spent_budget_ends_the_job_and_every_attempt_can_be_read():
    def again():
        print("this is", attempt())
        raise RecoverableError(f"no {attempt()}")

    job = submit(again, retry=Retry(retries=2, backoff=0))

    with pytest.raises(JobFailedError, match="no 3"):
        job.result(LIMIT)
    assert told(job.state) == [(n, Cause.USER, Budget.FAILURES) for n in (1, 2, 3)]
    assert (job.state.budgets[0].used, job.state.budgets[0].limit) == (2, 2)
    assert [f"this is {n}" in job.logs(0) for n in (1, 2, 3)] == [True] * 3
    assert left_behind(job) == []


def test_the_next_attempt_finds_what_an_earlier_one_kept():
    def count():
        file = checkpoint_dir() / "steps"
        steps = int(file.read_text()) if file.exists() else 0
        file.write_text(str(steps + 1))
        if steps < 2:
            raise RecoverableError(f"at {steps}")
        return steps, attempt()

    job = submit(count, retry=Retry(retries=5, backoff=0))

    assert job.result(LIMIT) == (2, 3)
    job.delete()
    assert not (directory.jobs_dir() / job.name).exists()


def test_a_restart_in_place_finds_it_too_and_is_no_attempt():
    def count():
        file = checkpoint_dir() / "once"
        if not file.exists():
            file.touch()
            raise RecoverableError("restart")
        return attempt(), os.environ["TORCHELASTIC_RESTART_COUNT"]

    job = submit(count, launch=Elastic(max_restarts=1))

    assert job.result(LIMIT) == (1, "1")
    assert len(job.state.attempts) == 1


def test_all_nodes_meet_again_in_the_next_attempt():
    def summed():
        dist.init_process_group("gloo")
        total = torch.ones(1) * (dist.get_rank() + 1)
        dist.all_reduce(total)
        if attempt() < 3 and dist.get_rank() == 1:
            raise RecoverableError("one of two")
        dist.all_reduce(total)
        return total.item(), attempt()

    job = submit(summed, launch=Elastic(2), retry=Retry(retries=2, preemptions=0, backoff=0))

    assert job.result(LIMIT) == (6.0, 3)
    assert [budget for _, _, budget in told(job.state)] == [Budget.FAILURES, Budget.FAILURES, None]
    # Round numbers aren't used again: the logs and values of all rounds lie side by side.
    assert [worker.round for worker in job.state.nodes[0].workers] == [0, 1, 2]


def test_a_node_that_an_elastic_job_can_do_without_starts_no_attempt(folder):
    def alone(stop):
        dist.init_process_group("gloo")
        report(world=dist.get_world_size())
        flag = torch.zeros(1)
        while not flag.item():
            flag = torch.tensor([float(Path(stop).exists())])
            dist.all_reduce(flag)
        return dist.get_world_size(), attempt()

    job = submit(alone, str(folder / "stop"), launch=Elastic("1:2"))
    os.kill(seen(job, lambda s: len(s.series) == 2).nodes[1].pid, signal.SIGKILL)
    seen(job, lambda s: s.phase.terminal or s.world_size == 1)
    (folder / "stop").touch()

    assert job.result(LIMIT) == (1, 1)
    assert (len(job.state.attempts), [s.used for s in job.state.budgets]) == (1, [0, 0])


def waiting(state):
    return state.next is not None or state.phase.terminal


@contextmanager
def kernel(name, backoff, go):
    """Submit a job from another process, killed at the end; its attempts fail once ``go`` exists."""
    with subprocess.Popen(program("retried", name, backoff, go), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
        process.kill()


def without_lines(attempts):
    """Return attempts without their ranks' last lines, which are read a moment after the facts."""
    return [replace(attempt, lines=()) for attempt in attempts]


def test_a_kernel_killed_between_attempts_changes_nothing(folder):
    go = folder / "go"
    go.touch()
    with kernel("between", 600, go):
        before = seen(nbtorchjob.attach("between"), waiting)

    job = nbtorchjob.attach("between")
    after = seen(job, waiting)
    job.cancel()

    assert after.next is not None
    assert (after.next, after.budgets) == (before.next, before.budgets)
    assert without_lines(after.attempts) == without_lines(before.attempts)
    assert after.phase is Phase.PENDING
    with pytest.raises(JobCancelledError):
        job.result(LIMIT)
    assert len(job.state.attempts) == 1
    assert left_behind(job) == []


def test_a_kernel_killed_in_the_first_attempt_does_not_keep_the_second_from_starting(folder):
    with kernel("during", 0, folder / "go"):
        pass
    job = nbtorchjob.attach("during")
    (folder / "go").touch()

    assert [number for number, _, _ in told(ended(job))] == [1, 2]


def test_a_supervisor_killed_between_attempts_leaves_nothing_and_is_told():
    job = submit(first, raise_, RecoverableError("again"), retry=Retry(retries=1, backoff=600))
    assert seen(job, waiting).next is not None
    supervisor(job).signal(signal.SIGKILL)

    state = ended(job)
    assert (state.phase, state.next, len(state.attempts)) == (Phase.FAILED, None, 1)
    assert left_behind(job) == []


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (RunPolicy(backoff_limit=3), "use --retries"),
        (RunPolicy(clean_pod_policy=CleanPodPolicy.ALL), "--ttl-seconds-after-finished 0"),
    ],
)
def test_a_policy_for_pods_is_refused_and_says_what_to_use(policy, says):
    with pytest.raises(SpecError, match=says):
        nbtorchjob.submit(hang, spec=Elastic(run_policy=policy))


@pytest.mark.parametrize("policy", [CleanPodPolicy.NONE, CleanPodPolicy.RUNNING])
def test_policies_that_keep_what_has_ended_are_what_happens_here_anyway(policy):
    run_policy = RunPolicy(clean_pod_policy=policy)

    assert submit(attempt, launch=Elastic(run_policy=run_policy), retry=None).result(LIMIT) == 1
