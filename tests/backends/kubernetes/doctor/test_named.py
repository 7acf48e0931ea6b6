"""The choices that a cluster offers: all of them, some, and none."""

import secrets

from nbtorchjob.backends import backend
from nbtorchjob.backends.base import Choice, Images
from nbtorchjob.backends.kubernetes.doctor import named as hosts
from nbtorchjob.spec.cluster import KINDS, Cluster
from nbtorchjob.spec.jobspec import JobSpec
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.scripted import Reply, kubeconfig, scripted, status

TYPE = "node.kubernetes.io/instance-type"
FORBIDDEN = status(403, 'nodes is forbidden: User "ada" cannot list resource "nodes"', "Forbidden")


def choices(spec=None):
    return cluster_backend().choices(spec or JobSpec(backend="kubernetes"))


def values(options, key):
    return [choice.value for choice in options.get(key, ())]


def test_all_that_a_job_can_name_is_listed(stage):
    create(stage, "api/v1", "persistentvolumeclaims", "PersistentVolumeClaim", "data", spec=CLAIM)
    create(stage, "api/v1", "serviceaccounts", "ServiceAccount", "trainer")

    options = choices(stage.spec())

    assert values(options, "context") == ["emulator"]
    assert stage.namespace in values(options, "namespace")
    assert values(options, "kind") == list(KINDS)
    assert options["runtime"] == [Choice("torch-distributed", "torch, 1 node, localhost/torch:1")]
    assert options["queue"] == [Choice("default", "Volcano")]
    assert values(options, "service-account") == ["default", "trainer"]
    assert options["mount"] == [Choice("type=volume,src=data,dst=/mnt/data", "10Gi, ReadWriteMany")]


CLAIM = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}}


def create(stage, api, plural, kind, name, **body):
    version = api.removeprefix("api/")
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **body}
    stage.cluster.request("POST", f"/{api}/namespaces/{stage.namespace}/{plural}", body)


def test_every_choice_is_a_value_that_the_option_takes(stage):
    create(stage, "api/v1", "persistentvolumeclaims", "PersistentVolumeClaim", "data", spec=CLAIM)
    options = choices(stage.spec())

    Cluster(
        namespace=values(options, "namespace")[0],
        kind=values(options, "kind")[0],
        queue=values(options, "queue")[0],
        runtime=values(options, "runtime")[0],
        service_account=values(options, "service-account")[0],
        mount=values(options, "mount"),
    )


def test_what_may_not_be_listed_is_left_out(stage, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(stage.cluster.user(f"bob-{secrets.token_hex(3)}")))

    options = choices(stage.spec())

    assert set(options) == {"context", "kind"}


def test_a_server_that_does_not_answer_leaves_the_contexts(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "config", "http://127.0.0.1:1", token="t"))

    assert choices() == {"context": [Choice("main")]}


def test_a_context_that_there_is_not_leaves_the_contexts(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "config", "http://127.0.0.1:1", token="t"))

    job_spec = JobSpec(backend="kubernetes", cluster=Cluster(context="other"))

    assert choices(job_spec) == {"context": [Choice("main")]}


def test_without_a_kubeconfig_or_with_a_broken_one_there_is_nothing_to_choose(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    broken = tmp_path / "config"
    broken.write_text("contexts: [1, 2")
    for path in (tmp_path / "absent", broken):
        monkeypatch.setenv("KUBECONFIG", str(path))
        assert choices() == {}


def test_this_machine_has_nothing_to_choose_from():
    assert not isinstance(backend("local"), Images)


def host(name, kind=None, **more):
    labels = {TYPE: kind} if kind else {}
    room = {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8", "pods": "110", "ephemeral-storage": "1Ti"}
    return {"metadata": {"name": name, "labels": labels}, "spec": more, "status": {"allocatable": room}}


def pod(node, **requests):
    amounts = {name.replace("gpu", "nvidia.com/gpu"): text for name, text in requests.items()}
    containers = [{"name": "a", "resources": {"requests": amounts}}, {"name": "b"}]
    return {"metadata": {"name": "p", "uid": "p"}, "spec": {"nodeName": node, "containers": containers}}


def listing(*items):
    return Reply(body={"metadata": {"resourceVersion": "7"}, "items": list(items)})


@scripted
async def test_hosts_are_told_by_type_with_what_is_free(server, client):
    server.on(
        "/api/v1/nodes",
        listing(
            host("a", "big"),
            host("b", "big"),
            host("c", "small"),
            host("d"),
            host("e", "old", unschedulable=True),
        ),
    )
    server.on("/api/v1/pods", listing(pod("a", cpu="500m", gpu="8"), pod("b", memory="16Gi", gpu="2")))

    big = "2 hosts, 31.5 of 32 cpu free, 112 of 128 GiB memory free, 6 of 16 nvidia.com/gpu free"
    small = "1 host, 16 of 16 cpu free, 64 of 64 GiB memory free, 8 of 8 nvidia.com/gpu free"
    assert await hosts.choices(client) == [Choice(f"{TYPE}=big", big), Choice(f"{TYPE}=small", small)]
    assert "Succeeded" in server.asked[1].query["fieldSelector"]


@scripted
async def test_who_may_not_see_all_pods_learns_what_hosts_have(server, client):
    server.on("/api/v1/nodes", listing(host("a", "big")))
    server.on("/api/v1/pods", FORBIDDEN)

    (choice,) = await hosts.choices(client)

    assert choice.note == "1 host, 16 cpu, 64 GiB memory, 8 nvidia.com/gpu"
