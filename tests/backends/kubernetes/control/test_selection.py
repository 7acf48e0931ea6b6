"""The attribution of events: a job reports its own troubles, and no other job's."""

import pytest

from nbtorchjob.backends.kubernetes.api.answers import slim
from nbtorchjob.backends.kubernetes.control.selection import Troubles
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects.submission import Runtime
from tests.backends.kubernetes.kinds.test_manifests import CASES, submission
from tests.backends.kubernetes.stage import until, waits

HANG = "begin(); wait('never')"

BEGAN, BEFORE, LATER = "2026-01-01T10:00:00Z", "2026-01-01T09:59:59Z", "2026-01-01T10:00:07Z"
JOB = {"metadata": {"name": "sta", "uid": "u-1", "creationTimestamp": BEGAN}}
POD = {
    "metadata": {
        "name": "sta-0-abcde",
        "uid": "p-1",
        "labels": {"batch.kubernetes.io/job-completion-index": "0"},
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
    },
    "spec": {"containers": []},
}


def told(about, when=LATER, reason="FailedCreate"):
    meta = {"name": "e", "creationTimestamp": when}
    words = {"reason": reason, "message": "exceeded quota", "type": "Warning", "lastTimestamp": when}
    return {"metadata": meta, "involvedObject": about, **words}


def job(name="sta", uid="u-1"):
    return told({"kind": "Job", "name": name, "uid": uid})


def pod(name="sta-0-abcde", uid="p-1"):
    return told({"kind": "Pod", "name": name, "uid": uid}, reason="FailedScheduling")


def heard(kind, *events):
    troubles = Troubles(KINDS[kind], "sta")
    facts = [*troubles.know(JOB), *troubles.know_pod(POD)]
    return [
        *facts,
        *(fact for event in events if troubles.may_be_ours(event) for fact in troubles.read(event)),
    ]


@pytest.mark.parametrize("event", [job(), pod()], ids=["the job", "its pod"])
def test_what_is_said_of_the_job_and_its_pods_is_heard(event):
    assert len(heard("indexedjob", event)) == 1


@pytest.mark.parametrize(
    "event",
    [
        job(name="sta-x", uid="u-2"),
        job(uid="u-0"),
        pod(name="sta-x-0-abcde", uid="p-2"),
        pod(uid="p-0"),
        told({"kind": "JobSet", "name": "sta", "uid": "s-1"}),
    ],
    ids=[
        "a neighbour",
        "the one of that name before",
        "a neighbour's pod",
        "an earlier pod",
        "another kind's",
    ],
)
def test_what_is_said_of_others_is_not(event):
    assert heard("indexedjob", event) == []


@pytest.mark.parametrize(
    ("kind", "about", "reason"),
    [
        ("trainjob", {"kind": "JobSet", "name": "sta", "uid": "s-1"}, "JobCreationFailed"),
        ("trainjob", {"kind": "Job", "name": "sta-node-0", "uid": "j-1"}, "FailedCreate"),
        ("volcano", {"kind": "PodGroup", "name": "sta-u-1", "uid": "g-1"}, "Unschedulable"),
    ],
)
def test_what_an_operator_made_for_the_job_is_known_by_its_name_and_age(kind, about, reason):
    neighbour = {**about, "name": about["name"].replace("sta", "sta-x")}

    assert len(heard(kind, told(about, reason=reason))) == 1
    assert heard(kind, told(about, BEFORE, reason), told(neighbour, reason=reason)) == []


def test_a_trainjobs_job_is_named_as_its_runtime_names_it():
    kind, runtime = KINDS["trainjob"], Runtime("of-us", "TrainingRuntime", "trainer")
    obj = kind.manifests(submission(CASES["trainjob-fixed"], labels={}, runtime=runtime))[0]
    obj["metadata"].update(JOB["metadata"])
    troubles = Troubles(kind, "sta")
    troubles.know(slim(obj, kind.api))

    assert len(troubles.read(told({"kind": "Job", "name": "sta-trainer-0", "uid": "j-1"}))) == 1
    assert troubles.read(told({"kind": "Job", "name": "sta-node-0", "uid": "j-2"})) == []


def test_what_was_said_first_is_heard_once_it_is_known_of_whom():
    troubles = Troubles(KINDS["indexedjob"], "sta")

    assert [troubles.read(event) for event in (job(), pod(), job(uid="u-0"))] == [[], [], []]
    assert len(troubles.know(JOB)) == 1
    assert len(troubles.know_pod(POD)) == 1
    assert troubles.know_pod(POD) == []


def test_a_job_doesn_t_tell_the_troubles_of_one_that_had_its_name_nor_of_a_neighbour(stage):
    stage.cluster.hold("^sta-")
    # A refusal from before the creation of a node's pod is over.
    first = stage.follow(stage.submit(HANG, name="sta"))
    stage.warn(first, "FailedCreate", "Error creating: quota of the old one")
    until(lambda: "quota of the old one" in waits(first))
    first.delete()
    neighbour = stage.follow(stage.submit(HANG, name="sta-x"))
    again = stage.follow(stage.submit(HANG, name="sta"))
    stage.warn(neighbour, "FailedCreate", "Error creating: quota of the neighbour")
    stage.warn(again, "FailedCreate", "Error creating: quota of this one")

    until(lambda: "quota of this one" in waits(again))
    until(lambda: "quota of the neighbour" in waits(neighbour))
    assert "old one" not in waits(again)
    assert "neighbour" not in waits(again)
