"""Every kind's manifests, as YAML beside this file: ``GOLDEN=write pytest`` writes them anew."""

import json
import os
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml
from kubernetes import client

from nbtorchjob.backends.kubernetes import objects
from nbtorchjob.backends.kubernetes.kinds import KINDS, fit
from nbtorchjob.backends.kubernetes.submission import Runtime, Submission
from nbtorchjob.cluster import Cluster
from nbtorchjob.config import CleanPodPolicy, Elastic, Master, PyTorch, RestartPolicy, RunPolicy, Worker
from nbtorchjob.spec import JobSpec
from nbtorchjob.state import JobInfo

GOLDEN = Path(__file__).parent / "golden"
CRDS = Path(__file__).parents[3] / "shared" / "crds"
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


def retrying(launch):
    return JobSpec(launch(run_policy=RunPolicy(backoff_limit=2)), cluster=IMAGE)


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
        with_priority(EVERYTHING),
        clean_pod_policy="All",
        ttl_seconds_after_finished=600,
        active_deadline_seconds=3600,
        backoff_limit=0,
    ),
    "trainjob-single": JobSpec(),
    "trainjob-fixed": FIXED,
    "trainjob-master-worker": ALIKE,
    "trainjob-everything": everything(active_deadline_seconds=3600),
    "volcano-single": JobSpec(cluster=IMAGE),
    "volcano-fixed": FIXED,
    "volcano-elastic": ELASTIC,
    "volcano-master-worker": ALIKE,
    "volcano-retries": retrying(lambda run_policy: Elastic(2, run_policy=run_policy)),
    "volcano-everything": everything(with_priority(EVERYTHING), ttl_seconds_after_finished=600),
    "indexedjob-single": JobSpec(cluster=IMAGE),
    "indexedjob-fixed": FIXED,
    "indexedjob-fixed-1.24": FIXED,
    "indexedjob-fixed-1.26": FIXED,
    "indexedjob-elastic": ELASTIC,
    "indexedjob-elastic-retries": retrying(lambda run_policy: Elastic("1:3", run_policy=run_policy)),
    "indexedjob-master-worker": ALIKE,
    "indexedjob-everything": everything(
        with_priority(EVERYTHING),
        ttl_seconds_after_finished=600,
        active_deadline_seconds=3600,
        backoff_limit=2,
    ),
}


def made(case):
    kind, spec = KINDS[case.partition("-")[0]], CASES[case]
    minor = int(case.rpartition("-1.")[2]) if "-1." in case else fit.NEWEST
    fit.check(kind, spec, minor)
    info = JobInfo("train-7k2q", call="c0ffee")
    runtime = Runtime("torch-team", "TrainingRuntime") if case.endswith("everything") else Runtime()
    sub = Submission(
        spec,
        info,
        namespace="team",
        secrets=("train-7k2q-payload", "train-7k2q-payload-1")[: 2 if case.endswith("everything") else 1],
        labels=objects.labels(info, "ada", spec.cluster.label),
        annotations={**spec.cluster.annotation, objects.CALL: info.call},
        minor=minor,
        runtime=runtime,
    )
    return kind.manifests(sub)


def pods(manifest):
    """Give the pod templates of a job object, wherever its kind has them."""
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
    """Give a CRD's version and what validates its objects."""
    [version] = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]["versions"]
    return version["name"], jsonschema.Draft7Validator(closed(version["schema"]["openAPIV3Schema"]))


def closed(schema):
    """Give the schema with unknown fields refused, as the API server drops them."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if "properties" in found and found.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("indexedjob")])
def test_a_job_and_its_service_have_only_fields_that_kubernetes_knows(case):
    for manifest in made(case):
        assert known(manifest) == manifest


def known(manifest):
    """Give what the official client understands of a manifest."""
    api = client.ApiClient()
    model = api.deserialize(json.dumps(manifest), "V1" + manifest["kind"], "application/json")
    return json.loads(json.dumps(api.sanitize_for_serialization(model)))


@pytest.mark.parametrize("case", CASES)
def test_every_pod_is_labelled_and_runs_the_payload(case):
    found = list(pods(made(case)[0]))

    assert found
    for pod in found:
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


def environments(case):
    """Give each container's environment by name; a TrainJob has it in its trainer."""
    job = made(case)[0]
    found = (
        [job["spec"]["trainer"]]
        if case.startswith("trainjob")
        else [p["spec"]["containers"][0] for p in pods(job)]
    )
    for container in found:
        yield {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def test_a_users_variable_arrives_as_it_was_given():
    for case in (case for case in CASES if case.endswith("everything")):
        [env] = environments(case)
        assert env["COST"] == "$$5 and $$(HOME)"


@pytest.mark.parametrize(
    ("case", "endpoint", "domain"),
    [
        ("pytorchjob-fixed", None, None),
        ("trainjob-fixed", None, "train-7k2q"),
        ("volcano-fixed", "train-7k2q-node-0.train-7k2q:29400", "train-7k2q"),
        ("indexedjob-fixed", "train-7k2q-0.train-7k2q:29400", "train-7k2q"),
    ],
)
def test_nodes_are_told_where_to_meet_unless_the_operator_does(case, endpoint, domain):
    [env] = environments(case)

    assert (env.get("PET_RDZV_ENDPOINT"), env.get("NBTORCHJOB_DOMAIN")) == (endpoint, domain)


def test_a_worker_knows_its_index_only_where_there_is_no_master():
    assert "NBTORCHJOB_NODE" in next(environments("pytorchjob-fixed"))
    assert all("NBTORCHJOB_NODE" not in env for env in environments("pytorchjob-roles"))
