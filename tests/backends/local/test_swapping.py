"""Real jobs that get new code while they run: on all ranks at the same call, or on none."""

import os
import signal

import pytest

from nbtorchjob import (
    Elastic,
    JobSpec,
    Retry,
    SpecError,
    SwapError,
    capture,
    submission,
)
from nbtorchjob.backends.local import directory
from nbtorchjob.swapping import sending
from tests.backends.kubernetes.stage import until
from tests.backends.local.real import seen
from tests.patience import LIMIT

pytestmark = pytest.mark.torch

# Each step sums the values of all ranks: if their code differed, the sum would be that of neither version.
CELL = """
import os, time
import torch
from torch import distributed as dist
from nbtorchjob import attempt, report, swap_point
dist.init_process_group("gloo")
go = os.environ["GO"]
lr = 1.0
def loss(step):
    return lr
class Net:
    def weight(self):
        return 0.0
net = Net()
def only_rank_0():
    return 0.0
out = []
step = 0
while True:
    value = torch.tensor([loss(step) + net.weight(), os.path.exists(go)])
    dist.all_reduce(value)
    out.append(round(value[0].item(), 6))  # what was swapped last runs once at least
    if value[1]:  # for all ranks at one step
        break
    if dist.get_rank() == 0:
        only_rank_0()
    report(step=step, value=out[-1])
    step += 1
    time.sleep(0.005)
    swap_point()
(attempt(), out)
"""


@pytest.fixture
def go(tmp_path):
    return tmp_path / "go"


def start(go, nodes=2, ranks=2, text=CELL, **spec):
    call = capture.from_cell(text, {}, filename="<torchjob cell 1>")
    job_spec = JobSpec(Elastic(nodes, nproc_per_node=ranks), env={"GO": str(go)}, **spec)
    job = submission.submit(call, job_spec)
    seen(job, lambda state: len(state.series) == state.world_size == nodes * ranks)
    return job


def reported(state):
    """Return the ranks that have reported in the newest round."""
    return {rank for rank, series in state.series.items() if series.round == state.round}


def end(job, go):
    """End a job; return its attempt and the values of its steps, without consecutive repeats."""
    go.touch()
    attempt, values = job.result(LIMIT)
    return attempt, [value for at, value in enumerate(values) if at == 0 or value != values[at - 1]]


def test_all_ranks_of_two_nodes_change_at_one_call(go):
    job = start(go)
    answer = job.swap(
        "def loss(step):\n    return lr * 10\nclass Net:\n    def weight(self):\n        return 5.0\nnew = 1"
    )
    job.swap(lr=0.5)

    assert answer.names == {"loss": "replaced", "Net": "replaced", "new": "added"}
    assert answer.point == "swap_point()"
    assert str(answer).startswith(
        f"{job.name}: swapped on all ranks at call {answer.call:,} of swap_point() (step"
    )
    # The new code fails on one rank: nothing changes.
    with pytest.raises(SwapError, match="nothing was swapped, as rank 2 raised ZeroDivisionError"):
        job.swap("import os\nlr = 1 / (int(os.environ['RANK']) - 2)")
    with pytest.raises(SwapError, match=r"breakpoint\(\), and the ranks of this job can't stop"):
        job.swap("def loss(step):\n    breakpoint()\n    return 1.0")
    # The first call of the new code raises on one rank: all ranks put the old code back.
    bad = "import os\ndef loss(step):\n    return 1 / (int(os.environ['RANK']) - 1)"
    with pytest.raises(SwapError, match="the old code was put back on all ranks, as rank 1 raised ZeroDiv"):
        job.swap(bad, or_back=True)
    # Only rank 0 calls this function, which doesn't hold up the others for long.
    assert job.swap("def only_rank_0():\n    return 1.0", or_back=True).names == {"only_rank_0": "replaced"}
    assert job.swap("def loss(step):\n    return 2.0", or_back=True).names == {"loss": "replaced"}
    for within in ("60", 0, float("nan"), float("inf"), True):
        with pytest.raises(SpecError, match=r"within: got .*, but it must be a number of seconds"):
            job.swap("lr = 100.0", within=within)
    for name in ("class", "None", "a b"):
        with pytest.raises(SwapError, match=f"{name}=1: expected NAME=VALUE, or"):
            job.swap(**{name: 1})
    with pytest.raises(SwapError, match=r"step_size is a local variable of f\(\)"):
        job.swap("def f():\n    step_size = 1\n    return step_size\nstep_size = 2")

    assert end(job, go) == (1, [4.0, 60.0, 40.0, 28.0])
    swaps = job.state.swapped
    assert [(swap.number, bool(swap.back)) for swap in swaps] == [
        (1, False),
        (2, False),
        (2, True),
        (3, False),
        (4, False),
    ]
    assert swaps[2].back == "rank 1: ZeroDivisionError: division by zero"
    assert "+lr = 0.5" in swaps[1].diff
    assert swaps[0].metrics["step"] == swaps[0].call - 1
    for rank in range(4):
        assert f"nbtorchjob: swapped lr at call {swaps[1].call:,}".replace(",", "") in job.logs(rank)


