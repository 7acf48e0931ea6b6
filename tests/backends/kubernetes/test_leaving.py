"""One of two pods is evicted: all ranks save at one step, and the next attempt goes on from what was sent."""

import sys
import time

import cloudpickle
import pytest

from nbtorchjob import Elastic, Leaving, Retry, checkpoint_dir, leaving, report, submit
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.state import Budget, Series
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

# As in a notebook, whose functions no node can import.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:nbtorchjob itself starts")]

STEPS = 60


def steps():
    """Step together until all are done, or until ranks are told to leave."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    saved = checkpoint_dir() / f"rank-{distributed.get_rank()}"
    for step in range(int(saved.read_text()) if saved.exists() else 0, STEPS):
        distributed.all_reduce(torch.ones(1))
        time.sleep(0.02)
        print("step", step)
        report(step=step)
        if leaving():
            saved.write_text(str(step + 1))
            raise Leaving
    return "done"


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_is_lost_or_done_twice(stage, tmp_path, kind):
    place = {"image": "localhost/torch:1", "memory": "1500Mi", "cpu": "400m"}
    asked = {**place, "kind": kind, "checkpoints": f"file://{tmp_path}/checkpoints"}
    job = submit(steps, spec=stage.spec(Elastic(2), retry=Retry(preemptions=1, backoff=0), **asked))
    until(
        lambda: job.wait(0) or all(len(job.state.series.get(rank, Series()).points) > 3 for rank in range(2))
    )
    uid = job.state.nodes[1].life.pod
    (pod,) = (each["metadata"]["name"] for each in stage.pods() if each["metadata"]["uid"] == uid)
    stage.cluster.evict(stage.namespace, pod)

    assert job.result(LIMIT) == "done", job.state
    for rank in range(2):
        said = [line for line in job.logs(rank).splitlines() if line.startswith("step")]
        assert said == [f"step {step}" for step in range(STEPS)]
    first, second = job.state.attempts
    assert (first.budget, second.failure) == (Budget.PREEMPTIONS, None)
    assert first.left is not None
