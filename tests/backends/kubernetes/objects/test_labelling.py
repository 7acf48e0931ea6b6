import json
from dataclasses import replace

import pytest

from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.errors import SubmitError
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo
from nbtorchjob.state.facts.events import CancelRequested

INFO = JobInfo(
    "train-7k2q",
    backend="kubernetes",
    created=1763737000.5,
    label="train(model)",
    nodes=(1, 4),
    nproc_per_node=2,
    sources={"cell-1.py": ("In[3]", "print('é')\n")},
    spec=JobSpec(Elastic("1:4", 2), cluster=Cluster(toleration=("gpu",))).to_json(),
    call="c0ffee",
)


def job(**annotations):
    return {"metadata": {"name": "train-7k2q", "annotations": annotations}}


def test_a_job_object_and_its_secret_tell_a_new_kernel_everything():
    info = labelling.info(job(**labelling.info_annotations(INFO)))

    assert info is not None
    secret = {name: getattr(INFO, name) for name in ("sources", "label", "ships")}
    assert replace(info, **secret) == INFO
    assert labelling.with_extra(info, labelling.extra(INFO)) == INFO
    assert JobSpec.from_json(info.spec) == JobSpec.from_json(INFO.spec)


def test_no_value_of_the_notebook_is_in_an_annotation():
    info = replace(INFO, label="log_in(token='s3cret')", ships="ships token (str 's3cret')")

    copy = labelling.info(job(**labelling.info_annotations(info)))

    assert copy is not None
    assert (copy.label, copy.ships) == ("log_in(…)", "")


def test_the_call_can_be_read_without_the_rest():
    assert labelling.info_annotations(INFO, {"example.com/a": "b"})[labelling.CALL] == "c0ffee"
    assert labelling.info_annotations(INFO, {"example.com/a": "b"})["example.com/a"] == "b"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"name": "a"}', '{"nodes": 3, "name": "a"}', "null"])
def test_an_object_that_is_not_ours_is_no_job(text):
    assert labelling.info(job(**{labelling.INFO: text})) is None
    assert labelling.info({"metadata": {"annotations": None}}) is None
    assert labelling.info({"metadata": {"annotations": {"nbtorchjob.dev/other": "x"}}}) is None


def test_a_record_of_a_later_version_is_read():
    text = json.dumps({"name": "a", "nodes": [1, 2], "later": True})

    assert labelling.info(job(**{labelling.INFO: text})) == JobInfo("a", nodes=(1, 2))


def test_a_record_too_big_for_an_annotation_is_refused():
    big = JobInfo("a", spec={"env": {"A": "x" * 70_000}})

    with pytest.raises(SubmitError, match="shorten env"):
        labelling.info_annotations(big)


def test_labels_find_a_jobs_objects_and_its_user():
    labels = labelling.labels(INFO, "Ada Lovelace@host", {"team": "vision"})

    assert labels == {
        "team": "vision",
        "app.kubernetes.io/managed-by": "nbtorchjob",
        "nbtorchjob.dev/job": "train-7k2q",
        "nbtorchjob.dev/run": "1763737000.500000",
        "nbtorchjob.dev/user": "Ada-Lovelace-host",
    }
    assert labelling.of("a") == "app.kubernetes.io/managed-by=nbtorchjob,nbtorchjob.dev/job=a"


@pytest.mark.parametrize("user", ["", "@", "é"])
def test_a_user_without_a_plain_name_has_no_label(user):
    assert labelling.USER not in labelling.labels(INFO, user)


def test_an_attempt_is_known_by_its_name_and_its_label():
    assert [labelling.attempt_name("train-7k2q", number) for number in (1, 2, 12)] == [
        "train-7k2q",
        "train-7k2q-a2",
        "train-7k2q-a12",
    ]
    assert labelling.attempt({"metadata": {"labels": {labelling.ATTEMPT: "3"}}}) == 3
    assert (
        labelling.attempt(job()) == labelling.attempt({"metadata": {"labels": {labelling.ATTEMPT: "x"}}}) == 1
    )


@pytest.mark.parametrize("early", ["", "loss > 2 * best_loss (loss=3, best_loss=1)"])
def test_a_wish_says_when_and_why_a_run_was_stopped_early(early):
    marked = job(**{labelling.CANCELLED: labelling.wish(1763737001.25, early)})

    assert labelling.cancelled(marked) == [CancelRequested(1763737001.25, early)]
