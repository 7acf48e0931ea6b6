"""Each refusal recorded on a real cluster becomes one line: what was wrong, and what to do."""

import json
import pickle
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from nbtorchjob.backends.kubernetes.api.errors import api_error, submit_error
from nbtorchjob.backends.kubernetes.objects.reading import PODS, Api, Target, grant
from nbtorchjob.errors import (
    AlreadyExistsError,
    ApiError,
    ClusterError,
    ForbiddenError,
    NameTakenError,
    NotFoundError,
    SubmitError,
    UnauthorizedError,
    UnreachableError,
)
from tests.backends.kubernetes.scripted import SHARED, status

RECORDED = SHARED / "recordings" / "api"
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
PYTORCHJOBS = Api("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
JOB = Target(PYTORCHJOBS, "team", "train")

pytestmark = pytest.mark.skipif(not RECORDED.is_dir(), reason="no recordings beside the checkout")

# Words that the line must contain, by recording.
EXPECTED = {
    "400-fieldvalidation-strict": ["(400)", 'unknown field "spec.typo"'],
    "401-bad-token": ["credentials", "log in again"],
    "403-anonymous": ["without credentials", "log in again"],
    "403-clustertrainingruntimes-get": ['"tester" may not get clustertrainingruntimes', "ClusterRoleBinding"],
    "403-namespace-missing": ['"no-such-ns" (or the namespace doesn\'t exist)'],
    "403-namespace-terminating": ['"api-term" is being deleted', "--namespace"],
    "403-pods-log": ['may not get pods/log in namespace "api-ns"', "RoleBinding"],
    "403-pytorchjobs-create": ["may not create pytorchjobs.kubeflow.org", "RoleBinding"],
    "403-pytorchjobs-watch": ["may not watch pytorchjobs.kubeflow.org"],
    "403-quota-job": ["quota exceeded", "count/jobs.batch=1", "%torchjob gc"],
    "403-quota-must-specify": ["must specify requests.cpu", "--cpu"],
    "403-role-lacks-delete": ["may not delete pytorchjobs.kubeflow.org"],
    "403-secrets-create": ["may not create secrets"],
    "404-group": ["doesn't serve things.nothing.example.org", "--kind"],
    "404-job": ['jobs.batch "absent" in namespace "api-ns" doesn\'t exist'],
    "404-namespace-create": ['namespace "no-such-ns" doesn\'t exist', "--namespace"],
    "404-version": ["pytorchjobs.kubeflow.org (v9)", "--kind"],
    "409-alreadyexists": ["exists already", "--name"],
    "409-conflict-patch": ["has changed in the meantime"],
    "410-list-exact-old-rv": ["(410)", "too old"],
    "413-request-over-3mib": ["too large", "--storage"],
    "422-job-failindex": ["spec.podFailurePolicy.rules[0].action", "requires the backoffLimitPerIndex"],
    "422-pytorchjob-no-replica-specs": ["spec.pytorchReplicaSpecs: Required value"],
    "422-secret-over-1mib": ["too large", "--storage"],
    "504-list-future-rv": ["just now (504", "try again"],
    "cr-over-1.5mib": ["too large", "--storage"],
    "watch-garbled-rv": ["just now (500", "try again"],
    "webhook-pytorchjob-no-image": ["webhook validator.pytorchjob", "image: Required value"],
    "webhook-trainjob-runtime-missing": ['runtime "absent" doesn\'t exist', "--runtime"],
    "webhook-vcjob-bad-action": ["webhook validatejob.volcano.sh", "invalid policy action"],
    "webhook-vcjob-queue-missing": ['queue "absent" doesn\'t exist', "--queue"],
}


def target(path):
    """Return the target of a recorded request."""
    parts = [part for part in urlsplit(path).path.split("/") if part]
    group, version, rest = (
        ("", parts[1], parts[2:]) if parts[0] == "api" else (*[*parts, "", ""][1:3], parts[3:])
    )
    namespace = None
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    plural, name, part = [*rest, None, None, None][:3]
    return Target(Api(group, version, plural or "", ""), namespace, name, part)


def recorded(path):
    """Return the error for a recorded answer, or None if the answer isn't a refusal."""
    record = json.loads(path.read_text())
    answer = record.get("response") or {}
    if not isinstance(answer.get("status"), int) or answer["status"] < 400:
        return None
    body = answer.get("body") or ""
    raw = json.dumps(body).encode() if isinstance(body, dict) else body.encode()
    request = record["request"]
    verb = "watch" if "watch=1" in request["path"] else VERBS[request["method"]]
    return api_error(verb, target(request["path"]), answer["status"], raw)


def said(code, message, *, verb="create", about=JOB):
    """Return the error for an answer with that message."""
    reply = status(code, message, "Forbidden")
    return api_error(verb, about, code, json.dumps(reply.body).encode())


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.json")), ids=lambda path: Path(path).stem)
def test_every_recorded_refusal_is_one_short_line(path):
    error = recorded(path)
    if error is None:
        return
    line = str(error)

    assert line == " ".join(line.split())
    assert 20 < len(line) < 700
    for words in EXPECTED.get(path.stem, []):
        assert words in line


def test_all_expected_recordings_exist():
    assert {path.stem for path in RECORDED.glob("*.json")} >= EXPECTED.keys()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("400-fieldvalidation-strict", ApiError),
        ("401-bad-token", UnauthorizedError),
        ("403-pods-list", ForbiddenError),
        ("403-quota-job", ForbiddenError),
        ("404-group", NotFoundError),
        ("404-job", NotFoundError),
        ("409-alreadyexists", AlreadyExistsError),
        ("409-conflict-patch", ApiError),
        ("504-list-future-rv", ApiError),
    ],
)
def test_an_answer_is_of_the_kind_that_a_user_can_catch(name, kind):
    error = recorded(RECORDED / f"{name}.json")

    assert type(error) is kind
    assert isinstance(error, SubmitError) == isinstance(error, NameTakenError) == (kind is AlreadyExistsError)


