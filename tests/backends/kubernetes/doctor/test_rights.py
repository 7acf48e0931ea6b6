"""What an account must be permitted is what the table says: no call is missing, no right is for nothing."""

import pytest

from nbtorchjob import api
from nbtorchjob.backends import backend
from nbtorchjob.backends.asking import STARTING
from nbtorchjob.backends.kubernetes.doctor import rights
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.paths import POLICIES, SECRETS
from nbtorchjob.backends.kubernetes.objects.rights import Right
from nbtorchjob.backends.kubernetes.submit import submitter
from nbtorchjob.payload.identity import user
from nbtorchjob.spec.config import CleanPodPolicy, Elastic, RunPolicy
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import JobInfo, Phase
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
    """Whether it is the namespace of another test."""
    return namespace.startswith("stage-") and namespace != stage.namespace


def used(stage, name):
    """Return the rights that a user's requests took: those in the stage's namespace, and others."""
    found: tuple[set[Right], set[Right]] = (set(), set())
    # A test before this one may have left a job that is still followed, by now as this user.
    ours = [one for one in stage.cluster.attempts(name) if not is_anothers(stage, one.namespace)]
    for one in ours:
        assert one.namespace in ("", stage.namespace)
        found[not one.namespace].add(Right(one.verb, one.group, one.resource))
    return found


def lose_answers(stage, name):
    """Have what is made beside a job be made, and the answer to that be lost, once each."""

    def cut():
        raise Refusal(500, "the connection to etcd was lost")

    for plural in ("services", "networkpolicies"):
        stage.cluster.meanwhile("POST", f"{stage.namespace}/{plural}$", cut, user=name, after=True)


def leave(stage, apis):
    """Leave what an exported job had that was deleted: nobody owns it."""
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
    monkeypatch.setattr(submitter, "HALF_MADE_S", 0.0)  # a server says how old things are
    asked = {
        "launch": Elastic(run_policy=RunPolicy(CleanPodPolicy.ALL)),
        "retry": Retry(retries=1, backoff=0),
        "network_policy": True,
        "kind": kind,
    }
    allowed = rights.needed(KINDS[kind], stage.spec(**asked))
    if "clean pods" in KINDS[kind].can:
        assert Right("delete", "", "pods") not in allowed
    name = stage.be([*allowed, *rights.EVENTS, *rights.ASKING])
    lose_answers(stage, name)

    assert all(finding.good for finding in api.doctor(stage.spec(**asked)))
    job = running(stage.submit(PART, **asked))
    until(lambda: len(job.state.attempts) == 2 and job.state.phase is Phase.RUNNING)
    (answer,) = backend("kubernetes").ask(job.name, {"question": "nothing"})
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
    made = [SECRETS, POLICIES, *{use.api for use in KINDS[kind].uses if use.verbs == "delete"}]
    leave(stage, made)
    left = api.leftovers()
    assert len(left) == 1 + len(made)
    for on, each in left:
        on.clear(each)
    assert not stage.left()

    inside, outside = used(stage, name)
    others = {Right("list", each.api.group, each.api.plural) for each in KINDS.values()} - {*allowed}
    better = {*rights.rights((*rights.OPTIONAL, *rights.BEATS))}
    assert inside - better - others == {*allowed}
    assert {*rights.EVENTS, *rights.ASKING} <= inside
    assert outside <= {*rights.rights(rights.CLUSTERWIDE)}


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
    backend("kubernetes").choices(spec)

    inside, outside = used(stage, name)
    # What is used while there is a job, or only where there are queues, or groups.
    later = {*rights.EVENTS, *rights.ASKING, *rights.SOME}
    assert inside == {*rights.rights(rights.OPTIONAL)} - later
    # What is free on hosts is asked by who may list them, how one is by who follows a job on it.
    told = {Right("list", "", "pods"), Right("get", "", "nodes")}
    assert outside == {*rights.rights(rights.CLUSTERWIDE)} - told - {*rights.SOME}
