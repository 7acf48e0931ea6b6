"""After an eviction of one of two pods all ranks save at one step, where the next attempt resumes."""

import os
import sys
import time
from dataclasses import replace

import cloudpickle
import pytest

from nbtorchjob import (
    Elastic,
    Leaving,
    Retry,
    artifacts_dir,
    attempt,
    checkpoint_dir,
    leaving,
    report,
    submit,
)
from nbtorchjob.backends.kubernetes.control import selection
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.state import Budget, Series
from nbtorchjob.state.failure import Cause
from tests.backends.kubernetes.cluster import player
from tests.backends.kubernetes.stage import until, waits
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:nbtorchjob itself starts")]

MORE = 30


def steps():
    """Step together until ranks are told to leave, however late; a resumed attempt makes ``MORE`` steps."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    saved = checkpoint_dir() / f"rank-{distributed.get_rank()}"
    begun = int(saved.read_text()) if saved.exists() else 0
    for step in range(begun, begun + MORE if begun else 1 << 30):
        distributed.all_reduce(torch.ones(1))
        time.sleep(0.02)
        print("step", step)
        report(step=step)
        if leaving():
            saved.write_text(str(step + 1))
            raise Leaving
    return "done"


@pytest.fixture
def start(stage, tmp_path):
    """Return a function that starts a job with stored checkpoints, and waits until its ranks have stepped."""

    def begun(kind, launch, retry=None, grace=45):
        place = {"image": "localhost/torch:1", "memory": "1500Mi", "cpu": "400m"}
        options = {**place, "kind": kind, "checkpoints": f"file://{tmp_path}/checkpoints"}
        spec = replace(stage.spec(launch, retry=retry, **options), grace=grace)
        job = submit(steps, spec=spec)
        until(lambda: job.wait(0) or all(len(job.state.series.get(r, Series()).points) > 3 for r in (0, 1)))
        return job

    return begun


def evict(stage, job, *nodes):
    uids = [job.state.nodes[node].life.pod for node in nodes]
    names = (pod["metadata"]["name"] for pod in stage.pods() if pod["metadata"]["uid"] in uids)
    stage.cluster.evict(stage.namespace, *names)


@pytest.fixture
def taint(stage, monkeypatch):
    """Yield a function that sets the taints of the host, which is checked often; remove all at the end."""
    monkeypatch.setattr(selection, "EVERY_S", 0.2)
    yield stage.cluster.taint
    stage.cluster.taint()


def each_step_once(job, *ranks):
    """Return whether these ranks have made each step exactly once, up to the last step of any of them."""
    logs = [[line for line in job.logs(rank).splitlines() if line.startswith("step")] for rank in ranks]
    most = max(map(len, logs))
    return most > MORE and logs == [[f"step {number}" for number in range(most)]] * len(ranks)


@pytest.mark.parametrize(
    ("kind", "nodes"), [*((kind, [1]) for kind in KINDS), ("indexedjob", [0]), ("indexedjob", [0, 1])]
)
def test_no_step_is_lost_or_done_twice(stage, start, kind, nodes):
    job = start(kind, Elastic(2), Retry(preemptions=1, backoff=0))
    evict(stage, job, *nodes)

    assert job.result(LIMIT) == "done", job.state
    assert each_step_once(job, 0, 1), job.state.notices
    first, second = job.state.attempts
    assert (first.budget, second.failure) == (Budget.PREEMPTIONS, None)
    assert first.left is not None


def test_no_step_is_lost_as_a_cloud_gives_notice_of_the_end_of_a_host(start, taint):
    job = start("indexedjob", Elastic(2), Retry(preemptions=1, backoff=0))
    taint(selection.TAINTS[0])
    until(lambda: "taint" in waits(job))  # the next attempt isn't placed on that host
    taint()

    assert job.result(LIMIT) == "done", job.state
    assert each_step_once(job, 0, 1), job.state.notices
    assert [attempt.budget for attempt in job.state.attempts] == [Budget.PREEMPTIONS, None]
    assert [leave.why for leave in job.state.leaves] == [f"its host has the taint {selection.TAINTS[0]}"]


def test_who_saves_for_too_long_is_ended_and_what_others_saved_then_does_not_count(stage, tmp_path):
    def save():
        if attempt() > 1:
            return [path.name for path in checkpoint_dir().iterdir()]
        report(step=1)
        while not leaving():
            time.sleep(0.02)
        (checkpoint_dir() / "part").touch()
        if os.environ["RANK"] == "1":
            time.sleep(1000)
        raise Leaving

    place = {"image": "localhost/torch:1", "memory": "1500Mi", "cpu": "400m"}
    place |= {"checkpoints": f"file://{tmp_path}/checkpoints"}
    spec = replace(stage.spec(Elastic(2), retry=Retry(preemptions=1, backoff=0), **place), grace=6)
    job = submit(save, spec=spec)
    until(lambda: job.wait(0) or job.state.series.keys() == {0, 1})
    evict(stage, job, 1)

    assert job.result(LIMIT) == []
    assert job.state.attempts[0].budget is Budget.PREEMPTIONS


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_is_suspended_goes_on_from_the_step_that_it_left_at(stage, start, kind):
    job = start(kind, Elastic(2), Retry(preemptions=0, backoff=0))
    job.suspend()
    until(
        lambda: (
            job.state.suspended and all(life.end for node in job.state.nodes.values() for life in node.aged)
        )
    )
    job.resume()

    assert job.result(LIMIT) == "done", job.state
    assert each_step_once(job, 0, 1), job.state.notices
    assert not any(attempt.budget for attempt in job.state.attempts)


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if "elastic" in kind.can])
def test_an_elastic_job_loses_no_step_with_a_node(stage, start, kind):
    job = start(kind, Elastic("1:2", rdzv_configs={"last_call_timeout": 1}))
    evict(stage, job, 1)

    assert job.result(LIMIT) == "done", job.state
    assert each_step_once(job, 0)


def lingers():
    """Write an artifact, and go on."""
    (artifacts_dir() / "loss").write_text("0.5")
    report(left=1)
    while True:
        time.sleep(1)


def test_at_a_pods_deadline_what_its_ranks_left_comes_home_in_the_grace_period(stage, tmp_path):
    place = {"image": "localhost/torch:1", "memory": "1500Mi", "cpu": "400m", "kind": "volcano"}
    job = submit(lingers, spec=stage.spec(Elastic(), **place))
    until(lambda: job.state.series)
    stage.cluster.fail_pods(stage.namespace, stage.pod(), why=player.DEADLINE)

    assert job.wait(LIMIT)
    assert [attempt.failure.reason.cause for attempt in job.state.attempts if attempt.failure] == [
        Cause.DEADLINE
    ]
    assert [artifact.path for artifact in job.artifacts(tmp_path)] == ["loss"]
