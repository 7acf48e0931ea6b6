import re
from dataclasses import replace
from pathlib import Path

import pytest

from nbtorchjob.backends.kubernetes import kinds
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.kinds.fit import (
    NEWEST,
    cautions,
    check,
    choose,
    enforced,
    left_to_us,
    own_policies,
    retry_owner,
)
from nbtorchjob.errors import SpecError, SubmitError
from nbtorchjob.spec.cluster import KINDS as NAMES
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, Master, PyTorch, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import CleanPodPolicy, RestartPolicy, Retry, RunPolicy
from tests.backends.kubernetes.cluster import KINDS as PLAYED

IMAGE = Cluster(image="torch:1")
ALL = {(kind.api.group, kind.api.version, kind.api.plural) for kind in KINDS.values()}
POLICY = {
    "deadline": RunPolicy(active_deadline_seconds=60),
    "backoff": RunPolicy(backoff_limit=1),
    "no backoff": RunPolicy(backoff_limit=0),
    "ttl": RunPolicy(ttl_seconds_after_finished=60),
    "clean": RunPolicy(CleanPodPolicy.ALL),
    "clean running": RunPolicy(CleanPodPolicy.RUNNING),
    "deadline and backoff": RunPolicy(active_deadline_seconds=60, backoff_limit=1),
    "keep": RunPolicy(CleanPodPolicy.NONE),
}


def asked(launch=None, policy=None, cluster=IMAGE, **more):
    return JobSpec(launch or Elastic(run_policy=POLICY.get(policy)), cluster=cluster, **more)


def cluster(**fields):
    return Cluster(**{"image": "torch:1", **fields})


def served(*names):
    return {(KINDS[name].api.group, KINDS[name].api.version, KINDS[name].api.plural) for name in names}


EVERY = " ".join(KINDS)
SPOT = {"preemptible": True, "spot_toleration": ["spot"]}
LAST = Retry(3, on_demand_last=True)
# Each spec, and the kinds that can run it.
ASKED = {
    "nothing": (asked(), EVERY),
    "several nodes": (asked(Elastic(2, 2, max_restarts=3)), EVERY),
    "a range": (asked(Elastic("1:2")), "pytorchjob volcano indexedjob"),
    "a range with retries": (asked(Elastic("1:2", run_policy=POLICY["backoff"])), "pytorchjob indexedjob"),
    "a deadline": (asked(policy="deadline"), EVERY),
    "retries": (asked(policy="backoff"), "pytorchjob volcano indexedjob"),
    "no retries": (asked(policy="no backoff"), "pytorchjob volcano indexedjob"),
    "a time to live": (asked(policy="ttl"), EVERY),
    "cleaned pods": (asked(policy="clean"), EVERY),
    "ended pods": (asked(policy="clean running"), EVERY),
    "kept pods": (asked(policy="keep"), EVERY),
    "budgets": (asked(Elastic(2), retry=Retry(3, 2)), EVERY),
    "budgets of a range": (asked(Elastic("1:2"), retry=Retry(3)), "pytorchjob volcano indexedjob"),
    "budgets and a restart policy": (
        asked(PyTorch(worker=Worker(1, restart_policy=RestartPolicy.ON_FAILURE)), retry=Retry(3)),
        "",
    ),
    "budgets and no restart": (
        asked(PyTorch(worker=Worker(1, restart_policy=RestartPolicy.NEVER)), retry=Retry(3)),
        "pytorchjob",
    ),
    "another place at last": (
        asked(Elastic(2), cluster=cluster(**SPOT), retry=LAST),
        EVERY,
    ),
    "another place for a range": (
        asked(Elastic("1:2"), cluster=cluster(**SPOT), retry=LAST),
        "pytorchjob volcano indexedjob",
    ),
    "a range that stays": (asked(Elastic("1:2"), retry=LAST), "pytorchjob volcano indexedjob"),
    "workers alike": (asked(PyTorch(worker=Worker(2))), EVERY),
    "a lone master of its own": (
        asked(PyTorch(Master(image="a"), Worker(0, image="b"))),
        EVERY,
    ),
    "a master of its own": (asked(PyTorch(Master(image="other"), Worker(2))), "pytorchjob"),
    "a big master": (asked(PyTorch(Master(limits={"cpu": "8"}), Worker(2))), "pytorchjob"),
    "a restart policy": (asked(PyTorch(worker=Worker(1, restart_policy=RestartPolicy.NEVER))), "pytorchjob"),
    "a queue": (asked(cluster=cluster(queue="q")), EVERY),
    "a priority": (asked(cluster=cluster(priority_class="high")), "pytorchjob volcano indexedjob"),
    "a workload's priority": (
        asked(cluster=cluster(queue="q", workload_priority="high")),
        "pytorchjob trainjob indexedjob",
    ),
    "a runtime": (asked(cluster=cluster(runtime="torch")), "trainjob"),
    "no image": (asked(cluster=Cluster()), "trainjob"),
    "a scheduler": (
        asked(cluster=cluster(pod_patch={"spec": {"schedulerName": "mine"}})),
        "pytorchjob volcano indexedjob",
    ),
    "a sidecar": (
        asked(cluster=cluster(pod_patch={"spec": {"containers": [{"name": "x"}]}})),
        "pytorchjob volcano indexedjob",
    ),
    "a group": (
        asked(cluster=cluster(pod_patch={"spec": {"securityContext": {"fsGroup": 1}}})),
        EVERY,
    ),
    "a pulled image": (
        asked(cluster=cluster(pod_patch={"spec": {"containers": [{"imagePullPolicy": "Always"}]}})),
        "pytorchjob volcano indexedjob",
    ),
    "many variables": (asked(env={f"A{i}": "" for i in range(121)}), "pytorchjob volcano indexedjob"),
}


