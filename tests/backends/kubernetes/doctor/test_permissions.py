"""Who may not do something is told what, and what to ask an administrator for."""

import pytest

from nbtorchjob import api
from nbtorchjob.backends.kubernetes import namespaces
from nbtorchjob.backends.kubernetes.api import reflector
from nbtorchjob.errors import ClusterError, ResultError, SubmitError
from nbtorchjob.ui.card import render
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT


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
    # Five seconds else, and nothing that a user could set.
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
    (finding,) = [each for each in api.doctor(stage.spec()) if "exec in pods" in each.text]

    assert finding.good
    assert 'resources: ["pods/exec"]\n  verbs: ["get", "create"]' in finding.remedy
    assert stage.submit("begin()\nvalue(1)").result(LIMIT) == 1


def test_without_permission_to_read_logs_that_is_said(stage):
    stage.become(("get", "pods/log"))
    job = stage.submit("begin()\nvalue(1)")
    job.wait(LIMIT)

    assert "the rest of node 0's log can't be had" in render.text(job.state, 0.0)
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
    assert job.logs(0) == "here"  # kept on this machine all the time


def test_a_cluster_of_long_ago_hides_no_other_one(stage):
    namespaces.remember(namespaces.Scope("long-gone", "team"))
    job = stage.submit("begin()\nvalue(1)")
    job.wait(LIMIT)

    for ask in (api.jobs, api.leftovers):
        with pytest.warns(UserWarning, match=r"jobs in team can't be listed: .*long-gone"):
            assert len(ask()) == 1
    assert api.attach(job.name).result(LIMIT) == 1
    with pytest.raises(ClusterError, match="long-gone"):  # it may be there
        api.attach("another-job")
