"""A tender that runs in the cluster: its manifests need only an image with Python, and grant enough."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import certifi
import pytest
import yaml

from nbtorchjob.backends.kubernetes import deployment
from nbtorchjob.backends.kubernetes.doctor import server
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import Right
from nbtorchjob.errors import SpecError
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import Retry, RunPolicy
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.mortal import elsewhere, made
from tests.backends.kubernetes.stage import Stage, until
from tests.patience import LIMIT

STAYS = "begin()\nwait('never') if ATTEMPT == 1 else wait('go')\nvalue(ATTEMPT)"
OURS = Retry(retries=2, preemptions=2, backoff=0)
# Makes the login read a pod's account from a folder that a test can write, for a server without TLS.
ACCOUNT = """
import pathlib
from nbtorchjob.backends.kubernetes.api import login
login.ACCOUNT = pathlib.Path({folder!r})
login.server = lambda: {url!r}
"""


@pytest.fixture
def team(cluster, tmp_path, monkeypatch):
    """Yield a stage in a namespace of restricted Pod Security."""
    stage = Stage(cluster, tmp_path, monkeypatch, "restricted")
    yield stage
    stage.close()


def written(namespace):
    """Return the manifests by kind."""
    objects = [*yaml.load_all(cluster_backend().tenders([namespace]), yaml.CSafeLoader)]
    return {obj["kind"]: obj for obj in objects} | {"Secrets": [e for e in objects if e["kind"] == "Secret"]}


def program(stage, parts, folder):
    """Run the Deployment's program as its pod would, with its files in ``folder``; return user, process."""
    (container,) = parts["Deployment"]["spec"]["template"]["spec"]["containers"]
    for secret in parts["Secrets"]:
        for name, data in secret["data"].items():
            (folder / name).write_bytes(base64.b64decode(data))
    user = f"system:serviceaccount:{stage.namespace}:{deployment.NAME}"
    config = yaml.safe_load(stage.cluster.user(user).read_text())
    (folder / "token").write_text(config["users"][0]["user"]["token"])
    (folder / "namespace").write_text(stage.namespace)
    (folder / "ca.crt").write_text(Path(certifi.where()).read_text())
    _, c, boot, options = container["command"]
    boot = boot.replace("/tmp/", f"{folder}/").replace(deployment.PLACE, str(folder))
    ahead, last = boot.split("\nfrom ")
    patch = ACCOUNT.format(folder=str(folder), url=stage.cluster.url)
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    env |= {"NBTORCHJOB_STATE_DIR": str(folder / "state"), "KUBECONFIG": str(folder / "absent")}
    options = json.dumps({**json.loads(options), "listen": str(folder / "s")})
    # ``-I -S`` leaves out the packages that are installed here.
    code = f"{ahead}\n{patch}\nfrom {last}"
    return user, subprocess.Popen([sys.executable, "-I", "-S", c, code, options], env=env)


def test_a_pod_of_its_own_looks_after_everybodys_jobs_with_no_more_rights_than_its_role(
    stage, tmp_path, monkeypatch
):
    parts = written(stage.namespace)
    for obj in (*parts["Secrets"], *(part for kind, part in parts.items() if not kind.startswith("Secret"))):
        stage.cluster.request("POST", stage.cluster.collection(obj), obj)
    folder = tmp_path / "pod"
    folder.mkdir()
    user, process = program(stage, parts, folder)
    try:
        job = stage.submit(STAYS, retry=OURS)
        until(lambda: (stage.signs / "life-0-0").exists())
        stage.cluster.evict(stage.namespace, stage.pod())
        until(lambda: made(stage)[0] == [job.name, f"{job.name}-a2"])
        stage.sign("go")
        short = RunPolicy(ttl_seconds_after_finished=1)
        again = "begin()\nif ATTEMPT == 1: fail(recoverable=True)"
        stage.submit(again, kind="trainjob", retry=OURS, launch=Elastic(run_policy=short))
        stage.submit("value(1)", kind="trainjob", launch=Elastic(run_policy=short))
        until(lambda: made(stage)[0] == [job.name, f"{job.name}-a2"])
        assert elsewhere(stage, job, monkeypatch, tmp_path).result(LIMIT) == 2
    finally:
        process.terminate()
    assert process.wait(LIMIT) == 0

    attempts = [attempt for attempt in stage.cluster.attempts(user) if attempt.namespace == stage.namespace]
    assert {Right(right.verb, right.group, right.resource) for right in attempts} <= {*server.tender_rights()}


