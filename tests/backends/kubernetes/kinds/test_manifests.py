"""Every kind's manifests, as YAML beside this file: ``GOLDEN=write pytest`` writes them anew."""

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kubernetes import client

from nbtorchjob.backends.kubernetes.kinds import KINDS, fit
from nbtorchjob.backends.kubernetes.kinds.fit import retry_owner
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects import submission as network_policy
from nbtorchjob.backends.kubernetes.objects.submission import Runtime, Submission
from nbtorchjob.backends.kubernetes.payload import package
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, Master, PyTorch, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import CleanPodPolicy, RestartPolicy, Retry, RunPolicy
from nbtorchjob.state import JobInfo

GOLDEN = Path(__file__).parent / "golden"
CRDS = Path(__file__).parents[5] / "shared" / "crds"
CRD = {
    "pytorchjob": "kubeflow.org_pytorchjobs.yaml",
    "trainjob": "trainer.kubeflow.org_trainjobs.yaml",
    "volcano": "batch.volcano.sh_jobs.yaml",
}
IMAGE = Cluster(image="example.com/torch:2.13")
EVERYTHING = Cluster(
    image="example.com/torch:2.13",
    cpu="8",
    memory="32Gi",
    gpu=4,
    device={"vpc.amazonaws.com/efa": "1"},
    limit={"ephemeral-storage": "100Gi"},
    shm="16Gi",
    queue="research",
    service_account="trainer",
    image_pull_secret=("registry",),
    node_selector={"node.kubernetes.io/instance-type": "p4d.24xlarge"},
    toleration=("nvidia.com/gpu:NoSchedule", "team=vision:NoExecute", "spot"),
    label={"team": "vision"},
    annotation={"example.com/note": "costs: $5"},
    mount=(
        "type=volume,src=data,dst=/data,readonly",
        "type=bind,src=/scratch,dst=/scratch",
        "type=device,src=/dev/infiniband/uverbs0",
    ),
    storage="s3://bucket/jobs",
    pod_patch="""
        metadata: {annotations: {example.com/patched: "yes"}}
        spec:
          securityContext: {fsGroup: 100}
          tolerations: [{key: late, operator: Exists}]
          containers: [{env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}]
    """,
)
FIXED = JobSpec(Elastic(2, 2), cluster=IMAGE)
ELASTIC = JobSpec(Elastic("2:4", 8, max_restarts=3), cluster=IMAGE)
ALIKE = JobSpec(PyTorch(worker=Worker(2)), cluster=IMAGE)
ENV = {"MODE": "fast", "COST": "$5 and $(HOME)"}


def everything(cluster=EVERYTHING, **policy):
    return JobSpec(Elastic(2, 4, run_policy=RunPolicy(**policy)), cluster=cluster, env=ENV)


def with_priority(cluster):
    return Cluster(**{**vars(cluster), "priority_class": "high"})


def with_workload_priority(cluster):
    return Cluster(**{**vars(cluster), "workload_priority": "urgent"})


def retrying(launch):
    return JobSpec(launch(run_policy=RunPolicy(backoff_limit=2)), cluster=IMAGE)


SPOT = Cluster(
    image="example.com/torch:2.13",
    toleration=("spot",),
    preemptible=True,
    spot_selector={"cloud.example.com/spot": "true"},
    spot_toleration=("spot", "cloud.example.com/spot=true:NoSchedule"),
    mount=("type=volume,src=work,dst=/work",),
    checkpoints="/work/checkpoints/",
)
BOUNDED = RunPolicy(ttl_seconds_after_finished=600, active_deadline_seconds=3600)


def budgets(nnodes, *retry, cluster=IMAGE, **more):
    return JobSpec(Elastic(nnodes, run_policy=BOUNDED), cluster=cluster, retry=Retry(*retry, **more))


