"""Names that jobs reuse, in one namespace or in several, and who may remove the objects that have them."""

import os
import pwd
import secrets
import signal
import sys
import threading

import pytest

from nbtorchjob import api, capture, submission
from nbtorchjob.backends import backend
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.payload import package as payload
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.backends.kubernetes.submit import attempts, submitter
from nbtorchjob.commands import verbs
from nbtorchjob.commands.front import ParsedArgs
from nbtorchjob.errors import JobCancelledError, JobNotFoundError, NameTakenError, NotFoundError
from nbtorchjob.machine import loop
from nbtorchjob.machine.interrupts import Interrupted
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import Budget, Next, Phase
from tests.backends.kubernetes.stage import collection, running, until
from tests.patience import LIMIT

JOBS, PODS = "apis/batch/v1/{}/jobs", "api/v1/{}/pods"
SERVICES, CONFIGMAPS = "api/v1/{}/services", "api/v1/{}/configmaps"
POLICIES = "apis/networking.k8s.io/v1/{}/networkpolicies"
WAIT = "begin(); wait('go'); value(1)"


def test_a_cell_may_be_run_again_as_often_as_one_likes(stage):
    jobs = [stage.submit("begin(); value(1)")]
    for _ in range(6):
        assert jobs[-1].result(LIMIT) == 1
        jobs.append(stage.submit("begin(); value(1)"))

    assert len({job.name for job in jobs}) == 7


def test_a_named_cell_may_be_run_again_too(stage):
    first = running(stage.submit(WAIT, name="same"))
    again = stage.submit(WAIT, name="same")
    with pytest.raises(NameTakenError, match="same is still running, with other code"):
        stage.submit(WAIT, name="same", cell="2")
    assert (again.joined, again.info.run) == (True, first.info.run)
    stage.sign("go")
    assert first.result(LIMIT) == 1
    second = stage.submit(WAIT, name="same")
    assert (second.joined, second.name, second.result(LIMIT)) == (False, "same-2", 1)
    assert stage.submit(WAIT, name="same", cell="2").name == "same-3"


def test_a_payload_is_copied_for_the_name_that_is_free_and_not_for_those_that_are_taken(stage, monkeypatch):
    names, manifests = [], payload.manifests

    def copied(info, *rest):  # no public interface shows how often the payload is copied
        names.append(info.name)
        return manifests(info, *rest)

    monkeypatch.setattr(payload, "manifests", copied)
    for _ in range(3):
        assert stage.submit("begin(); value(1)", name="same").result(LIMIT) == 1

    assert names == ["same", "same", "same-2", "same", "same-3"]


@pytest.fixture
def interrupt():
    """Yield a function that interrupts the main thread, and returns once the handler ran, however late.

    It raises the switch interval until the test ends: the main thread keeps Python's lock, and acts on the
    interrupt before the server's thread goes on.
    """
    main, delivery = threading.get_ident(), threading.Event()

    def take(*_):
        delivery.set()
        raise KeyboardInterrupt

    def strike():
        sys.setswitchinterval(1.0)
        signal.pthread_kill(main, signal.SIGINT)
        assert delivery.wait(LIMIT)

    before, interval = signal.signal(signal.SIGINT, take), sys.getswitchinterval()
    yield strike
    sys.setswitchinterval(interval)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("path", "after"), [("secrets", False), ("jobs", True)])
def test_a_submission_that_is_interrupted_leaves_nothing_and_says_so(stage, interrupt, path, after):
    stage.cluster.meanwhile("POST", path, interrupt, after=after)
    with pytest.raises(Interrupted, match="nothing was submitted"):
        stage.submit(WAIT, kind="indexedjob")

    until(lambda: not stage.left())


def test_a_group_that_is_interrupted_while_it_is_sent_leaves_nothing_and_says_so(stage, interrupt):
    def then(strike):
        return lambda: stage.cluster.meanwhile("POST", "jobs", strike, after=True)

    then(then(then(interrupt)))()  # with the third run's POST
    call = capture.from_cell("lr", {}, run_values={"lr": 0})
    sub = submission.prepare(call, submission.check(stage.spec(name="sweep")))
    with pytest.raises(Interrupted, match="nothing was submitted"):
        submission.send_runs(sub, [{"lr": lr} for lr in range(12)])

    until(lambda: not stage.left())


