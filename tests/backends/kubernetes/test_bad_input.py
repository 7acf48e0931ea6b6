"""Requests that can't be met: one clear line each, and nothing left behind."""

import json
import os
import sys
from pathlib import Path

import pytest

from nbtorchjob.backends.kubernetes.kinds import KINDS, fit
from nbtorchjob.backends.kubernetes.objects.reading import SECRETS
from nbtorchjob.errors import (
    NameTakenError,
    NotFoundError,
    SpecError,
    SubmitError,
    UnauthorizedError,
    UnreachableError,
)
from nbtorchjob.state.failure import Cause
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.stage import Stage, collection, until, waits
from tests.patience import LIMIT

# Reaching the cluster.


def test_without_a_kubeconfig_it_says_where_it_looked(stage, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    message = str(stage.refused(SubmitError))
    assert "no cluster is known" in message
    assert str(tmp_path / "absent") in message


def test_a_server_that_doesnt_answer_is_named(stage, monkeypatch, tmp_path):
    config = json.loads(Path(stage.cluster.kubeconfig).read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tmp_path / "nowhere").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))

    error = stage.refused(SubmitError)
    assert isinstance(error, UnreachableError)
    assert "the cluster at http://127.0.0.1:9 doesn't answer" in str(error)


def test_an_expired_token_is_refused_in_words(stage, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(stage.cluster.user("expired")))
    stage.cluster.expire_tokens("expired")

    error = stage.refused(SubmitError)
    assert isinstance(error, UnauthorizedError)
    assert "credentials (401), they may have expired: log in again" in str(error)


def test_a_token_that_expires_while_following_is_asked_for_again(stage, monkeypatch, tmp_path):
    user = stage.become()
    login = tmp_path / "login"
    (tmp_path / "token").write_text(token(stage, user))
    login.write_text(
        f"#!{sys.executable}\nimport json, pathlib\n"
        f"token = pathlib.Path({str(tmp_path / 'token')!r}).read_text()\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        " 'status': {'token': token}}))\n"
    )
    login.chmod(0o755)
    config = json.loads(stage.cluster.user(user).read_text())
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(login)}
    config["users"][0]["user"] = {"exec": {**command, "interactiveMode": "Never"}}
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    job = stage.submit("begin(); log('one\\n'); wait('go'); log('two\\n'); value(7)")
    until(lambda: 0 in job.state.logs)
    stage.cluster.expire_tokens(user)
    (tmp_path / "token").write_text(token(stage, user))
    stage.cluster.cut()
    stage.sign("go")
    assert job.result(LIMIT) == 7
    assert job.logs(0) == "one\ntwo\n"


def token(stage, user):
    return json.loads(stage.cluster.user(user).read_text())["users"][0]["user"]["token"]


# Names of objects that don't exist.


def test_a_missing_namespace(stage):
    error = stage.refused(SubmitError, namespace="nobody-made-this")
    assert isinstance(error, NotFoundError)
    assert 'the namespace "nobody-made-this" doesn\'t exist: choose one with --namespace' in str(error)


def test_a_missing_queue(stage):
    message = str(stage.refused(SubmitError, kind="volcano", queue="research"))
    assert 'the queue "research" doesn\'t exist: choose an existing one with --queue' in message


def test_a_missing_runtime_names_those_there_are(stage):
    message = str(stage.refused(SubmitError, kind="trainjob", runtime="mpi"))
    assert "no TrainingRuntime 'mpi' on the cluster (there are: torch-distributed)" in message
    assert "choose one with --runtime" in message


def test_a_missing_claim_is_waited_for_with_the_reason(stage):
    job = stage.submit(mount=["type=volume,src=datasets,dst=/data"])
    until(lambda: "its volume claim doesn't exist" in waits(job))


@pytest.mark.parametrize("option", ["service-account", "priority-class"])
def test_what_no_pod_can_be_created_without_is_named_while_waiting(stage, option):
    job = stage.submit(**{option.replace("-", "_"): "nobody"})

    kind = option.replace("-", " ")
    until(lambda: f'the {kind} "nobody" doesn\'t exist: choose an existing one with --{option}' in waits(job))