def test_what_an_answer_means_can_be_asked():
    answers = {code: api_error("get", JOB, code, b"") for code in (400, 409, 410, 429, 500, 504)}

    assert [code for code, error in answers.items() if error.bad_request] == [400]
    assert [code for code, error in answers.items() if error.conflict] == [409]
    assert [code for code, error in answers.items() if error.expired] == [410]
    assert [code for code, error in answers.items() if error.too_many] == [429]
    assert [code for code, error in answers.items() if error.server_error] == [500, 504]


@pytest.mark.parametrize(
    "error",
    [
        ClusterError("no kubeconfig"),
        UnreachableError("no answer"),
        ApiError("no", status=422, reason="Invalid", said="no!"),
        UnauthorizedError("no", status=401),
        ForbiddenError("no", status=403, grant="kind: Role"),
        NotFoundError("no", status=404),
        AlreadyExistsError("no", status=409),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_stops_a_submission_is_caught_as_that_and_as_what_it_is(error):
    failure = submit_error(error)

    assert isinstance(failure, SubmitError)
    assert isinstance(failure, type(error))
    assert (str(failure), vars(failure)) == (str(error), vars(error))
    again = pickle.loads(pickle.dumps(failure))
    assert (type(again), str(again), vars(again)) == (type(failure), str(failure), vars(failure))


def test_a_missing_permission_comes_with_the_role_to_ask_for():
    role, binding = yaml.safe_load_all(recorded(RECORDED / "403-pods-log.json").grant)

    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}]
    assert role["metadata"] == binding["metadata"] == {"name": "nbtorchjob", "namespace": "api-ns"}
    assert binding["roleRef"]["kind"] == role["kind"] == "Role"
    assert binding["subjects"] == [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tester"}
    ]


def test_a_service_account_is_granted_as_one():
    user = "system:serviceaccount:team:notebook"
    role, binding = yaml.safe_load_all(grant(user, None, [("list", "batch", "jobs"), ("get", "", "pods")]))

    assert len(role["rules"]) == 2
    assert binding["kind"] == "ClusterRoleBinding"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "notebook", "namespace": "team"}]


def test_nobody_asks_for_rights_of_the_anonymous_user():
    assert recorded(RECORDED / "403-anonymous.json").grant == ""


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            'pods "train-0" is forbidden: error looking up account: serviceaccount "x" not found',
            ['service account "x" doesn\'t exist', "--service-account"],
        ),
        (
            'pods "train-0" is forbidden: no PriorityClass with name high was found',
            ['priority class "high" doesn\'t exist', "--priority-class"],
        ),
        (
            'pods "train-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
            ["refuses to create", 'violates PodSecurity "restricted:latest"'],
        ),
    ],
)
def test_what_an_admission_plugin_misses_is_named(message, words):
    line = str(said(403, message))

    for phrase in words:
        assert phrase in line


def test_a_web_page_instead_of_an_answer_is_cut():
    error = api_error("get", Target(PODS, "team"), 502, b"<html>\n" + b"x" * 100_000)

    assert "502 <html> xxx" in str(error)
    assert len(str(error)) < 700


@pytest.mark.parametrize(
    ("error", "caught", "shown"),
    [
        (ClusterError("no"), ClusterError, "ClusterError"),
        (UnreachableError("no answer"), UnreachableError, "UnreachableError"),
        (submit_error(ForbiddenError("no")), (ForbiddenError, ClusterError, SubmitError), "SubmitError"),
        (AlreadyExistsError("taken"), (ApiError, NameTakenError), "AlreadyExistsError"),
    ],
)
def test_what_a_notebook_shows_is_a_public_name_that_catches_it(error, caught, shown):
    assert all(isinstance(error, kind) for kind in (caught if isinstance(caught, tuple) else (caught,)))
    assert error._render_traceback_()[0] == f"{shown}: {error}"
