"""Jobs in Kueue's queues: their reported state, and cancellations and suspensions that last."""

import time
from urllib.error import HTTPError

import pytest
import yaml

from nbtorchjob import api, capture, submission
from nbtorchjob.backends import backend
from nbtorchjob.backends.kubernetes.control import cleanup, controller, follow
from nbtorchjob.backends.kubernetes.jobs import find
from nbtorchjob.backends.kubernetes.kinds import KINDS as CLUSTER_KINDS
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import Right
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.commands.table import VERBS
from nbtorchjob.errors import ForbiddenError, SubmitError
from nbtorchjob.machine import loop
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import Retry, RunPolicy
from nbtorchjob.state import Phase
from nbtorchjob.state.text import facts
from nbtorchjob.state.text.lifetime import hold_reason
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.emulator import KINDS
from tests.backends.kubernetes.mortal import Kernel
from tests.backends.kubernetes.stage import collection, running, until
from tests.patience import LIMIT

KUEUE = "kueue.x-k8s.io/v1beta2"
TRAINJOBS = "apis/trainer.kubeflow.org/v1alpha1/{}/trainjobs"
QUEUED = ("indexedjob", "pytorchjob", "trainjob")
KINDS_OF = {kind: collection(CLUSTER_KINDS[kind].api) for kind in QUEUED}
ENDS = "begin()\nwait('go')\nvalue(1)"
GIVEN = [{"lr": 1}, {"lr": 2}, {"lr": 3}]
TAKES = """
from nbtorchjob.runtime.store.payload import lay_given
call = {"names": []}
lay_given(call, KEY)
lr = call["names"][0][1]
begin()
wait(f"go-{lr}")
value(lr)
"""


@pytest.fixture(scope="module")
def cluster(crds):
    with Emulator(kinds=(*KINDS, "kueue")) as emulator:
        yield emulator


@pytest.fixture
def queues(stage, monkeypatch):
    """Return the stage with a queue ``team``, and a quota that is enough for one job at a time."""
    monkeypatch.setattr(follow, "_QUEUE_LOOK_S", 0.5)  # a queue's counts may show only with a later look
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
    return stage.submit(part, kind=kind, queue="team", **{"cpu": "1", **asked})


def workload(stage, job):
    workloads = stage.objects(f"apis/{KUEUE}/{{}}/workloads")
    matches = [obj for obj in workloads if obj["metadata"]["ownerReferences"][0]["name"] == job.name]
    return matches[0] if matches else None


def mark_cancelled(stage, job):
    """Mark a TrainJob as cancelled, like a kernel that is killed before it has ensured the job's end."""
    mark = {"metadata": {"annotations": {labelling.CANCELLED: labelling.mark(time.time())}}}
    path = TRAINJOBS.format(f"namespaces/{stage.namespace}")
    stage.cluster.request("PATCH", f"/{path}/{job.name}", mark)


def told(job):
    return facts.phase(job.state), " ".join(facts.waiting(job.state))


def place(state):
    return state.standing and (state.standing.place, state.standing.of)


def without_workloads(stage):
    """Become a user with the rights of Kueue's stock roles: to read Workloads, and to change none."""
    name = stage.become()
    plurals = ("workloads", "localqueues")
    of = [Right(verb, "kueue.x-k8s.io", plural) for verb in ("get", "list", "watch") for plural in plurals]
    of.append(Right("get", "visibility.kueue.x-k8s.io", "localqueues/pendingworkloads"))
    rules = [
        {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]} for right in of
    ]
    stage.cluster.allow(name, stage.namespace, rules)
    find.forget()


def test_a_queue_is_asked_again_where_the_cluster_could_not_say_what_it_serves(queues):
    async def ask_anew():
        return await (await session(None)).served(anew=True)

    running(submit(queues, "indexedjob"))
    second = submit(queues, "indexedjob", cell="2")
    queues.cluster.trouble(403, "^/apis$", times=2)  # as from a server that has just started
    with pytest.raises(ForbiddenError):
        loop.run(ask_anew())

    second.wait(0)

    until(lambda: told(second)[0] == "QUEUED" and "must be free" in told(second)[1])