@pytest.mark.parametrize(
    "text",
    ["datasets:/data", "type=volume,dst=/data", "type=nfs,src=a,dst=/b", "type=bind,src=data,dst=/data"],
)
def test_a_malformed_mount_is_refused_before_anything_is_sent(stage, text):
    before = len(stage.cluster.requests)
    with pytest.raises(SpecError, match="mount"):
        stage.submit(mount=[text])
    assert len(stage.cluster.requests) == before


def test_a_kind_that_the_cluster_lacks_names_what_it_has(monkeypatch, tmp_path):
    with Emulator(kinds=("indexedjob",)) as cluster:
        stage = Stage(cluster, tmp_path, monkeypatch)
        for kind in [name for name, kind in KINDS.items() if kind.operator]:
            assert kind in str(stage.refused(SubmitError, kind=kind))


def test_an_operator_of_another_release_is_named(stage):
    served = {("kubeflow.org", "v1beta1", "pytorchjobs"), ("batch", "v1", "jobs")}
    with pytest.raises(SubmitError, match=r"pytorchjobs.kubeflow.org v1 isn't installed, only v1beta1: "):
        fit.choose(served, stage.spec(kind="pytorchjob"))


# Images.


def test_an_image_without_torch(stage):
    job = stage.submit()
    message = str(job.exception(LIMIT))
    assert job.state.failure.reason.cause is Cause.CONFIG
    assert "this image has no torch" in message
    assert "use one with torch" in message


def test_an_image_without_python(stage):
    job = stage.submit(image="localhost/busybox:1")
    message = str(job.exception(LIMIT))
    assert job.state.failure.reason.cause is Cause.CONFIG
    assert '"python": executable file not found' in message
    assert "Is there a python in the image?" in message


# Quotas and names.


def test_pods_above_a_quota_are_waited_for_with_the_reason(stage):
    stage.cluster.quota(stage.namespace, pods="0")
    job = stage.submit()
    until(
        lambda: "the quota team is used up: 0 of 0 used, 1 more requested" in waits(job).replace("pods=", "")
    )


@pytest.mark.parametrize("counted", ["count/secrets", "count/services", "count/jobs.batch"])
def test_objects_above_a_quota_are_refused(stage, counted):
    stage.cluster.quota(stage.namespace, **{counted: "0"})
    message = str(stage.refused(SubmitError))
    assert f"quota exceeded (exceeded quota: team, requested: {counted}=1" in message
    assert "%torchjob gc" in message


def test_a_payload_of_which_a_part_finds_no_room_is_taken_back(stage):
    stage.cluster.quota(stage.namespace, **{"count/secrets": "2"})
    message = str(stage.refused(SubmitError, cell="len(data)", variables={"data": os.urandom(3_000_000)}))
    assert "quota exceeded" in message


def test_a_secret_that_cant_be_created(stage):
    stage.cluster.trouble(422, "/secrets$", method="POST")
    assert "secrets" in str(stage.refused(SubmitError))


def test_a_webhook_that_refuses_is_quoted(stage):
    patch = json.dumps({"spec": {"containers": [{"image": ""}]}})
    message = str(stage.refused(SubmitError, kind="pytorchjob", pod_patch=patch))
    assert "the webhook validator.pytorchjob.training-operator.kubeflow.org refuses" in message
    assert "image: Required value" in message


def test_a_name_that_anothers_secret_has_is_refused(stage):
    claim = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "mine-claim"}}
    stage.cluster.request("POST", f"/api/v1/namespaces/{stage.namespace}/secrets", claim)
    message = str(stage.refused(NameTakenError, name="mine"))
    assert "has a Secret 'mine-claim' that nbtorchjob didn't make: choose another --name" in message


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_anothers_job_has_is_refused(stage, kind):
    stage.submit(name="mine", kind=kind, image="localhost/absent:1")
    jobs = collection(KINDS[kind].api)
    path = f"/{jobs.format(f'namespaces/{stage.namespace}')}/mine"
    stage.cluster.request("PATCH", path, {"metadata": {"labels": None, "annotations": None}})
    stage.delete(collection(SECRETS), "mine-claim")
    until(lambda: not stage.objects(collection(SECRETS)))
    stage.pod()  # the last object that its operator makes; the refused job must leave nothing more

    reason = str(stage.refused(NameTakenError, name="mine", kind=kind))
    assert f"has a {KINDS[kind].api.kind} 'mine' that nbtorchjob didn't make: choose another --name" in reason
    assert len(stage.objects(jobs)) == 1
