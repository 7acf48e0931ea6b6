"""API requests and their retries, and effects that must not happen twice."""

import asyncio
import json
import random
import subprocess
import sys
from itertools import islice
from typing import Any

import pytest

from nbtorchjob.backends.kubernetes import session
from nbtorchjob.backends.kubernetes.api import client as api_client
from nbtorchjob.backends.kubernetes.api import connection
from nbtorchjob.backends.kubernetes.api.answers import slim
from nbtorchjob.backends.kubernetes.api.client import delays, shared
from nbtorchjob.backends.kubernetes.objects.reading import PODS, SECRETS, Api, Target
from nbtorchjob.errors import AlreadyExistsError, ApiError, ClusterError, UnreachableError
from tests.backends.kubernetes.scripted import CUT, HANG, SHARED, Reply, Stream, kubeconfig, scripted, status

JOBS = Api("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
POD = Target(PODS, "ns", "a")
PODS_PATH, POD_PATH = "/api/v1/namespaces/ns/pods", "/api/v1/namespaces/ns/pods/a"
SECRET = {"metadata": {"name": "s", "uid": "u", "labels": {"job": "s"}, "annotations": {"call": "7k2q"}}}


def listing(*items, token="", version="7"):
    return Reply(body={"metadata": {"resourceVersion": version, "continue": token}, "items": list(items)})


def pod(name, **more):
    return {"metadata": {"name": name, "uid": name, **more}, "spec": {}}


@scripted
async def test_trouble_that_passes_is_waited_out(server, client):
    server.on(POD_PATH, status(503, "busy"), Reply(end=CUT), status(500, "etcd"), Reply(body=pod("a")))

    assert await client.get(POD) == {"kind": "Pod", "apiVersion": "v1", **pod("a")}
    assert len(server.asked) == 4


@scripted
async def test_trouble_that_stays_ends_in_an_error(server, client):
    server.on(POD_PATH, status(503, "the server is currently unable to handle the request"))

    with pytest.raises(ClusterError, match=r"just now \(503 the server is currently unable"):
        await client.get(POD)
    assert client.requests == 7


@scripted
async def test_retry_after_is_heeded(server, client, monkeypatch):
    waits = []
    real = asyncio.sleep

    async def sleep(seconds):
        if sys._getframe(1).f_globals["__name__"] == api_client.__name__:  # other modules follow jobs
            waits.append(seconds)
        await real(0)

    # Retry-After is in whole seconds, and only the client's sleep shows how long it waits.
    monkeypatch.setattr(asyncio, "sleep", sleep)
    busy = Reply(429, b"Too many requests", {"Retry-After": "3"})
    date = Reply(429, b"Too many requests", {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
    server.on(POD_PATH, busy, date, Reply(body=pod("a")))

    await client.get(POD)
    assert waits[0] == 3
    assert waits[1] < 1


@scripted
async def test_what_was_refused_is_not_asked_again(server, client):
    server.on(POD_PATH, status(422, "invalid", "Invalid"))

    with pytest.raises(ClusterError):
        await client.get(POD)
    assert client.requests == 1


@scripted
async def test_a_lost_race_for_a_quota_is_run_again(server, client):
    lost = 'Operation cannot be fulfilled on resourcequotas "gke": the object has been modified; please apply'
    server.on(PODS_PATH, status(409, lost, "Conflict"), Reply(body=pod("a")))

    assert (await client.create(PODS, "ns", pod("a")))["metadata"]["name"] == "a"
    assert client.requests == 2


@scripted
async def test_a_login_page_is_no_cluster(server, client):
    server.on(POD_PATH, Reply(body=b"<html>Please sign in"))

    with pytest.raises(ClusterError, match="isn't a Kubernetes API, it answered with '<html>Please sign in'"):
        await client.get(POD)
    assert client.requests == 1


NO_OBJECTS: tuple[Any, ...] = (
    [],
    7,
    None,
    "words",
    {},
    {"metadata": []},
    {"metadata": {"name": "a"}, "spec": 3},
    {"metadata": 1},
)


@pytest.mark.parametrize("body", NO_OBJECTS)
@scripted
async def test_an_answer_of_another_shape_is_refused_in_one_line(server, client, body):
    server.on(POD_PATH, Reply(body=body))
    server.on(PODS_PATH, Reply(body={"metadata": {}, "items": [body]}), Reply(body={"items": 3}))

    for ask in (client.get(POD), client.list(PODS, "ns"), client.list(PODS, "ns")):
        with pytest.raises(ClusterError, match="isn't a Kubernetes API") as refused:
            await ask
        assert "\n" not in str(refused.value)


@scripted
async def test_an_answer_that_comes_a_byte_at_a_time_is_given_up(server, client, monkeypatch):
    # The default is a minute, and users can't set it.
    defaults = connection.Request.__new__.__defaults__ or ()
    monkeypatch.setattr(connection.Request.__new__, "__defaults__", (*defaults[:-1], 0.2))

    server.on(POD_PATH, Stream([b" "], HANG))
    with pytest.raises(UnreachableError, match="timed out"):
        await client.get(POD)
    assert client.requests < 8


@scripted
async def test_a_create_that_was_cut_but_happened_counts(server, client):
    server.on("/version", Reply(body={"gitVersion": "v1.36.2"}))
    server.on("/api/v1/namespaces/ns/secrets", Reply(end=CUT), status(409, "exists", "AlreadyExists"))
    server.on("/api/v1/namespaces/ns/secrets/s", Reply(body={**SECRET, "made": True}))
    await session.version(client)

    assert (await client.create(SECRETS, "ns", SECRET))["made"] is True


@scripted
async def test_a_create_that_was_cut_finds_another_of_the_name(server, client):
    other = {"metadata": {**SECRET["metadata"], "annotations": {"call": "other"}}}
    server.on("/api/v1/namespaces/ns/secrets", status(500, "etcd"), status(409, "exists", "AlreadyExists"))
    server.on("/api/v1/namespaces/ns/secrets/s", Reply(body=other))

    with pytest.raises(AlreadyExistsError, match='secrets "s" in namespace "ns" exists already'):
        await client.create(SECRETS, "ns", SECRET)


@scripted
async def test_a_name_that_was_taken_before_is_never_ours(server, client):
    server.on("/api/v1/namespaces/ns/secrets", status(409, "exists", "AlreadyExists"))
    server.on("/api/v1/namespaces/ns/secrets/s", Reply(body=SECRET))

    with pytest.raises(AlreadyExistsError):
        await client.create(SECRETS, "ns", SECRET)
    assert client.requests == 1


@pytest.mark.parametrize(("reply", "requests"), [(status(500, "etcd"), 1), (Reply(429, b""), 7)])
@scripted
async def test_a_create_without_a_name_is_repeated_only_where_it_was_turned_away(
    server, client, reply, requests
):
    server.on(PODS_PATH, reply)

    with pytest.raises(ApiError):
        await client.create(PODS, "ns", {"metadata": {"generateName": "a-"}})
    assert client.requests == requests


@scripted
async def test_too_large_for_the_store_is_final(server, client):
    server.on("/api/v1/namespaces/ns/secrets", status(500, "etcdserver: request is too large"))

    with pytest.raises(ApiError, match="too large"):
        await client.create(SECRETS, "ns", SECRET)
    assert client.requests == 1


@scripted
async def test_a_dry_run_is_marked_and_a_patch_is_merged(server, client):
    server.on(PODS_PATH, Reply(body=pod("a")))
    server.on(POD_PATH, Reply(body=pod("a")))

    await client.create(PODS, "ns", pod("a"), dry_run=True)
    await client.patch(POD, {"spec": {}})
    create, patch = server.asked
    assert create.query == {"dryRun": "All"}
    assert create.body == pod("a")
    assert (patch.query, patch.headers["content-type"]) == ({}, "application/merge-patch+json")


@scripted
async def test_deleting_always_says_what_becomes_of_the_rest(server, client):
    server.on(POD_PATH, Reply(body={"kind": "Status", "status": "Success"}), status(404, "gone", "NotFound"))

    assert await client.delete(POD, uid="u-1") is True
    assert await client.delete(POD) is False
    assert server.asked[0].body["preconditions"] == {"uid": "u-1"}
    assert {request.body["propagationPolicy"] for request in server.asked} == {"Background"}


@scripted
async def test_deleting_by_uid_leaves_a_later_object_alone(server, client):
    server.on(POD_PATH, status(409, "the UID in the precondition", "Conflict"))

    assert await client.delete(POD, uid="u-1") is False


@scripted
async def test_a_list_is_read_in_pages_without_its_bulk(server, client):
    heavy = pod("a", managedFields=[{"manager": "kubectl"}])
    heavy["spec"] = {"nodeName": "n", "volumes": [{}], "containers": [{"name": "main", "env": [{}]}]}
    server.on(PODS_PATH, listing(heavy, token="more"), listing(pod("b"), version="8"))

    pods = await client.list(PODS, "ns", labels="a=b,c in (d)", fields="type=Warning")

    assert pods.version == "8"
    assert [item["metadata"]["name"] for item in pods.items] == ["a", "b"]
    assert pods.items[0]["spec"] == {"nodeName": "n", "containers": [{"name": "main"}]}
    assert "managedFields" not in pods.items[0]["metadata"]
    assert pods.items[0]["kind"] == "Pod"
    selectors = {"labelSelector": "a=b,c in (d)", "fieldSelector": "type=Warning", "limit": "500"}
    assert [request.query for request in server.asked] == [selectors, {**selectors, "continue": "more"}]


@scripted
async def test_a_list_whose_pages_expired_is_read_at_once(server, client):
    expired = status(410, "The provided continue parameter is too old", "Expired")
    server.on(PODS_PATH, listing(pod("a"), token="more"), expired, listing(pod("a"), pod("b")))

    pods = await client.list(PODS, "ns")

    assert [item["metadata"]["name"] for item in pods.items] == ["a", "b"]
    assert server.asked[-1].query == {}


def test_a_thousand_jobs_keep_no_templates():
    job = {"metadata": {}, "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": {}}}}}

    rest = slim(job, JOBS)
    assert rest["spec"] == {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}}
    assert rest["apiVersion"] == "kubeflow.org/v1"


