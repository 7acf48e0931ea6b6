"""Code of pods is changed while they run, on each kind, and their next attempt begins with it."""

from dataclasses import replace

import pytest

from nbtorchjob import Elastic, Retry, capture, submission
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.state import Series
from tests.backends.kubernetes.stage import until
from tests.backends.kubernetes.test_leaving import evict
from tests.patience import LIMIT

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:nbtorchjob itself starts")]

# Each step adds up what all ranks have for their loss.
CELL = """
import time
import torch
from torch import distributed
from nbtorchjob import attempt, report, swap_point
rate, end = 1.0, False
def loss():
    return rate
distributed.init_process_group("gloo")
values, step = [], 0
while not end:
    value = torch.tensor([loss()])
    distributed.all_reduce(value)
    values.append(value.item())
    report(step=step)
    step += 1
    time.sleep(0.02)
    swap_point()
attempt(), [value for at, value in enumerate(values) if at == 0 or value != values[at - 1]]
"""


@pytest.mark.parametrize("kind", KINDS)
def test_pods_change_at_one_call_and_the_next_attempt_begins_with_it(stage, tmp_path, kind):
    place = {"image": "localhost/torch:1", "memory": "1500Mi", "cpu": "400m", "kind": kind}
    retry = Retry(preemptions=1, backoff=0)
    spec = stage.spec(Elastic(2), retry=retry, **place, checkpoints=f"file://{tmp_path}/checkpoints")
    job = submission.submit(capture.from_cell(CELL, {}), replace(spec, grace=45))

    def stepped(state):
        rounds = [state.series.get(rank, Series()).round for rank in (0, 1)]
        return job.wait(0) or (state.round >= 0 and rounds == [state.round] * 2)

    until(lambda: stepped(job.state))
    answer = job.swap("def loss():\n    return rate * 10", rate=3.0)
    assert answer.names == {"loss": "replaced", "rate": "replaced"}
    first = job.state.round
    evict(stage, job, 1)
    until(lambda: job.wait(0) or (job.state.round > first and stepped(job.state)))
    job.swap(end=True)

    assert job.result(LIMIT) == (2, [60.0])
    assert [swap.number for swap in job.state.swapped] == [1, 2]
