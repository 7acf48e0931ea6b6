"""The faults that a test can inject into the emulator."""

import http.client
import json
import time
import urllib.error
import urllib.parse

import pytest

from tests.patience import LIMIT

PODS = "/api/v1/namespaces/ns/pods"


@pytest.fixture
def cluster(emulator):
    """Return a cluster with a namespace ``ns``."""
    emulator.namespace("ns")
    return emulator


def start(cluster, name="p", script="while true; do sleep 0.02; echo line; done", **spec):
    """Start a pod that runs a script."""
    container = {"name": "main", "image": "localhost/busybox:1", "command": ["sh", "-c", script]}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], **spec}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns"}, "spec": pod}
    cluster.request("POST", PODS, body)


def wait(cluster, until, name="p"):
    """Wait until a condition holds for a pod; return the pod."""
    end = time.monotonic() + LIMIT
    while not until(pod := cluster.request("GET", f"{PODS}/{name}")):
        assert time.monotonic() < end, pod["status"]
        time.sleep(0.02)
    return pod


def running(pod):
    return pod["status"]["phase"] == "Running"


def waiting(pod):
    states = [status["state"] for status in pod["status"].get("containerStatuses", ())]
    return [state["waiting"]["reason"] for state in states if "waiting" in state]


def stream(cluster, path):
    """Open a stream as administrator."""
    url = urllib.parse.urlsplit(cluster.admin_url)
    connection = http.client.HTTPConnection(url.netloc, timeout=LIMIT)
    connection.request("GET", url.path + path)
    return connection, connection.getresponse()


def refusal(cluster, path):
    with pytest.raises(urllib.error.HTTPError) as raised:
        cluster.request("GET", path)
    with raised.value as error:
        return error.code


def test_requests_can_be_troubled_a_number_of_times(cluster):
    cluster.trouble(503, "/pods", times=2)

    assert [refusal(cluster, PODS), refusal(cluster, PODS)] == [503, 503]
    assert cluster.request("GET", PODS)["items"] == []


def test_a_watch_can_be_cut_without_a_goodbye(cluster):
    connection, response = stream(cluster, f"{PODS}?watch=1&resourceVersion=0")
    start(cluster, script="true")
    assert json.loads(response.readline())["type"] == "ADDED"

    assert cluster.cut("/pods") == 1
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()
    connection.close()


def test_an_expired_watch_ends_with_410(cluster):
    version = cluster.request("GET", PODS)["metadata"]["resourceVersion"]
    connection, response = stream(cluster, f"{PODS}?watch=1&resourceVersion={version}")
    start(cluster, script="true")
    response.readline()
    cluster.expire_watches("pods")
    events = [json.loads(line) for line in response.read().splitlines()]

    assert (events[-1]["type"], events[-1]["object"]["code"]) == ("ERROR", 410)
    connection.close()


def test_a_followed_log_goes_on_over_a_rotation_and_a_plain_one_begins_there(cluster):
    start(cluster)
    wait(cluster, running)
    connection, response = stream(cluster, f"{PODS}/p/log?follow=true&timestamps=true")
    first = [response.readline() for _ in range(3)]
    cluster.rotate_log("ns", "p", "main")
    then = [response.readline() for _ in range(3)]
    response.close()
    connection.close()

    stamps = [line.split()[0] for line in first + then]
    assert stamps == sorted(set(stamps))
    plain, answer = stream(cluster, f"{PODS}/p/log?timestamps=true")
    assert first[0] not in answer.read().splitlines(keepends=True)
    plain.close()


