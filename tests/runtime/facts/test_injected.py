"""A node's place in its job, from the environment that each operator sets."""

import socket
import time

import pytest

from nbtorchjob.runtime.facts import injected

PACKED = {
    "nnodes": "2:4",
    "nproc_per_node": 3,
    "max_restarts": 1,
    "start_method": "spawn",
    "monitor_interval": 5,
    "hang_after": 120,
    "rdzv_configs": {"join_timeout": 900},
}


@pytest.fixture
def env(monkeypatch):
    def give(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return give


def test_a_node_that_nobody_numbered_is_node_0():
    assert injected.node_index() == 0


@pytest.mark.parametrize(
    "name", ["NBTORCHJOB_NODE", "PET_NODE_RANK", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX"]
)
def test_a_nodes_number_comes_from_each_operators_variable(name, env):
    env(**{name: "3"})
    assert injected.node_index() == 3


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({}, 1),
        ({"NBTORCHJOB_FAILURES": "2", "NBTORCHJOB_IGNORED": "1"}, 4),  # an Indexed Job
        ({"NBTORCHJOB_FAILURES": "0", "NBTORCHJOB_IGNORED": ""}, 1),  # a Job that leaves the second one empty
        ({"NBTORCHJOB_RESTARTS": "2"}, 3),  # Volcano
        ({"NBTORCHJOB_ATTEMPT": "2"}, 2),  # if we start the attempts
    ],
)
def test_which_attempt_it_is_comes_from_whoever_starts_them(variables, number, env):
    env(**variables)
    assert injected.attempt() == number


def test_the_manifests_own_number_wins(env):
    env(NBTORCHJOB_NODE="1", PET_NODE_RANK="2", VC_TASK_INDEX="3")
    assert injected.node_index() == 1


def test_what_was_packed_holds_where_nothing_is_injected():
    launch = injected.launch(PACKED)
    assert (launch["nodes"], launch["nproc"], launch["max_restarts"]) == ((2, 4), 3, 1)
    assert (launch["endpoint"], launch["run_id"]) == ("", "nbtorchjob")
    assert launch["conf"] == {"join_timeout": 900}


def test_what_is_injected_wins(env):
    env(
        PET_NNODES="1:8",
        PET_NPROC_PER_NODE="2",
        PET_MAX_RESTARTS="7",
        PET_RDZV_ID="train",
        PET_RDZV_CONF="join_timeout=60,is_host=1",
        PET_STANDALONE="",
    )
    launch = injected.launch(PACKED)
    assert (launch["nodes"], launch["nproc"], launch["max_restarts"]) == ((1, 8), 2, 7)
    assert launch["run_id"] == "train"
    assert launch["conf"] == {"join_timeout": "60", "is_host": "1"}


@pytest.mark.parametrize("word", ["auto", "gpu", "cpu", ""])
def test_a_number_of_ranks_in_words_leaves_it_to_what_was_packed(word, env):
    env(PET_NNODES="2", PET_NPROC_PER_NODE=word)
    launch = injected.launch(PACKED)
    assert (launch["nodes"], launch["nproc"]) == ((2, 2), 3)


@pytest.mark.parametrize(
    ("variables", "endpoint"),
    [
        ({"PET_RDZV_ENDPOINT": "a:1", "PET_MASTER_ADDR": "b", "VC_MAIN_HOSTS": "c"}, "a:1"),
        ({"PET_MASTER_ADDR": "b", "PET_MASTER_PORT": "23456", "VC_MAIN_HOSTS": "c"}, "b:23456"),
        ({"PET_MASTER_ADDR": "b"}, "b:29400"),
        ({"VC_WORKER_HOSTS": "j-worker-0.j,j-worker-1.j", "VC_WORKER_NUM": "2"}, "j-worker-0.j:29400"),
    ],
)
def test_where_nodes_meet(variables, endpoint, env):
    env(**variables)
    assert injected.launch(PACKED)["endpoint"] == endpoint


def test_the_name_others_reach_this_node_by(env):
    assert injected.local_addr() == socket.gethostname()
    env(NBTORCHJOB_DOMAIN="train")
    assert injected.local_addr() == socket.gethostname() + ".train"
    env(PET_LOCAL_ADDR="10.0.0.7")
    assert injected.local_addr() == "10.0.0.7"


def test_before_its_deadline_a_node_has_all_the_time_that_there_is(env):
    env(NBTORCHJOB_SAVE_WITHIN="30", NBTORCHJOB_DEADLINE=f"{time.monotonic() + 1000} 990")
    assert injected.saving() == 30
    env(NBTORCHJOB_DEADLINE=f"{time.monotonic() + 500} 990")
    assert 400 < injected.saving() <= 500


def test_no_round_of_a_cluster_is_given_again_within_a_second(monkeypatch):
    monkeypatch.setenv("NBTORCHJOB_STREAM", "1")
    rounds = []
    for now in (1795516282.029, 1795516282.351, 1795516283.007):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        rounds.append(injected.first_round())

    assert rounds == [179551628202, 179551628235, 179551628300]
    monkeypatch.setenv("NBTORCHJOB_FIRST_ROUND", "7")
    assert injected.first_round() == 7
    monkeypatch.delenv("NBTORCHJOB_FIRST_ROUND")
    monkeypatch.delenv("NBTORCHJOB_STREAM")
    assert injected.first_round() == 0
