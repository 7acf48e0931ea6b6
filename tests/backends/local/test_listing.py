"""All jobs of this machine: each is read again only if something was added to it."""

import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from nbtorchjob import JobSpec, capture, submission
from nbtorchjob.backends import backend, naming
from nbtorchjob.backends.local import directory, liveness
from nbtorchjob.backends.local.backend import LocalBackend
from nbtorchjob.backends.local.eventfile import EventFile
from nbtorchjob.backends.local.launch import pool_client
from nbtorchjob.backends.local.listing import Listing
from nbtorchjob.machine.processes import NOBODY, Process
from nbtorchjob.state import JobState, Phase
from nbtorchjob.state.progress import progress
from nbtorchjob.ui.record import record


def listed(here):
    """Return the phase of each job."""
    return {state.info.name: state.phase for state in here.jobs()}


def done(state):
    """Return the number of steps that a job's slowest rank has done."""
    headway = progress(state)
    return headway and headway.done


def report(job, seq, rank=0, round=0, **metrics):
    job.folder.emit("Reported", rank=rank, round=round, seq=seq, metrics=metrics)


def test_a_job_that_has_ended_is_read_once(act, here):
    job = act()
    job.end()
    [first] = here.jobs()
    spoil(job.folder.events)

    [second] = here.jobs()
    assert second is first


def spoil(path):
    """Change a file's content but not its size and times, so that only a reader notices."""
    stat = path.stat()
    path.write_bytes(b"?" * stat.st_size)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_what_a_job_is_told_meanwhile_is_seen(act, here):
    job = act()
    before = listed(here)
    job.begin()
    during = listed(here)
    job.folder.emit("NodeExited", node=0, code=0)
    job.end()

    assert (before, during) == ({job.name: Phase.SUBMITTED}, {job.name: Phase.RUNNING})
    assert listed(here) == {job.name: Phase.SUCCEEDED}


def test_only_what_is_new_is_read(act, here):
    job = act()
    job.begin()
    here.jobs()
    with open(job.folder.events, "r+b") as file:
        file.write(b"?" * 10)  # the listing doesn't read again what it has read once
    job.end()

    [state] = here.jobs()
    assert state.ended is not None
    assert state.members


def test_a_running_job_that_has_told_nothing_new_is_not_read_again(act, here, monkeypatch):
    job = act()
    job.begin()
    before = here.brief_state(job.name)
    with monkeypatch.context() as patched:
        patched.delattr(EventFile, "lines")
        assert here.brief_state(job.name).members == before.members
    job.folder.emit("NodeExited", node=0, code=0)
    job.end()

    assert here.brief_state(job.name).ended is not None