def test_an_attempt_that_starts_anew_runs_the_code_as_swapped(go):
    job = start(
        go,
        ranks=1,
        retry=Retry(preemptions=3, retries=3, backoff=0),
    )
    job.swap("def loss(step):\n    return 7.0\nclass Net:\n    def weight(self):\n        return 1.0")
    state = job.state
    # Node 1 loses its record of the swaps, as a pod does, and learns of them from node 0.
    for path in (directory.jobs_dir() / job.name / "node-1" / "swaps").iterdir():
        path.unlink()
    os.kill(state.nodes[1].life.start.pid, signal.SIGKILL)
    seen(job, lambda state: state.round > 0 and reported(state) == {0, 1})
    until(lambda: any("as it was swapped" in notice.text for notice in job.state.notices))
    job.swap("lr = 1")

    assert end(job, go) == (2, [16.0])
    go.unlink()
    again = job.retry()
    seen(again, lambda state: len(state.series) == 2)
    assert end(again, go) == (1, [16.0])


def test_ranks_that_dont_come_are_named(go, monkeypatch):
    text = CELL.replace(
        "    step += 1\n",
        "    step += 1\n    if dist.get_rank() == 1 and step > 30:\n        time.sleep(1000)\n",
    )
    job = start(go, nodes=1, text=text)
    until(lambda: job.state.spoken.points[-1].metrics["step"] >= 29)

    with pytest.raises(SwapError, match="rank") as raised:
        job.swap("lr = 2.0", within=3)
    assert "didn't reach the call at which the others waited" in str(raised.value)
    # The kernel gets no answer, and the nodes go on by themselves.
    monkeypatch.setattr(sending, "_MORE_S", -999.5)
    with pytest.raises(SwapError, match=r"isn't known whether its code was swapped \(node 0: no answer\)"):
        job.swap("lr = 3.0", within=1000)
    job.cancel()


def test_a_job_that_passes_no_point_is_refused(go):
    text = """
import os, time
from nbtorchjob import report
x = 1
if os.environ["RANK"] == "0":
    report(step=1)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
"""
    call = capture.from_cell(text, {})
    job = submission.submit(call, JobSpec(Elastic(1, nproc_per_node=2), env={"GO": str(go)}))
    seen(job, lambda state: len(state.series) == 1)

    with pytest.raises(SwapError, match=r"rank 1 made none: call `nbtorchjob.swap_point\(\)` once a step"):
        job.swap("x = 2", within=2)
    go.touch()
    job.wait(LIMIT)
    with pytest.raises(Exception, match="has ended: its code can't be changed"):
        job.swap("x = 2")