def test_each_kind_is_a_module_that_the_setting_names():
    modules = Path(kinds.__file__).parent.glob("*.py")
    defining = {path.stem for path in modules if "\nKIND = Kind(" in path.read_text()}

    assert [kind.name for kind in KINDS.values()] == [*NAMES]
    assert defining == {*NAMES}


def test_the_emulator_plays_each_kind():
    assert {*PLAYED} == {*KINDS}


@pytest.mark.parametrize("what", ASKED)
def test_a_kind_refuses_what_it_cannot_do(what):
    spec, able = ASKED[what]

    refusals = {name: refusal(kind, spec) for name, kind in KINDS.items()}

    assert " ".join(name for name, text in refusals.items() if text is None) == able
    assert "\n" not in "".join(filter(None, refusals.values()))


def refusal(kind, spec, minor=36):
    try:
        check(kind, spec, minor)
    except SpecError as exc:
        return str(exc)
    return None


@pytest.mark.parametrize(
    ("kind", "what", "text"),
    [
        (
            "trainjob",
            "a range",
            "nnodes: got '1:2', but it must be a fixed number for trainjob; "
            "use --kind pytorchjob or volcano or indexedjob",
        ),
        (
            "trainjob",
            "retries",
            "backoff_limit can't be given for trainjob (use --retries instead); "
            "use --kind pytorchjob or volcano or indexedjob",
        ),
        (
            "pytorchjob",
            "budgets and a restart policy",
            "restart_policy can't be given beside retries and preemptions",
        ),
    ],
)
def test_a_refusal_names_the_kinds_that_can(kind, what, text):
    assert refusal(KINDS[kind], ASKED[what][0]) == text


def test_a_cluster_tells_ranks_at_the_deadline():
    asked_for = replace(asked(), launch=Elastic(run_policy=RunPolicy(leave_before=60)))
    assert re.match("leave_before can't be given on a cluster.*--grace", refusal(KINDS["volcano"], asked_for))


@pytest.mark.parametrize("name", ["NBTORCHJOB_NODE", "PET_NNODES", "PET_RDZV_ENDPOINT"])
def test_a_variable_that_leads_the_nodes_is_refused(name):
    assert re.match(
        "env: got .*reserved for the nodes' rendezvous", refusal(KINDS["volcano"], asked(env={name: "1"}))
    )


def test_a_request_above_its_limit_is_refused():
    text = "request: got 'cpu=4', but it must be at most its limit of 2"

    assert refusal(KINDS["volcano"], asked(cluster=cluster(cpu="2", request={"cpu": "4"}))) == text
    assert refusal(
        KINDS["volcano"], asked(PyTorch(Master(requests={"cpu": "4"}), Worker(0)), cluster=cluster(cpu="2"))
    )


def test_an_old_cluster_can_do_less():
    kind = KINDS["indexedjob"]

    assert "needs Kubernetes 1.24, and this is 1.20" in refusal(kind, asked(), 20)
    assert refusal(kind, asked(), 24) is None
    assert refusal(kind, asked(Elastic("1:2")), 30) == (
        "nnodes: got '1:2', but it must be a fixed number for indexedjob before Kubernetes 1.31; "
        "use --kind pytorchjob or volcano"
    )


@pytest.mark.parametrize(
    ("names", "what", "choice"),
    [
        (EVERY, "nothing", "pytorchjob"),
        ("trainjob volcano indexedjob", "nothing", "trainjob"),
        ("trainjob volcano indexedjob", "a range", "volcano"),
        ("trainjob indexedjob", "retries", "indexedjob"),
        ("pytorchjob trainjob", "a runtime", "trainjob"),
    ],
)
def test_the_best_kind_that_is_served_and_able_is_taken(names, what, choice):
    assert choose(served(*names.split()), ASKED[what][0]).name == choice


