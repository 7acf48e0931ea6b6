"""The Role in a tender's manifests: the tender uses every rule, and can't do all its work without one."""

import contextlib
from datetime import datetime

import pytest

from nbtorchjob import capture, submission
from nbtorchjob.backends.kubernetes.control import service
from nbtorchjob.backends.kubernetes.doctor import server
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import Right
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import CleanPodPolicy, Retry, RunPolicy
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.cluster.refusals import Refusal
from tests.backends.kubernetes.stage import collection, until

AGAIN = "begin()\nif ATTEMPT == 1: fail(recoverable=True)\nwait('go')\nvalue(ATTEMPT)"
TWICE = Retry(retries=2, preemptions=2, backoff=0)  # counted by us, for any kind
TIDY = Elastic(run_policy=RunPolicy(CleanPodPolicy.ALL))
BRIEF = Elastic(run_policy=RunPolicy(ttl_seconds_after_finished=1))
ENDS = Elastic(run_policy=RunPolicy(CleanPodPolicy.ALL, ttl_seconds_after_finished=1))
SOON = Elastic(run_policy=RunPolicy(start_within="1s"))
LEASES = "apis/coordination.k8s.io/v1/{}/leases"
RUNTIMES = "apis/trainer.kubeflow.org/v1alpha1/{}/trainingruntimes"


def jobs(stage, kind="indexedjob"):
    """Return the job objects of a kind, by name."""
    return {obj["metadata"]["name"]: obj for obj in stage.objects(collection(KINDS[kind].api))}


def note(stage, name, of, kind="indexedjob"):
    """Return an annotation of a job object; "" if it has none."""
    return jobs(stage, kind).get(name, {"metadata": {}})["metadata"].get("annotations", {}).get(of, "")


def used(stage, user):
    """Return the rights that a user's requests in namespaces needed."""
    attempts = stage.cluster.attempts(user)
    return {Right(attempt.verb, attempt.group, attempt.resource) for attempt in attempts if attempt.namespace}


def runs(stage, kind):
    """Submit two runs, one at a time."""
    call, rows = capture.from_cell("n", {}, run_values={"n": 0}), [{"n": 1}, {"n": 2}]
    spec = stage.spec(name=f"runs-{kind}", kind=kind, pod_patch=stage.acting("begin()\nvalue(1)"))
    submission.send_runs(submission.prepare(call, submission.check(spec)), rows, at_once=1)


def next_attempt(stage):
    stage.submit(AGAIN, name="job", retry=TWICE)
    return lambda: "job-a2" in jobs(stage)


def why_it_is_made(stage):
    again = "if ATTEMPT == 2: wait('looked'); fail(recoverable=True)"
    stage.submit(AGAIN.replace("wait", f"{again}\nwait", 1), name="job", retry=TWICE)

    def done():
        # Without the right to read the cause, a tender has begun attempt 2: then attempt 3 has the cause.
        stage.sign("looked")
        return any("ValueError" in note(stage, name, labelling.PAID) for name in ("job-a2", "job-a3"))

    return done


