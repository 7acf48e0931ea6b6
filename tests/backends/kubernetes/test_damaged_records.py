"""Damaged records of cluster jobs, in a cached copy or an annotation: one line reports each."""

import json

import pytest

from nbtorchjob import api
from nbtorchjob.backends.kubernetes import jobs
from nbtorchjob.backends.kubernetes.backend import KubernetesBackend
from nbtorchjob.backends.kubernetes.jobs import find
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.payload import package, shared
from nbtorchjob.commands.table import VERBS
from nbtorchjob.errors import DamagedError
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import RunPolicy
from nbtorchjob.state import fold
from nbtorchjob.state.facts import events as ev
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

TEXTS = {
    "empty": b"",
    "cut short": b'{"name": "train", "nod',
    "no text": b"\xff\xfe\x00",
    "a number": b"5",
    "no fields": b"{}",
    "deep": b"[" * 200_000,
    "a wrong type": b'{"name": "train", "nodes": [1, 1], "label": 5}',
}
SPECS = {
    "no launch": {"cluster": {}},
    "a launch that is a number": {"launch": 5},
    "an unknown launch": {"launch": {"kind": "Later"}},
    "a cluster that is a list": {"launch": {"kind": "Elastic"}, "cluster": ["storage"]},
}


def refused(work, name):
    with pytest.raises(DamagedError) as caught:
        work()
    message = str(caught.value)
    assert "\n" not in message
    assert f"{name} can't be read (" in message
    assert message.endswith(" removes it")


def said(verb, *words):
    row = VERBS[verb]
    assert row.answers is not None
    return [*row.answers(row.parse(words), api.attach)]


@pytest.fixture
def gone(stage):
    """Return the name of a job that no cluster has any more, and the file that caches its record here."""
    job = stage.submit("begin(); value(1)")
    assert job.result(LIMIT) == 1
    stage.delete("apis/batch/v1/{}/jobs", job.name)
    find.forget()
    [folder] = Scope("", stage.namespace).folders(job.name)
    return job.name, folder / "info.json"


def test_a_kept_copy_that_is_none_is_told_of_in_a_line_and_can_be_deleted(gone):
    name, file = gone
    backend = KubernetesBackend()
    for text in TEXTS.values():
        file.write_bytes(text)
        refused(lambda: api.attach(f"kubernetes:{name}"), name)
        refused(lambda: backend.snapshot(name), name)
        refused(lambda: [*backend.log(name, 0)], name)
        refused(lambda: backend.retry(name), name)

    [answer] = said("delete", f"kubernetes:{name}")
    assert answer.text == f"kubernetes:{name} deleted"
    assert not file.parent.exists()


def test_logs_and_keys_that_are_none_are_told_of_in_a_line(gone):
    name, file = gone
    backend, job = KubernetesBackend(), api.attach(f"kubernetes:{gone[0]}")
    assert job.wait(LIMIT)
    [value] = job.state.values.values()
    key, stray = file.parent / "key", file.parent / "log-x"
    key.unlink()
    key.mkdir()
    refused(lambda: backend.fetch(name, value), name)

    stray.touch()
    refused(lambda: backend.snapshot(name), name)
    refused(lambda: [*backend.log(name, 0)], name)


@pytest.mark.parametrize(
    "data", [{}, {"data": None}, {"data": {}}, {"data": {"key": 5}}, {"data": {"key": "a"}}]
)
def test_a_secret_without_the_key_is_told_of_in_a_line(data):
    secret = {"metadata": {"name": "train-payload", "labels": {labelling.JOB: "train"}}, **data}

    refused(lambda: package.value(secret, package.KEY), "train")


def test_a_spec_that_is_none_is_told_of_by_what_needs_it(gone):
    name, file = gone
    record = json.loads(file.read_text())
    backend = KubernetesBackend()
    for spec in SPECS.values():
        file.write_text(json.dumps({**record, "spec": spec}))
        info = backend.info(name)
        assert backend.snapshot(name).info == info
        refused(lambda info=info: backend.enforcement(info), name)
        refused(lambda: said("config", name), name)
        [answer] = said("describe", name)
        assert "its spec can't be read (" in answer.text


def test_of_a_kind_that_isnt_known_here_nobody_sees_to_anything(gone):
    name, file = gone
    record = json.loads(file.read_text())
    for cluster in ({}, {"kind": "later"}):
        file.write_text(json.dumps({**record, "cluster": cluster}))
        assert KubernetesBackend().enforcement(KubernetesBackend().info(name)) == {}


