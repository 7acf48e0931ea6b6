"""Elastic jobs that lose nodes: no step is lost, and the losses are those of an undisturbed job."""

import os
import signal

import pytest

from nbtorchjob import Elastic, JobSpec, Retry, submit
from tests.backends.local.real import folder_of, seen
from tests.patience import LIMIT
from tests.runtime.trained import STEPS, curve, train

# The warning is of a machine with fewer cores than ranks.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:nproc_per_node=. is more than")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the losses of a single, undisturbed process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    submit(train, log=str(folder / "log"), folder=str(folder / "own")).result(LIMIT)
    return curve(folder / "log")[1]


def test_a_node_that_leaves_costs_no_step_and_changes_no_loss(undisturbed):
    elastic = Elastic("1:2", nproc_per_node=2, rdzv_configs={"last_call_timeout": 1})
    spec = JobSpec(elastic, retry=Retry(backoff=0), grace=1000)
    job = submit(train, "ddp", every=None, pause=0.1, spec=spec)
    seen(job, lambda state: 0 in state.series and len(state.series[0].points) > 2)
    start = job.state.nodes[1].life.start
    assert start
    os.kill(start.pid, signal.SIGTERM)

    assert 0 < job.result(LIMIT) < STEPS
    steps, losses = curve(folder_of(job).checkpoints / "log")
    assert steps == [*range(STEPS)]
    assert losses == pytest.approx(undisturbed, rel=1e-12)
    assert job.state.world_size == 2


def test_after_a_killed_rank_steps_since_the_newest_checkpoint_are_repeated(undisturbed):
    job = submit(train, "ddp", stop=6, spec=Elastic("1:2", nproc_per_node=2, max_restarts=1))

    assert job.result(LIMIT) == 6
    steps, losses = curve(folder_of(job).checkpoints / "log")
    assert steps == [*range(7), *range(6, STEPS)]
    assert losses == pytest.approx(undisturbed, rel=1e-12)
    assert job.state.world_size == 4
