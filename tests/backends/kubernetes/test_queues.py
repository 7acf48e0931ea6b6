"""Jobs in queues of Kueue's: what is said of them, and what is done to them holds."""

import time

import pytest

from nbtorchjob import api
from nbtorchjob.backends import backend
from nbtorchjob.backends.kubernetes.jobs import find
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.rights import Right
from nbtorchjob.errors import ForbiddenError
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import Phase
from nbtorchjob.state.text import facts
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.emulator import KINDS
from tests.backends.kubernetes.stage import running, until
from tests.patience import LIMIT

KUEUE = "kueue.x-k8s.io/v1beta2"
PRIORITY = "kueue.x-k8s.io/priority-class"
QUEUED = ("indexedjob", "pytorchjob", "trainjob")
ENDS = "begin()\nwait('go')\nvalue(1)"


@pytest.fixture(scope="module")
def cluster(crds):
    with Emulator(kinds=(*KINDS, "kueue")) as emulator:
        yield emulator


@pytest.fixture
def queues(stage):
    """Return the stage with a queue called team, whose quota is enough for one job at a time."""
    flavors = [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": "1"}]}]
    groups = [{"coveredResources": ["cpu"], "flavors": flavors}]
    spec = {"resourceGroups": groups, "preemption": {"withinClusterQueue": "LowerPriority"}}
    make(stage, "ClusterQueue", stage.namespace, spec)
    make(stage, "LocalQueue", "team", {"clusterQueue": stage.namespace}, stage.namespace)
    return stage


def make(stage, kind, name, spec, namespace=None):
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    body = {"apiVersion": KUEUE, "kind": kind, "metadata": meta, **({"spec": spec} if spec else {"value": 9})}
    stage.cluster.request("POST", stage.cluster.collection(body), body)


def submit(stage, kind, part=ENDS, **asked):
    return stage.submit(part, kind=kind, queue="team", cpu="1", **asked)


def workload(stage, job):
    found = stage.objects(f"apis/{KUEUE}/{{}}/workloads")
    mine = [each for each in found if each["metadata"]["ownerReferences"][0]["name"] == job.name]
    return mine[0] if mine else None


def told(job):
    return facts.phase(job.state), " ".join(facts.waiting(job.state))


def place(state):
    return state.standing and (state.standing.place, state.standing.of)


def without_workloads(stage):
    """Be a user as Kueue's stock roles leave one: who may read Workloads, and change none."""
    name = stage.become()
    of = [Right(verb, "kueue.x-k8s.io", "workloads") for verb in ("get", "list", "watch")]
    rules = [{"apiGroups": [each.group], "resources": [each.resource], "verbs": [each.verb]} for each in of]
    stage.cluster.allow(name, stage.namespace, rules)
    find.forget()


@pytest.mark.parametrize("kind", QUEUED)
def test_a_job_waits_in_its_queue_and_runs_when_there_is_quota(queues, kind):
    first = running(submit(queues, kind))
    second = submit(queues, kind, cell="2")
    second.wait(0)
    until(lambda: told(second)[0] == "QUEUED" and "must be free" in told(second)[1])

    third = submit(queues, kind, cell="3")
    third.wait(0)
    # Of two that came in one second either may be the first.
    until(lambda: {place(second.state), place(third.state)} == {(1, 2), (2, 2)})
    ahead = {(1, 2): "1st of 2", (2, 2): "2nd of 2"}[place(second.state)]
    assert f"queued in team: {ahead}; needs" in told(second)[1]
    assert {place(each) for each in api.jobs() if each.queued} == {(1, 2), (2, 2)}
    assert [facts.phase(each) for each in api.jobs() if each.name == second.name] == ["QUEUED"]
    queues.sign("go")
    assert [each.result(LIMIT) for each in (first, second, third)] == [1, 1, 1]


@pytest.mark.parametrize("kind", QUEUED)
@pytest.mark.parametrize("may", [True, False], ids=["workloads", "stock"])
def test_what_was_cancelled_while_it_was_queued_never_starts(queues, kind, may):
    first = running(submit(queues, kind))
    second = submit(queues, kind, cell="2")
    until(lambda: workload(queues, second))
    if not may:
        without_workloads(queues)
    api.attach(second.name).cancel()
    queues.sign("go")
    assert first.result(LIMIT) == 1
    third = submit(queues, kind, cell="3")

    assert third.result(LIMIT) == 1
    assert second.wait(LIMIT)
    assert second.state.phase is Phase.CANCELLED
    assert not any(second.name in pod["metadata"]["name"] for pod in queues.pods())


@pytest.mark.parametrize("kind", QUEUED)
@pytest.mark.parametrize("may", [True, False], ids=["workloads", "stock"])
def test_what_was_cancelled_while_it_ran_ends_and_frees_its_quota(queues, kind, may):
    job = running(submit(queues, kind))
    if not may:
        without_workloads(queues)
    job.cancel()

    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED
    queues.sign("go")
    assert submit(queues, kind, cell="2").result(LIMIT) == 1


@pytest.mark.parametrize("kind", QUEUED)
def test_what_was_suspended_stays_so_until_it_is_resumed(queues, kind):
    job = running(submit(queues, kind))
    job.suspend()
    until(lambda: told(job)[0] == "SUSPENDED" and job.state.all_over)
    queues.sign("go")
    assert submit(queues, kind, cell="2").result(LIMIT) == 1
    assert told(job)[0] == "SUSPENDED"
    job.resume()

    assert job.result(LIMIT) == 1
    assert len(job.state.attempts) == 1


def test_a_running_job_that_nothing_would_hold_for_a_while_isnt_suspended(queues):
    job = running(submit(queues, "indexedjob"))
    without_workloads(queues)
    with pytest.raises(ForbiddenError, match="its queue takes a suspension back"):
        job.suspend()

    assert job.state.phase is Phase.RUNNING
    queues.sign("go")
    assert job.result(LIMIT) == 1


def test_a_queued_job_is_suspended_without_a_right_to_its_workload(queues):
    first = running(submit(queues, "indexedjob"))
    second = submit(queues, "indexedjob", cell="2")
    until(lambda: workload(queues, second))
    without_workloads(queues)
    second = api.attach(second.name)
    second.suspend()
    second.wait(0)
    until(lambda: told(second)[0] == "SUSPENDED")
    queues.sign("go")
    assert first.result(LIMIT) == 1
    second.resume()

    assert second.result(LIMIT) == 1


def findings(stage, **asked):
    return {
        found.text: found.good for found in api.doctor(stage.spec(cpu="1", **asked)) if "queue" in found.text
    }


def test_a_queue_that_isnt_there_is_found_missing_before_a_job_waits_in_it(queues):
    found = findings(queues, queue="absent")

    (text,) = [text for text, good in found.items() if not good]
    assert f"there is no queue absent in {queues.namespace}" in text
    assert text.endswith("there are: team")
    assert [choice.value for choice in backend("kubernetes").choices(queues.spec())["queue"]] == [
        "default",
        "team",
    ]


def test_a_queue_says_whether_it_could_ever_admit_the_job(queues):
    until(lambda: all(findings(queues, queue="team").values()))
    nodes = findings(queues, queue="team", launch=Elastic(2, 2))

    assert any("can never admit the job" in text for text, good in nodes.items() if not good)
    queues.cluster.request(
        "PATCH", f"/apis/{KUEUE}/clusterqueues/{queues.namespace}", {"spec": {"stopPolicy": "Hold"}}
    )
    until(
        lambda: any(
            "team is closed" in text for text, good in findings(queues, queue="team").items() if not good
        )
    )


def test_what_was_written_down_as_cancelled_is_ended_by_whoever_follows(queues):
    first = running(submit(queues, "indexedjob"))
    second = submit(queues, "indexedjob", cell="2")
    until(lambda: workload(queues, second))
    for job in (first, second):  # as a kernel leaves it that is killed then
        mark = {"metadata": {"annotations": {labelling.CANCELLED: labelling.mark(time.time())}}}
        queues.cluster.request("PATCH", f"/apis/batch/v1/namespaces/{queues.namespace}/jobs/{job.name}", mark)

    assert second.wait(LIMIT)
    assert first.wait(LIMIT)
    assert {first.state.phase, second.state.phase} == {Phase.CANCELLED}
    queues.sign("go")
    assert submit(queues, "indexedjob", cell="3").result(LIMIT) == 1


@pytest.mark.parametrize("kind", QUEUED)
def test_what_its_queue_preempts_draws_on_the_budget_for_it_and_runs_again(queues, kind):
    make(queues, "WorkloadPriorityClass", f"high-{queues.namespace}", None)
    job = running(submit(queues, kind, retry=Retry(preemptions=3)))
    urgent = submit(queues, kind, cell="2", label={PRIORITY: f"high-{queues.namespace}"})
    until(lambda: told(job)[0] == "QUEUED")
    assert "preempted by a job of higher priority" in told(job)[1] or "must be free" in told(job)[1]
    until(lambda: job.state.all_over)
    queues.sign("go")

    assert (urgent.result(LIMIT), job.result(LIMIT)) == (1, 1)
    assert [spent.used for spent in job.state.budgets] == [0, 1]
    assert "preempted by a job of higher priority" in job.state.attempts[0].failure.reason.line