@scripted
async def test_a_stream_that_is_cut_says_so(server, client):
    server.on("/version", Reply(body={"gitVersion": "v1.36.2"}))
    server.on(PODS_PATH, Stream([b"one"], CUT))
    await session.version(client)

    chunks = []
    with pytest.raises(UnreachableError):
        async with client.stream("watch", Target(PODS, "ns"), {}, silence=10) as answer:
            chunks += [chunk async for chunk in answer.chunks()]
    assert chunks in ([], [b"one"])
    assert client.requests == 2


@scripted
async def test_a_silent_stream_is_cut(server, client):
    server.on(PODS_PATH, Stream([], HANG))

    with pytest.raises(UnreachableError, match="timed out"):
        async with client.stream("watch", Target(PODS, "ns"), {}, silence=0.05) as answer:
            assert [chunk async for chunk in answer.chunks()] == []


@pytest.mark.skipif(not SHARED.is_dir(), reason="no recordings beside the checkout")
@scripted
async def test_what_is_served_takes_one_request(server, client):
    recorded = json.loads((SHARED / "recordings/api/discovery-aggregated.json").read_text())
    server.on("/apis", Reply(body=recorded["response"]["body"]))

    served = await session.served(client, {"kubeflow.org", "batch.volcano.sh"})

    assert ("kubeflow.org", "v1", "pytorchjobs") in served
    assert ("batch.volcano.sh", "v1alpha1", "jobs") in served
    assert {group for group, _, _ in served} == {"kubeflow.org", "batch.volcano.sh"}
    assert client.requests == 1


