import math
import pickle
from dataclasses import FrozenInstanceError, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.errors import SpecError
from nbtorchjob.spec.config import Elastic, Master, PyTorch, Worker
from nbtorchjob.spec.policies import CleanPodPolicy, RestartPolicy, RunPolicy


def refused(make, **values):
    with pytest.raises(SpecError) as caught:
        make(**values)
    assert "\n" not in str(caught.value)
    return caught.value


def test_elastic_has_the_plugins_defaults():
    launch = Elastic()

    assert (launch.nnodes, launch.nproc_per_node, launch.start_method) == (1, 1, "spawn")
    assert (launch.monitor_interval, launch.max_restarts, launch.run_policy) == (5, 0, None)
    assert launch.rdzv_configs == {"timeout": 900, "join_timeout": 900}


@pytest.mark.parametrize(
    ("nnodes", "kept", "fewest", "most"),
    [
        (2, 2, 2, 2),
        ("2", 2, 2, 2),
        ("2:2", 2, 2, 2),
        ("1:4", "1:4", 1, 4),
        ("01:4", "1:4", 1, 4),
    ],
)
def test_nnodes_is_torchruns_grammar(nnodes, kept, fewest, most):
    launch = Elastic(nnodes=nnodes)

    assert (launch.nnodes, launch.min_nodes, launch.max_nodes) == (kept, fewest, most)
    assert launch.elastic is (fewest != most)


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_any_range_of_nodes_reads_back(fewest, more):
    launch = Elastic(nnodes=f"{fewest}:{fewest + more}")

    assert (launch.min_nodes, launch.max_nodes) == (fewest, fewest + more)
    assert Elastic(nnodes=launch.nnodes) == launch


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("nnodes", n) for n in (0, -1, True, 1.5, None, "", "a", "3:2", "0:2", "1:2:3", ":2", "1:", "٣")),
        ("nnodes", "9" * 5000),
        *(("nproc_per_node", n) for n in (0, True, 1.0, None, "", "0", "x")),
        *(("start_method", m) for m in ("thread", "SPAWN", None, ["spawn"])),
        *(("monitor_interval", s) for s in (0, -1, True, "5", None, math.inf, math.nan)),
        *(("max_restarts", n) for n in (-1, True, "3", None, 0.5)),
        *(("rdzv_configs", c) for c in (None, "a=b", {1: 2}, {"a": None}, {"a": object})),
        ("run_policy", {"backoff_limit": 1}),
        ("increase_shared_mem", "yes"),
    ],
)
def test_elastic_refuses_a_wrong_value_by_its_field(field, value):
    error = refused(Elastic, **{field: value})

    assert error.field == field
    assert str(error).startswith(f"{field}: got ")


def test_the_number_of_ranks_may_be_text_but_not_a_word():
    count: int = "4"  # type: ignore[assignment]
    assert Elastic(nproc_per_node=count).nproc_per_node == 4

    for word in ("auto", "gpu", "cpu"):
        assert "a whole number, 1 or more" in str(refused(Elastic, nproc_per_node=word))


def test_rdzv_configs_are_a_read_only_copy():
    given_configs = {"read_timeout": 60}
    launch = Elastic(rdzv_configs=given_configs)
    given_configs["read_timeout"] = 1

    assert launch == Elastic(rdzv_configs={"read_timeout": 60})
    assert launch != Elastic()
    assert not hasattr(launch.rdzv_configs, "__setitem__")


def test_a_config_cant_be_changed():
    with pytest.raises(FrozenInstanceError):
        Elastic().nnodes = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    "launch",
    [
        Elastic("1:2", 2, run_policy=RunPolicy(CleanPodPolicy.ALL, 60)),
        PyTorch(Master(limits={"cpu": "2"}), Worker(3, restart_policy=RestartPolicy.NEVER)),
    ],
)
def test_a_config_survives_a_pickle_and_a_replace(launch):
    assert pickle.loads(pickle.dumps(launch)) == launch
    assert replace(launch) == launch


def test_pytorch_is_a_master_and_its_workers():
    launch = PyTorch(worker=Worker(replicas=3))

    assert (launch.min_nodes, launch.max_nodes, launch.elastic) == (4, 4, False)
    assert (launch.nproc_per_node, launch.max_restarts, launch.run_policy) == (1, 0, None)
    assert PyTorch(worker=Worker(replicas=0)).max_nodes == 1


def test_pytorch_needs_a_number_of_workers():
    assert refused(PyTorch).field == "replicas"