LAST = budgets(2, 3, 2, cluster=SPOT, on_demand_last=True)
CASES = {
    "pytorchjob-single": JobSpec(cluster=IMAGE),
    "pytorchjob-fixed": FIXED,
    "pytorchjob-elastic": ELASTIC,
    "pytorchjob-master-alone": JobSpec(PyTorch(worker=Worker(0)), cluster=IMAGE),
    "pytorchjob-roles": JobSpec(
        PyTorch(
            Master(
                limits={"cpu": "2", "memory": "4Gi"},
                requests={"cpu": "1"},
                restart_policy=RestartPolicy.ON_FAILURE,
            ),
            Worker(2, image="example.com/worker:1", limits={"nvidia.com/gpu": "1"}),
            RunPolicy(CleanPodPolicy.RUNNING, backoff_limit=3),
        ),
        cluster=IMAGE,
    ),
    "pytorchjob-retries": retrying(lambda run_policy: Elastic(2, run_policy=run_policy)),
    "pytorchjob-everything": everything(
        with_workload_priority(with_priority(EVERYTHING)),
        clean_pod_policy="All",
        ttl_seconds_after_finished=600,
        active_deadline_seconds=3600,
        backoff_limit=0,
    ),
    "pytorchjob-budgets": LAST,
    "pytorchjob-budgets-elastic": budgets("2:4", 3, 2),
    "pytorchjob-attempt-2": replace(LAST, launch=replace(LAST.launch, nnodes="1:2")),
    "trainjob-single": JobSpec(),
    "trainjob-attempt-2": LAST,
    "trainjob-fixed": FIXED,
    "trainjob-master-worker": ALIKE,
    "trainjob-everything": everything(with_workload_priority(EVERYTHING), active_deadline_seconds=3600),
    "volcano-single": JobSpec(cluster=IMAGE),
    "volcano-fixed": FIXED,
    "volcano-elastic": ELASTIC,
    "volcano-master-worker": ALIKE,
    "volcano-retries": retrying(lambda run_policy: Elastic(2, run_policy=run_policy)),
    "volcano-everything": everything(with_priority(EVERYTHING), ttl_seconds_after_finished=600),
    "volcano-budgets": budgets(2, 3, 2),
    "volcano-budgets-failures": budgets(2, 3, 0),
    "volcano-attempt-2": LAST,
    "indexedjob-budgets": budgets(2, 3, cluster=SPOT),
    "indexedjob-budgets-1.24": budgets(2, 3),
    "indexedjob-budgets-elastic": budgets("1:3", 3),
    "indexedjob-budgets-elastic-preemptions": budgets("1:3", 0),
    "indexedjob-budgets-none": budgets(2, 0, 0),
    "indexedjob-attempt-2": LAST,
    "indexedjob-attempt-2-elastic": budgets("1:3", 3, 2, cluster=SPOT),
    "indexedjob-single": JobSpec(cluster=IMAGE),
    "indexedjob-fixed": FIXED,
    "indexedjob-fixed-1.24": FIXED,
    "indexedjob-fixed-1.26": FIXED,
    "indexedjob-elastic": ELASTIC,
    "indexedjob-elastic-retries": retrying(lambda run_policy: Elastic("1:3", run_policy=run_policy)),
    "indexedjob-master-worker": ALIKE,
    "indexedjob-everything": everything(
        with_workload_priority(with_priority(EVERYTHING)),
        ttl_seconds_after_finished=600,
        active_deadline_seconds=3600,
        backoff_limit=2,
    ),
}


SECOND: dict[str, Any] = {
    "attempt": 2,
    "remaining_s": 1800,
    "on_demand": True,
    "owner": {"apiVersion": "v1", "kind": "Job", "name": "train-7k2q", "uid": "6a1f"},
}


def submission(spec, info=None, **fields):
    info = info or JobInfo("train-7k2q")
    return Submission(spec, info, **{"namespace": "team", "secrets": (), "annotations": {}, **fields})


def made(case):
    kind, spec = KINDS[case.partition("-")[0]], CASES[case]
    minor = int(case.rpartition("-1.")[2]) if "-1." in case else fit.NEWEST
    fit.check(kind, spec, minor)
    info = JobInfo("train-7k2q", call="c0ffee", retry_owner=retry_owner(kind, spec, minor))
    first = package.first_name(info)
    runtime = Runtime("torch-team", "TrainingRuntime", "node") if case.endswith("everything") else None
    sub = submission(
        spec,
        info,
        secrets=(first, f"{first}-1")[: 2 if case.endswith("everything") else 1],
        labels=labelling.labels(info, "ada", spec.cluster.label),
        annotations={**spec.cluster.annotation, labelling.CALL: info.call},
        minor=minor,
        runtime=runtime,
    )
    return kind.manifests(replace(sub, **SECOND) if "attempt-2" in case else sub)