@pytest.mark.parametrize("kind", QUEUED)
def test_a_job_waits_in_its_queue_and_runs_when_there_is_quota(queues, kind):
    first = running(submit(queues, kind))
    second = submit(queues, kind, cell="2")
    second.wait(0)
    until(lambda: told(second)[0] == "QUEUED" and "must be free" in told(second)[1])

    third = submit(queues, kind, cell="3")
    third.wait(0)
    # Of two jobs that came in one second, either may be the first.
    until(lambda: {place(second.state), place(third.state)} == {(1, 2), (2, 2)})
    ahead = {(1, 2): "1st of 2", (2, 2): "2nd of 2"}[place(second.state)]
    until(lambda: f"queued in team: {ahead}; needs 900m cpu, 0.9 of 1 used" in told(second)[1])
    assert {place(job) for job in api.jobs() if job.queued} == {(1, 2), (2, 2)}
    assert [facts.phase(job) for job in api.jobs() if job.name == second.name] == ["QUEUED"]
    queues.sign("go")
    assert [job.result(LIMIT) for job in (first, second, third)] == [1, 1, 1]


def test_without_a_right_to_its_cluster_queue_a_job_tells_what_its_namespace_uses(queues):
    first = running(submit(queues, "indexedjob"))
    second = submit(queues, "indexedjob", cell="2")
    until(lambda: workload(queues, second))
    without_workloads(queues)
    second = api.attach(second.name)

    until(lambda: "1st of 1; needs 900m cpu, 0.9 used by jobs of its queue" in told(second)[1])
    queues.sign("go")
    assert (first.result(LIMIT), second.result(LIMIT)) == (1, 1)


def test_kueue_counts_places_and_is_asked_now_and_then(queues):
    first = running(submit(queues, "indexedjob"))
    second = submit(queues, "indexedjob", cell="2")
    second.wait(0)
    until(lambda: second.state.standing and second.state.standing.used)
    listed = [api.jobs() for _ in range(9)]

    assert {place(job) for jobs in listed for job in jobs if job.queued} == {(1, 1)}
    paths = [path for _, path in queues.cluster.requests if path.endswith("/pendingworkloads")]
    assert sum(queues.namespace in path for path in paths) < len(listed)
    queues.sign("go")
    assert (first.result(LIMIT), second.result(LIMIT)) == (1, 1)


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
    assert ("Workload is deactivated" if may else "a queue that doesn't exist") in hold_reason(second.state)
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
    ways = ("Workload is deactivated", "a deadline that has passed")  # a follower from before may do so, too
    # On a slow cluster this shows only once the job is over.
    until(lambda: any(way in hold_reason(api.attach(job.name).state) for way in (ways[:1] if may else ways)))
    queues.sign("go")
    assert submit(queues, kind, cell="2").result(LIMIT) == 1


@pytest.mark.parametrize("how", ["followed", "alone", "killed in between"])
def test_what_nothing_else_ends_is_deleted_once_all_of_it_is_here(queues, how):
    policy = RunPolicy(active_deadline_seconds=3600)  # a TrainJob's deadline can't be changed
    job = submit(queues, "trainjob", launch=Elastic(run_policy=policy))
    if how == "followed":
        running(job)
    until(lambda: [pod["status"].get("phase") for pod in queues.pods()] == ["Running"])
    without_workloads(queues)
    if how == "killed in between":
        mark_cancelled(queues, job)
    else:
        job.cancel()

    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED
    assert "it was deleted from the cluster; its record and logs are on this machine" in hold_reason(
        job.state
    )
    assert not queues.objects(TRAINJOBS)
    later = [backend("kubernetes").snapshot(job.name) for _ in range(2)]
    assert {state.phase for state in later} == {Phase.CANCELLED}
    assert len({state.ended for state in later}) == 1
    queues.sign("go")
    assert submit(queues, "trainjob", cell="2").result(LIMIT) == 1