@scripted
async def test_old_servers_are_asked_for_each_version(server, client):
    versions = [{"version": "v1"}, {"version": "v1beta1"}]
    groups = [{"name": "batch", "versions": versions}, {"name": "apps", "versions": versions}]
    server.on("/apis", Reply(body={"kind": "APIGroupList", "groups": groups}))
    server.on("/apis/batch/v1", Reply(body={"resources": [{"name": "jobs"}, {"name": "jobs/status"}]}))
    server.on("/apis/batch/v1beta1", Reply(body={"resources": [{"name": "cronjobs"}]}))

    served = await session.served(client, {"batch"})

    assert served == {("batch", "v1", "jobs"), ("batch", "v1beta1", "cronjobs")}
    assert client.requests == 3


@scripted
async def test_permissions_are_asked_of_the_server(server, client):
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answers = [Reply(201, {"status": {"allowed": allowed}}) for allowed in (True, False)]
    server.on(path, *answers)

    assert await session.allowed(client, "get", "", "pods/log", "ns") is True
    assert await session.allowed(client, "list", "kubeflow.org", "pytorchjobs", None) is False
    first, second = (request.body["spec"]["resourceAttributes"] for request in server.asked)
    assert first == {"verb": "get", "group": "", "resource": "pods", "subresource": "log", "namespace": "ns"}
    assert second == {"verb": "list", "group": "kubeflow.org", "resource": "pytorchjobs"}