def test_a_named_kind_is_taken_or_refused():
    assert choose(ALL, asked(cluster=cluster(kind="volcano"))).name == "volcano"
    with pytest.raises(SpecError, match="fixed number"):
        choose(ALL, asked(Elastic("1:2"), cluster=cluster(kind="trainjob")))
    with pytest.raises(SubmitError, match=r"pytorchjobs.kubeflow.org v1 isn't installed; it has indexedjob"):
        choose(served("indexedjob"), asked(cluster=cluster(kind="pytorchjob")))


def test_where_no_kind_can_do_it_each_says_why():
    with pytest.raises(SubmitError) as caught:
        choose(served("indexedjob", "trainjob"), ASKED["a master of its own"][0])

    text = str(caught.value)
    assert "\n" not in text
    assert "pytorchjob: not installed; trainjob: master: got 'another image" in text


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [
        ("pytorchjob", ASKED["nothing"][0], []),
        ("trainjob", ASKED["a time to live"][0], ["gc"]),
        ("indexedjob", ASKED["a queue"][0], ["Kueue"]),
        ("volcano", ASKED["a queue"][0], []),
        ("trainjob", asked(cluster=cluster(workload_priority="high")), ["add --queue"]),
        ("pytorchjob", ASKED["retries"][0], ["fails at that restart"]),
        *(
            (kind, ASKED["cleaned pods"][0], ["gc", "--storage"])
            for kind in ("trainjob", "volcano", "indexedjob")
        ),
        ("pytorchjob", ASKED["cleaned pods"][0], ["--storage"]),
        ("indexedjob", asked(policy="clean", cluster=cluster(storage="s3://a/b")), ["gc"]),
        ("volcano", asked(policy="ttl"), []),
        ("volcano", asked(policy="ttl", retry=Retry(3)), ["owns the later ones", "keep a session attached"]),
        ("volcano", asked(policy="deadline and backoff"), ["starts over"]),
        ("pytorchjob", ASKED["budgets"][0], ["keep a session attached"]),
        ("indexedjob", asked(retry=Retry(3)), []),
        ("indexedjob", asked(Elastic(2), cluster=cluster(gpu=1)), ["placed all at once"]),
        ("volcano", asked(Elastic(2), cluster=cluster(gpu=1)), []),
        ("indexedjob", asked(retry=Retry(3, on_demand_last=True)), ["isn't preemptible"]),
        ("pytorchjob", ASKED["budgets of a range"][0], ["keep a session attached"]),
        ("indexedjob", ASKED["budgets of a range"][0], []),
        ("pytorchjob", asked(Elastic("1:2", run_policy=POLICY["ttl"])), ["gc"]),
        (
            "pytorchjob",
            asked(PyTorch(worker=Worker(1, restart_policy=RestartPolicy.ON_FAILURE))),
            ["forever"],
        ),
    ],
)
def test_a_caution_says_what_is_not_as_one_expects(kind, spec, words):
    notes = [*left_to_us(KINDS[kind], spec), *cautions(KINDS[kind], spec)]

    assert len(notes) == len(words)
    assert all(word in text for word, text in zip(words, notes, strict=True))


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("pytorchjob", {"spec": {"runPolicy": {"suspend": True}}}),
        ("trainjob", {"spec": {"suspend": True}}),
        ("indexedjob", {"spec": {"suspend": True}}),
    ],
)
def test_a_job_is_suspended_by_a_patch_of_its_object(kind, patch):
    assert KINDS[kind].suspended(suspended=True) == patch


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_job_is_suspended_by_a_field_or_by_commands(kind):
    assert bool(kind.suspend) is (kind.commands is None)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_kind_that_has_runtimes_can_be_given_one(kind):
    assert ("runtime" in kind.can) is (kind.runtimes is not None)


ON_SPOT = Cluster(preemptible=True, spot_selector={"spot": "yes"})
UNLIMITED, NO_LOSS, FEW, NOTHING = Retry(3), Retry(3, 0), Retry(3, 2), Retry(0, 0)


def spec(nnodes=2, retry=None, cluster=None, **policy):
    return JobSpec(Elastic(nnodes, run_policy=RunPolicy(**policy)), retry=retry, cluster=cluster or Cluster())


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_keeps_budgets_that_there_are_not(kind):
    assert retry_owner(KINDS[kind], spec(), NEWEST) == ""
    assert "retries" not in enforced(KINDS[kind], spec(), "")


