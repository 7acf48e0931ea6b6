"""The table of an account's rights is exact: it lacks no request's right, and each right is used."""

import pytest

from nbtorchjob import api
from nbtorchjob.backends.kubernetes import namespaces
from nbtorchjob.backends.kubernetes.api import reflector
from nbtorchjob.backends.kubernetes.doctor import server
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import (
    KUEUE,
    POD_GROUPS,
    POLICIES,
    SECRETS,
    VISIBILITY,
    Right,
)
from nbtorchjob.backends.kubernetes.submit import submitter
from nbtorchjob.backends.talk import STARTING
from nbtorchjob.capture.identity import user
from nbtorchjob.errors import ClusterError, ResultError, SubmitError
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import CleanPodPolicy, Retry, RunPolicy
from nbtorchjob.state import JobInfo, Phase
from nbtorchjob.ui.card import render
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.cluster.refusals import Refusal
from tests.backends.kubernetes.stage import running, until
from tests.patience import LIMIT

PART = """
begin()
log('here')
if not (SIGNS / "failed").exists():
    sign("failed")
    fail(recoverable=True)
wait("go")
value(1)
"""


_SPECS = {"Service": {"spec": {"clusterIP": "None"}}}


def is_anothers(stage, namespace):
    """Return whether the namespace is another test's."""
    return namespace.startswith("stage-") and namespace != stage.namespace


def used(stage, name):
    """Return the rights that a user's requests needed: those in the stage's namespace, and others."""
    rights: tuple[set[Right], set[Right]] = (set(), set())
    # A follower of an earlier test's job may still run, by now as this user.
    attempts = [
        attempt for attempt in stage.cluster.attempts(name) if not is_anothers(stage, attempt.namespace)
    ]
    for attempt in attempts:
        assert attempt.namespace in ("", stage.namespace)
        rights[not attempt.namespace].add(Right(attempt.verb, attempt.group, attempt.resource))
    return rights


def lose_answers(stage, name):
    """Lose the server's answer to the first creation of each kind of object that is made beside a job."""

    def cut():
        raise Refusal(500, "the connection to etcd was lost")

    for plural in ("services", "networkpolicies"):
        stage.cluster.meanwhile("POST", f"{stage.namespace}/{plural}$", cut, user=name, after=True)


def leave(stage, apis):
    """Create the objects that a deleted job leaves if it was exported: they have no owner."""
    for api_ in apis:
        meta = {"name": "left", "labels": labelling.labels(JobInfo("left", "kubernetes"), user())}
        body = {
            "apiVersion": api_.group_version,
            "kind": api_.kind,
            "metadata": meta,
            **_SPECS.get(api_.kind, {}),
        }
        root = f"apis/{api_.group_version}" if api_.group else "api/v1"
        stage.cluster.request("POST", f"/{root}/namespaces/{stage.namespace}/{api_.plural}", body)


