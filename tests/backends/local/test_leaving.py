"""Real jobs with nodes that are told to end: what is saved, by which rank, and what follows."""

import os
import signal
import sys
import time

import cloudpickle
import pytest

from nbtorchjob import (
    Elastic,
    JobCancelledError,
    JobSpec,
    Leaving,
    Retry,
    RunPolicy,
    artifacts_dir,
    attempt,
    checkpoint_dir,
    leaving,
    report,
    submit,
)
from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.state import Budget
from nbtorchjob.state.failure import Cause
from tests.backends.full import local_backend
from tests.backends.local.real import folder_of, seen
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

STEPS = 40


def steps(how):
    """Step together, each rank taking notes, until all steps are done or the ranks are told to leave."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    rank, folder = distributed.get_rank(), checkpoint_dir()
    saved = folder / "step"
    (artifacts_dir() / f"rank-{rank}").touch()
    with (folder / f"rank-{rank}").open("a") as notes:
        for step in range(int(saved.read_text()) if saved.exists() else 0, STEPS):
            distributed.all_reduce(torch.ones(1))
            time.sleep(0.02)
            notes.write(f"{step}\n")
            notes.flush()
            report(step=step)
            if leaving():
                notes.write("left\n")
                if rank == 0:
                    saved.write_text(str(step + 1))
                if how == "raise":
                    raise Leaving
                if how == "return":
                    return "left"
                notes.flush()
                time.sleep(1000)
    return distributed.get_world_size()


def job_of(how, nnodes, spec=None):
    """Start a job of ``steps``; return it once its ranks have stepped."""
    spec = spec or JobSpec(Elastic(nnodes, nproc_per_node=1), retry=Retry(backoff=0))
    job = submit(steps, how, spec=spec)
    seen(job, lambda state: len(state.series) == state.world_size == spec.launch.max_nodes)
    return job


def tell(job, *nodes):
    for node in nodes:
        os.kill(job.state.nodes[node].life.start.pid, signal.SIGTERM)


def notes(job, rank):
    return (folder_of(job).checkpoints / f"rank-{rank}").read_text().split()


@pytest.mark.parametrize(("how", "nodes"), [("raise", [1]), ("return", [0, 1]), ("raise", [1, 1])])
def test_ranks_of_all_nodes_leave_at_one_step_and_the_next_attempt_goes_on(how, nodes):
    job = job_of(how, 2)
    tell(job, *nodes)

    assert job.result(LIMIT) == 2
    assert notes(job, 0) == notes(job, 1)
    before, after = " ".join(notes(job, 0)).split(" left ")
    assert [*before.split(), *after.split()] == [str(step) for step in range(STEPS)]
    first, second = job.state.attempts
    assert (first.budget, second.failure) == (Budget.PREEMPTIONS, None)
    assert first.left.metrics["step"] == float(before.split()[-1])
    assert [artifact.path for artifact in job.artifacts(attempt=1)] == ["rank-0", "rank-1"]


def test_ranks_that_are_told_in_their_first_step_leave_after_it():
    def told_early():
        report(began=1)
        saved = checkpoint_dir() / f"rank-{os.environ['RANK']}"
        while attempt() == 1:
            while not (checkpoint_dir() / "told").exists():
                time.sleep(0.01)
            time.sleep(0.01)
            if leaving():
                saved.touch()
                raise Leaving
        return saved.exists()

    spec = JobSpec(Elastic(2), retry=Retry(backoff=0), grace=1000, all_ranks=True)
    job = submit(told_early, spec=spec)
    seen(job, lambda state: state.series.keys() == {0, 1})
    tell(job, 1)
    seen(job, lambda state: state.leaving)
    (folder_of(job).checkpoints / "told").touch()

    assert job.results(LIMIT) == [True, True]


def test_an_elastic_job_goes_on_with_the_nodes_that_stay():
    job = job_of("raise", "1:2", JobSpec(Elastic("1:2"), retry=Retry(backoff=0), grace=1000))
    tell(job, 1)

    assert job.result(LIMIT) == 1
    assert len(job.state.attempts) == 1
    left = notes(job, 1)
    assert left[-1] == "left"
    assert [step for step in notes(job, 0) if step != "left"] == [str(step) for step in range(STEPS)]
    assert notes(job, 0)[: len(left)] == left


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 2), (2, 1)])
def test_ranks_that_have_returned_hold_nobody_up(nodes, ranks):
    def steps_of_the_first():
        saved = checkpoint_dir() / "step"
        while os.environ["RANK"] == "0" and not saved.exists():
            time.sleep(0.01)
            report(step=1)
            if leaving():
                saved.touch()
                raise Leaving
        leaving()
        report(returned=1)
        return attempt()

    job = submit(steps_of_the_first, spec=JobSpec(Elastic(nodes, ranks), retry=Retry(backoff=0), grace=1000))
    seen(job, lambda state: state.series.keys() == {0, 1})
    tell(job, 0)

    assert job.result(LIMIT) == 2


def test_a_node_that_is_told_while_nodes_meet_again_begins_no_other_round():
    job = job_of("raise", "1:2")
    os.kill(job.state.nodes[1].life.start.pid, signal.SIGKILL)
    seen(job, lambda state: state.reforming)
    tell(job, 0)

    assert job.result(LIMIT) == 2
    assert len(job.state.attempts) == 2


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 2), (2, 1)])
def test_where_rank_0_asks_alone_it_saves_for_all(nodes, ranks):
    def steps_of_all():
        from torch import distributed

        distributed.init_process_group("gloo")
        saved = checkpoint_dir() / "step"
        for step in range(int(saved.read_text()) if saved.exists() else 0, STEPS):
            distributed.barrier()
            time.sleep(0.02)
            report(step=step)
            if distributed.get_rank() == 0 and leaving():
                saved.write_text(str(step + 1))
                raise Leaving
        return attempt(), saved.exists()

    job = submit(steps_of_all, spec=JobSpec(Elastic(nodes, ranks), retry=Retry(backoff=0), grace=1000))
    seen(job, lambda state: len(state.series) == 2 and len(state.series[0].points) > 2)
    tell(job, nodes - 1)

    assert job.result(LIMIT) == (2, True)
    assert job.state.attempts[0].budget is Budget.PREEMPTIONS


def test_ranks_that_never_ask_are_left_alone_when_an_end_is_announced_ahead_of_its_time(tmp_path):
    def wait(go):
        report(began=1)
        while not go.exists():
            time.sleep(0.01)
        return attempt()

    job = submit(wait, tmp_path / "go", spec=JobSpec(retry=Retry(backoff=0)))
    seen(job, lambda state: state.series)
    (answer,) = local_backend().ask(job.name, {"question": "leave", "why": "its host has a taint"})
    (tmp_path / "go").touch()

    assert answer == NodeAnswer(0, ({"leaves": False},))
    assert job.result(LIMIT) == 1


def test_who_stays_is_ended_in_time():
    job = job_of("stay", 1, JobSpec(Elastic(), grace=3))
    tell(job, 0)
    job.wait(LIMIT)

    assert "the node was told to end\n" in str(job.exception())
    assert notes(job, 0)[-1] == "left"


def test_a_job_that_is_cancelled_gently_saves_before_it_ends():
    job = job_of("raise", 2)
    job.cancel(gently=True)

    assert isinstance(job.exception(LIMIT), JobCancelledError)
    assert notes(job, 0) == notes(job, 1)
    assert notes(job, 0)[-1] == "left"


def test_ranks_are_told_before_the_deadline_which_draws_on_no_budget():
    def until_told():
        began = checkpoint_dir() / "began"
        began.touch()
        while not leaving():
            time.sleep(0.01)
        (checkpoint_dir() / "saved").touch()
        raise Leaving

    policy = RunPolicy(active_deadline_seconds=1000, leave_before=997)
    job = submit(until_told, spec=JobSpec(Elastic(run_policy=policy), retry=Retry(preemptions=3, backoff=0)))

    assert "deadline" in str(job.exception(LIMIT))
    (attempt,) = job.state.attempts
    assert attempt.budget is None
    assert attempt.failure
    assert attempt.failure.reason.cause is Cause.DEADLINE
    # On a busy machine ranks may not have begun by then.
    checkpoints = folder_of(job).checkpoints
    assert (checkpoints / "began").exists() == (checkpoints / "saved").exists()


def test_one_that_is_cancelled_has_no_time_to_save():
    job = job_of("raise", 1)
    job.cancel()

    assert isinstance(job.exception(LIMIT), JobCancelledError)
    assert "left" not in notes(job, 0)


def test_to_leave_untold_is_a_failure():
    def leave():
        raise Leaving

    with pytest.raises(Exception, match="Leaving"):
        submit(leave).result(LIMIT)