def test_what_a_later_version_wrote_down_is_left_aside(gone):
    name, file = gone
    record = json.loads(file.read_text())
    spec = {**record["spec"], "colour": 1, "retry": {"retries": 2, "colour": 1}}
    file.write_text(json.dumps({**record, "colour": "green", "spec": spec}))

    info = KubernetesBackend().info(name)
    assert info.retry is not None
    assert info.retry.retries == 2
    assert info.jobspec.cluster.image == record["spec"]["cluster"]["image"]


def annotate(stage, job, record):
    """Write another record to a job's object, as anybody with the right to change it can."""
    path = f"/apis/batch/v1/namespaces/{stage.namespace}/jobs/{job.name}"
    body = {"metadata": {"annotations": {labelling.INFO: json.dumps(record)}}}
    stage.cluster.request("PATCH", path, body)


def test_a_wrong_annotation_hides_no_other_job(stage):
    launch = Elastic(run_policy=RunPolicy(ttl_seconds_after_finished=3600))
    good, bad = stage.submit("begin()", launch=launch), stage.submit("begin()", cell="2", launch=launch)
    assert good.wait(LIMIT)
    assert bad.wait(LIMIT)
    [obj] = [o for o in stage.objects("apis/batch/v1/{}/jobs") if o["metadata"]["name"] == bad.name]
    record = json.loads(obj["metadata"]["annotations"][labelling.INFO])
    backend = KubernetesBackend()
    for spec in SPECS.values():
        annotate(stage, bad, {**record, "spec": spec, "backend": "local"})
        states = backend.jobs(scope=stage.namespace)
        assert [state.info.id for state in states] == [good.info.id, bad.info.id]
        refused(lambda state=states[1]: backend.enforcement(state.info), bad.name)
    backend.delete(bad.name)
    assert [state.info.id for state in backend.jobs(scope=stage.namespace)] == [good.info.id]


def test_a_job_of_which_no_state_can_be_made_is_cancelled_and_deleted(stage, monkeypatch):
    job, path = stage.submit("begin()\nwait('never')"), "apis/batch/v1/{}/jobs"
    until(lambda: (stage.signs / "life-0-0").exists())

    def raises(_state, _event):
        raise TypeError("it fits nothing")

    for fact in (ev.NodeStarted, ev.Waiting, ev.Suspended):
        monkeypatch.setitem(fold._APPLY, fact, raises)

    [answer] = said("cancel", job.name)

    assert answer.text.startswith(f"{job.name} cancelled, but the ")
    [obj] = stage.objects(path)
    assert obj["spec"]["suspend"]
    assert labelling.CANCELLED in obj["metadata"]["annotations"]
    [answer] = said("delete", job.name)
    assert answer.text == f"{job.name} deleted"
    assert stage.objects(path) == []


def test_a_job_of_which_no_state_can_be_made_keeps_no_tender_from_others(stage, monkeypatch):
    wait = "begin()\nwait('never')"
    stage.submit(wait, name="strange")
    until(lambda: (stage.signs / "life-0-0").exists())

    applied = fold.apply

    def apply(state, event):
        if state.name == "strange":
            raise DamagedError("kubernetes", "strange", "fact", "it fits nothing")
        return applied(state, event)

    monkeypatch.setattr(jobs, "apply", apply)
    tending = cluster_backend().tend("the test", [stage.namespace])
    assert tending is not None
    # Nothing on the cluster ends a job that isn't placed in time: none of its pods has a kubelet yet.
    stage.cluster.hold("^late-")
    stage.submit(wait, name="late", launch=Elastic(run_policy=RunPolicy(start_within="1s")), kind="volcano")
    until(
        lambda: [
            obj
            for obj in stage.objects("apis/batch.volcano.sh/v1alpha1/{}/jobs")
            if labelling.STOPPED in obj["metadata"].get("annotations", {})
        ]
    )
    tending.stop()


def test_a_wrong_annotation_keeps_nothing_else_from_being_tidied(stage, tmp_path):
    shared.remember(str(tmp_path))
    good, bad = stage.submit("begin()"), stage.submit("begin()", cell="2")
    assert good.wait(LIMIT)
    assert bad.wait(LIMIT)
    (obj,) = (obj for obj in stage.objects("apis/batch/v1/{}/jobs") if obj["metadata"]["name"] == bad.name)
    record = json.loads(obj["metadata"]["annotations"][labelling.INFO])

    for spec in SPECS.values():
        annotate(stage, bad, {**record, "spec": spec})
        assert {leftover.name for leftover in KubernetesBackend().leftovers()} >= {good.name, bad.name}
