"""Notes and tags of a cluster job: an annotation of its object, which lists read without any log."""

from dataclasses import replace

from nbtorchjob.backends import backend
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.state.facts.events import Annotated
from tests.backends.kubernetes.stage import until


def test_they_are_an_annotation_that_outlives_the_job_here(stage):
    job = stage.submit("begin()\nsign('began')\nwait('go')\nvalue(1)\n")
    until((stage.signs / "began").exists)
    job.tag("baseline")
    job.note("the é to beat")

    (listed,) = [state for state in backend("kubernetes").jobs() if state.name == job.name]
    assert listed.annotated is not None
    assert replace(listed.annotated, time=0.0) == Annotated(0.0, "the é to beat", ("baseline",))
    (obj,) = stage.objects(f"/apis/batch/v1/namespaces/{stage.namespace}/jobs")
    assert "the é to beat" in obj["metadata"]["annotations"][labelling.NOTE]
    until(lambda: job.state.annotated is not None and job.state.annotated.note)

    stage.sign("go")
    assert job.wait(60)
    job.tag("done")
    annotation = backend("kubernetes").brief_state(job.info.address).annotated
    assert annotation is not None
    assert annotation.tags == ("baseline", "done")


def test_what_somebody_else_wrote_there_is_no_note():
    for text in ("", "x", "[]", "{}", '{"event": "Closed", "time": 1}', '{"event": "Annotated"}'):
        assert labelling.noted({"metadata": {"annotations": {labelling.NOTE: text}}}) == []