@pytest.mark.parametrize(
    ("kind", "nnodes", "retry", "owner"),
    [
        *(("indexedjob", nnodes, UNLIMITED, "operator") for nnodes in (1, 2, "1:2")),
        *(("indexedjob", 2, retry, owner) for retry, owner in ((FEW, "us"), (NO_LOSS, "us"))),
        *(("indexedjob", "1:2", retry, "us") for retry in (FEW, NO_LOSS, NOTHING)),
        *((kind, 2, NOTHING, "operator") for kind in ("indexedjob", "volcano")),
        *(("pytorchjob", 2, retry, "us") for retry in (UNLIMITED, FEW, NO_LOSS, NOTHING)),
        *(("pytorchjob", "1:2", retry, "us") for retry in (UNLIMITED, FEW, NO_LOSS, NOTHING)),
        *(("trainjob", 2, retry, "us") for retry in (UNLIMITED, FEW, NO_LOSS, NOTHING)),
        *(("volcano", 2, retry, owner) for retry, owner in ((NO_LOSS, "operator"), (FEW, "us"))),
        *(("volcano", "1:2", retry, "us") for retry in (UNLIMITED, FEW, NO_LOSS, NOTHING)),
    ],
)
def test_an_operator_keeps_the_budgets_that_it_can_keep(kind, nnodes, retry, owner):
    assert retry_owner(KINDS[kind], spec(nnodes, retry), NEWEST) == owner


def test_a_master_and_its_workers_are_started_again_by_us():
    jobspec = JobSpec(PyTorch(worker=Worker(1)), retry=UNLIMITED)

    assert retry_owner(KINDS["pytorchjob"], jobspec, NEWEST) == "us"


def test_a_server_that_counts_pods_and_no_attempts_keeps_no_budgets():
    assert [retry_owner(KINDS["indexedjob"], spec(retry=UNLIMITED), minor) for minor in (28, 29)] == [
        "us",
        "operator",
    ]


@pytest.mark.parametrize(("retry", "kind"), [(0, "volcano"), ("unlimited", "indexedjob")])
def test_no_operator_moves_the_last_attempt_elsewhere(retry, kind):
    last = Retry(3, retry, on_demand_last=True)

    assert retry_owner(KINDS[kind], spec(retry=last), NEWEST) == "operator"
    assert retry_owner(KINDS[kind], spec(retry=last, cluster=ON_SPOT), NEWEST) == "us"


TTL, DEADLINE, CLEAN = "ttl_seconds_after_finished", "active_deadline_seconds", "clean_pod_policy"
ENFORCED = {TTL: 60, DEADLINE: 60, CLEAN: "All"}


@pytest.mark.parametrize(
    ("kind", "nnodes", "retry", "left"),
    [
        ("pytorchjob", 2, None, {DEADLINE}),
        ("pytorchjob", "1:2", None, {DEADLINE, TTL}),
        ("pytorchjob", 2, FEW, {DEADLINE, TTL, "retries", "preemptions"}),
        ("pytorchjob", "1:2", FEW, {DEADLINE, TTL, "retries", "preemptions"}),
        ("trainjob", 2, None, {TTL, CLEAN}),
        ("volcano", "1:2", None, {DEADLINE, CLEAN}),
        ("volcano", 2, NO_LOSS, {DEADLINE, CLEAN}),
        ("indexedjob", 2, None, {CLEAN}),
        ("indexedjob", 2, UNLIMITED, {CLEAN}),
        ("indexedjob", 2, FEW, {TTL, DEADLINE, CLEAN, "retries", "preemptions"}),
    ],
)
def test_what_an_operator_does_not_do_is_left_to_us(kind, nnodes, retry, left):
    jobspec = spec(nnodes, retry, **ENFORCED)

    assert own_policies(KINDS[kind], jobspec, retry_owner(KINDS[kind], jobspec, NEWEST)) == left


@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_asked_for_is_left_to_nobody(kind):
    assert own_policies(KINDS[kind], spec(), "") == set()
    assert own_policies(KINDS[kind], spec(**{CLEAN: "Running"}), "") == set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_we_ended_is_removed_by_us(kind):
    assert TTL in own_policies(KINDS[kind], spec(**ENFORCED), "", halted=True)
    assert TTL not in own_policies(KINDS[kind], spec(), "", halted=True)


def test_who_sees_to_a_policy_is_said_with_its_reason():
    policies = enforced(KINDS["volcano"], spec(), "")

    assert policies[DEADLINE].who == "natively and by us"
    assert str(policies[DEADLINE]) == (
        "natively: each pod, counted from its own start; by us: the job: Volcano has none (1.15)"
    )
    assert enforced(KINDS["trainjob"], spec(), "")["backoff_limit"].who == "refused"