def test_a_running_job_says_how_far_it_is(act, here):
    job = act()
    for step in range(1000):
        report(job, step, step=step, steps=5000)
        report(job, step, rank=1, step=step // 2, steps=5000)
    [state] = here.jobs()
    for step in range(1000, 1500):
        report(job, step, step=step, steps=5000)
        report(job, step, rank=1, step=step // 2, steps=5000)
    [later] = here.jobs()

    assert [done(record) for record in (state, later)] == [500, 750]


def test_a_running_job_says_when_its_ranks_wrote_last(act, here):
    job = act()
    job.folder.emit("WorkersStarted", node=0, restart=0, round=0, ranks=[0, 1], world_size=2)
    for rank, at in enumerate((50, 70)):
        log = job.folder.rank_log(0, 0, rank)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        os.utime(log, (at, at))

    assert here.jobs()[0].wrote == 70


def test_an_ended_job_takes_little_memory(act, here):
    job = act()
    for step in range(9):
        report(job, step, step=step, steps=9, loss=9 - step)
        report(job, step, rank=1, step=step, steps=9)
    job.folder.emit("Used", node=0, round=0, seq=0, cores=2.0, memory=1, limit=2)
    [state] = here.jobs()
    assert state.series
    assert state.uses
    job.end()

    [state], [again] = here.jobs(), LocalBackend().jobs()
    assert again.series == state.series
    assert (state.uses, state.info.sources) == ({}, {})
    assert [(rank, [dict(p.metrics) for p in series.points]) for rank, series in state.series.items()] == [
        (0, [{"step": 8, "steps": 9, "loss": 1}])
    ]
    assert done(state) == 9  # it counts from 0, as its first report showed


def test_ended_jobs_share_what_is_alike(act, here):
    for name in ("one", "two"):
        act(name).end()

    first, second = here.jobs()
    assert {id(value) for value in vars(first).values()} >= {
        id(value) for value in vars(second).values() if isinstance(value, Mapping) and not value
    }
    assert {*map(id, first.info.spec)} == {*map(id, second.info.spec)}
    assert first.info.label is second.info.label


def test_of_a_jobs_code_only_the_names_of_its_cells_are_listed(act, here):
    job = act(sources={"<torchjob cell 12>": ("Cell In[12]", "x = 1\n")})
    job.begin(ranks=(0, 1))
    job.folder.emit(
        "RankStops",
        node=0,
        rank=1,
        round=0,
        lineno=5,
        function="step",
        filename="<torchjob cell 12>",
        why="breakpoint",
    )

    [state] = here.jobs()
    assert state.info.sources == {"<torchjob cell 12>": ("Cell In[12]", "")}
    assert record(state, 0.0)["pending"][0].startswith("rank 1 stops at Cell In[12], line 5, in `step`")


def test_a_deleted_job_is_listed_no_more(act, here):
    job, other = act(), act()
    job.end()
    here.jobs()
    job.remove()

    assert [*listed(here)] == [other.name]


@pytest.mark.parametrize("over", [True, False])
def test_a_job_that_was_made_again_is_another_one(act, here, over):
    job = act("made-again")
    job.begin()
    if over:
        job.end()
    assert listed(here)
    job.remove()
    again = act("made-again")
    again.folder.events.write_bytes(b"")  # the process still holds the former file
    lines = [b'{"event": "Notice", "time": 1.0, "text": "a line that is longer than all of before"}\n'] * 20
    again.folder.events.write_bytes(b"".join(lines))

    [state] = here.jobs()
    assert state.info.created == again.folder.info().created
    assert state.phase is Phase.SUBMITTED
    assert len(state.notices) == 1


def test_a_job_whose_supervisor_was_killed_is_lost_until_it_says_more(act, here):
    job = act()
    job.begin()
    here.jobs()
    job.lose()

    [state] = here.jobs()
    assert state.lost.reason == "the job's supervisor was killed"
    assert here.jobs() == [state]

    job.end()
    assert here.jobs()[0].lost is None


def test_last_words_between_two_looks_are_heard(act, here, monkeypatch):
    job = act()
    job.begin()

    def gone(folder):
        job.folder.emit("NodeExited", node=0, code=0)
        job.end()
        return "the job's supervisor was killed"

    monkeypatch.setattr(liveness, "why", gone)  # between the two looks no public interface acts

    assert listed(here) == {job.name: Phase.SUCCEEDED}


def test_a_folder_that_is_damaged_harms_no_other_and_may_recover(act, here):
    job, damaged = act(), act()
    content = (damaged.folder.path / "job.json").read_bytes()
    (damaged.folder.path / "job.json").write_bytes(b"{")
    (directory.jobs_dir() / "a file").touch()
    (directory.jobs_dir() / "empty").mkdir()

    assert [*listed(here)] == [job.name]
    (damaged.folder.path / "job.json").write_bytes(content)
    assert {*listed(here)} == {job.name, damaged.name}


def test_a_job_is_deleted_once_its_time_is_over(act, here):
    job, running = act(), act()
    for run in (job, running):
        (run.folder.path / "ttl").write_text("60")
    job.end()
    assert len(listed(here)) == 2

    for run in (job, running):
        os.utime(run.folder.events, (0, time.time() - 61))
    assert [*listed(here)] == [running.name]
    assert not job.folder.path.exists()


def test_another_state_folder_has_other_jobs(act, here, tmp_path, monkeypatch):
    first = act()
    assert [*listed(here)] == [first.name]
    monkeypatch.setenv("NBTORCHJOB_STATE_DIR", str(tmp_path / "other"))

    assert listed(here) == {}


def test_many_threads_may_list_at_once(act, here):
    jobs = [act() for _ in range(20)]
    counts = []

    def look():
        for _ in range(10):
            counts.append(len(here.jobs()))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for job in jobs:
        report(job, 0, step=1, steps=2)
        job.end()
    for thread in threads:
        thread.join()

    assert set(counts) == {20}
    assert {state.ended is not None for state in here.jobs()} == {True}


def test_this_machine_is_one_scope(act):
    job = act()

    assert backend("local").scopes() == [""]
    assert [state.info.name for state in backend("local").jobs(scope="")] == [job.name]
    shutil.rmtree(job.folder.path)


def submitted_by(kernel, act, age=0.0):
    """Return a job that a kernel, alive or killed, hasn't sent yet to this process, as its pool."""
    job = act()
    (job.folder.path / "supervisor.json").unlink()
    job.folder.payload.write_bytes(b"")
    me = asdict(Process.of(os.getpid()))
    request = {"process": me, "folder": "/nowhere", "kernel": me if kernel == "alive" else asdict(NOBODY)}
    request["at"] = directory.uptime() - age
    (job.folder.path / "pool.json").write_text(json.dumps(request))
    return job


@pytest.mark.parametrize(
    ("kernel", "age", "over"), [("alive", 3600, False), ("killed", 10, False), ("killed", 3600, True)]
)
def test_a_job_whose_kernel_was_killed_before_it_was_sent_is_lost_in_a_while(
    act, here, kernel, age, over, monkeypatch
):
    job = submitted_by(kernel, act, age)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 1e4)  # a clock that was set meanwhile

    assert here.snapshot(job.name).phase.terminal is over
    assert [state.phase.terminal for state in here.jobs()] == [over]


@pytest.mark.parametrize("kernel", ["alive", "killed"])
def test_a_job_that_was_not_yet_handed_over_waits_for_its_kernel_as_long_as_that_lives(act, here, kernel):
    job = submitted_by(kernel, act)
    (job.folder.path / "pool.json").unlink()
    maker = Process.of(os.getpid()) if kernel == "alive" else NOBODY
    (job.folder.path / "maker.json").write_text(json.dumps(asdict(maker)))

    assert here.snapshot(job.name).phase.terminal is (kernel == "killed")


def test_a_job_that_nobody_has_begun_is_cancelled_by_who_asks_and_never_begins(act, here):
    job = submitted_by("alive", act)
    here.cancel(job.name)

    assert here.snapshot(job.name).phase is Phase.CANCELLED
    assert not job.folder.claim(Process.of(os.getpid()))  # as its supervisor would
    here.cancel(job.name)
    assert here.snapshot(job.name).phase is Phase.CANCELLED


def test_a_job_that_is_just_being_cancelled_before_it_began_is_not_lost(act, here, monkeypatch):
    job = submitted_by("alive", act)
    states: list[JobState] = []
    put_by = directory.put_by

    def look(folder):
        states.extend((here.snapshot(job.name), *here.jobs(), here.brief_state(job.name)))
        put_by(folder)

    monkeypatch.setattr(directory, "put_by", look)
    here.cancel(job.name)

    assert len(states) == 3
    assert not any(state.ended or state.phase is Phase.FAILED for state in states)
    assert {state.phase for state in (here.snapshot(job.name), *here.jobs())} == {Phase.CANCELLED}


def test_a_job_whose_canceller_was_killed_before_it_began_has_ended(act, here):
    job = submitted_by("alive", act)
    (job.folder.path / "supervisor.json").write_text(json.dumps({"closer": asdict(NOBODY)}))

    (state,) = here.jobs()
    assert state.phase.terminal
    assert "ended before it began" in str(state.failure)


def test_a_name_with_many_runs_gets_its_next_number_at_as_many_looks_as_one_with_few(act, here, monkeypatch):
    look, looks = Listing.look, []

    def noted(*args):  # each look covers all jobs
        looks.append(args)
        return look(*args)

    monkeypatch.setattr(Listing, "look", noted)
    monkeypatch.setattr(pool_client, "start_here", lambda job: None)  # no job should run
    call = capture.from_function(lambda: 1, root=Path.cwd())

    def run(name):
        looks.clear()
        spec = JobSpec(name=name)
        return here.submit(call, spec, submission.describe(call, spec)).name, len(looks)

    for name, runs in (("few", 1), ("many", 20)):
        for number in range(1, runs + 1):
            act(naming.run(name, number)).end()

    (few, least), (many, most) = run("few"), run("many")
    assert (few, many, most) == ("few-2", "many-21", least)


@pytest.mark.parametrize("what", ["new", "deleted"])
def test_what_a_killed_kernel_has_half_made_is_found_by_gc_and_left_alone_while_it_grows(act, here, what):
    job = act()
    jobs = job.folder.path.parent
    me = Process.of(os.getpid())
    # Left by a process that has ended, though another one has its id by now, and by one that runs.
    old, new = (jobs / f".{what}-{me.pid}-{started}-abc" for started in (me.started - 1, me.started))
    for path in (old, new):
        (path / "checkpoints").mkdir(parents=True)
        (path / "job.pyz").write_bytes(b"x")
        (path / "checkpoints" / "latest").symlink_to("step-100")  # its target was removed first

    [left] = [left for left in here.leftovers() if left.state is None]
    assert left.name == old.name
    here.clear(left)
    assert sorted(path.name for path in jobs.iterdir()) == [new.name, job.name]
