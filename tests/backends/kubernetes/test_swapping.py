"""Swaps of code in running pods, on each kind: the next attempt begins with the swapped code."""

import io
import zipfile
from dataclasses import replace
from typing import Any

import pytest
import yaml

from nbtorchjob import Elastic, Retry, capture, submission
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.payload import package
from nbtorchjob.state import Series
from nbtorchjob.swapping import code
from tests.backends.kubernetes.stage import until
from tests.backends.kubernetes.test_leaving import evict
from tests.patience import LIMIT

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:nbtorchjob itself starts")]

CLAIM = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
# Each step adds up the losses of all ranks.
CELL = """
import time
import torch
from torch import distributed
from nbtorchjob import attempt, report, swap_point
rate, left = 1.0, 1 << 60
def loss():
    return rate
distributed.init_process_group("gloo")
values, step = [], 0
while left:
    left -= 1
    value = torch.tensor([loss()])
    distributed.all_reduce(value)
    values.append(value.item())
    report(step=step)
    step += 1
    time.sleep(0.02)
    swap_point()
attempt(), [value for at, value in enumerate(values) if at == 0 or value != values[at - 1]]
"""


@pytest.mark.parametrize(
    ("kind", "place"),
    [*((kind, "a Secret") for kind in KINDS), ("trainjob", "a store"), ("indexedjob", "a claim")],
)
def test_pods_change_at_one_call_and_the_next_attempt_begins_with_it(stage, tmp_path, kind, place):
    retry = Retry(preemptions=1, backoff=0)
    kept: dict[str, Any] = {"checkpoints": f"file://{tmp_path}/checkpoints"} if place == "a store" else {}
    if place == "a claim":  # both pods write to its folder
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "shared"},
            "spec": CLAIM,
        }
        stage.cluster.request("POST", f"/api/v1/namespaces/{stage.namespace}/persistentvolumeclaims", body)
        kept = {"checkpoints": f"{tmp_path}/c", "mount": [f"type=volume,src=shared,dst={tmp_path}"]}
    images = {"image": "localhost/torch:1", "memory": "1500Mi", "cpu": "400m"}
    spec = stage.spec(Elastic(2), retry=retry, kind=kind, **images, **kept)
    job = submission.submit(capture.from_cell(CELL, {}), replace(spec, grace=45))

    def stepped(state):
        rounds = [state.series.get(rank, Series()).round for rank in (0, 1)]
        return job.wait(0) or (state.round >= 0 and rounds == [state.round] * 2)

    until(lambda: stepped(job.state))
    answer = job.swap("def loss():\n    return rate * 10", rate=3.0)
    assert (answer.names, answer.unkept) == ({"loss": "replaced", "rate": "replaced"}, "")
    first = job.state.round
    before = {node.life.pod for node in job.state.nodes.values()}

    def moved(state):
        return not before & {node.life.pod for node in state.nodes.values()}

    evict(stage, job, 1)
    # In a job of fixed size the other node's pod ends as well, with all that it has kept. On a busy machine
    # its container may have restarted before, and gone on with the pod that replaces the lost one.
    until(lambda: job.wait(0) or (job.state.round > first and stepped(job.state) and moved(job.state)))
    assert moved(job.state)
    job.swap(left=20)  # some more steps, so that nodes still run and confirm the swap

    assert job.result(LIMIT) == (2, [60.0])
    assert [swap.number for swap in job.state.swapped] == [1, 2]
    assert "begin with the code as it was swapped" in " ".join(note.text for note in job.state.notices)
    keys = [
        [*secret["data"]]
        for secret in stage.objects("api/v1/{}/secrets")
        if "-swaps-" in secret["metadata"]["name"]
    ]
    assert keys == ([["1.payload", "2.payload"]] if place == "a Secret" else [])


def test_a_job_that_is_retried_or_exported_runs_the_code_as_swapped(stage, tmp_path, monkeypatch):
    spec = stage.spec(Elastic(1), image="localhost/torch:1", memory="1500Mi", cpu="400m")
    job = submission.submit(capture.from_cell(CELL, {}), spec)
    until(lambda: job.wait(0) or job.state.series)
    job.swap("def loss():\n    return rate * by", namespace={"by": 10}, rate=3.0)
    monkeypatch.setattr(package, "SECRET_BYTES", 1000)
    assert "An attempt on new nodes begins without it: all swaps together take" in str(job.swap(left=20))
    job.result(LIMIT)

    again = job.retry()
    assert again.result(LIMIT) == (1, [30.0])
    assert "begin with the code as it was swapped, 2 times" in " ".join(n.text for n in again.state.notices)
    files = again.export(tmp_path / "out")
    secrets = [yaml.safe_load(path.read_text()) for path in files if "-secret-" in path.name]
    with zipfile.ZipFile(io.BytesIO(package.payload(secrets))) as payload:
        assert {"swaps/1", "swaps/2"} < {*payload.namelist()}
    assert "return rate * by" in "".join(path.read_text() for path in files if path.suffix == ".py")
    assert code.of(again.state).values["rate"] == 3.0
