import json

import pytest

from nbtorchjob.errors import SpecError
from nbtorchjob.spec.cluster import KINDS, Cluster, changed_fields
from nbtorchjob.spec.cluster.grammars import Mount, amount, toleration
from nbtorchjob.spec.config import Master
from nbtorchjob.spec.options import TABLE


def made(**fields):
    return Cluster(**fields)


def refusal(field, value):
    with pytest.raises(SpecError) as caught:
        made(**{field: value})
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_is_asked_for_by_default():
    assert changed_fields(Cluster()) == []
    assert changed_fields(Cluster(gpu=1, toleration=["gpu"], full_requests=True)) == [
        "gpu",
        "full_requests",
        "toleration",
    ]


def test_a_field_is_an_option_of_its_name():
    options = {o.name: o.key for o in TABLE if o.home == ("cluster",)}

    assert options == {name: name.replace("_", "-") for name in vars(Cluster())}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2),
        ("500m", 0.5),
        (".5", 0.5),
        ("1e3", 1000),
        ("2E", 2e18),
        ("2k", 2000),
        ("1Ki", 1024),
        ("8Gi", 8 << 30),
    ],
)
def test_an_amount_is_kubernetes_notation(text, number):
    assert amount(text) == pytest.approx(number)


def test_a_number_is_an_amount():
    assert made(cpu=4, request={"cpu": 0.5}) == Cluster(cpu="4", request={"cpu": "0.5"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("kind", kind) for kind in ("job", "PyTorchJob", "", 1)),
        *(("namespace", name) for name in ("", "A", "a.b", "-a", "a" * 64)),
        *(("image", image) for image in ("", "a b", "a\n", 3)),
        *(("cpu", cpu) for cpu in ("", "0", "-1", "two", "1 ", "1Gb", "1e999", True, 0, [1])),
        *(("memory", memory) for memory in ("8GB", "0", "512m", "1")),
        *(("shm", size) for size in ("", "64k", "-1", "no")),
        *(("gpu", number) for number in (-1, "1", 0.5, True)),
        *(("gpu_resource", name) for name in ("gpu", None, "", "a/b/c", "/gpu")),
        *(
            ("device", devices)
            for devices in ({"efa": "1"}, {"a.b/efa": "0"}, {"a.b/efa": None}, "a.b/efa=1")
        ),
        *(("limit", amounts) for amounts in ({"ram": "1Gi"}, {"memory": "1m"}, {1: "1"})),
        ("request", {"cpu": "all"}),
        ("full_requests", 1),
        *(("queue", name) for name in ("", "A", "a b")),
        ("priority_class", "High"),
        ("workload_priority", "High"),
        ("service_account", "a_b"),
        ("run_as", "0"),
        ("run_as", "ada"),
        ("run_as", "1000:"),
        ("run_as", 2**31),
        *(("image_pull_secret", names) for names in ("mine", ["A"], [1], [""], {"a": "b"})),
        *(("node_selector", labels) for labels in ({"a b": "c"}, {"a": "b c"}, {"": ""}, {"A/b/c": "d"})),
        *(
            ("toleration", taints)
            for taints in ([":NoSchedule"], ["a=b:Never"], ["a:"], ["a b"], ["a=b c"], "a")
        ),
        *(("label", labels) for labels in ({"a": "b" * 64}, {"nbtorchjob.dev/job": "x"}, {"a": 1})),
        ("label", {"app.kubernetes.io/managed-by": "me"}),
        *(
            ("annotation", notes)
            for notes in ({"a b": "c"}, {"nbtorchjob.dev/info": ""}, {"a": "b" * 200_000})
        ),
        ("annotation", {"a": "\udcff"}),
        *(
            ("storage", url)
            for url in ("", "bucket/x", "relative", "s3:/x", "/", "s3://", "s3://a b", "s3://[a")
        ),
        *(
            ("pod_patch", patch)
            for patch in (
                "",
                "[1]",
                "{}",
                "{spec",
                "no/such/file.yaml",
                "a: {b: 1}",
                {"x": 1},
                1,
                "spec: 2026-02-30",
            )
        ),
        *(
            ("pod_patch", {"spec": spec})
            for spec in (object(), [], {"containers": {}}, {"containers": ["a"]})
        ),
        ("pod_patch", {"metadata": {"labels": object()}}),
        ("pod_patch", "x" * 5000),
        ("pod_patch", "spec: {until: 2026-02-30}"),
        *(("runtime", name) for name in ("", "A")),
        *(("preemptible", value) for value in (1, True)),
        *(("spot_selector", labels) for labels in ({"a b": "c"}, "a=b")),
        *(("spot_toleration", taints) for taints in (["a:"], "a")),
        *(("checkpoints", place) for place in ("", "relative", "s3://", "/not/mounted", 1)),
    ],
)
def test_a_wrong_setting_is_refused_by_its_field(field, value):
    refusal(field, value)