def test_its_pod_is_one_that_a_restricted_namespace_takes(team):
    manifests = written(team.namespace)
    template = manifests["Deployment"]["spec"]["template"]
    accounts = f"/api/v1/namespaces/{team.namespace}/serviceaccounts"
    team.cluster.request("POST", accounts, manifests["ServiceAccount"])
    body = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "tender"}}
    team.cluster.request("POST", f"/api/v1/namespaces/{team.namespace}/pods?dryRun=All", body)


def test_where_it_is_to_look_has_to_be_said():
    with pytest.raises(SpecError, match="namespace"):
        cluster_backend().tenders([])


def test_the_same_program_has_the_same_manifests():
    assert cluster_backend().tenders(["ml"]) == cluster_backend().tenders(["ml"])


celpy = pytest.importorskip("celpy")

# The expression that only an API server can evaluate; ``may`` stands for its answer.
ASKS = deployment._ASKS


def attempt(name, number="2", owner="train", **labels):
    defaults = {labelling.JOB: "train", labelling.ATTEMPT: number, labelling.USER: "ada", labelling.RUN: "1"}
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": "a"}] if owner else []
    labels = {label: value for label, value in {**defaults, **labels}.items() if value}
    meta = {"name": name, "labels": labels, **({"ownerReferences": owners} if owners else {})}
    return {"metadata": meta}


def admitted(obj, before=None, *, may=True, without=None):
    """Return whether the policy admits an object, or its change from ``before``; None if it doesn't apply.

    ``without`` leaves out the rule of that number: conditions count first, then validations.
    """
    policy, _ = deployment.policy("tender", ["ml"], [kind.api for kind in KINDS.values()])
    variables = {"object": obj, "oldObject": before, "may": may}
    limit = sys.getrecursionlimit()
    environment = celpy.Environment()
    sys.setrecursionlimit(limit)  # celpy raises it permanently, and other tests would pass it on to ranks

    def says(part):
        tree = environment.compile(part["expression"].replace(ASKS, "may"))
        try:
            return environment.program(tree).evaluate({k: celpy.json_to_cel(v) for k, v in variables.items()})
        except celpy.CELEvalError:
            return False  # as failurePolicy is Fail

    parts = [(key, part) for key in ("matchConditions", "validations") for part in policy["spec"][key]]
    rules = [rule for number, rule in enumerate(parts) if number != without]
    assert len(rules) == len(parts) - (without is not None)
    assert policy["spec"]["failurePolicy"] == "Fail"
    if not all(says(part) for key, part in rules if key == "matchConditions"):
        return None
    return all(says(part) for key, part in rules if key == "validations")


ADMITTED = (labelling.JOB, labelling.RUN, labelling.USER, labelling.ATTEMPT)
ANOTHERS = {"metadata": {"name": "train-a2", "labels": {"app": "x"}}}
# The object, its earlier state, whether its author may patch its job, and the policy's answer.
ASKED = [
    (attempt("train-a2"), None, True, True),
    (attempt("train-a2"), None, False, False),
    (attempt("evil"), None, True, False),
    (attempt("train-a3"), None, True, False),
    (attempt("train-a2", owner="other"), None, True, False),
    (attempt("train-a2", owner=""), None, True, False),
    (attempt("train-a2", **{labelling.JOB: ""}), None, True, False),
    (attempt("train-a2"), ANOTHERS, False, False),
    (attempt("train-a2"), {"metadata": {"name": "train-a2"}}, False, False),
    *((attempt("train-a2"), attempt("train-a2", **{label: "9"}), False, False) for label in ADMITTED),
    *((attempt("train-a2"), attempt("train-a2", **{label: ""}), False, False) for label in ADMITTED),
    (attempt("train-a2"), attempt("train-a2"), False, None),  # an operator adds something else
    (attempt("train", "1"), None, False, None),
    (attempt("train", ""), None, False, None),
    ({"metadata": {"name": "other"}}, None, False, None),
]


@pytest.mark.parametrize(("obj", "before", "may", "expected"), ASKED)
def test_a_later_attempt_is_admitted_from_whoever_may_change_its_job(obj, before, may, expected):
    assert admitted(obj, before, may=may) is expected


@pytest.mark.parametrize("number", range(5))
def test_each_rule_of_the_policy_decides_something(number):
    decided = [
        (obj, before)
        for obj, before, may, expected in ASKED
        if admitted(obj, before, may=may, without=number) is not expected
    ]
    assert decided


def test_the_policy_is_asked_of_every_kind_and_only_in_the_tenders_namespaces():
    policy, binding = deployment.policy("tender", ["ml"], [kind.api for kind in KINDS.values()])
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in rules)
    assert {(*rule["apiGroups"], *rule["resources"]) for rule in rules} == {
        (kind.api.group, kind.api.plural) for kind in KINDS.values()
    }
    (where,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert where["values"] == ["ml"]
