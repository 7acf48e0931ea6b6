"""Pods under the Pod Security standards of a real server."""

import json
from dataclasses import replace

import pytest

from nbtorchjob import api
from nbtorchjob.backends.kubernetes.doctor.server import refused
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, PyTorch, Worker
from nbtorchjob.spec.jobspec import JobSpec
from tests.backends.kubernetes.cluster import podsecurity
from tests.backends.kubernetes.cluster.resources import SHARED
from tests.backends.kubernetes.kinds.test_manifests import CASES, made, pods, submission
from tests.backends.kubernetes.stage import Stage, until, waits
from tests.patience import LIMIT

RECORDED = SHARED / "recordings-2" / "api"
# A node that checks its requirements: its key, a writable temporary folder, a home and a user.
SEES = """
begin()
assert open(os.environ["NBTORCHJOB_KEY_FILE"], "rb").read()
open(os.path.join(os.environ["TMPDIR"], "file"), "w").close()
value([os.environ["HOME"], os.environ["USER"]])
"""


@pytest.fixture
def restricted(cluster, tmp_path, monkeypatch):
    """Yield a namespace under the standard "restricted"."""
    stage = Stage(cluster, tmp_path, monkeypatch, "restricted")
    yield stage
    stage.close()


@pytest.mark.parametrize(
    "name",
    ["403-pod-security-restricted", "403-pod-security-restricted-hostpath", "201-pod-security-restricted"],
)
def test_the_emulators_standard_says_what_a_real_server_said(name):
    if not RECORDED.is_dir():
        pytest.skip(f"{RECORDED} is absent")
    recording = json.loads((RECORDED / f"{name}.json").read_text())
    message = recording["response"]["body"].get("message", "")

    assert message.partition(" is forbidden: ")[2] == podsecurity.why(
        recording["request"]["body"]["spec"], "restricted"
    )


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_job_runs_under_restricted_as_a_user_other_than_root(restricted, kind):
    nodes = {} if kind == "trainjob" else {"launch": Elastic(2)}
    job = restricted.submit(SEES, kind=kind, run_as="1000:100", **nodes)

    assert job.result(LIMIT) == ["/tmp", "1000"]
    context = restricted.pods()[0]["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (1000, 100, 100)
    assert restricted.pods()[0]["spec"]["volumes"][0]["name"] == "nbtorchjob-payload"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_namespace_that_wants_more_than_was_asked_says_what_to_give(restricted, kind):
    job = restricted.submit("", kind=kind)
    until(lambda: "PodSecurity" in waits(job))

    assert "runAsNonRoot != true" in waits(job)
    assert "seccompProfile" not in waits(job)
    assert "--run-as" in waits(job)


def test_an_image_that_would_run_as_root_is_told(stage):
    patch = json.dumps({"spec": {"securityContext": {"runAsNonRoot": True}}})
    job = stage.submit(pod_patch=patch)
    until(lambda: "root" in waits(job))

    assert "its image would run as root" in waits(job)


@pytest.mark.parametrize("case", CASES)
def test_pods_are_held_to_the_baseline_unless_a_host_is_asked_for(case):
    for pod in pods(made(case)[0]):
        titles = [
            violation.partition(" (")[0] for violation in podsecurity.violations(pod["spec"], "baseline")
        ]
        assert titles == (["hostPath volumes", "privileged"] if case.endswith("everything") else [])


@pytest.mark.parametrize("run_as", [None, "1000"])
@pytest.mark.parametrize("case", CASES)
def test_the_doctor_says_beforehand_what_a_level_refuses(case, run_as):
    kind, spec = KINDS[case.partition("-")[0]], CASES[case]
    spec = replace(spec, cluster=replace(spec.cluster, run_as=run_as))
    manifests = list(pods(kind.manifests(submission(spec, labels={}))[0]))

    for level in podsecurity.LEVELS:
        problems = [problem for problem in refused(level, kind, spec) if "init container" not in problem]
        assert bool(problems) == any(podsecurity.violations(pod["spec"], level) for pod in manifests)


def test_the_doctor_says_what_the_namespace_enforces(restricted):
    def told(**options):
        [finding] = [
            finding for finding in api.doctor(restricted.spec(**options)) if "Pod Security" in finding.text
        ]
        return finding.good, finding.text

    assert told(run_as="1000") == (True, "Pod Security: the job's pods pass restricted")
    good, text = told()
    assert not good
    assert text.endswith("enforces restricted, which refuses pods that may run as root (set --run-as UID)")
    roles = {"kind": "pytorchjob", "launch": PyTorch(worker=Worker(1)), "run_as": "1000"}
    assert "the operator's init container" in told(**roles)[1]


def test_a_patch_wins_over_what_pods_are_held_to(stage):
    context = {"privileged": True, "runAsUser": 0, "capabilities": {"drop": []}}
    patch = {
        "spec": {"containers": [{"securityContext": context}], "securityContext": {"seccompProfile": None}}
    }
    spec = JobSpec(cluster=Cluster(image="a:1", pod_patch=json.dumps(patch), run_as="1000"))
    [pod] = pods(KINDS["indexedjob"].manifests(submission(spec, labels={}))[0])

    assert pod["spec"]["containers"][0]["securityContext"] == context
    assert "seccompProfile" not in pod["spec"]["securityContext"]