def test_a_pod_can_be_held_and_let_go(cluster):
    cluster.hold("p", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    start(cluster)
    pod = wait(cluster, lambda pod: pod["status"].get("conditions"))
    assert pod["status"]["conditions"][0]["reason"] == "Unschedulable"

    cluster.release("p")
    wait(cluster, running)


def test_an_image_can_fail_to_be_pulled_for_a_while(cluster):
    cluster.fail_pulls("localhost/busybox:1")
    start(cluster)
    wait(cluster, lambda pod: waiting(pod) == ["ImagePullBackOff"])

    cluster.allow_pulls("localhost/busybox:1")
    wait(cluster, running)


def disruptions(pod):
    conditions = pod["status"].get("conditions", ())
    return [condition["reason"] for condition in conditions if condition["type"] == "DisruptionTarget"]


def test_a_pod_whose_host_runs_short_has_the_condition_with_its_end_and_not_before(cluster):
    """The kubelet does so since 1.26 (``mergePodStatus`` in pkg/kubelet/status/status_manager.go)."""
    start(cluster)
    wait(cluster, running)
    cluster.fail_pods("ns", "p", why=("Evicted", "low on memory"), disrupted="TerminationByKubelet")
    wait(cluster, lambda pod: pod["status"]["phase"] == "Failed")

    pods = [change.object for change in cluster.history("ns") if change.resource.plural == "pods"]
    shown = [(pod["status"].get("reason"), *disruptions(pod)) for pod in pods if disruptions(pod)]
    assert {*shown} == {("Evicted", "TerminationByKubelet")}


def test_an_evicted_pod_carries_the_condition_until_it_is_gone(cluster):
    start(cluster, terminationGracePeriodSeconds=1)
    wait(cluster, running)
    cluster.evict("ns", "p")
    pod = cluster.request("GET", f"{PODS}/p")

    assert "deletionTimestamp" in pod["metadata"]
    assert disruptions(pod)


def test_a_server_that_restarts_keeps_its_port_and_its_pods(cluster):
    start(cluster)
    wait(cluster, running)
    cluster.stop_server()
    with pytest.raises(urllib.error.URLError):
        cluster.request("GET", PODS)
    cluster.start_server()

    assert running(cluster.request("GET", f"{PODS}/p"))


def test_a_token_can_expire(cluster):
    path = cluster.user("somebody")
    token = json.loads(path.read_text())["users"][0]["user"]["token"]
    url = urllib.parse.urlsplit(cluster.url)

    def code():
        connection = http.client.HTTPConnection(url.netloc, timeout=LIMIT)
        connection.request("GET", PODS, headers={"Authorization": f"Bearer {token}"})
        with connection.getresponse() as response:
            status = response.status
        connection.close()
        return status

    assert code() == 403
    cluster.allow("somebody", "ns", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])
    assert code() == 200
    cluster.expire_tokens("somebody")
    assert code() == 401


def test_a_pod_finds_torch_but_not_this_package(cluster):
    code = "import importlib.util as u; print(bool(u.find_spec('torch')), bool(u.find_spec('nbtorchjob')))"
    container = {"name": "main", "image": "localhost/torch:1", "command": ["python", "-c", code]}
    start(cluster, containers=[container])
    wait(cluster, lambda pod: pod["status"]["phase"] == "Succeeded")
    connection, response = stream(cluster, f"{PODS}/p/log")

    assert response.read() == b"True False\n"
    connection.close()


def test_a_host_learns_late_of_a_changed_configmap_as_long_as_a_pod_there_refers_to_it(cluster):
    def config(method, word):
        place = "/api/v1/namespaces/ns/configmaps" + ("/words" if method == "PATCH" else "")
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "words"},
            "data": {"word": word},
        }
        cluster.request(method, place, body)

    def said(name):
        command = ["sh", "-c", "cat /words/word; sleep 600"]
        mounts = [{"name": "words", "mountPath": "/words"}]
        image = {"name": "main", "image": "localhost/busybox:1"}
        container = {**image, "command": command, "volumeMounts": mounts}
        volumes = [{"name": "words", "configMap": {"name": "words"}}]
        start(cluster, name, volumes=volumes, containers=[container])
        wait(cluster, running, name)
        connection, answer = stream(cluster, f"{PODS}/{name}/log?follow=true")
        word = answer.read(3)
        answer.close()
        connection.close()
        return word

    config("POST", "old\n")
    words = [said("first")]
    cluster.lag_kubelet(LIMIT)
    config("PATCH", "new\n")
    words.append(said("second"))
    cluster.lag_kubelet(0)
    words.append(said("third"))

    assert words == [b"old", b"old", b"new"]