@pytest.mark.parametrize("kind", KINDS)
def test_a_jobs_whole_life_takes_exactly_what_its_role_has(stage, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(submitter, "HALF_MADE_S", 0.0)  # ages come from the server's clock
    options = {
        "launch": Elastic(run_policy=RunPolicy(CleanPodPolicy.ALL)),
        "retry": Retry(retries=1, backoff=0),
        "network_policy": True,
        "kind": kind,
    }
    allowed = server.needed_rights(KINDS[kind], stage.spec(**options))
    if "clean pods" in KINDS[kind].can:
        assert Right("delete", "", "pods") not in allowed
    name = stage.be([*allowed, *server.EVENTS, *server.ASKING])
    lose_answers(stage, name)

    assert all(finding.good for finding in api.doctor(stage.spec(**options)))
    job = running(stage.submit(PART, **options))
    until(lambda: len(job.state.attempts) == 2 and job.state.phase is Phase.RUNNING)
    (answer,) = cluster_backend().ask(job.name, {"question": "nothing"})
    assert answer.trouble == STARTING
    attached = api.attach(job.name)
    attached.suspend()
    until(lambda: job.state.suspended)
    attached.resume()
    stage.sign("go")
    assert job.result(LIMIT) == 1
    assert "here" in attached.logs()

    (stage.signs / "go").unlink()
    again = running(job.retry())
    again.cancel()
    assert again.wait(LIMIT)
    again.export(tmp_path / "exported")
    job.delete()
    apis = [SECRETS, POLICIES, *{use.api for use in KINDS[kind].uses if use.verbs == "delete"}]
    leave(stage, apis)
    left = api.leftovers()
    assert len(left) == 1 + len(apis)
    for on, leftover in left:
        on.clear(leftover)
    assert not stage.left()

    inside, outside = used(stage, name)
    others = {Right("list", kind.api.group, kind.api.plural) for kind in KINDS.values()} - {*allowed}
    better = {*server.rights((*server.OPTIONAL, *server.BEATS))} - {*allowed}
    assert inside - better - others == {*allowed}
    assert {*server.EVENTS, *server.ASKING} <= inside
    assert {Right("list", adopted.group, adopted.plural) for adopted, _ in KINDS[kind].adopts} <= inside
    assert outside <= {*server.rights(server.CLUSTERWIDE)}


def test_what_only_makes_answers_better_is_all_that_is_asked_for_beside(stage):
    name = stage.be([])
    more = {
        "mount": ["type=volume,src=data,dst=/data"],
        "preemptible": True,
        "spot_selector": {"spot": "true"},
    }
    for kind in KINDS:
        high = {"priority_class": "high"} if "priority class" in KINDS[kind].can else {}
        spec = stage.spec(kind=kind, **more, **high)
        api.doctor(spec)
    cluster_backend().choices(spec)

    inside, outside = used(stage, name)
    # Rights used only with queues or groups (`some`), or only while a job exists.
    some = {
        right
        for use in (*server.OPTIONAL, *server.CLUSTERWIDE)
        if use.api.group in (KUEUE, VISIBILITY) or use.api == POD_GROUPS
        for right in use.rights
    }
    later = {*server.EVENTS, *server.ASKING, *some, *server.rights(server.ADOPTED)}
    assert inside == {*server.rights(server.OPTIONAL)} - later
    # Only users who may list nodes ask for the free resources; only a job's follower gets its node.
    host_rights = {Right("list", "", "pods"), Right("get", "", "nodes")}
    assert outside == {*server.rights(server.CLUSTERWIDE)} - host_rights - some


@pytest.mark.parametrize(
    ("verb", "plural"),
    [("create", "secrets"), ("create", "jobs"), ("patch", "secrets"), ("create", "services")],
)
def test_what_may_not_be_done_to_submit_is_named_with_what_to_ask_for(stage, verb, plural):
    user = stage.become((verb, plural))
    error = stage.refused(SubmitError)

    group = "batch" if plural == "jobs" else ""
    kind = f"{plural}.{group}" if group else plural
    assert f'user "{user}" may not {verb} {kind} in namespace "{stage.namespace}"' in str(error)
    assert "ask an administrator for a RoleBinding" in str(error)
    assert f'apiGroups: ["{group}"]\n  resources: ["{plural}"]\n  verbs: ["{verb}"]' in error.grant
    assert f'name: "{user}"' in error.grant
    drawn = "\n".join(error._render_traceback_())
    assert str(error) in drawn
    assert error.grant.strip() in drawn


@pytest.mark.parametrize("plurals", [("jobs", "pytorchjobs", "trainjobs"), ("pods",)])
def test_what_may_not_be_read_to_follow_is_named(stage, plurals):
    job = stage.submit("begin()\nvalue(1)")
    stage.become(*(("list", plural) for plural in plurals))

    with pytest.raises(ClusterError, match=r"may not list .* ask an administrator for a RoleBinding"):
        job.result(LIMIT)
    with pytest.raises(ClusterError, match="may not list"):
        api.attach(job.name).result(LIMIT)
    with pytest.warns(UserWarning, match=f"jobs in {stage.namespace} can't be listed: .* may not list"):
        assert api.jobs() == []


def test_a_job_is_followed_without_permission_to_watch_or_to_read_events(stage, monkeypatch):
    # The default is five seconds, and no setting changes it.
    monkeypatch.setattr(reflector, "PACE", reflector.Pace(poll=0.2))
    stage.become(("watch", "pods"), ("watch", "jobs"), ("list", "events"), ("watch", "events"))
    job = stage.submit("begin()\nvalue(1)")

    assert job.result(LIMIT) == 1


def test_pods_that_no_list_has_shown_yet_are_looked_for_before_a_success_is_concluded(stage, monkeypatch):
    monkeypatch.setattr(reflector, "PACE", reflector.Pace(poll=2 * LIMIT))
    stage.become(("watch", "pods"))
    job = stage.submit("begin()\nvalue(1)")

    assert job.result(LIMIT) == 1


def test_without_permission_to_exec_all_else_is_done_and_the_doctor_names_the_rule(stage):
    stage.become()
    (finding,) = [finding for finding in api.doctor(stage.spec()) if "exec in pods" in finding.text]

    assert finding.good
    assert 'resources: ["pods/exec"]\n  verbs: ["get", "create"]' in finding.remedy
    assert stage.submit("begin()\nvalue(1)").result(LIMIT) == 1


def test_without_permission_to_read_logs_that_is_said(stage):
    stage.become(("get", "pods/log"))
    job = stage.submit("begin()\nvalue(1)")
    job.wait(LIMIT)

    assert "the rest of node 0's log can't be read" in render.text(job.state, 0.0)
    assert "may not get pods/log" in render.text(job.state, 0.0)
    with pytest.raises(ResultError):
        job.result(LIMIT)


def test_without_permission_for_other_kinds_ones_own_are_found(stage):
    stage.become(("list", "pytorchjobs"), ("list", "trainjobs"))
    job = stage.submit("begin()\nvalue(1)")

    assert job.result(LIMIT) == 1
    assert [state.info.name for state in api.jobs()] == [job.name]


@pytest.mark.parametrize(("verb", "act"), [("patch", "cancel"), ("patch", "suspend"), ("delete", "delete")])
def test_what_may_not_be_done_to_a_job_is_named_with_what_to_ask_for(stage, verb, act):
    stage.become((verb, "jobs"))
    job = stage.submit("begin()\nlog('here')\nwait('go')\nvalue(1)")
    until(lambda: 0 in job.state.logs)
    with pytest.raises(ClusterError, match=f"may not {verb} jobs.batch") as refused:
        getattr(job, act)()
    assert f'verbs: ["{verb}"]' in refused.value.grant

    stage.sign("go")
    assert job.result(LIMIT) == 1
    stage.delete("apis/batch/v1/{}/jobs", job.name)
    until(lambda: not stage.left())
    assert job.logs(0) == "here"  # this machine has kept it all the time


def test_a_cluster_of_long_ago_hides_no_other_one(stage):
    namespaces.remember(namespaces.Scope("long-gone", "team"))
    job = stage.submit("begin()\nvalue(1)")
    job.wait(LIMIT)

    for ask in (api.jobs, api.leftovers):
        with pytest.warns(UserWarning, match=r"jobs in team can't be listed: .*long-gone"):
            assert len(ask()) == 1
    assert api.attach(job.name).result(LIMIT) == 1
    with pytest.raises(ClusterError, match="long-gone"):  # the job may be on that cluster
        api.attach("another-job")
