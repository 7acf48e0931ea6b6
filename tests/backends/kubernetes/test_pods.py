from typing import Any

import pytest

from nbtorchjob.backends.kubernetes.template import patched, resources, shared_memory
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, Master, PyTorch, Worker
from nbtorchjob.spec.jobspec import JobSpec


def of(replica=None, **fields):
    return resources(Cluster(**fields), replica or Worker())


def test_what_is_not_asked_for_is_left_to_the_cluster():
    assert of() == {}
    assert of(gpu=0) == {}


def test_requests_leave_the_host_its_reserve():
    assert of(cpu="4", memory="8192M") == {
        "limits": {"cpu": "4", "memory": "8192M"},
        "requests": {"cpu": "3900m", "memory": "7168M"},
    }


@pytest.mark.parametrize(
    ("cpu", "memory", "requests"),
    [
        ("150m", "1500M", {"cpu": "75m", "memory": "750M"}),
        ("1m", "4M", {"cpu": "1m", "memory": "2M"}),
        ("0.2", "2Gi", {"cpu": "100m", "memory": "1123M"}),
    ],
)
def test_a_small_node_keeps_half_of_its_request(cpu, memory, requests):
    assert of(cpu=cpu, memory=memory)["requests"] == requests


def test_full_requests_leave_no_reserve():
    assert of(cpu="4", full_requests=True) == {"limits": {"cpu": "4"}, "requests": {"cpu": "4"}}


def test_devices_are_requested_whole():
    needs = of(gpu=8, gpu_resource="amd.com/gpu", device={"vpc.amazonaws.com/efa": "4"})

    amounts = {"amd.com/gpu": "8", "vpc.amazonaws.com/efa": "4"}
    assert needs == {"limits": amounts, "requests": amounts}


def test_a_named_request_or_limit_is_taken_as_it_is():
    needs = of(cpu="4", limit={"memory": "2G", "cpu": "6"}, request={"cpu": "1", "ephemeral-storage": "1G"})

    assert needs == {
        "limits": {"cpu": "6", "memory": "2G"},
        "requests": {"cpu": "1", "memory": "1000M", "ephemeral-storage": "1G"},
    }


def test_a_role_has_amounts_of_its_own():
    needs = of(Master(limits={"cpu": "2"}), cpu="8", memory="8G")
    assert needs == {"limits": {"cpu": "2"}, "requests": {"cpu": "1900m"}}

    needs = of(Master(requests={"cpu": "1"}), cpu="8")
    assert needs == {"limits": {"cpu": "8"}, "requests": {"cpu": "1"}}


@pytest.mark.parametrize(
    ("launch", "fields", "size"),
    [
        (Elastic(), {}, None),
        (Elastic(), {"shm": "2Gi"}, "2Gi"),
        (Elastic(1, 4), {}, "4Gi"),
        (Elastic(2, 1), {}, "1Gi"),
        (Elastic(1, 4), {"memory": "8Gi"}, "4096Mi"),
        (Elastic(1, 4), {"memory": "8Gi", "shm": "64Mi"}, "64Mi"),
        (Elastic(1, 4), {"shm": "0"}, None),
        (PyTorch(worker=Worker(0)), {}, None),
        (PyTorch(worker=Worker(1)), {}, "1Gi"),
    ],
)
def test_a_job_of_several_ranks_gets_shared_memory(launch, fields, size):
    cluster = Cluster(**fields)

    assert (
        shared_memory(JobSpec(launch, cluster=cluster), {"memory": cluster.memory} if cluster.memory else {})
        == size
    )


def test_the_plugins_own_switch_still_works():
    with pytest.warns(DeprecationWarning, match="shm"):
        spec = JobSpec(Elastic(1, 4, increase_shared_mem=False))

    assert shared_memory(spec, {}) is None


POD = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "restartPolicy": "Never",
        "tolerations": [{"key": "gpu"}],
        "containers": [
            {
                "name": "main",
                "command": ["python", "x"],
                "env": [{"name": "A", "value": "1"}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }
        ],
        "volumes": [{"name": "v", "emptyDir": {}}],
    },
}


@pytest.mark.parametrize(
    ("patch", "path", "part"),
    [
        ({}, (), POD),
        ({"metadata": {"labels": {"b": "2"}}}, ("metadata", "labels"), {"a": "1", "b": "2"}),
        ({"metadata": {"labels": {"a": None}}}, ("metadata", "labels"), {}),
        ({"spec": {"tolerations": None}}, ("spec", "tolerations"), None),
        (
            {"spec": {"tolerations": [{"key": "spot"}]}},
            ("spec", "tolerations"),
            [{"key": "gpu"}, {"key": "spot"}],
        ),
        ({"spec": {"hostNetwork": True}}, ("spec", "hostNetwork"), True),
        (
            {
                "spec": {
                    "volumes": [
                        {"name": "v", "emptyDir": {"medium": "Memory"}},
                        {"name": "w", "emptyDir": {}},
                    ]
                }
            },
            ("spec", "volumes"),
            [{"name": "v", "emptyDir": {"medium": "Memory"}}, {"name": "w", "emptyDir": {}}],
        ),
        ({"spec": {"containers": [{"command": ["sh"]}]}}, ("spec", "containers", 0, "command"), ["sh"]),
        (
            {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "2"}]}]}},
            ("spec", "containers", 0, "env"),
            [{"name": "A", "value": "2"}],
        ),
        (
            {"spec": {"containers": [{"volumeMounts": [{"name": "w", "mountPath": "/v"}]}]}},
            ("spec", "containers", 0, "volumeMounts"),
            [{"name": "w", "mountPath": "/v"}],
        ),
        (
            {"spec": {"containers": [{"name": "log", "image": "x"}]}},
            ("spec", "containers", 1),
            {"name": "log", "image": "x"},
        ),
        ({"spec": {"restartPolicy": {"odd": None}}}, ("spec", "restartPolicy"), {}),
    ],
)
def test_a_patch_is_merged_by_name(patch, path, part):
    value: Any = patched(POD, patch, "main")
    for key in path:
        value = value.get(key) if isinstance(value, dict) else value[key]

    assert value == part


def test_a_patch_leaves_the_template_as_it_was():
    before = repr(POD)

    patched(POD, {"spec": {"containers": [{"env": [{"name": "B", "value": "2"}]}]}}, "main")

    assert repr(POD) == before
