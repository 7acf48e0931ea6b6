"""Objects that others with access to a namespace forge; the tender has the Role from its manifests."""

import time

import pytest

from nbtorchjob import api
from nbtorchjob.backends import backend
from nbtorchjob.backends.kubernetes.doctor import server
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import CleanPodPolicy, Retry, RunPolicy
from nbtorchjob.state import Phase
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.stage import collection, running, until

AGAIN = "begin()\nif ATTEMPT == 1: wait('go'); fail(recoverable=True)\nwait('done')\nvalue(ATTEMPT)"
OURS = Retry(retries=2, preemptions=2, backoff=0)
TIDY = Elastic(run_policy=RunPolicy(CleanPodPolicy.ALL, ttl_seconds_after_finished=1))


def named(stage, kind, name):
    """Return the job object of that name in a list, which is empty if it doesn't exist."""
    return [obj for obj in stage.objects(collection(KINDS[kind].api)) if obj["metadata"]["name"] == name]


def pretending(stage, root, name, owner, attempt="2", **more):
    """Create an object with a job's labels, except for ``more``, that is marked as cancelled."""
    labels = {**root["metadata"]["labels"], labelling.ATTEMPT: attempt, **more}
    marks = {labelling.CANCELLED: f"{time.time():.3f}", labelling.PAID: f"{time.time():.3f} failures x"}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {**root["metadata"]["annotations"], **marks},
            **({"ownerReferences": [owner]} if owner else {}),
        },
        "spec": {
            "suspend": True,
            "template": {
                "spec": {"restartPolicy": "Never", "containers": [{"name": "node", "image": "localhost/x"}]}
            },
        },
    }
    stage.cluster.request("POST", f"/apis/batch/v1/namespaces/{stage.namespace}/jobs", body)


@pytest.fixture
def tender(stage):
    """Yield a function that starts a tender of everybody's jobs, with the rights from its manifests."""
    tending = []

    def begin():
        stage.be(server.tender_rights())
        tending.append(cluster_backend().tend("the test", [stage.namespace], everyone=True))

    yield begin
    for thread in tending:
        assert thread is not None
        thread.stop()


FALSE = {
    "another name": {"name": "evil", "owner": "root"},
    "another job's next attempt": {"name": "evil-a2", "owner": "root"},
    "no owner": {"name": "victim-a3", "attempt": "3"},
    "an owner of another uid": {"name": "victim-a3", "attempt": "3", "owner": "stranger"},
    "another number": {"name": "victim-a3", "attempt": "4", "owner": "root"},
    "a first attempt": {"name": "evil", "attempt": "1"},
    "another kind": {"name": "victim", "attempt": "1"},
}


@pytest.mark.parametrize("false", FALSE.values(), ids=FALSE)
def test_an_object_with_a_jobs_labels_changes_nothing_of_the_job(stage, tender, false):
    kind = "pytorchjob" if false["name"] == "victim" else "indexedjob"
    stage.submit(AGAIN, name="victim", kind=kind, retry=OURS, launch=TIDY)
    until(lambda: (stage.signs / "life-0-0").exists())
    [root] = named(stage, kind, "victim")
    about = {key: root[key] for key in ("apiVersion", "kind")}
    uids = {"root": root["metadata"]["uid"], "stranger": "12345678-1234-1234-1234-123456789012"}
    owner = {**about, "name": "victim", "uid": uids[false["owner"]]} if "owner" in false else None
    pretending(stage, root, **{**false, "owner": owner})

    tender()
    stage.sign("go")

    [second] = until(lambda: named(stage, kind, "victim-a2"))
    assert labelling.CANCELLED not in second["metadata"]["annotations"]
    until(lambda: (stage.signs / "life-0-1").exists())
    stage.sign("done")
    until(lambda: not named(stage, kind, "victim"))  # its time to live has passed


def test_a_job_isnt_removed_while_an_attempt_of_it_runs_whatever_a_forged_later_one_says(stage, tender):
    part = "begin()\nwait('done')\nvalue(1)"
    stage.submit(part, name="victim", retry=OURS, launch=TIDY)
    until(lambda: (stage.signs / "life-0-0").exists())
    [root] = named(stage, "indexedjob", "victim")
    about = {key: root[key] for key in ("apiVersion", "kind")}
    owner = {**about, "name": "victim", "uid": root["metadata"]["uid"]}
    pretending(stage, root, "victim-a2", owner)  # without an admission policy, it looks like ours
    # Only a tender ends a job that isn't placed in time: no pod of it has a kubelet yet.
    stage.cluster.hold("^late-")
    late = Elastic(run_policy=RunPolicy(start_within="3s"))
    stage.submit("begin()\nwait('never')", name="late", kind="volcano", launch=late)

    tender()

    # By then, everything that is due for the other job has happened, too.
    until(lambda: labelling.STOPPED in named(stage, "volcano", "late")[0]["metadata"]["annotations"])

    assert named(stage, "indexedjob", "victim")
    assert [pod["status"]["phase"] for pod in stage.pods() if "victim" in pod["metadata"]["name"]] == [
        "Running"
    ]


def test_a_pod_with_a_jobs_labels_is_none_of_the_jobs(stage):
    job = running(stage.submit("begin()\nsign('begun')\nwait('never')", name="victim"))
    until(lambda: (stage.signs / "begun").exists())
    until(lambda: api.jobs()[0].nodes)  # a list reads the status of its container, which comes later
    [pod] = stage.pods()
    # Not the labels by which a Job's controller selects pods: it would adopt this one, and count its failure.
    labels = {key: value for key, value in pod["metadata"]["labels"].items() if "controller-uid" not in key}
    container = {"name": pod["spec"]["containers"][0]["name"], "image": "localhost/python:3.11"}
    forged = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "evil", "labels": labels, "annotations": pod["metadata"]["annotations"]},
        "spec": {"restartPolicy": "Never", "containers": [{**container, "command": ["python", "-c", "1/0"]}]},
    }
    stage.cluster.request("POST", f"/api/v1/namespaces/{stage.namespace}/pods", forged)
    until(lambda: [pod for pod in stage.pods() if pod["status"].get("phase") == "Failed"])

    uid = pod["metadata"]["uid"]
    for state in (api.snapshot(job.info.address), api.jobs()[0], job.state):
        assert [*state.nodes[0].lives] == [uid]
        assert state.phase is Phase.RUNNING
    job.cancel()


def test_a_record_that_somebody_else_wrote_has_no_folder_removed(stage, tmp_path):
    stage.submit("begin()\nwait('never')", name="victim", storage=str(tmp_path / "mine"))
    [root] = named(stage, "indexedjob", "victim")
    precious = tmp_path / "mine" / "precious" / "thesis"
    precious.parent.mkdir(parents=True)
    precious.write_text("all of it")
    pretending(stage, root, "precious", None, "1", **{labelling.JOB: "precious"})

    backend("kubernetes").delete("precious")

    assert not named(stage, "indexedjob", "precious")
    assert precious.read_text() == "all of it"
