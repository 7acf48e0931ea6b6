"""Progress that a TrainJob's pods report to its trainer, and where users see it."""

import json
import shutil
import ssl
import time
import urllib.error
import urllib.request

import pytest

from nbtorchjob import api
from nbtorchjob.state.text.lifetime import progress_line
from nbtorchjob.ui.card import render
from nbtorchjob.ui.record import record
from tests.backends.kubernetes.cluster import Emulator, podtokens
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl for the trainer's TLS")

# A real node, but for its ranks: it reports like a rank.
PART = """
from nbtorchjob.runtime.start import init
from nbtorchjob.runtime.facts import emit
from nbtorchjob.runtime.api.report import report

def run():
    os.environ.update(RANK="0", NBTORCHJOB_ROUND="5")
    os.mkdir(os.path.join(os.environ["NBTORCHJOB_FOLDER"], "round-5"))
    report(epoch=1, epochs=4, loss=0.5)
    wait("on")
    report(epoch=2, epochs=4, loss=0.25)
    os._exit(0)

signal.pthread_sigmask(signal.SIG_BLOCK, init.SIGNALS)
os._exit(init.run_node(run))
"""
TOLD = "apis/trainer.kubeflow.org/v1alpha1/{}/trainjobs"


@pytest.fixture(scope="module")
def cluster(crds):
    """Yield a cluster with a trainer that accepts such reports."""
    with Emulator(kinds=["trainjob"], gates=["TrainJobStatus"]) as emulator:
        yield emulator


def told(stage):
    """Return the trainer's part of the TrainJob's status."""
    return stage.objects(TOLD)[0].get("status", {}).get("trainerStatus")


def far(job):
    """Return a job's progress as a list shows it, which reads no logs."""
    (state,) = (state for state in api.jobs() if state.info.name == job.name)
    return record(state, time.time())["progress"]


def test_what_rank_0_reports_is_in_the_trainjobs_status_and_in_a_list(stage):
    job = stage.submit(PART, "from nbtorchjob import report", kind="trainjob")

    status = until(lambda: told(stage))
    assert (status["progressPercentage"], status["metrics"][-1]) == (25, {"name": "loss", "value": "0.5"})
    assert far(job) == {"unit": "percent", "done": 25, "total": 100, "left": None}
    stage.sign("on")
    until(lambda: told(stage)["progressPercentage"] == 50)


def test_who_follows_sees_what_only_the_trainer_was_told(stage):
    job = stage.submit("begin(); wait('end'); value(1)", kind="trainjob")
    job.subscribe(lambda state: None)
    until(lambda: job.state.working)
    assert put(stage, job, progressPercentage=30, metrics=[{"name": "loss", "value": "0.5"}]) == 200

    until(lambda: job.state.trainer)
    assert progress_line(job.state, time.time()) == "30 %"
    assert "30 % · loss 0.5" in render.text(job.state, time.time())
    stage.sign("end")
    assert job.result(LIMIT) == 1


def test_the_emulators_trainer_takes_what_a_real_one_takes(stage):
    job = stage.submit("wait('end')", kind="trainjob")
    until(stage.pods)
    stamp = "2026-11-24T12:00:00Z"

    assert put(stage, job, lastUpdatedTime=stamp, progressPercentage=101) == 422
    assert put(stage, job, lastUpdatedTime=stamp, metrics=[{"name": "n" * 65, "value": "1"}]) == 422
    assert put(stage, job, name="another") == 403
    assert put(stage, job, seconds=-1) == 403
    assert put(stage, job, progressPercentage=7) == put(stage, job, estimatedRemainingSeconds=3) == 200
    assert set(told(stage)) == {"estimatedRemainingSeconds", "lastUpdatedTime"}
    job.cancel()


def put(stage, job, name=None, seconds=60, **status):
    """Post a status as the job's pods do, with a token for this job or another; return the answer's code."""
    (pod, *_) = stage.pods()
    env = {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}
    url = env["KUBEFLOW_TRAINER_SERVER_URL"]
    audience = f"/{TOLD.format(f'namespaces/{stage.namespace}')}/{name or job.name}/status"
    token = podtokens.issue(stage.namespace, audience, seconds)
    (authority,) = [
        obj["data"]["ca.crt"]
        for obj in stage.objects("api/v1/{}/configmaps")
        if obj["metadata"]["name"] == f"{job.name}-tls-config"
    ]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    body = {"trainerStatus": {"lastUpdatedTime": now, **status}}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {token}"})
    try:
        context = ssl.create_default_context(cadata=authority)
        with urllib.request.urlopen(request, context=context) as answer:
            return answer.status
    except urllib.error.HTTPError as refusal:
        return refusal.code