@pytest.mark.parametrize(
    "name",
    [
        *("torch", "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime", "localhost:5000/a/b__c:v1.2_x"),
        *("Registry.Example.com/team/torch", "[::1]:5000/torch", f"torch:1@sha256:{'a' * 64}"),
    ],
)
def test_an_image_is_named_as_registries_have_it(name):
    assert Cluster(image=name).image == name
    assert Master(image=name).image == name


@pytest.mark.parametrize(
    "name",
    [
        "Bad:Name:7",
        "Torch",
        "a//b",
        "a b",
        "torch:",
        "torch:-1",
        "-a/b",
        "torch@sha256:12",
        "https://a/b",
        "",
    ],
)
def test_an_image_that_no_registry_could_have_is_refused(name):
    for make in (Cluster, Master):
        with pytest.raises(SpecError, match="image"):
            make(image=name)


def test_the_text_of_a_refusal_says_what_to_do():
    assert refusal("memory", "512m") == (
        "memory: got '512m', but it must be 4M or more: it counts bytes, so write M, Mi, G or Gi"
    )
    assert refusal("kind", "job") == f"kind: got 'job', but it must be {' or '.join(map(repr, KINDS))}"
    assert "nvidia.com/gpu" in refusal("limit", {"gpu": "1"})


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("gpu", {"key": "gpu", "operator": "Exists"}),
        ("gpu:NoSchedule", {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}),
        ("a.b/c=d", {"key": "a.b/c", "operator": "Equal", "value": "d"}),
        ("a=:NoExecute", {"key": "a", "operator": "Equal", "value": "", "effect": "NoExecute"}),
    ],
)
def test_a_toleration_is_written_like_a_taint(text, taint):
    assert Cluster(toleration=[text]).toleration == (text,)
    assert toleration(text) == taint


@pytest.mark.parametrize(
    ("text", "mounts"),
    [
        ("type=volume,src=data,dst=/data", [Mount("volume", "data", "/data")]),
        ("type=volume,source=data,target=/data,readonly", [Mount("volume", "data", "/data", True)]),
        ("type=bind,src=/a,dst=/b/,read_only=true", [Mount("bind", "/a", "/b", True)]),
        ("type=bind,src=/a,destination=/b,readonly=false", [Mount("bind", "/a", "/b")]),
        ("type=device,src=/dev/x", [Mount("device", "/dev/x", "/dev/x")]),
        ("type=device,src=/dev/x,dst=/dev/y,perm=r", [Mount("device", "/dev/x", "/dev/y", True, "r")]),
        (
            "type=bind,src=/a,dst=/a,type=volume,src=c,dst=/c",
            [Mount("bind", "/a", "/a"), Mount("volume", "c", "/c")],
        ),
    ],
)
def test_a_mount_is_torchxs_grammar(text, mounts):
    cluster = Cluster(mount=[text])

    assert list(cluster.mounts) == mounts
    assert Cluster(mount=cluster.mount) == cluster


