"""The doctor's findings on a cluster that has everything, and on clusters that lack something."""

import asyncio
import os
from dataclasses import replace

import pytest
import yaml

from nbtorchjob.backends.kubernetes import doctor
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.doctor.server import chosen
from nbtorchjob.backends.kubernetes.doctor.server import needed_rights as needed
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects.reading import (
    CLAIMS,
    CLUSTER_RUNTIMES,
    HOSTS,
    PRIORITIES,
    QUEUES,
    SECRETS,
    Target,
)
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import CleanPodPolicy, Retry, RunPolicy
from nbtorchjob.ui import elements
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.scripted import Reply, kubeconfig, scripted, status

FORBIDDEN = 'namespaces is forbidden: User "ada" cannot list resource "namespaces" in API group ""'


def spec(launch=None, **settings):
    return JobSpec(
        launch=launch or Elastic(), backend="kubernetes", cluster=Cluster(**{"image": "torch:1", **settings})
    )


@pytest.fixture
def examine(monkeypatch):
    """Return a function that runs the doctor with a kubeconfig."""

    def work(config, job_spec=None):
        monkeypatch.setenv("KUBECONFIG", str(config))
        return asyncio.run(asked(job_spec or spec()))

    return work


async def asked(wanted):
    try:
        return await doctor.look(wanted)
    finally:
        await (await session(wanted.cluster.context)).client.close()


def bad(findings):
    return [finding.text for finding in findings if not finding.good]


def one(findings, start):
    (finding,) = [finding for finding in findings if finding.text.startswith(start)]
    return finding


def make(emulator, api, namespace, name, **body):
    """Create an object as the administrator."""

    async def work():
        client = Client()
        try:
            manifest = {"apiVersion": api.group_version, "kind": api.kind, "metadata": {"name": name}, **body}
            return await client.create(api, namespace, manifest)
        finally:
            await client.close()

    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(emulator.kubeconfig)
    try:
        return asyncio.run(work())
    finally:
        os.environ.pop("KUBECONFIG") if before is None else os.environ.update(KUBECONFIG=before)


def rules(remedy):
    role, binding = yaml.safe_load_all(remedy)
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    return role, binding


def test_where_nothing_is_missing_all_is_good_and_nothing_is_to_be_done(emulator, examine):
    findings = examine(emulator.kubeconfig)

    assert bad(findings) == []
    assert not any(finding.remedy for finding in findings)
    assert emulator.url in findings[0].text
    assert one(findings, "the job would be").text == "the job would be a PyTorchJob (--kind pytorchjob)"