# Each kill comes between two writes: the mark is written first, and the job's own suspension last.
@pytest.mark.parametrize(("when", "kind"), [*(("before", kind) for kind in QUEUED), ("after", "indexedjob")])
def test_a_cancel_whose_kernel_is_killed_as_it_writes_is_finished_by_whoever_follows(when, kind, queues):
    job = submit(queues, kind)
    until(lambda: [pod["status"].get("phase") for pod in queues.pods()] == ["Running"])
    with Kernel(queues, job, (when, "patch", "workloads"), line=["cancel"]) as kernel:
        kernel.dies()

    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED
    queues.sign("go")
    assert submit(queues, kind, cell="2").result(LIMIT) == 1
    assert not any(job.name in pod["metadata"]["name"] for pod in queues.pods())


@pytest.mark.parametrize(
    ("method", "path", "here"),
    [("GET", r"jobs/[^/]*$", False), ("PATCH", "/workloads/", False), ("PATCH", "/workloads/", True)],
    ids=["told", "held", "held here"],
)
def test_a_job_that_goes_while_it_is_made_sure_that_it_ends_is_over(method, path, here, queues):
    job = running(submit(queues, "trainjob"))

    def go():
        old = workload(queues, job)
        queues.delete(TRAINJOBS, job.name)
        until(lambda: not workload(queues, job))
        # Kueue makes a new Workload as long as its cache still has the job.
        kept = {key: old["metadata"][key] for key in ("name", "namespace", "labels", "ownerReferences")}
        body = {"apiVersion": KUEUE, "kind": "Workload", "metadata": kept, "spec": old["spec"]}
        queues.cluster.request("POST", queues.cluster.collection(body), body)

    queues.cluster.meanwhile(method, path, go)
    if here:
        job.cancel()
    else:
        mark_cancelled(queues, job)

    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED


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


def test_a_job_whose_own_watch_is_late_isnt_taken_for_one_that_its_operator_replaced(queues, monkeypatch):
    monkeypatch.setattr(controller, "TOLD_WITHIN_S", 0.0)
    job = running(submit(queues, "trainjob", retry=Retry(preemptions=3)))
    late = ("trainjobs", "workloads")
    for plural in late:
        queues.cluster.lag_watches(4, plural)
    try:
        cluster_backend().suspend(job.name)
        until(lambda: not queues.pods())
        cluster_backend().resume(job.name)
        until(lambda: len(job.state.nodes[0].lives) == 2)  # its new pod comes before any sign of a suspension
        queues.sign("go")

        assert job.result(LIMIT) == 1
    finally:
        for plural in late:
            queues.cluster.lag_watches(0, plural)
    assert len(job.state.attempts) == 1


def test_a_running_job_that_nothing_would_hold_for_a_while_isnt_suspended(queues):
    job = running(submit(queues, "indexedjob"))
    without_workloads(queues)
    with pytest.raises(ForbiddenError, match="its queue would undo a suspension"):
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


@pytest.mark.parametrize("kind", QUEUED)
def test_a_run_isnt_in_its_queue_before_its_turn(queues, kind):
    call = capture.from_cell("lr", {}, run_values=GIVEN[0])
    spec = queues.spec(name="sweep", kind=kind, queue="team", cpu="100m", pod_patch=queues.acting(TAKES))
    runs = submission.send_runs(submission.prepare(call, submission.check(spec)), GIVEN, at_once=1)
    looks = runs.looks()

    def begun():
        return [bool(state.nodes) for state in next(looks)]

    until(lambda: begun() == [True, False, False])
    until(lambda: workload(queues, runs[2]))  # Kueue has seen them all, and has quota for all
    # A later job that is admitted shows that Kueue has passed them over.
    queues.sign("go")
    assert submit(queues, kind, cell="2", cpu="100m").result(LIMIT) == 1
    assert begun() == [True, False, False]
    assert [told(run) for run in runs[1:]] == [("SUSPENDED", ""), ("SUSPENDED", "")]
    assert "queue-name: team" in cluster_backend().manifests(runs[1].name)
    queues.sign("go-1")
    until(lambda: begun() == [True, True, False])
    runs[2].suspend()
    queues.sign("go-2")
    until(lambda: runs[1].done())
    assert not next(looks)[2].nodes
    runs[2].resume()
    queues.sign("go-3")

    assert runs.results(LIMIT) == [1, 2, 3]


