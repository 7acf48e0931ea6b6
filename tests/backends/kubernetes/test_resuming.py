"""After an eviction a training resumes from checkpoints that each of its nodes has sent to a store."""

from dataclasses import replace

import pytest

from nbtorchjob import Elastic, Retry, submit
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT
from tests.runtime.trained import STEPS, curve, train

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:nbtorchjob itself starts")]


@pytest.fixture
def undisturbed(tmp_path):
    """Return the log of an undisturbed training; run it before a stage, or its pool outlives the test."""
    log = str(tmp_path / "undisturbed")
    submit(train, log=log, folder=str(tmp_path / "own")).result(LIMIT)
    return log


def test_a_training_goes_on_from_parts_that_two_nodes_have_sent(undisturbed, stage, tmp_path):
    log = str(tmp_path / "log")
    place = {"image": "localhost/torch:1", "memory": "1500Mi", "cpu": "400m", "kind": "indexedjob"}
    place["checkpoints"] = f"file://{tmp_path}/checkpoints"
    spec = stage.spec(Elastic(2), retry=Retry(preemptions=1, backoff=0), **place)
    job = submit(train, "fsdp", log=log, every=2, pause=0.2, spec=replace(spec, grace=1000))
    until(lambda: 0 in job.state.series and len(job.state.series[0].points) > 3)
    (name,) = [pod["metadata"]["name"] for pod in stage.pods() if "-1-" in pod["metadata"]["name"]]
    stage.cluster.evict(stage.namespace, name)

    assert 0 < job.result(LIMIT) < STEPS
    steps, losses = curve(log)
    assert steps == [*range(STEPS)]
    assert losses == pytest.approx(curve(undisturbed)[1], rel=1e-12)