def test_nothing_is_left_on_the_cluster(emulator, examine):
    examine(emulator.kubeconfig)

    changing = {path for method, path in emulator.requests if method != "GET"}
    assert {path.rpartition("/")[2] for path in changing} <= {
        "selfsubjectaccessreviews",
        "selfsubjectreviews",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_a_whole_cluster_is_fit(emulator, examine, kind):
    assert bad(examine(emulator.kubeconfig, spec(kind=kind))) == []


def test_it_says_what_the_image_must_have(emulator, examine):
    text = examine(emulator.kubeconfig)[-1].text

    assert text.startswith("the image torch:1 needs Python and torch 2.")


def test_without_a_kubeconfig_the_rest_is_left_out_in_one_line(examine, tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    findings = examine(tmp_path / "absent")

    wrong, left_out = bad(findings)
    assert "absent" in wrong
    assert "not checked" in left_out
    assert findings[-1].text.startswith("the image")


def test_a_server_that_does_not_answer_is_named(examine, tmp_path):
    findings = examine(kubeconfig(tmp_path / "config", "http://127.0.0.1:1", token="t"))

    assert "http://127.0.0.1:1 doesn't answer" in bad(findings)[0]


def test_credentials_that_have_expired_are_told(emulator, examine):
    config = emulator.user("ada")
    emulator.expire_tokens("ada")

    assert "credentials" in bad(examine(config))[0]


def test_missing_permissions_become_one_role_that_is_enough(emulator, examine):
    config = emulator.user("ada")

    refused = one(examine(config), "not permitted: ")
    assert f"\n{refused.remedy}\n" in elements.finding_lines([refused])  # ready to paste
    role, binding = rules(refused.remedy)
    emulator.allow("ada", role["metadata"]["namespace"], role["rules"])
    findings = examine(config)

    assert binding["subjects"][0]["name"] == "ada"
    assert bad(findings) == []
    assert one(findings, "all ").good


def test_only_what_is_missing_is_asked_for(emulator, examine):
    rights = [right for right in needed(KINDS["pytorchjob"]) if right.verb != "patch"]
    rules = [{"apiGroups": [g], "resources": [r], "verbs": [v]} for v, g, r in rights]
    emulator.allow("ada", "default", rules)

    finding = one(examine(emulator.user("ada")), "not permitted: ")

    assert finding.text.startswith("not permitted: patch pytorchjobs.kubeflow.org; patch secrets; an ")


def test_events_that_may_not_be_read_only_hide_why_a_pod_waits(emulator, examine):
    emulator.allow(
        "ada",
        "default",
        [{"apiGroups": [g], "resources": [r], "verbs": [v]} for v, g, r in needed(KINDS["pytorchjob"])],
    )

    findings = examine(emulator.user("ada"))

    events = one(findings, "reading events")
    assert bad(findings) == []
    assert {resource for rule in rules(events.remedy)[0]["rules"] for resource in rule["resources"]} == {
        "events"
    }


def test_a_namespace_that_does_not_exist_is_told_with_how_to_make_it(emulator, examine):
    findings = examine(emulator.kubeconfig, spec(namespace="elsewhere"))

    missing = one(findings, "the namespace elsewhere")
    assert not missing.good
    assert missing.remedy == "kubectl create namespace elsewhere"
    assert len(bad(findings)) == 2


def test_a_kind_that_is_not_installed_matters_only_where_it_is_wanted(crds, examine):
    with Emulator(kinds=["indexedjob"]) as emulator:
        default_findings = examine(emulator.kubeconfig)
        volcano_findings = examine(emulator.kubeconfig, spec(kind="volcano"))

    assert bad(default_findings) == []
    assert one(default_findings, "the job would be").text.endswith("(--kind indexedjob)")
    assert "Volcano 1.15" in one(default_findings, "volcano: ").text
    missing = one(volcano_findings, "volcano: ")
    assert not missing.good
    assert missing.remedy.startswith("helm repo add volcano-sh ")
    assert any("indexedjob needs nothing installed" in text for text in bad(volcano_findings))


def test_a_kind_that_can_not_do_the_job_says_why(emulator, examine):
    findings = examine(emulator.kubeconfig, spec(Elastic(nnodes="1:2"), kind="trainjob"))

    assert "can't do this job: nnodes" in one(findings, "trainjob: ").text
    assert "what only some kinds of job need" in bad(findings)[-1]


def test_names_that_lead_nowhere_are_found_all_at_once(emulator, examine):
    job_spec = spec(
        service_account="trainer",
        priority_class="urgent",
        image_pull_secret=["registry"],
        mount=["type=volume,src=data,dst=/data"],
    )

    texts = bad(examine(emulator.kubeconfig, job_spec))

    assert [text.partition(" doesn't exist")[0] for text in texts] == [
        "service account trainer",
        "priority class urgent",
        "image pull secret registry",
        "claim data",
    ]


def test_names_that_are_there_are_good(emulator, examine):
    make(emulator, PRIORITIES, None, "urgent", value=1)
    make(emulator, SECRETS, "default", "registry")
    make(emulator, CLAIMS, "default", "data", spec={"accessModes": ["ReadWriteMany"]})
    job_spec = spec(
        Elastic(nnodes=2),
        priority_class="urgent",
        image_pull_secret=["registry"],
        mount=["type=volume,src=data,dst=/data"],
    )

    assert bad(examine(emulator.kubeconfig, job_spec)) == []


def test_a_claim_for_one_host_is_told_to_a_job_of_several_nodes(emulator, examine):
    make(emulator, CLAIMS, "default", "data", spec={"accessModes": ["ReadWriteOnce"]})
    mount = ["type=volume,src=data,dst=/data"]

    alone = bad(examine(emulator.kubeconfig, spec(mount=mount)))
    (several,) = bad(examine(emulator.kubeconfig, spec(Elastic(nnodes=2), mount=mount)))

    assert alone == []
    assert several.startswith("claim data is ReadWriteOnce")


def test_a_queue_must_exist_and_be_open(emulator, examine):
    make(emulator, QUEUES, None, "night", spec={"weight": 1})
    path = Target(QUEUES, None, "night", "status").path
    emulator.request("PATCH", path, {"status": {"state": "Closed"}})

    (closed,) = bad(examine(emulator.kubeconfig, spec(kind="volcano", queue="night")))
    (missing,) = bad(examine(emulator.kubeconfig, spec(kind="volcano", queue="day")))

    assert closed.startswith("queue night is Closed")
    assert missing.startswith("queue day doesn't exist")


ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
STEPS = ("dataset-initializer", "model-initializer")


def test_a_runtime_must_exist_and_be_made_for_torch(emulator, examine):
    make(
        emulator,
        CLUSTER_RUNTIMES,
        None,
        "trees",
        metadata={"name": "trees", "labels": {"trainer.kubeflow.org/framework": "xgboost"}},
        spec={
            "mlPolicy": {"numNodes": 2, "xgboost": {}},
            "template": {
                "spec": {
                    "replicatedJobs": [
                        *(
                            {"name": step, "template": {"metadata": {"labels": {ANCESTOR: step}}}}
                            for step in STEPS
                        ),
                        {"name": "node", "template": {}},
                    ],
                    "failurePolicy": {"maxRestarts": 3, "restartStrategy": "InPlaceRestart"},
                }
            },
        },
    )

    trees = examine(emulator.kubeconfig, spec(kind="trainjob", runtime="trees"))
    (other,) = bad(trees)
    (missing,) = bad(examine(emulator.kubeconfig, spec(kind="trainjob", runtime="absent")))
    usual = examine(emulator.kubeconfig, spec(kind="trainjob"))

    assert other.startswith("runtime trees is for xgboost, not for torch")
    assert "torch-distributed, trees" in missing
    assert one(usual, "runtime torch-distributed").good
    listed = "torch-distributed (torch, 1 node, localhost/torch:1); trees (xgboost, 2 nodes)"
    assert one(usual, "available runtimes").text == f"available runtimes: {listed}"
    assert "by itself, up to 3 times in place" in one(trees, "mind: runtime trees").text
    assert not any("mind: runtime" in finding.text for finding in usual)
    assert not any("initializer" in finding.text for finding in trees)

    job_spec = replace(spec(kind="trainjob", runtime="trees"), data={"words": "pvc://corpus/en"})
    assert one(examine(emulator.kubeconfig, job_spec), "runtime trees has").text == (
        "runtime trees has a dataset-initializer and a model-initializer, which --data leaves out: "
        "each node fetches what it lacks by itself"
    )


def test_a_quota_is_held_against_all_that_the_job_asks_for(emulator, examine):
    endless = {"count/configmaps": str(2**63 - 1)}
    emulator.quota("default", **{"pods": "3", "requests.cpu": "4", "limits.memory": "8Gi"}, **endless)
    fits, big, unstated = (
        examine(emulator.kubeconfig, spec(Elastic(nnodes=2), full_requests=True, **amounts))
        for amounts in ({"cpu": 2, "memory": "2Gi"}, {"cpu": 3, "memory": "6Gi"}, {"memory": "2Gi"})
    )

    assert one(fits, "quota team").text == (
        "quota team has room for the job: 2 of 3 pods, 4 of 4 requests.cpu, 4 GiB of 8 GiB limits.memory"
    )
    assert one(big, "quota team").text == (
        "quota team: the job requests 6 requests.cpu, but 4 is left; "
        "the job requests 12 GiB limits.memory, but 8 GiB is left"
    )
    assert "requests.cpu must be set: use --cpu" in one(unstated, "quota team").text


@pytest.mark.parametrize(
    ("hard", "text"),
    [
        ({"count/jobs.batch": "0"}, "the job requests 1 count/jobs.batch, but 0 is left"),
        ({"secrets": "1"}, "the job requests 2 secrets, but 1 is left"),
        ({"count/services": "0"}, "the job requests 1 count/services, but 0 is left"),
    ],
)
def test_a_quota_is_held_against_the_objects_that_a_job_consists_of(emulator, examine, hard, text):
    emulator.quota("default", **hard)
    finding = one(examine(emulator.kubeconfig, spec(kind="indexedjob")), "quota team")

    assert (finding.good, finding.text) == (False, f"quota team: {text}")


def test_what_a_quota_has_none_left_of_is_named_if_it_is_not_checked(emulator, examine):
    emulator.quota("default", **{"pods": "3", "count/configmaps": "0"})
    finding = one(examine(emulator.kubeconfig, spec()), "quota team")

    assert finding.text == (
        "quota team has room for the job: 1 of 3 pods; "
        "nothing is left of count/configmaps, which wasn't checked"
    )


def test_a_store_is_tried_and_left_empty(emulator, examine, tmp_path):
    store = tmp_path / "store"
    store.mkdir()

    good, absent, unknown = (
        examine(emulator.kubeconfig, spec(storage=url))
        for url in (str(store), str(tmp_path / "absent"), "nosuch://bucket/jobs")
    )

    assert one(good, str(store)).good
    assert list(store.iterdir()) == []
    assert "isn't a folder on this machine" in bad(absent)[0]
    assert not (tmp_path / "absent").exists()
    assert "nosuch" in bad(unknown)[0]


def test_a_store_of_checkpoints_is_tried_too(emulator, examine):
    good, unknown = (
        examine(emulator.kubeconfig, spec(checkpoints=url)) for url in ("memory://kept", "nosuch://kept")
    )

    assert one(good, "memory://kept").good
    assert "nosuch" in bad(unknown)[0]


@pytest.mark.parametrize(
    ("kind", "budgets", "text"),
    [
        ("indexedjob", Retry(3), "natively: backoffLimitPerIndex"),
        (
            "indexedjob",
            Retry(3, preemptions=2),
            "by us: a session that follows the job, or a tender, creates a job object",
        ),
        ("trainjob", Retry(3), "needs permission to create trainjobs.trainer.kubeflow.org"),
    ],
)
def test_it_says_who_keeps_the_budgets(emulator, examine, kind, budgets, text):
    findings = examine(emulator.kubeconfig, replace(spec(kind=kind), retry=budgets))

    assert bad(findings) == []
    assert text in one(findings, "retries and preemptions: ").text


def test_of_a_job_without_budgets_nothing_is_said_of_them(emulator, examine):
    assert not [f for f in examine(emulator.kubeconfig) if "preemptions" in f.text]


def test_cautions_are_those_of_the_servers_version():
    served = {KINDS["indexedjob"].api[:3]}
    job_spec = replace(spec(Elastic(run_policy=RunPolicy(ttl_seconds_after_finished=60))), retry=Retry(3))

    old, new = ([f.text for f in chosen(served, minor, job_spec)[1]] for minor in (25, 36))

    assert any(
        text.startswith("mind: ttl_seconds_after_finished needs a session that follows") for text in old
    )
    assert not any("ttl_seconds_after_finished" in text for text in new)


def test_pods_that_we_remove_take_a_permission_more(emulator, examine):
    rights = [{"apiGroups": [g], "resources": [r], "verbs": [v]} for v, g, r in needed(KINDS["trainjob"])]
    emulator.allow("ada", "default", rights)

    findings = examine(
        emulator.user("ada"), spec(Elastic(run_policy=RunPolicy(CleanPodPolicy.ALL)), kind="trainjob")
    )

    assert one(findings, "not permitted: ").text.startswith("not permitted: delete pods; ")


def test_preemptible_hosts_are_counted(emulator, examine):
    make(emulator, HOSTS, None, "cheap", metadata={"name": "cheap", "labels": {"spot": "true"}})
    emulator.allow("ada", "default", [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])
    hit, miss = (spec(preemptible=True, spot_selector={"spot": value}) for value in ("true", "yes"))

    assert one(examine(emulator.kubeconfig, hit), "preemptible").text.endswith("(spot=true): 1 now")
    assert "none now" in bad(examine(emulator.kubeconfig, miss))[0]
    assert "isn't permitted" in one(examine(emulator.user("ada"), hit), "preemptible").text


async def look(server):
    """Run the doctor on a scripted server, which scripts only the relevant answers."""
    server.on("/version", Reply(body={"major": "1", "minor": "36", "gitVersion": "v1.36.2"}))
    return await asked(spec())


@scripted
async def test_the_server_says_who_we_are(server, client):
    who = {"status": {"userInfo": {"username": "system:serviceaccount:ml:notebook"}}}
    server.on("/apis/authentication.k8s.io/v1/selfsubjectreviews", Reply(201, who))

    assert one(await look(server), "you are").text == "you are system:serviceaccount:ml:notebook"


@scripted
async def test_an_older_server_says_it_when_it_refuses(server, client):
    server.on("/api/v1/namespaces", status(403, FORBIDDEN, "Forbidden"))

    assert one(await look(server), "you are").text == "you are ada"


@scripted
async def test_a_namespace_that_goes_away_is_no_place_for_a_job(server, client):
    namespace = {"metadata": {"name": "main-ns"}, "status": {"phase": "Terminating"}}
    server.on("/api/v1/namespaces/main-ns", Reply(body=namespace))

    assert "is being deleted" in one(await look(server), "the namespace main-ns").text


@scripted
async def test_another_version_of_a_kind_is_named(server, client):
    groups = {"groups": [{"name": "kubeflow.org", "versions": [{"version": "v2"}]}], "kind": "APIGroupList"}
    server.on("/apis", Reply(body=groups))
    server.on("/apis/kubeflow.org/v2", Reply(body={"resources": [{"name": "pytorchjobs"}]}))

    finding = one(await look(server), "pytorchjob: ")

    assert "served only in v2" in finding.text
    assert "training-operator.git" in finding.remedy


@scripted
async def test_one_check_that_fails_does_not_hide_the_others(server, client):
    server.on("/api/v1/namespaces/main-ns", Reply(body={"metadata": {"name": "main-ns"}}))
    server.on("/api/v1/namespaces/main-ns/serviceaccounts/default", Reply(418, b"short and stout"))

    findings = await look(server)

    assert any("short and stout" in text for text in bad(findings))
    assert findings[-1].text.startswith("the image")


def test_it_says_whether_any_host_could_hold_a_pod(emulator, examine):
    job_spec = spec(gpu=1)
    room = one(
        examine(emulator.kubeconfig, job_spec), "no host could hold a pod: none has any nvidia.com/gpu"
    )
    assert not room.good

    assert one(examine(emulator.kubeconfig), "1 of 1 host can hold a pod").good
    assert one(examine(emulator.user("ada"), job_spec), "can't check whether any host has room").good