def test_a_name_of_a_deleted_job_is_another_jobs(stage):
    first = running(stage.submit("begin(); log('one'); wait('never')", name="same"))
    until(lambda: first.logs(0) == "one")
    stage.delete(JOBS, "same")
    second = stage.submit("begin(); log('two'); value(2)", name="same")

    assert second.result(LIMIT) == 2
    assert second.logs(0) == "two"
    with pytest.raises(JobCancelledError, match="was deleted"):
        first.result(LIMIT)


# The pod ignores SIGTERM, and goes on until its grace period is over.
STAYS = "signal.signal(signal.SIGTERM, signal.SIG_IGN); begin(); wait('end')"


@pytest.fixture
def ending(stage):
    """Yield a function that deletes a job named ``same``, and leaves its pod running on the host."""

    def leave(kind):
        former = running(stage.submit(pod_patch=stage.acting(STAYS, grace=60), name="same", kind=kind))
        former.delete()
        until(lambda: all("deletionTimestamp" in pod["metadata"] for pod in stage.objects(PODS)))
        assert stage.objects(PODS)
        return former

    # Mutable Secrets and ConfigMaps wouldn't help: a host learns late that one has changed.
    stage.cluster.lag_kubelet(LIMIT)
    yield leave
    stage.cluster.lag_kubelet(0)
    stage.sign("end")


@pytest.mark.parametrize(
    ("before", "after"), [("indexedjob", "indexedjob"), ("pytorchjob", "indexedjob"), ("trainjob", "volcano")]
)
def test_a_name_runs_its_new_code_while_a_pod_of_its_former_job_still_ends(stage, ending, before, after):
    ending(before)
    job = stage.submit("begin(); value(2)", cell="2", name="same", kind=after)

    assert (job.name, job.result(LIMIT)) == ("same", 2)
    assert any("deletionTimestamp" in pod["metadata"] for pod in stage.objects(PODS))


def test_no_two_jobs_ever_have_a_secret_of_one_name_that_a_host_may_keep(stage):
    mounted = []
    for cell in ("1", "2"):
        job = running(stage.submit(WAIT, cell=cell, name="same"))
        (pod,) = stage.objects(PODS)
        mounted.append(_secrets_of(pod))
        job.delete()
        until(lambda: not stage.left())

    assert set(mounted[0]).isdisjoint(mounted[1])


