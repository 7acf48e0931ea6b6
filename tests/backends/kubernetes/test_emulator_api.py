"""The emulator's answers to single requests, compared with a real API server's with the real webhooks."""

import json
import re
import urllib.error
import urllib.request

import pytest

from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.resources import SHARED

LIKE = "[0-9]*.json", "webhook-*.json", "vcjob-*.json", "trainjob-*.json", "pytorchjob-*.json", "ssar-*.json"

LEFT_OUT = {
    "what was there before isn't recorded": r"""
        200-.*|201-(create|secret|generatename).*|404-after-dryrun|409-(conflict|already).*
        |403-(namespace-terminating|quota.*|role-lacks-delete)|422-job-immutable|ssar-allowed.*""",
    "the body isn't recorded": r"""
        400-bad-json|400-duplicate-field-strict|413-.*|415-content-type|422-(secret|annotations).*""",
    "a watch": "410-watch-.*|403-.*-watch",
    "server-side apply, scale, protobuf: not served": "409-apply-conflict|404-scale-subresource|406-accept",
    "one more cause of many": "422-job-name|422-pytorchjob-type",
    "PriorityClasses and such cluster-wide things are all allowed": "403-clustertrainingruntimes-get",
}


REPLICA = {"template": {"spec": {"containers": [{"name": "pytorch", "image": "localhost/busybox:1"}]}}}
# The object of some of the requests.
A_JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "a1"},
    "spec": {"pytorchReplicaSpecs": {"Worker": REPLICA}, "runPolicy": {"suspend": True}},
}


def recorded():
    """Return the names of the recorded requests that these tests make."""
    folder = SHARED / "recordings" / "api"
    patterns = [re.compile(pattern, re.VERBOSE) for pattern in LEFT_OUT.values()]
    names = sorted(path.stem for like in LIKE for path in folder.glob(like))
    return [name for name in names if not any(pattern.fullmatch(name) for pattern in patterns)]


@pytest.fixture(scope="module")
def cluster(crds, recordings):
    with Emulator(kinds=("pytorchjob", "trainjob", "volcano")) as emulator:
        emulator.namespace("api-ns")
        runtime = json.loads((recordings / "api" / "prep-trainingruntime.json").read_text())["request"]
        emulator.request("POST", runtime["path"], runtime["body"])
        emulator.request("POST", "/apis/kubeflow.org/v1/namespaces/api-ns/pytorchjobs", A_JOB)
        yield emulator


@pytest.fixture(scope="module")
def token(cluster):
    """Return the token of a user without any rights."""
    return json.loads(cluster.user("tester").read_text())["users"][0]["user"]["token"]


def ask(url, request, headers):
    data = json.dumps(request["body"]).encode() if "body" in request else None
    call = urllib.request.Request(url + request["path"], data, headers, method=request["method"])
    try:
        with urllib.request.urlopen(call) as response:
            return response.status, json.load(response), response.headers.get("Warning")
    except urllib.error.HTTPError as refused:
        with refused:
            text = refused.read().decode()
            body = json.loads(text) if text.startswith("{") else text
            return refused.code, body, refused.headers.get("Warning")


def told(body):
    """Return an answer's content without parts that differ between servers; Go's maps come in any order."""
    if not isinstance(body, dict):
        return body
    if body.get("kind") != "Status":
        return {name: body.get(name) for name in ("apiVersion", "kind")} | {
            "allowed": body.get("status", {}).get("allowed")
        }
    text = json.dumps({name: body.get(name) for name in ("message", "reason", "details", "code")})
    text = re.sub(
        r"[0-9a-f]{8}-[0-9a-f-]{27}|record \(\d+\)|current: \d+|\"time\":\"[^\"]+\",",
        "",
        text.replace('\\"', '"'),
    )
    return re.sub(r"are \[([^\]]*)\]", lambda match: str(sorted(match[1].split())), text)


@pytest.mark.parametrize("name", recorded())
def test_a_request_is_answered_as_recorded(name, cluster, token, recordings):
    exchange = json.loads((recordings / "api" / f"{name}.json").read_text())
    request, response = exchange["request"], exchange["response"]
    headers = {"Content-Type": "application/json", **request.get("headers", {})}
    if "Authorization" in headers:
        valid = "401" not in name
        headers["Authorization"] = f"Bearer {token if valid else 'nobody'}"
    as_admin = "Authorization" not in headers and "anonymous" not in name
    code, body, warning = ask(cluster.admin_url if as_admin else cluster.url, request, headers)

    assert (code, told(body)) == (response["status"], told(response["body"]))
    assert warning == response["headers"].get("Warning")