def next_attempt_on_a_runtime(stage):
    shared = stage.cluster.request("GET", "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes")[
        "items"
    ][0]
    own = {
        **shared,
        "kind": "TrainingRuntime",
        "metadata": {"name": "own", "labels": shared["metadata"]["labels"]},
    }
    stage.cluster.request("POST", f"/{RUNTIMES.format(f'namespaces/{stage.namespace}')}", own)
    stage.submit(AGAIN, name="job", kind="trainjob", runtime="own", retry=TWICE)

    def done():
        second = jobs(stage, "trainjob").get("job-a2")
        return second and second["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"

    return done


def next_run(stage):
    runs(stage, "indexedjob")
    return lambda: not jobs(stage)["runs-indexedjob-r2"]["spec"].get("suspend")


def removal(stage):
    stage.submit("begin()\nvalue(1)", name="job", retry=TWICE, launch=BRIEF)
    return lambda: "job" not in jobs(stage)


def clean_pods(stage):
    stage.submit("begin()\nvalue(1)", name="job", launch=TIDY)
    return lambda: jobs(stage)["job"]["status"].get("completionTime") and not stage.pods()


def end_of_what_cant_start(stage):
    stage.cluster.quota(stage.namespace, pods="0")
    stage.submit(name="job", launch=SOON)
    return lambda: "quota" in note(stage, "job", labelling.STOPPED)


def end_of_a_volcano_job(stage):
    stage.cluster.hold("^held-")
    stage.submit("begin()", name="held", kind="volcano", launch=SOON)
    return lambda: jobs(stage, "volcano")["held"]["status"]["state"]["phase"] in ("Aborted", "Terminated")


def beat(stage):
    def seconds(spec, key):
        return datetime.fromisoformat(spec[key].replace("Z", "+00:00")).timestamp()

    def done():  # the Lease was acquired, and renewed since
        specs = [obj["spec"] for obj in stage.objects(LEASES)]
        return any(seconds(spec, "renewTime") - seconds(spec, "acquireTime") > 0.04 for spec in specs)

    return done


@contextlib.contextmanager
def tending(stage, who):
    """Tend everybody's jobs inside the block."""
    begun = cluster_backend().tend(who, [stage.namespace], everyone=True)
    assert begun is not None
    try:
        yield
    finally:
        begun.stop()


NEEDED = [
    ("create", "batch", "jobs", next_attempt),
    ("get", "batch", "jobs", next_run),
    ("list", "batch", "jobs", next_attempt),
    ("patch", "batch", "jobs", next_run),
    ("delete", "batch", "jobs", removal),
    ("create", "bus.volcano.sh", "commands", end_of_a_volcano_job),
    ("create", "", "services", next_attempt),
    ("list", "", "secrets", next_attempt),
    ("list", "", "pods", next_attempt),
    ("get", "", "pods/log", why_it_is_made),
    ("delete", "", "pods", clean_pods),
    ("list", "", "events", end_of_what_cant_start),
    ("get", "trainer.kubeflow.org", "trainingruntimes", next_attempt_on_a_runtime),
    ("create", "coordination.k8s.io", "leases", beat),
    ("patch", "coordination.k8s.io", "leases", beat),
]


@pytest.mark.parametrize(("verb", "group", "of", "what"), NEEDED, ids=[f"{v} {r}" for v, _, r, _ in NEEDED])
def test_without_a_rule_of_its_role_a_tender_leaves_something_undone(
    stage, monkeypatch, verb, group, of, what
):
    monkeypatch.setattr(service, "BEAT_S", 0.05)
    monkeypatch.setattr(service, "HOLD_S", 0.1)  # without patch, a tender can't release its Lease
    missing = Right(verb, group, of)
    done = what(stage)
    user = stage.be([right for right in server.tender_rights() if right != missing])
    with tending(stage, "the test"):
        until(lambda: missing in used(stage, user))
    assert not done()

    stage.be(server.tender_rights())
    with tending(stage, "another"):
        until(done)
    stage.sign("go")


def test_a_tender_uses_all_that_its_role_has_and_nothing_else(stage):
    def cut():
        raise Refusal(500, "the connection to etcd was lost")

    user = stage.be(server.tender_rights())
    stage.cluster.meanwhile("POST", f"{stage.namespace}/services$", cut, user=user, after=True)
    needed = {*server.tender_rights()}
    # A tender reads events once a job waits.
    watched = {right for right in needed if right.verb == "watch" and right.resource != "events"}
    with tending(stage, "the test"):
        until(lambda: watched <= used(stage, user))  # later readers of the kubeconfig are the admin
        stage.admin()
        stage.cluster.hold("^held-")
        for kind in KINDS:
            stage.submit(AGAIN, name=f"job-{kind}", kind=kind, retry=TWICE, launch=ENDS)
            if kind != "volcano":
                runs(stage, kind)
            stage.submit("begin()", name=f"held-{kind}", kind=kind, launch=SOON)
        stage.sign("go")
        with contextlib.suppress(AssertionError):  # the assertion below shows the missing ones
            until(lambda: needed <= used(stage, user))
    assert used(stage, user) == needed