def _secrets_of(pod):
    return [
        source["secret"]["name"]
        for volume in pod["spec"]["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
    ]


def test_what_is_left_of_a_job_is_in_no_way_of_the_next_one_of_its_name(stage):
    stage.cluster.slow_collection(3)
    retry = Retry(retries=1, preemptions=1, backoff=0)
    first = stage.submit(
        "begin()\nif ATTEMPT == 1: fail(recoverable=True)\nwait('never')", name="same", retry=retry
    )
    running(first)
    until(lambda: first.state.tries == 2 and first.state.working)
    first.delete()
    left = set(stage.left())
    assert {"same-claim", "same-a2"} <= left
    second = stage.submit(
        "begin()\nif ATTEMPT == 1: fail(recoverable=True)\nvalue(ATTEMPT)",
        name="same",
        cell="2",
        retry=retry,
    )

    assert (second.name, second.result(LIMIT)) == ("same", 2)
    stage.cluster.slow_collection(0)


# Volcano makes its objects once, and adopts existing ones: a former job's would vanish under the next job.
def test_what_volcano_made_for_a_former_job_is_gone_before_the_next_one_of_its_name_is_sent(stage):
    former = running(stage.submit(WAIT, name="same", kind="volcano"))
    stage.cluster.slow_collection(3)
    former.delete()
    assert "same" in {service["metadata"]["name"] for service in stage.objects(SERVICES)}
    job = running(stage.submit(WAIT, cell="2", name="same", kind="volcano"))
    stage.cluster.slow_collection(0)

    (obj,) = stage.objects(collection(KINDS["volcano"].api))
    for path in (SERVICES, CONFIGMAPS):
        (dependent,) = [obj for obj in stage.objects(path) if obj["metadata"]["name"].startswith("same")]
        assert labelling.owned(dependent, obj)
    stage.sign("go")
    assert (job.name, job.result(LIMIT)) == ("same", 1)


FOREIGN = [
    ("trainjob", "Service", "web"),
    ("volcano", "Service", "web"),
    ("volcano", "ConfigMap", "web-svc"),
    ("volcano", "NetworkPolicy", "web"),
]


@pytest.mark.parametrize(("kind", "what", "name"), FOREIGN)
def test_a_name_by_which_an_operator_would_take_anothers_object_is_refused(stage, kind, what, name):
    path, body = _foreign(what, name)
    stage.cluster.request("POST", f"/{path.format(f'namespaces/{stage.namespace}')}", body)
    message = str(stage.refused(NameTakenError, name="web", kind=kind))

    assert f"has a {what} '{name}' that nbtorchjob didn't make: choose another --name" in message
    assert name in {obj["metadata"]["name"] for obj in stage.objects(path)}


@pytest.mark.parametrize(("kind", "what", "name"), FOREIGN)
def test_an_attempt_whose_operator_would_take_anothers_object_waits_until_that_is_gone(
    stage, kind, what, name
):
    name = name.replace("web", "web-a2")
    path, body = _foreign(what, name)
    stage.cluster.request("POST", f"/{path.format(f'namespaces/{stage.namespace}')}", body)
    part = "begin()\nif ATTEMPT == 1: fail(recoverable=True)\nvalue(ATTEMPT)"
    job = stage.submit(part, name="web", kind=kind, retry=Retry(retries=1, backoff=0))

    job.wait(0)
    until(lambda: any(name in wait.text for wait in job.state.waiting))
    text = " ".join(wait.text for wait in job.state.waiting)
    assert "attempt 2 can't be started" in text
    assert "isn't this job's, but has a name that it needs: delete it" in text
    assert name in {obj["metadata"]["name"] for obj in stage.objects(path)}
    stage.delete(path, name)
    assert job.result(LIMIT) == 2


def _foreign(kind, name):
    """Return the collection and the body of an object that nbtorchjob didn't make."""
    body = {"kind": kind, "metadata": {"name": name}}
    if kind == "Service":
        return SERVICES, {
            "apiVersion": "v1",
            **body,
            "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
        }
    if kind == "ConfigMap":
        return CONFIGMAPS, {"apiVersion": "v1", **body, "data": {"key": "value"}}
    spec = {"podSelector": {"matchLabels": {"app": name}}, "policyTypes": ["Ingress"]}
    return POLICIES, {"apiVersion": "networking.k8s.io/v1", **body, "spec": spec}


def test_an_account_that_may_not_look_for_others_objects_submits_all_the_same(stage):
    stage.become(("list", "configmaps"), ("list", "networkpolicies"))

    assert stage.submit("begin(); value(1)", name="web", kind="volcano").result(LIMIT) == 1


def test_who_still_follows_a_deleted_job_starts_no_attempt_of_it_for_the_next_one(stage):
    retry = Retry(retries=3, preemptions=3, backoff=0)
    former = running(stage.submit("begin(); wait('fail'); fail(recoverable=True)", name="same", retry=retry))
    scope, kind = Scope(former.info.cluster["context"], stage.namespace), KINDS["indexedjob"]
    stage.delete(JOBS, "same")
    until(lambda: not stage.left())
    running(stage.submit(WAIT, name="same", cell="2"))

    async def begin():
        return await attempts.begin(
            await session(None), scope, kind, former.info, Next(2, 0.0, Budget.FAILURES), None, ""
        )

    with pytest.raises(NotFoundError, match="another job has its name now"):
        loop.run(begin())
    assert len(stage.objects(JOBS)) == 1


def test_what_a_deleted_job_had_in_the_store_goes_without_what_the_next_one_has(stage, tmp_path):
    data, options = os.urandom(payload.LIMIT_BYTES + 1), {"name": "same", "storage": str(tmp_path / "store")}
    options["pod_patch"] = stage.patch(["sleep", "60"])
    jobs = []

    def again():
        jobs.append(stage.submit(cell="len(data)", variables={"data": data}, **options))

    again()
    # Another kernel submits it again between the deletions of the job object and of its files in the store.
    stage.cluster.meanwhile("DELETE", "jobs/same", again, after=True)
    jobs[0].delete()

    [left] = (tmp_path / "store").glob("*/*.pyz")
    assert left.parent.name == f"same.{jobs[1].info.run}"


def test_a_name_is_looked_for_where_the_settings_say(stage, monkeypatch):
    other = stage.cluster.namespace(f"other-{secrets.token_hex(3)}")
    assert stage.submit("begin(); value(1)", name="same").result(LIMIT) == 1
    monkeypatch.setenv("NBTORCHJOB_NAMESPACE", other)

    with pytest.raises(JobNotFoundError, match="no job named 'same'; another namespace has one"):
        api.attach("same")
    assert stage.submit("begin(); value(2)", name="same", namespace=other).result(LIMIT) == 2
    assert api.attach("same").result(LIMIT) == 2
    assert api.attach(f"{stage.namespace}/same").result(LIMIT) == 1


def test_one_name_in_two_namespaces_is_two_jobs(stage):
    other = stage.cluster.namespace(f"other-{secrets.token_hex(3)}")
    first = stage.submit("begin(); log('one'); value(1)", name="same")
    assert first.result(LIMIT) == 1
    second = running(stage.submit("begin(); log('two'); wait('go')", name="same", namespace=other))

    assert first.logs(0) == "one"
    ((place, left),) = [(place, left) for place, left in api.leftovers() if left.state]
    place.clear(left)
    assert stage.objects(JOBS) == []
    assert api.snapshot(second.info.address).phase is Phase.RUNNING
    second.delete()


@pytest.fixture
def aged(monkeypatch):
    """Make every Secret count as old enough to have lost its kernel; only a server sets a Secret's age."""
    monkeypatch.setattr(submitter, "HALF_MADE_S", 0.0)


def test_a_name_that_a_job_of_another_kind_has_is_taken(stage, aged):
    job = running(stage.submit(WAIT, name="same", kind="volcano"))
    with pytest.raises(NameTakenError):
        stage.submit("begin(); value(2)", name="same")

    assert "same-claim" in stage.left()
    stage.sign("go")
    assert job.result(LIMIT) == 1


def test_the_secret_of_a_job_that_may_not_be_listed_is_no_orphan(stage, aged):
    stage.become(("list", "pytorchjobs"))
    stage.submit(WAIT, kind="pytorchjob")

    assert api.leftovers() == []


def test_what_cant_be_cleared_keeps_no_other_from_going(stage):
    lost = stage.submit("begin(); tell('ValueReady', rank=0, round=0, ref='log#00', size=5)")
    lost.wait(LIMIT)
    stage.submit("begin(); value(1)").wait(LIMIT)
    answers = {answer.text: answer.good for answer in verbs.gc(ParsedArgs([], {"yes": True}), api.attach)}

    (kept,) = (text for text, good in answers.items() if not good)
    assert kept.startswith(f"{lost.name} wasn't removed: the value of {lost.name} is gone")
    assert [job["metadata"]["name"] for job in stage.objects(JOBS)] == [lost.name]


def test_an_account_without_a_name_finds_its_jobs(stage, monkeypatch):
    for name in ("JUPYTERHUB_USER", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    # As in a container that runs with a user id of the cluster's choice; this account can't lose its name.
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    job = stage.submit("begin(); value(1)")

    assert [state.info.name for state in backend("kubernetes").jobs()] == [job.name]
