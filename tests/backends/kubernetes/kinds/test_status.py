from functools import reduce
from typing import Any

import pytest

from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev

pytorchjob, trainjob, volcano, indexedjob = map(
    KINDS.__getitem__, ("pytorchjob", "trainjob", "volcano", "indexedjob")
)
AT_5 = "1970-01-01T00:00:05Z"
INDEX = "batch.kubernetes.io/job-completion-index"


def condition(kind, state="True", reason="", message=""):
    return {"type": kind, "status": state, "reason": reason, "message": message, "lastTransitionTime": AT_5}


def job(*conditions, spec=None, **metadata):
    return {"metadata": metadata, "spec": spec or {}, "status": {"conditions": list(conditions)}}


def replica(role, index, *, waits=()):
    labels = {
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": str(index),
    }
    return {"metadata": {"labels": labels}, "spec": {"initContainers": [{"name": name} for name in waits]}}


@pytest.mark.parametrize(
    ("kind", "good"), [(pytorchjob, "Succeeded"), (trainjob, "Complete"), (indexedjob, "Complete")]
)
def test_conditions_that_end_a_job_are_its_verdict(kind, good):
    assert kind.facts(job(condition(good, reason="R", message="m"))) == [ev.Verdict(5.0, True, "R", "m")]
    assert kind.facts(job(condition("Failed", reason="R"))) == [ev.Verdict(5.0, False, "R")]
    assert kind.facts(job(condition("Failed", "False"), condition(good, "False"))) == []
    assert kind.facts({"metadata": {}}) == []


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.suspend])
def test_a_suspension_and_its_end_are_told(kind):
    assert KINDS[kind].facts(job(condition("Suspended"))) == [ev.Suspended(5.0, True)]
    assert KINDS[kind].facts(job(condition("Suspended", "False"))) == [ev.Suspended(5.0, False)]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_job_that_is_being_deleted_before_its_end_was_cancelled(kind):
    deleted = {"deletionTimestamp": "1970-01-01T00:00:30Z", "deletionGracePeriodSeconds": 20}

    assert kind.facts(job(**deleted)) == [ev.CancelRequested(10.0)]


def test_a_job_that_had_failed_and_is_removed_wasnt_cancelled():
    facts = indexedjob.facts(job(condition("Failed"), deletionTimestamp=AT_5))

    assert [type(event) for event in facts] == [ev.Verdict]


def test_an_end_that_is_only_announced_is_no_verdict():
    assert indexedjob.facts(job(condition("FailureTarget"), condition("SuccessCriteriaMet"))) == []


def test_one_node_is_enough_for_an_elastic_pytorchjobs_operator():
    elastic = job(condition("Succeeded"), spec={"elasticPolicy": {"minReplicas": 1}})

    assert pytorchjob.facts(elastic) == [ev.Verdict(5.0, True, every_node=False)]


def test_a_pytorchjobs_deadline_is_told_from_its_message():
    text = "Job p has failed because it was active longer than specified deadline"
    (verdict,) = pytorchjob.facts(job(condition("Failed", reason="PyTorchJobFailed", message=text)))

    assert isinstance(verdict, ev.Verdict)
    assert verdict.reason == "DeadlineExceeded"


def test_what_is_restarting_and_has_succeeded_has_succeeded():
    facts = pytorchjob.facts(job(condition("Restarting"), condition("Succeeded")))

    assert facts == [ev.Verdict(5.0, True)]


def test_a_pytorchjobs_nodes_count_from_its_master_on():
    assert pytorchjob.node(replica("master", 0)) == 0
    assert pytorchjob.node(replica("worker", 2, waits=["init-pytorch"])) == 3
    assert pytorchjob.node(replica("worker", 2)) == 2
    assert pytorchjob.node({"metadata": {}}) is None


def test_a_trainjobs_initializers_are_no_nodes():
    metadata = {"annotations": {INDEX: "3"}}

    assert trainjob.node({"metadata": metadata, "spec": {"containers": [{"name": "node"}]}}) == 3
    assert (
        trainjob.node({"metadata": metadata, "spec": {"containers": [{"name": "model-initializer"}]}}) is None
    )
    assert indexedjob.node({"metadata": metadata}) == 3
    assert indexedjob.node({"metadata": {}}) is None


def test_a_volcano_jobs_pods_count_within_their_task():
    assert volcano.node({"metadata": {"labels": {"volcano.sh/task-index": "1"}}}) == 1
    assert volcano.node({"metadata": {}}) is None


@pytest.mark.parametrize(
    ("phase", "succeeded"), [("Completed", True), ("Failed", False), ("Terminated", False), ("Running", None)]
)
def test_a_volcano_jobs_phase_is_its_verdict(phase, succeeded):
    facts = volcano.facts({"status": {"state": {"phase": phase, "lastTransitionTime": AT_5}}})

    assert facts == ([] if succeeded is None else [ev.Verdict(5.0, succeeded, phase)])


def test_a_volcano_job_that_was_aborted_may_be_suspended_or_have_failed():
    state = {"phase": "Aborted", "lastTransitionTime": AT_5}
    resumed = {"state": {**state, "phase": "Running"}, "conditions": [{"status": "Aborted"}]}

    assert volcano.facts({"status": {"state": state}}) == [
        ev.Verdict(5.0, False, "Aborted", pauses=True),
        ev.Suspended(5.0, True),
    ]
    assert volcano.facts({"status": resumed}) == [ev.Suspended(5.0, False)]


def test_a_volcano_jobs_deadline_counts_from_its_resume_whatever_phases_follow():
    conditions: list[Any] = []
    state, deadlines = JobState(JobInfo("job", deadline_s=100)), []
    suspended = [("Running", 1), ("Aborting", 10), ("Aborted", 18)]
    resumed = [("Restarting", 20), ("Pending", 21), ("Running", 30)]
    restarted = [("Restarting", 50), ("Pending", 51), ("Running", 59)]

    for phase, second in (*suspended, *resumed, *restarted):
        now = {"lastTransitionTime": f"1970-01-01T00:00:{second:02}Z"}
        # The conditions hold each phase once, with its last time (recorded: vcjob-abort-resume).
        conditions = [past for past in conditions if past["status"] != phase] + [{"status": phase, **now}]
        facts = volcano.facts({"status": {"state": {"phase": phase, **now}, "conditions": conditions}})
        state = reduce(apply, facts, state)
        afresh = reduce(apply, facts, JobState(state.info))
        deadlines.append((state.deadline_at, afresh.deadline_at))

    assert deadlines[:3] == [(100.0, 100.0), (None, None), (None, None)]
    assert deadlines[3:6] == [(120.0, 120.0)] * 3
    # A follower that starts only now can't see that the job has restarted since.
    assert [followed for followed, _ in deadlines[6:]] == [120.0] * 3


def test_a_trainjobs_progress_is_what_its_trainer_was_told():
    metrics = [{"name": "loss", "value": "0.5"}, {"name": "phase", "value": "warm up"}]
    progress = {"progressPercentage": 40, "estimatedRemainingSeconds": 30, "metrics": metrics}

    def facts(status):
        return trainjob.facts({"metadata": {"creationTimestamp": AT_5}, "status": {"trainerStatus": status}})

    assert facts({**progress, "lastUpdatedTime": "1970-01-01T00:00:09Z"}) == [
        ev.TrainerStatus(9.0, 40, 30, {"loss": 0.5})
    ]
    assert facts({"lastUpdatedTime": None}) == [ev.TrainerStatus(5.0)]
    assert facts(None) == []