@scripted
async def test_one_client_serves_a_context(server, client):
    assert shared("a", "config") is shared("a", "config")
    assert shared("a", "config") is not shared("b", "config")
    assert shared("a", "config") is not shared("a", "other")


FORKED = """
import os
from nbtorchjob.backends.kubernetes.api.client import shared
client = shared("a", "config")
if os.fork():
    os.wait()
print(shared("a", "config") is client)
"""


def test_a_fork_has_a_client_of_its_own():
    forked = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)

    assert forked.stdout.split() == ["False", "True"]


@pytest.fixture
def haste(monkeypatch):
    """Shorten the waits for a silent server, and for the small request that tests it."""
    monkeypatch.setattr(api_client, "_SILENT_S", 0.03)
    monkeypatch.setattr(api_client, "_SMALL_S", 0.3)


@scripted
async def test_a_server_that_lets_connect_and_says_nothing_is_away(server, client, haste, tmp_path):
    came: list[asyncio.StreamWriter] = []
    deaf = await asyncio.start_server(lambda _, writer: came.append(writer), "127.0.0.1", 0)
    port = deaf.sockets[0].getsockname()[1]
    kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{port}")

    with pytest.raises(UnreachableError, match=r"doesn't answer \(timed out\)"):
        await client.unless_away(client.get(POD))
    assert len(came) == 2  # the second one carries the small request
    for writer in came:
        writer.close()
    deaf.close()


@scripted
async def test_a_server_that_may_not_be_looked_at_is_waited_for(server, client, haste):
    signal = asyncio.Event()

    def version(_):
        signal.set()
        return Reply(403)

    server.on(POD_PATH, Stream([signal, json.dumps(pod("a")).encode()]))
    server.on("/version", version)

    assert (await client.unless_away(client.get(POD)))["metadata"]["name"] == "a"


@scripted
async def test_a_server_that_fails_at_what_is_small_too_is_away(server, client, haste):
    server.on(POD_PATH, Stream([], HANG))
    server.on("/version", status(503, "etcd is gone"))

    with pytest.raises(ApiError, match="etcd is gone"):
        await client.unless_away(client.get(POD))


@scripted
async def test_a_server_that_has_answered_is_waited_for_though_it_says_nothing_for_a_while(
    server, client, haste
):
    back = asyncio.Event()
    server.on(POD_PATH, Reply(200, pod("a")), Stream([back, json.dumps(pod("a")).encode()]))
    server.on("/version", status(503, "etcd is gone"))

    first = await client.get(POD)
    asyncio.get_running_loop().call_later(0.1, back.set)  # thrice the limit of an unknown server

    assert await client.unless_away(client.get(POD), patient=True) == first


def test_waits_double_up_to_a_cap_and_differ_by_up_to_a_half():
    for wait, most in zip(delays(1, 6), (1, 2, 4, 6, 6, 6), strict=False):
        assert most / 2 <= wait <= most


def test_a_notebook_that_has_seeded_random_finds_its_own_numbers():
    random.seed(3)
    before = random.getstate()
    list(islice(delays(1, 6), 4))

    assert random.getstate() == before