def test_a_home_folder_is_written_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")

    assert Cluster(mount=["type=bind,src=~/data,dst=/data"]).mount == (
        "type=bind,src=/home/ada/data,dst=/data",
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("x", "one of type"),
        ("src=a,type=volume,dst=/a", "type= first"),
        ("type=volume,src=a,src=b,dst=/a", "each key once"),
        ("type=nfs,src=a,dst=/a", "type=bind or type=volume or type=device"),
        ("type=volume,size=1,src=a,dst=/a", "one of type, src"),
        ("type=volume,dst=/a", "PersistentVolumeClaim"),
        ("type=volume,src=A,dst=/a", "a-z"),
        ("type=bind,src=a,dst=/a", "absolute path on the host"),
        ("type=bind,src=/a,dst=a", "absolute path in the container"),
        ("type=bind,src=/a", "absolute path in the container"),
        ("type=bind,src=/a,dst=/", "other than /"),
        ("type=bind,src=/a,dst=/b/../c", "absolute path in the container"),
        ("type=bind,src=/a,dst=/dev/shm", "--shm"),
        ("type=bind,src=/a,dst=/etc/nbtorchjob/key", "reserved for the job"),
        ("type=bind,src=/a,dst=/a,perm=r", "only type=device"),
        ("type=bind,src=/a,dst=/a,readonly=maybe", "readonly=true or readonly=false"),
        ("type=device,src=/dev/x,readonly", "perm=r"),
        ("type=device,src=/dev/x,perm=rx", "some of r, w and m"),
        ("type=device,src=/dev/x,perm=", "some of r, w and m"),
        ("type=bind,src=/a,dst=/c,type=bind,src=/b,dst=/c", "mounted only once"),
    ],
)
def test_a_malformed_mount_is_refused_with_the_reason(text, word):
    assert word in refusal("mount", [text])


def test_a_pod_patch_is_a_mapping_or_its_json_or_yaml_or_a_file(folder):
    patch = {"spec": {"hostNetwork": True}}
    file = folder / "patch.yaml"
    file.write_text("spec:\n  hostNetwork: true\n")

    clusters = [made(pod_patch=form) for form in (patch, json.dumps(patch), file.read_text(), str(file))]

    assert [cluster.patch for cluster in clusters] == [patch] * 4
    assert len(set(map(repr, clusters))) == 1


def test_a_text_given_twice_counts_once():
    assert Cluster(mount=["type=bind,src=/a,dst=/a", "type=bind,source=/a,dst=/a"]).mount == (
        "type=bind,src=/a,dst=/a",
    )


def test_preemptible_hosts_are_for_a_profile_to_tell():
    assert "profile" in refusal("preemptible", True)
    assert made(preemptible=True, spot_toleration=["spot"]).preemptible
    assert made(preemptible=True, spot_selector={"spot": "yes"}).preemptible


def test_a_label_of_preemptible_hosts_is_not_asked_of_all_hosts():
    with pytest.raises(SpecError, match="a label that node_selector doesn't use"):
        made(spot_selector={"spot": "yes"}, node_selector={"spot": "no"})


@pytest.mark.parametrize("path", ["/work", "/work/", "/work/a/b", "/work/../work/a"])
def test_checkpoints_lie_below_a_mount(path):
    assert made(mount=["type=volume,src=work,dst=/work"], checkpoints=path).checkpoints == path


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/work", "type=volume,src=work,dst=/work/a"),
        ("/workshop", "type=volume,src=work,dst=/work"),
        ("/work/../tmp", "type=volume,src=work,dst=/work"),
        ("//work", "type=volume,src=work,dst=/tmp"),
        ("/work", "type=volume,src=work,dst=/work,readonly"),
        ("/dev/x/a", "type=device,src=/dev/x"),
    ],
)
def test_checkpoints_lie_where_they_are_kept(path, mount):
    with pytest.raises(SpecError, match="below the dst of a writable --mount"):
        made(mount=[mount], checkpoints=path)


def test_a_store_needs_no_mount():
    assert made(checkpoints="s3://bucket/checkpoints").checkpoints == "s3://bucket/checkpoints"
