"""Suspending, resuming, cancelling and exporting jobs, at unlikely moments."""

import errno
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import yaml

from nbtorchjob import api, capture, submission
from nbtorchjob.backends import backend
from nbtorchjob.backends.kubernetes.cache import JobCache
from nbtorchjob.backends.kubernetes.control import actions
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.errors import ClusterError, NBTorchJobError
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import Phase
from tests.backends.kubernetes import kubectl
from tests.backends.kubernetes.cluster.images import TORCH
from tests.backends.kubernetes.stage import running, until
from tests.patience import LIMIT

JOBS = "apis/batch/v1/{}/jobs"
WAIT = "begin(); wait('go'); value(1)"


def path(stage, job):
    return f"/{JOBS.format(f'namespaces/{stage.namespace}')}/{job.name}"


@pytest.fixture
def suspended(stage):
    """Return a Volcano job after its complete suspension."""
    job = running(stage.submit(WAIT, kind="volcano"))
    job.suspend()
    until(lambda: job.state.suspended and job.state.operator_verdict and not stage.pods())
    return job


def test_a_suspended_volcano_job_can_be_cancelled(suspended):
    suspended.cancel()

    assert suspended.wait(LIMIT)
    assert suspended.state.phase is Phase.CANCELLED


def test_a_full_disk_keeps_no_job_from_being_cancelled_and_followed(stage, monkeypatch):
    def full(cache, name, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    job = stage.submit("begin()\nwait('never')")
    until((stage.signs / "life-0-0").exists)
    monkeypatch.setattr(JobCache, "_write", full)

    job.cancel()
    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED


@pytest.mark.parametrize("verb", ["cancel", "suspend"])
@pytest.mark.parametrize("trouble", ["a dead host", "no right"])
def test_a_log_that_cannot_be_read_keeps_no_job_from_its_end(stage, monkeypatch, trouble, verb):
    stage.submit("begin()\nwait('never')")
    until((stage.signs / "life-0-0").exists)
    if trouble == "no right":
        stage.become(("get", "pods/log"))
    else:
        monkeypatch.setattr(actions, "_SAVED_WITHIN_S", 0.1)
        monkeypatch.setattr(actions, "_PODS_GONE_S", 0.5)
        stage.cluster.trouble(500, f"pods/{stage.pod()}/log", times=10**6)

    getattr(backend("kubernetes"), verb)(stage.objects(JOBS)[0]["metadata"]["name"])
    stage.admin()
    assert stage.objects(JOBS)[0]["spec"]["suspend"]


def test_the_same_cell_finds_its_suspended_volcano_job(stage, suspended):
    assert stage.submit(WAIT, kind="volcano").name == suspended.name


LINGERS = "signal.signal(signal.SIGTERM, lambda *_: wait('end') or os._exit(143)); begin(); wait('go')"
VOLCANO = "apis/batch.volcano.sh/v1alpha1/{}/jobs"
BUS = "apis/bus.volcano.sh/v1alpha1/{}/commands"


@pytest.fixture
def restarting(stage):
    """Yield a Volcano job that somebody resumed without waiting for the end of its pods.

    Until they end, which is when the test gives the sign "end", Volcano obeys no other command.
    """
    patch = json.loads(stage.acting(LINGERS))
    patch["spec"]["terminationGracePeriodSeconds"] = 1000
    job = running(stage.submit(kind="volcano", pod_patch=json.dumps(patch)))
    job.suspend()
    uid = stage.objects(VOLCANO)[0]["metadata"]["uid"]
    about = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": job.name, "uid": uid}
    early = {"metadata": {"generateName": "early-", "ownerReferences": [about]}, "target": about}
    body = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "action": "ResumeJob", **early}
    stage.cluster.request("POST", "/" + BUS.format(f"namespaces/{stage.namespace}"), body)
    until(lambda: stage.objects(VOLCANO)[0]["status"]["state"]["phase"] == "Restarting")
    # Hold new pods: one that has just started handles no SIGTERM yet, and would take all those seconds.
    stage.cluster.hold(f"^{job.name}-")
    yield job
    stage.sign("end")


def test_a_suspension_that_volcano_forgets_is_asked_for_again(stage, restarting):
    def told(reason):
        return [obj["reason"] for obj in stage.objects("api/v1/{}/events")].count(reason)

    with ThreadPoolExecutor() as pool:
        suspension = pool.submit(restarting.suspend)
        until(lambda: told("CommandIssued") > 2)
        stage.sign("end")
        suspension.result(LIMIT)
    until(lambda: restarting.state.suspended)
    until(lambda: not stage.pods())


@pytest.mark.parametrize("verb", ["suspend", "cancel"])
def test_what_volcano_does_not_heed_is_told(monkeypatch, restarting, verb):
    # The default is a minute, and no setting changes it.
    monkeypatch.setattr(actions, "_PODS_GONE_S", 0.1)
    with pytest.raises(NBTorchJobError, match="its pods haven't ended"):
        getattr(restarting, verb)()


def test_resuming_a_job_that_runs_changes_nothing(stage):
    job = running(stage.submit(WAIT))
    job.resume()
    stage.sign("go")

    assert job.result(LIMIT) == 1