def findings(stage, **asked):
    return {
        check.text: check.good for check in api.doctor(stage.spec(cpu="1", **asked)) if "queue" in check.text
    }


def test_a_queue_that_isnt_there_is_found_missing_before_a_job_waits_in_it(queues):
    verdicts = findings(queues, queue="absent")

    (text,) = [text for text, good in verdicts.items() if not good]
    assert f"there is no queue absent in {queues.namespace}" in text
    assert text.endswith("there are: team")
    assert [choice.value for choice in cluster_backend().choices(queues.spec())["queue"]] == [
        "default",
        "team",
    ]


def test_a_priority_in_queues_that_isnt_there_is_found_missing(queues):
    high = f"high-{queues.namespace}"
    options = {"queue": "team", "workload_priority": high}
    before = [finding for finding in api.doctor(queues.spec(cpu="1", **options)) if high in finding.text]
    make(queues, "WorkloadPriorityClass", high, None)
    after = [finding for finding in api.doctor(queues.spec(cpu="1", **options)) if high in finding.text]

    assert [(finding.good, "would never start" in finding.text) for finding in before] == [(False, True)]
    assert [(finding.good, "exists" in finding.text) for finding in after] == [(True, True)]
    offered = cluster_backend().choices(queues.spec())["workload-priority"]
    assert high in [choice.value for choice in offered]


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


