"""The order of jobs on this machine: each gets its turn, whichever process dies."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import cloudpickle
import pytest
import torch.distributed as dist

import nbtorchjob
from nbtorchjob import Elastic, JobSpec, RunPolicy, api, capture, submission
from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.launch import pool_client, queue
from nbtorchjob.backends.local.launch.queue import Place
from nbtorchjob.errors import SubmitError
from nbtorchjob.machine import processes
from nbtorchjob.state import Phase
from nbtorchjob.state.text import facts
from tests.backends.kubernetes.stage import until
from tests.backends.local.real import supervisor
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def job(name, ranks=1, sender="a", at=0.0, **more):
    return Place(name, ranks, sender, at, **{"most": 2, **more})


def run(name, ranks=1, sender="a", at=0.0, **more):
    return job(name, ranks, sender, at, **{"group": "g", **more})


def names(places):
    return [place.name for place in places]


@pytest.mark.parametrize(
    ("waiting", "running", "due"),
    [
        ([job("1"), job("2", at=1), job("3", at=2)], [], ["1", "2"]),
        ([job("big", 4)], [], ["big"]),
        ([job("big", 4)], [job("x")], []),
        ([job("wide", 2), job("small", at=1)], [job("x")], []),
        ([job("1", 4, most=None)], [job("x", 4)], ["1"]),
        ([job("lab", 0)], [job("x", 4)], ["lab"]),
        ([job("single", at=9)], [run("r1", 2)], ["single"]),
        ([run("r1"), job("single", 2, at=9)], [], ["single"]),
        ([run("r1"), run("r2", at=1), run("r3", at=2)], [], ["r1", "r2"]),
        ([run("r1", at_once=1), run("r2", at=1, at_once=1)], [], ["r1"]),
        ([run("r2", at_once=1), run("h", at=1, group="h")], [run("r1")], ["h"]),
        ([job("1"), job("2", at=1), job("b", sender="b", at=2)], [], ["1", "b"]),
        ([job("2"), job("b", sender="b", at=2)], [job("1")], ["b"]),
        ([job("1", at=1), job("2", at=2, beside=True)], [job("x", 2)], ["2"]),
    ],
    ids=[
        "in their order",
        "bigger than the machine, alone",
        "bigger than the machine, not alone",
        "nobody is overtaken",
        "no limit",
        "a lab",
        "none waits for a sweep",
        "before a sweep",
        "a sweep",
        "one at once",
        "one at once is nobody else's matter",
        "kernels take turns",
        "kernels take turns with what runs",
        "beside what has all places",
    ],
)
def test_whose_turn_it_is(waiting, running, due):
    assert names(queue.due(waiting, running)) == due


def test_gpus_are_shared_by_none():
    two = {"gpus": ("0", "1"), "most": None}
    runs = [run(f"r{number}", at=number, wants=1, **two) for number in range(3)]

    begun = queue.due(runs, [])

    assert [(run.name, run.holds) for run in begun] == [("r0", ("0",)), ("r1", ("1",))]
    # A job that sees all GPUs waits for all, and no other job takes one meanwhile.
    single = job("single", wants=2, **two)
    assert queue.due([runs[2], single], begun[:1]) == []
    assert names(queue.due([runs[2], single], [])) == ["single"]


def test_a_job_is_told_how_many_it_is_behind():
    running = [job("x"), run("r0")]
    waiting = [run("r1"), run("r2", at=1), job("1"), job("2", at=1)]

    counts = {run.name: queue.ahead(run.name, waiting, running) for run in waiting}

    assert counts == {"1": 1, "2": 2, "r1": 4, "r2": 5}
    assert queue.ahead("x", waiting, running) is None


def test_gpus_are_in_the_way_of_a_job_only_where_too_few_are_free():
    four = {"gpus": ("0", "1", "2", "3"), "most": 16}
    holders = [job(f"r{number}", wants=1, holds=(str(number),), **four, ranks=0) for number in range(2)]

    assert queue.ahead("small", [job("small", wants=2, **four)], holders) == 0
    assert queue.ahead("big", [job("big", wants=3, **four)], holders) == 2


@pytest.fixture
def one_at_a_time(monkeypatch):
    monkeypatch.setenv(queue.RANKS, "1")


def until_there(path):
    while not path.exists():
        time.sleep(0.005)


def test_a_job_that_waits_for_one_whose_folder_is_gone_is_still_listed(act, here, one_at_a_time, monkeypatch):
    monkeypatch.setattr(pool_client, "step", lambda: None)
    first, second = act(), act()
    (second.folder.path / "supervisor.json").unlink()
    queue.take([queue.place(first.folder)])
    queue.take([queue.place(second.folder)])
    first.remove()

    [state] = here.jobs()
    assert [wait.text for wait in state.waiting] == [f"waits for {first.name}: running, holds 1 of 1 place"]


def stop_in_the_debugger():
    breakpoint()


@pytest.mark.torch
def test_a_job_that_is_stopped_in_the_debugger_gives_its_place_up(one_at_a_time):
    first = nbtorchjob.submit(stop_in_the_debugger)
    until(lambda: first.state.stopped)
    assert nbtorchjob.submit(len, "ab").result(LIMIT) == 2
    assert first.state.stopped
    first.cancel()
    assert first.wait(LIMIT)


def fail_as_a_peer_is_stopped(folder):
    rank, is_first = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if is_first and rank == 0:
        breakpoint()
    while is_first and not any(Path(folder).glob("*/stopped-0")):
        time.sleep(0.01)
    if is_first:
        raise ValueError("so both begin anew")
    while not Path(folder, "go").exists():
        time.sleep(0.01)


@pytest.mark.torch
def test_a_rank_that_was_killed_in_the_debugger_has_its_place_again(monkeypatch):
    monkeypatch.setenv(queue.RANKS, "2")
    spec = JobSpec(Elastic(nproc_per_node=2, max_restarts=1), name="first")
    first = nbtorchjob.submit(fail_as_a_peer_is_stopped, str(directory.jobs_dir() / "first"), spec=spec)
    until(lambda: first.state.round == 1 and len(first.state.began) == 2)
    job = nbtorchjob.submit(len, "ab")

    until(lambda: job.state.waiting or job.state.phase.terminal)
    assert re.match("waits for first: running for .*, holds 2 of 2 places", job.state.waiting[0].text)
    Path(directory.jobs_dir() / "first" / "go").touch()
    assert job.result(LIMIT) == 2
    assert first.result(LIMIT) is None


@pytest.mark.torch
def test_a_job_says_that_one_in_the_debugger_has_its_gpu(monkeypatch):
    monkeypatch.setenv(processes.VISIBLE, "0")
    monkeypatch.setenv(queue.RANKS, "4")
    first = nbtorchjob.submit(stop_in_the_debugger)
    until(lambda: first.state.stopped)
    job = nbtorchjob.submit(len, "ab")

    until(lambda: job.state.blocked)
    (wait,) = job.state.waiting
    assert re.fullmatch(f"waits for {first.name}: stopped in the debugger for [^,]+, holds 1 GPU", wait.text)
    assert facts.waiting(job.state)[1:] == [f"%torchjob cancel {first.name} ends that job"]
    first.cancel()

    assert job.result(LIMIT) == 2


def never_meet():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        dist.barrier()
    time.sleep(LIMIT)


@pytest.mark.torch
def test_a_job_behind_one_that_hangs_says_so_and_can_be_started_beside_it(monkeypatch):
    monkeypatch.setenv(queue.RANKS, "2")
    hangs = nbtorchjob.submit(never_meet, spec=JobSpec(Elastic(nproc_per_node=2), hang_after=1))
    until(lambda: hangs.state.phase is Phase.RUNNING)
    job = nbtorchjob.submit(len, "ab")

    until(lambda: job.state.blocked)
    assert facts.status(job.state, time.time()) == facts.WAITING
    (wait,) = job.state.waiting
    assert re.match(f"waits for {hangs.name}: hanging for [^,]+, holds 2 of 2 places", wait.text)
    job.start()

    assert job.result(LIMIT) == 2
    assert hangs.state.phase is Phase.RUNNING
    job.start()  # in a job that has ended it changes nothing
    hangs.cancel()
    assert hangs.wait(LIMIT)


@pytest.mark.torch
def test_a_job_waits_for_its_turn_and_says_so(one_at_a_time, folder, monkeypatch):
    first = nbtorchjob.submit(until_there, folder / "go")
    second = nbtorchjob.submit(until_there, folder / "go")
    with monkeypatch.context() as clock:  # somebody sets the clock back: nobody is overtaken for that
        clock.setattr(time, "time", lambda now=time.time: now() - 3600)
        third = nbtorchjob.submit(until_there, folder / "go")

    until(lambda: first.state.phase is Phase.RUNNING)
    states = {state.name: state for state in api.jobs()}
    runs = re.compile(f"waits for {first.name}: running for [0-9.]+ s, holds 1 of 1 place")
    assert [runs.fullmatch(reason.text) is not None for reason in states[second.name].waiting] == [True]
    assert states[second.name].phase is Phase.PENDING
    until(lambda: [reason.text[-15:] for reason in third.state.waiting] == ["; behind 2 jobs"])
    second.cancel()
    assert second.wait(LIMIT)
    assert second.state.phase is Phase.CANCELLED
    until(lambda: all(runs.fullmatch(reason.text) for reason in third.state.waiting))
    (folder / "go").touch()

    assert first.result(LIMIT) is None
    assert third.result(LIMIT) is None


@pytest.mark.torch
def test_halfway_through_a_sweep_its_kernel_is_killed_and_no_run_is_lost_or_run_twice(folder):
    code = f"""
        import os, signal, nbtorchjob
        def note(number):
            with open({str(folder / "ran")!r}, "a") as file:
                file.write(f"{{number}}\\n")
            return number
        given = [{{"number": n}} for n in range(12)]
        runs = nbtorchjob.map(note, given, spec=nbtorchjob.JobSpec(name="orphans"))
        ended = nbtorchjob.as_completed(runs)
        for _ in range(6):
            next(ended)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    env = {**os.environ, queue.RANKS: "2"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    killed = subprocess.run(command, env=env, check=False, timeout=LIMIT)

    assert killed.returncode == -signal.SIGKILL
    assert nbtorchjob.group("orphans").results(LIMIT) == [*range(12)]
    assert sorted(map(int, (folder / "ran").read_text().split())) == [*range(12)]


@pytest.mark.torch
def test_whose_starter_died_is_started_by_who_follows_it(folder):
    code = f"""
        import os, signal, nbtorchjob
        from nbtorchjob.backends.local.launch import pool_client
        def note(number):
            with open({str(folder / "ran")!r}, "a") as file:
                file.write(f"{{number}}\\n")
        pool_client.start = lambda job, gpus=(): os.kill(os.getpid(), signal.SIGKILL)
        nbtorchjob.submit(note, 7, spec=nbtorchjob.JobSpec(name="unstarted"))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False, timeout=LIMIT)

    assert nbtorchjob.attach("unstarted").result(LIMIT) is None
    assert (folder / "ran").read_text() == "7\n"


@pytest.mark.parametrize(
    ("error", "left"),
    [(KeyboardInterrupt(), [0, 1]), (SubmitError("no pool"), [1])],
    ids=["an interrupt", "a refusal"],
)
def test_what_a_living_kernel_has_not_started_waits_for_others_to_start_it(act, monkeypatch, error, left):
    monkeypatch.setenv(queue.RANKS, "2")
    jobs = [act().folder for _ in range(2)]
    for job in jobs:
        (job.path / "supervisor.json").unlink()
        job.prepare(b"key", pool_client.of_this_process({}))

    def refuse(job, gpus):
        raise error

    monkeypatch.setattr(pool_client, "start", refuse)  # a pool would start too soon, or not at all
    with pytest.raises(type(error)):
        pool_client.start_here(*jobs)
    started = []
    monkeypatch.setattr(pool_client, "start", lambda job, gpus: started.append(job))
    pool_client.step()

    assert started == [jobs[number] for number in left]


@pytest.mark.torch
def test_a_deadline_counts_from_a_jobs_turn():
    spec = JobSpec(Elastic(run_policy=RunPolicy(active_deadline_seconds=50)))
    plan, call = submission.check(spec), capture.from_function(os.getpid)
    long_ago = time.time() - 100.0

    sent = plan.backend.submit(call, spec, replace(submission.describe(call, spec), created=long_ago))

    job = nbtorchjob.attach(sent.name)
    assert job.result(LIMIT) > 0
    assert job.state.deadline_at is None or job.state.deadline_at > long_ago + 100.0


@pytest.mark.torch
def test_a_job_whose_warden_was_killed_has_no_place_after_the_next_look(folder):
    def waits():
        while not (folder / "go").exists():
            time.sleep(0.01)

    sent = nbtorchjob.submit(waits)
    running = directory.queue_dir() / "running" / sent.name
    status = Path(f"/proc/{supervisor(sent).pid}/status").read_text()
    os.kill(int(status.partition("PPid:")[2].split()[0]), signal.SIGKILL)
    (folder / "go").touch()
    sent.result(LIMIT)

    until(lambda: sent.name in {state.info.name for state in nbtorchjob.jobs()} and not running.exists())
