"""The hosts that could hold a pod, and the message if none could."""

import pytest

from nbtorchjob.backends.kubernetes.doctor.capacity import judge, matches, untolerated

GPU = "nvidia.com/gpu"
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
GREEDY = {"cpu": "1", "memory": "32Gi"}


def host(name="a", labels=None, taints=(), **room):
    room = {key.replace("gpu", GPU): text for key, text in room.items()}
    allocatable = {"cpu": "4", "memory": "16Gi", **room}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": allocatable},
    }


def pod(requests=None, limits=None, **spec):
    return {"containers": [{"resources": {"requests": requests, "limits": limits}}], **spec}


def bears(operator="Equal", **fields):
    return {"tolerations": [{"operator": operator, **fields}]}


@pytest.mark.parametrize(
    ("wanted", "hosts", "text"),
    [
        (pod({"cpu": "2"}), [host(), host("b", cpu="1")], "1 of 2 hosts can hold a pod when empty"),
        (pod(limits={GPU: "1"}), [host()], f"no host could hold a pod: none has any {GPU}"),
        (pod({GPU: "8"}), [host(gpu="4"), host("b", gpu="2")], f"no host has 8 {GPU} (the most is 4)"),
        (pod(GREEDY), [host()], "no host has 32 GiB memory (the most is 16 GiB)"),
        (
            pod({"cpu": "8", GPU: "1"}),
            [host(cpu="8"), host("b", gpu="1")],
            f"no host has all of 8 cpu and 1 {GPU} together",
        ),
        (
            pod(nodeSelector={"pool": "a100"}),
            [host(labels={"pool": "t4"})],
            "no big enough host has the requested labels: pool=a100",
        ),
        (
            pod({GPU: "1"}),
            [host(), host("b", taints=[TAINT], gpu="1")],
            "no suitable host accepts the pod: "
            f"a host has a taint that --toleration {GPU}=present:NoSchedule would tolerate",
        ),
        (
            pod(),
            [host(taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])],
            "no suitable host accepts the pod: a host is cordoned",
        ),
        (pod(), [], "the cluster has no hosts; unless the cluster adds hosts by itself"),
    ],
)
def test_what_is_said_of_the_hosts(wanted, hosts, text):
    finding = judge(wanted, hosts)

    assert finding.text.startswith(text)
    assert finding.good == ("can hold" in text)


@pytest.mark.parametrize(
    ("options", "free"),
    [
        ({}, False),
        (bears(key=GPU, value="present", effect="NoSchedule"), True),
        (bears(key=GPU, value="present"), True),
        (bears(key=GPU, value="other"), False),
        (bears(key=GPU, value="present", effect="NoExecute"), False),
        (bears("Exists", key=GPU), True),
        (bears("Exists"), True),
        (bears("Exists", key="another"), False),
    ],
)
def test_which_taints_a_pod_bears(options, free):
    assert (untolerated(pod(**options), host(taints=[TAINT])) == []) is free


def test_a_taint_that_only_prefers_keeps_nothing_away():
    assert untolerated(pod(), host(taints=[{**TAINT, "effect": "PreferNoSchedule"}])) == []


@pytest.mark.parametrize(
    ("key", "operator", "values", "good"),
    [
        ("pool", "In", ["a", "b"], True),
        ("pool", "NotIn", ["a"], False),
        ("absent", "NotIn", ["a"], True),
        ("pool", "Exists", [], True),
        ("absent", "Exists", [], False),
        ("absent", "DoesNotExist", [], True),
        ("generation", "Gt", ["8"], True),
        ("generation", "Lt", ["8"], False),
        ("absent", "Lt", ["8"], False),
        ("pool", "Gt", ["8"], False),
        ("pool", "Gt", [], False),
        ("pool", "Equals", ["b"], True),  # the server will refuse it
    ],
)
def test_which_labels_an_affinity_asks_for(key, operator, values, good):
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    }
    where = host(labels={"pool": "a", "generation": "9"})

    assert matches(pod(affinity=affinity), where) is good