@pytest.mark.parametrize("count", [0, 2])
def test_num_workers_is_the_old_name_of_replicas(count):
    with pytest.warns(DeprecationWarning, match="Worker") as caught:
        launch = PyTorch(num_workers=count)

    assert launch == PyTorch(worker=Worker(replicas=count))
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("count", "replicas"), [(2, 2), (2, 3), (0, 2), (2, 0)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_num_workers_beside_replicas_is_refused(count, replicas):
    error = refused(PyTorch, num_workers=count, worker=Worker(replicas=replicas))

    assert error.field == "num_workers"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_two_zeros_agree():
    assert PyTorch(worker=Worker(replicas=0), num_workers=0).max_nodes == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_workers", -1),
        ("num_workers", True),
        ("master", None),
        ("worker", 2),
        ("run_policy", "None"),
    ],
)
def test_pytorch_refuses_a_wrong_value_by_its_field(field, value):
    assert refused(PyTorch, **{"worker": Worker(replicas=1), field: value}).field == field


def test_elastic_takes_the_plugins_order():
    policy = RunPolicy(ttl_seconds_after_finished=5)
    with pytest.warns(DeprecationWarning, match="increase_shared_mem"):
        launch = Elastic(2, 1, "fork", 3, 4, {"timeout": 5}, True, policy)

    assert (launch.increase_shared_mem, launch.run_policy) == (True, policy)


def test_requests_may_be_flytekits_resources():
    resources: Any = SimpleNamespace(cpu=0.5, mem="2Gi", gpu=1, ephemeral_storage="1Gi", storage=None)

    assert Worker(requests=resources).requests == {
        "cpu": "0.5",
        "memory": "2Gi",
        "nvidia.com/gpu": "1",
        "ephemeral-storage": "1Gi",
    }
    assert Master(limits={"mem": "2Gi"}).limits == {"memory": "2Gi"}
    assert refused(Worker, requests={"mem": "2Gi", "memory": "1Gi"}).field == "requests"
    resources.storage = "1Gi"
    assert "ephemeral-storage" in str(refused(Worker, requests=resources))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("replicas", -1),
        ("replicas", "2"),
        ("image", 3),
        ("requests", {"cpu": "two"}),
        ("limits", "cpu=2"),
        ("restart_policy", "Sometimes"),
        ("restart_policy", True),
    ],
)
def test_worker_refuses_a_wrong_value_by_its_field(field, value):
    assert refused(Worker, **{field: value}).field == field


@pytest.mark.parametrize("make", [Elastic, lambda **kept: PyTorch(worker=Worker(1), **kept)])
@pytest.mark.parametrize("value", [True, False])
def test_increase_shared_mem_still_works_and_warns(make, value):
    with pytest.warns(DeprecationWarning, match="shm") as caught:
        launch = make(increase_shared_mem=value)

    assert launch.increase_shared_mem is value
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("None", CleanPodPolicy.NONE),
        ("all", CleanPodPolicy.ALL),
        ("RUNNING", CleanPodPolicy.RUNNING),
        (CleanPodPolicy.ALL, CleanPodPolicy.ALL),
        (None, None),
    ],
)
def test_a_clean_pod_policy_may_be_text_in_any_case(text, policy):
    assert RunPolicy(clean_pod_policy=text).clean_pod_policy is policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("always", RestartPolicy.ALWAYS),
        ("OnFailure", RestartPolicy.ON_FAILURE),
        ("ON_FAILURE", RestartPolicy.ON_FAILURE),
        ("failure", RestartPolicy.ON_FAILURE),
        ("Never", RestartPolicy.NEVER),
    ],
)
def test_a_restart_policy_may_be_text_in_any_case(text, policy):
    assert Master(restart_policy=text).restart_policy is policy


def test_policies_are_hashable_and_differ():
    # Upstream's enums are dataclasses: there all members are equal, and none can be hashed.
    assert len({*CleanPodPolicy, *RestartPolicy}) == 6
    assert RestartPolicy["FAILURE"] is RestartPolicy.ON_FAILURE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clean_pod_policy", "some"),
        ("clean_pod_policy", ""),
        ("clean_pod_policy", 0),
        ("ttl_seconds_after_finished", -1),
        ("ttl_seconds_after_finished", 1.5),
        ("active_deadline_seconds", 0),
        ("active_deadline_seconds", True),
        ("backoff_limit", -1),
        ("backoff_limit", "1"),
    ],
)
def test_a_run_policy_refuses_a_wrong_value_by_its_field(field, value):
    assert refused(RunPolicy, **{field: value}).field == field


def test_zero_is_a_value_where_it_means_something():
    policy = RunPolicy(ttl_seconds_after_finished=0, active_deadline_seconds=1, backoff_limit=0)

    assert (policy.ttl_seconds_after_finished, policy.backoff_limit) == (0, 0)