def pods(manifest):
    """Yield the pod templates of a job object, wherever its kind puts them."""
    if isinstance(manifest, dict):
        if "containers" in manifest.get("spec", {}):
            yield manifest
        else:
            for value in manifest.values():
                yield from pods(value)
    elif isinstance(manifest, list):
        for value in manifest:
            yield from pods(value)


def test_every_golden_file_is_of_a_case():
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_manifest_is_as_it_was_written_down(case):
    path = GOLDEN / f"{case}.yaml"
    text = yaml.safe_dump_all(made(case), sort_keys=False, width=110)
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text)

    assert text == path.read_text()


@pytest.mark.parametrize("case", [case for case in CASES if case.partition("-")[0] in CRD])
def test_a_manifest_is_valid_by_the_operators_schema(case):
    path = CRDS / CRD[case.partition("-")[0]]
    if not path.exists():
        pytest.skip(f"{path} is absent")
    version, validator = schema(path)

    [job] = made(case)

    assert job["apiVersion"].endswith("/" + version)
    validator.validate(job)


def test_the_schema_refuses_a_field_that_it_does_not_know():
    path = CRDS / CRD["volcano"]
    if not path.exists():
        pytest.skip(f"{path} is absent")
    [job] = made("volcano-fixed")
    job["spec"]["tasks"][0]["template"]["spec"]["surprise"] = 1

    with pytest.raises(jsonschema.ValidationError, match="surprise"):
        schema(path)[1].validate(job)


@cache
def schema(path):
    """Return a CRD's version, and a validator of its objects."""
    [version] = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]["versions"]
    return version["name"], jsonschema.Draft7Validator(closed(version["schema"]["openAPIV3Schema"]))