def test_pods_that_ended_before_a_suspension_dont_stop_its_end(stage):
    part = "begin(2)\nif NODE == 0 and LIFE == 0: wait('never')\nvalue(NODE)"
    job = stage.submit(part, launch=Elastic(nnodes=2))
    until(lambda: any(pod["status"].get("phase") == "Succeeded" for pod in stage.pods()))
    job.suspend()
    until(lambda: job.state.suspended)
    job.resume()

    assert job.result(LIMIT) == 0


def test_a_mark_that_somebody_else_wrote_is_left_unread(stage):
    job = running(stage.submit(WAIT))
    note = {"metadata": {"annotations": {labelling.CANCELLED: "yes"}}}
    stage.cluster.request("PATCH", path(stage, job), note)
    stage.sign("go")

    assert job.result(LIMIT) == 1


def test_an_exported_job_is_as_if_it_had_never_run(stage, tmp_path):
    job = running(stage.submit(WAIT))
    job.cancel()
    job.wait(LIMIT)

    files = [
        yaml.load(file.read_text(), yaml.CSafeLoader)
        for file in job.export(tmp_path / "out")
        if file.suffix == ".yaml"
    ]
    (manifest,) = [file for file in files if file["kind"] == "Job"]
    # The server adds a selector, and refuses to create a job that has another job's.
    assert not {"suspend", "selector"} & manifest["spec"].keys()
    ties = {"batch.kubernetes.io/controller-uid", "controller-uid", "job-name"}
    assert not ties & manifest["spec"]["template"]["metadata"]["labels"].keys()
    assert labelling.CANCELLED not in manifest["metadata"]["annotations"]


@pytest.mark.torch
def test_what_is_exported_runs_by_kubectl_apply(stage, tmp_path):
    data = os.urandom(400_000)
    stage.cluster.hold(".*")
    variables = {"RATE": "1e-3"}  # kubectl reads it as a number, unless it is quoted
    job = stage.submit(
        cell="len(data)", variables={"data": data}, kind="trainjob", image=TORCH, env=variables
    )
    job.export(tmp_path / "out")
    job.delete()
    until(lambda: stage.left() == [])
    stage.cluster.release(".*")

    assert kubectl.apply(stage.cluster, tmp_path / "out", stage.namespace) == []
    again = api.attach(job.info.address)
    assert again.result(LIMIT) == len(data)
    # Neither the small parts nor kubectl's copies of them prevent a second export.
    again.export(tmp_path / "again")
    files = [sorted((tmp_path / folder).glob("*.yaml")) for folder in ("out", "again")]
    first, second = ([yaml.safe_load(file.read_text()) for file in folder] for folder in files)
    assert [obj["kind"] for obj in first] == [obj["kind"] for obj in second]
    # Either may be applied at any time: the leftovers of an earlier export have other names.
    names = [{obj["metadata"]["name"] for obj in all_[:-1]} for all_ in (first, second)]
    assert names[0].isdisjoint(names[1])
    assert first[-1]["spec"].keys() == second[-1]["spec"].keys()


def test_a_dry_run_needs_no_server(stage, tmp_path, monkeypatch):
    dead = yaml.safe_load(stage.cluster.kubeconfig.read_text())
    dead["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tmp_path / "dead").write_text(yaml.safe_dump(dead))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "dead"))

    text = submission.dry_run(capture.from_cell("1", {}), stage.spec())
    assert "kind: Job" in text
    assert "# not checked by a server: the cluster at http://127.0.0.1:9 doesn't answer" in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_dry_run_needs_no_cluster(monkeypatch, tmp_path, kind):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    spec = JobSpec(Elastic(), "kubernetes", cluster=Cluster(kind=kind, image="torch"))
    call = capture.from_cell("1", {})
    text = submission.dry_run(call, spec)
    metadata = {obj["kind"]: obj["metadata"] for obj in yaml.safe_load_all(text)}

    assert metadata[KINDS[kind].api.kind]["namespace"] == "default"
    assert "# not checked by a server: no cluster is known: there is no kubeconfig" in text
    with pytest.raises(ClusterError, match="no context 'lab'"):
        submission.dry_run(call, replace(spec, cluster=replace(spec.cluster, context="lab")))


PEER_LOST = """
begin(2)
if NODE == 0 and LIFE == 0:
    error = {"type": "torch.distributed.DistBackendError", "message": "closed", "time": time.time()}
    tell("RankFailed", node=0, rank=0, round=0, restart=0, error=error)
    sys.exit(exits.USER_ERROR)
value(LIFE)
"""


def test_a_trainjob_whose_peer_was_lost_is_tried_again(stage):
    job = stage.submit(PEER_LOST, launch=Elastic(nnodes=2), kind="trainjob")
    job.wait(LIMIT)

    assert job.state.phase is Phase.SUCCEEDED


def test_an_interrupted_submission_leaves_nothing(stage):
    stage.cluster.trouble(503, f"{stage.namespace}/jobs$", method="POST", times=3)  # a second of retries
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        stage.submit(WAIT)

    until(lambda: not stage.left())