def lend(stage, **limits):
    """Make another queue that lends to the stage's queue, which may borrow within the limits."""
    cohort = f"cohort-{stage.namespace}"
    others = [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": "3", "lendingLimit": "2"}]}]
    groups = [{"coveredResources": ["cpu"], "flavors": others}]
    make(stage, "ClusterQueue", f"other-{cohort}", {"cohortName": cohort, "resourceGroups": groups})
    own = [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": "1", **limits}]}]
    groups = [{"coveredResources": ["cpu"], "flavors": own}]
    body = {"spec": {"cohortName": cohort, "resourceGroups": groups}}
    stage.cluster.request("PATCH", f"/apis/{KUEUE}/clusterqueues/{stage.namespace}", body)
    return cohort


# The queue has 1 CPU of its own, and others lend it 2; the job has ``nodes`` nodes of 0.9 CPU.
@pytest.mark.parametrize(
    ("limits", "nodes", "good", "words"),
    [
        ({}, 1, True, "has enough in all for the job"),
        ({}, 3, True, "only with what others in cohort"),
        ({}, 4, False, "3.6 cpu requested, 3 in all, with all that may be borrowed in cohort"),
        ({"borrowingLimit": "1"}, 3, False, "2.7 cpu requested, 2 in all, with all that may be borrowed"),
    ],
    ids=["its own", "others'", "too much", "limited"],
)
def test_what_a_queue_may_borrow_counts(queues, limits, nodes, good, words):
    lend(queues, **limits)
    until(lambda: any("is open" in text for text in findings(queues, queue="team")))
    verdicts = findings(queues, queue="team", launch=Elastic(nodes, nodes))

    assert [(text, state) for text, state in verdicts.items() if words in text and state is good]
    if not good:  # Kueue agrees
        job = submit(queues, "indexedjob", launch=Elastic(nodes, nodes))
        job.wait(0)
        until(lambda: "it can never be admitted" in told(job)[1])


def test_where_a_cohort_has_more_than_its_queues_it_isnt_known_how_much(queues):
    cohort = lend(queues)
    make(queues, "Cohort", cohort, {"parentName": "all"})
    until(lambda: any("is open" in text for text in findings(queues, queue="team")))
    verdicts = findings(queues, queue="team", launch=Elastic(4, 4))

    assert [good for text, good in verdicts.items() if "the cohort's quota is unknown" in text] == [True]


@pytest.mark.parametrize("by", ["a follower", "gc"])
def test_what_was_written_down_as_cancelled_is_ended_by_whoever_follows(queues, by, monkeypatch):
    first = running(submit(queues, "indexedjob"))
    second = submit(queues, "indexedjob", cell="2")
    until(lambda: workload(queues, second))
    for job in (first, second):  # as a kernel leaves them if it is killed then
        mark = {"metadata": {"annotations": {labelling.CANCELLED: labelling.mark(time.time())}}}
        queues.cluster.request("PATCH", f"/apis/batch/v1/namespaces/{queues.namespace}/jobs/{job.name}", mark)

    if by == "gc":
        monkeypatch.setattr(cleanup, "_ENDING_S", 0.0)
        gc = VERBS["gc"]
        assert gc.answers is not None
        *_, text = (answer.text for answer in gc.answers(gc.parse(["--yes"]), api.attach))
        assert first.name in text
        assert "Ended cancelled jobs that were still running" in text
    assert second.wait(LIMIT)
    assert first.wait(LIMIT)
    assert {first.state.phase, second.state.phase} == {Phase.CANCELLED}
    queues.sign("go")
    assert submit(queues, "indexedjob", cell="3").result(LIMIT) == 1


def test_a_priority_that_isnt_there_is_refused_before_anything_is_sent(queues):
    high = f"high-{queues.namespace}"
    make(queues, "WorkloadPriorityClass", high, None)
    refused = queues.refused(SubmitError, ENDS, kind="indexedjob", queue="team", workload_priority="absent")

    assert "there is no WorkloadPriorityClass 'absent'" in str(refused)
    assert high in str(refused)


@pytest.mark.parametrize("kind", QUEUED)
def test_what_its_queue_preempts_draws_on_the_budget_for_it_and_runs_again(queues, kind, monkeypatch):
    monkeypatch.setattr(controller, "TOLD_WITHIN_S", 0.0)  # the job waits in its queue for longer than that
    high = f"high-{queues.namespace}"
    make(queues, "WorkloadPriorityClass", high, None)
    job = running(submit(queues, kind, retry=Retry(preemptions=3)))
    urgent = submit(queues, kind, cell="2", workload_priority=high)
    until(lambda: told(job)[0] == "QUEUED")
    assert "preempted by a job of higher priority" in told(job)[1] or "must be free" in told(job)[1]
    until(lambda: job.state.all_over)
    queues.sign("go")

    assert (urgent.result(LIMIT), job.result(LIMIT)) == (1, 1)
    assert [spent.used for spent in job.state.budgets] == [0, 1]
    assert "preempted by a job of higher priority" in job.state.attempts[0].failure.reason.line


def test_what_is_exported_of_a_queued_job_can_be_applied_whatever_webhooks_have_added(queues, tmp_path):
    for kind in QUEUED:
        job = submit(queues, kind, cell=f"'{kind}'")
        path = KINDS_OF[kind].format(f"namespaces/{queues.namespace}")
        live = queues.cluster.request("GET", f"/{path}/{job.name}")
        paths = [path for path in job.export(tmp_path / kind) if path.suffix == ".yaml"]
        files = [yaml.safe_load(path.read_text()) for path in paths]
        assert {file["metadata"]["namespace"] for file in files} == {queues.namespace}
        if kind == "trainjob":  # the live object can't be created again as it is
            meta = {"name": "copy", "namespace": queues.namespace, "labels": live["metadata"]["labels"]}
            with pytest.raises(HTTPError, match="422"):
                queues.cluster.request("POST", f"/{path}", {**live, "metadata": meta})
        job.delete()
        until(lambda kind=kind: not queues.objects(KINDS_OF[kind]))
        for body in files:
            queues.cluster.request("POST", queues.cluster.collection(body), body)

        assert files[-1]["spec"] != live["spec"]
        assert "kueue.x-k8s.io/manager" not in str(files)
        again = running(api.attach(job.info.address))
        queues.sign("go")
        assert again.result(LIMIT) == 1
        (queues.signs / "go").unlink()
        again.delete()