def closed(schema):
    """Return a schema that refuses unknown fields, because the API server drops them."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {key: closed(value) for key, value in schema.items()}
    if "properties" in copy and copy.get("type") == "object":
        copy.setdefault("additionalProperties", False)
    return copy


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("indexedjob")])
def test_a_job_and_its_service_have_only_fields_that_kubernetes_knows(case):
    for manifest in made(case):
        assert known(manifest) == manifest


def known(manifest):
    """Return the part of a manifest that the official client understands."""
    api = client.ApiClient()
    model = api.deserialize(json.dumps(manifest), "V1" + manifest["kind"], "application/json")
    return json.loads(json.dumps(api.sanitize_for_serialization(model)))


@pytest.mark.parametrize("case", CASES)
def test_every_pod_is_labelled_and_runs_the_payload(case):
    all_pods = list(pods(made(case)[0]))

    assert all_pods
    for pod in all_pods:
        labels = pod["metadata"]["labels"]
        assert (labels["nbtorchjob.dev/job"], labels["app.kubernetes.io/managed-by"]) == (
            "train-7k2q",
            "nbtorchjob",
        )
        assert pod["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
        [container] = pod["spec"]["containers"]
        assert container["name"] == KINDS[case.partition("-")[0]].container
        assert container["volumeMounts"][0] == {
            "name": "nbtorchjob-payload",
            "mountPath": "/etc/nbtorchjob",
            "readOnly": True,
        }


@pytest.mark.parametrize("case", CASES)
def test_nothing_of_the_payload_is_in_the_manifest_but_its_secrets_names(case):
    text = json.dumps(made(case))

    assert "train-7k2q-payload" in text
    assert text.count("/etc/nbtorchjob/job.pyz") == len([*environments(case)])


@pytest.mark.parametrize("case", CASES)
def test_all_pods_of_a_job_are_under_its_network_policy(case):
    labels = labelling.labels(JobInfo("train-7k2q"), "ada", {"team": "vision"})
    [policy] = network_policy.network_policies(
        submission(JobSpec(cluster=Cluster(network_policy=True)), labels=labels)
    )
    selector = policy["spec"]["podSelector"]

    assert policy["spec"] == {
        "podSelector": selector,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": selector}]}],
    }
    assert len(selector["matchLabels"]) == 3
    entries = [*templates(made(case))]
    assert entries
    for metadata in entries:
        assert selector["matchLabels"].items() <= metadata["labels"].items()


def templates(part):
    """Yield the metadata of each pod template."""
    if isinstance(part, dict):
        if isinstance(part.get("spec"), dict) and "containers" in part["spec"]:
            yield part["metadata"]
        for value in part.values():
            yield from templates(value)
    elif isinstance(part, list):
        for value in part:
            yield from templates(value)


def environments(case):
    """Yield each container's environment by name; a TrainJob has it in its trainer."""
    job = made(case)[0]
    containers = (
        [job["spec"]["trainer"]]
        if case.startswith("trainjob")
        else [p["spec"]["containers"][0] for p in pods(job)]
    )
    for container in containers:
        yield {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


@pytest.mark.parametrize(
    ("grace", "patch", "pod", "ranks"),
    [
        (45, {}, 45, None),
        (90, {}, 90, "60.0"),
        (90, {"terminationGracePeriodSeconds": 120}, 120, "80.0"),
        (90, {"terminationGracePeriodSeconds": None}, None, "20.0"),  # two thirds of Kubernetes' own 30 s
    ],
)
def test_ranks_have_two_thirds_of_what_their_pod_has(grace, patch, pod, ranks):
    cluster = replace(IMAGE, pod_patch=json.dumps({"spec": patch})) if patch else IMAGE
    sub = submission(replace(FIXED, grace=grace, cluster=cluster), secrets=("s",), labels={})

    for name, kind in KINDS.items():
        job, *_ = kind.manifests(sub)
        for template in pods(job):
            container = job["spec"]["trainer"] if name == "trainjob" else template["spec"]["containers"][0]
            env = {variable["name"]: variable.get("value") for variable in container["env"]}
            assert env.get("NBTORCHJOB_STOP_WITHIN") == ranks
            assert template["spec"].get("terminationGracePeriodSeconds") == pod


def test_a_users_variable_arrives_as_it_was_given():
    for case in (case for case in CASES if case.endswith("everything")):
        [env] = environments(case)
        assert env["COST"] == "$$5 and $$(HOME)"


@pytest.mark.parametrize(
    ("case", "endpoint", "domain"),
    [
        ("pytorchjob-fixed", None, None),
        ("trainjob-fixed", None, "train-7k2q"),
        ("trainjob-attempt-2", None, "train-7k2q-a2"),
        ("volcano-attempt-2", "train-7k2q-a2-node-0.train-7k2q-a2:29400", "train-7k2q-a2"),
        ("indexedjob-attempt-2", "train-7k2q-a2-0.train-7k2q-a2-272b9548:29400", "train-7k2q-a2-272b9548"),
        ("volcano-fixed", "train-7k2q-node-0.train-7k2q:29400", "train-7k2q"),
        ("indexedjob-fixed", "train-7k2q-0.train-7k2q-272b9548:29400", "train-7k2q-272b9548"),
    ],
)
def test_nodes_are_told_where_to_meet_unless_the_operator_does(case, endpoint, domain):
    [env] = environments(case)

    assert (env.get("PET_RDZV_ENDPOINT"), env.get("NBTORCHJOB_DOMAIN")) == (endpoint, domain)


def test_a_worker_knows_its_index_only_where_there_is_no_master():
    assert "NBTORCHJOB_NODE" in next(environments("pytorchjob-fixed"))
    assert all("NBTORCHJOB_NODE" not in env for env in environments("pytorchjob-roles"))


ATTEMPTS = [case for case in CASES if "attempt-2" in case]


@pytest.mark.parametrize("case", ATTEMPTS)
def test_a_later_attempt_is_an_object_that_the_first_owns_and_that_all_know_by_its_number(case):
    items = made(case)

    assert {manifest["metadata"]["name"] for manifest in items} <= {"train-7k2q-a2", "train-7k2q-a2-272b9548"}
    assert items[0]["metadata"]["ownerReferences"] == [SECOND["owner"]]
    for pod in (*items, *pods(items[0])):
        labels = pod["metadata"]["labels"]
        assert (labels["nbtorchjob.dev/attempt"], labels["nbtorchjob.dev/job"]) == ("2", "train-7k2q")
    assert all(env["NBTORCHJOB_ATTEMPT"] == "2" for env in environments(case))


@pytest.mark.parametrize("case", ATTEMPTS)
def test_a_later_attempt_has_what_is_left_of_the_deadline_and_is_removed_by_nobody_else(case):
    text = json.dumps(made(case))

    assert "1800" in text
    assert "3600" not in text
    assert "ttlSecondsAfterFinished" not in text


@pytest.mark.parametrize("case", [case for case in CASES if "attempt-2" not in case])
def test_attempts_are_numbered_only_where_we_start_them(case):
    kind, spec = KINDS[case.partition("-")[0]], CASES[case]
    minor = 24 if case.endswith("-1.24") else fit.NEWEST
    by_us = retry_owner(kind, spec, minor) == "us"

    job = made(case)[0]

    assert job["metadata"]["name"] == "train-7k2q"
    assert ("nbtorchjob.dev/attempt" in job["metadata"]["labels"]) is by_us
    assert any("NBTORCHJOB_ATTEMPT" in env for env in environments(case)) is by_us


def test_the_deadline_of_an_attempt_that_begins_behind_it_is_the_shortest_that_there_is():
    spec = budgets(2, 3, 2)
    sub = Submission(spec, JobInfo("a", retry_owner="us"), "team", (), {}, {}, remaining_s=-5)

    assert sub.deadline_s == 1


def placed(case):
    """Return the pods' selector, tolerations and affinity."""
    spec = next(pods(made(case)[0]))["spec"]
    return spec.get("nodeSelector"), [t["key"] for t in spec["tolerations"]], spec.get("affinity")


def test_a_preemptible_job_runs_on_spot_hosts():
    spot = {"cloud.example.com/spot": "true"}

    assert placed("pytorchjob-budgets") == (spot, ["spot", "cloud.example.com/spot"], None)


@pytest.mark.parametrize("case", ATTEMPTS)
def test_its_last_attempt_keeps_clear_of_them(case):
    selector, tolerations, affinity = placed(case)

    assert (selector, tolerations) == (None, ["spot"])
    assert terms(affinity) == [[("cloud.example.com/spot", "NotIn", ["true"])]]


def terms(affinity):
    """Return the alternatives of a required node affinity."""
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [
        [(e["key"], e["operator"], e["values"]) for e in term["matchExpressions"]]
        for term in required["nodeSelectorTerms"]
    ]


def test_so_it_does_whatever_alternatives_a_users_patch_gives():
    zones = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": [name]}]} for name in ("a", "b")
    ]
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}
    patch = {"spec": {"affinity": {"nodeAffinity": node, "podAffinity": {}}}}
    sub = Submission(
        replace(LAST, cluster=replace(SPOT, pod_patch=json.dumps(patch))),
        JobInfo("a", retry_owner="us"),
        namespace="team",
        secrets=("s",),
        labels={},
        annotations={},
        on_demand=True,
    )

    [job, _] = KINDS["indexedjob"].manifests(sub)

    affinity = job["spec"]["template"]["spec"]["affinity"]
    clear = ("cloud.example.com/spot", "NotIn", ["true"])
    assert terms(affinity) == [[("zone", "In", ["a"]), clear], [("zone", "In", ["b"]), clear]]
    assert affinity["podAffinity"] == {}


@pytest.mark.parametrize(
    ("store", "checkpoints"),
    [
        ("/work/checkpoints/", "/work/checkpoints/train-7k2q-12.500000"),
        ("s3://bucket/c", "s3://bucket/c/train-7k2q-12.500000"),
    ],
)
def test_all_attempts_have_the_same_checkpoints_and_no_other_job_of_the_name(store, checkpoints):
    spec = replace(LAST, cluster=replace(SPOT, checkpoints=store))
    info = JobInfo("train-7k2q", created=12.5, retry_owner="us")
    for attempt in (1, 2):
        sub = Submission(spec, info, "team", ("s",), {}, {}, attempt=attempt)
        [container] = KINDS["volcano"].manifests(sub)[0]["spec"]["tasks"][0]["template"]["spec"]["containers"]
        assert {"name": "NBTORCHJOB_CHECKPOINTS", "value": checkpoints} in container["env"]
