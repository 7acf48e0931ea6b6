"""A node as a cluster's operators start it: real ranks, and all its facts read from its stdout."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist

from nbtorchjob import RecoverableError
from nbtorchjob.runtime import store
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.death import MOST
from nbtorchjob.runtime.objects.wire import Withheld
from tests.backends.kubernetes.nodes import Node, children, kill, pack
from tests.ports import free_port
from tests.runtime.data.test_sources import Server

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

# The variables that each operator injects into node {i} of two; {port} is a free port of this machine.
OPERATORS = {
    "pytorchjob": {
        "NBTORCHJOB_NODE": "{i}",
        "PET_NNODES": "2:2",
        "PET_NPROC_PER_NODE": "auto",
        "PET_RDZV_ENDPOINT": "127.0.0.1:{port}",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": "train",
        "PET_MAX_RESTARTS": "0",
        "PYTHONUNBUFFERED": "1",
    },
    "pytorchjob with a master": {
        "PET_NODE_RANK": "{i}",
        "RANK": "{i}",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "{port}",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "{port}",
        "PET_NPROC_PER_NODE": "auto",
        "PET_NNODES": "2",
    },
    "trainjob": {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "{i}",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "{port}",
    },
    "volcano": {
        "VK_TASK_INDEX": "{i}",
        "VC_TASK_INDEX": "{i}",
        "VC_MAIN_NUM": "2",
        "VC_MAIN_HOSTS": "train-main-0.train,train-main-1.train",
        "PET_RDZV_ENDPOINT": "127.0.0.1:{port}",
    },
    "indexedjob": {"JOB_COMPLETION_INDEX": "{i}", "PET_RDZV_ENDPOINT": "127.0.0.1:{port}"},
}


@pytest.fixture
def start(folder):
    """Yield a function that starts a node of a job; all nodes end with the test."""
    started = []

    def one(job, **env):
        started.append(Node(job, **env))
        return started[-1]

    yield one
    for node in started:
        node.end()


def start_two(start, job, kind="pytorchjob", **env):
    """Start two nodes; each has an address of its own, as pods have."""
    port = free_port()
    return [
        start(
            job,
            PET_LOCAL_ADDR=f"127.0.0.{i + 1}",
            **{name: text.format(i=i, port=port) for name, text in OPERATORS[kind].items()},
            **env,
        )
        for i in (0, 1)
    ]


def train():
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    print("rank", dist.get_rank(), "on node", os.environ["NBTORCHJOB_NODE"])
    return {"total": total, "world": dist.get_world_size()}


# The last one starts cold, as in any image; the others are forked from a Python that has imported torch.
@pytest.mark.parametrize(
    ("kind", "env"), [*((kind, {}) for kind in OPERATORS), ("indexedjob", {"PYTHONHASHSEED": "1"})], ids=str
)
def test_two_nodes_of_two_ranks_meet_as_each_operator_says(kind, env, folder, start):
    began = int(time.time() * 100)
    nodes = start_two(start, pack(folder, train, nodes=2, nproc=2), kind, **env)
    assert [node.wait() for node in nodes] == [0, 0]
    first = nodes[0]
    assert first.value() == {"total": torch.tensor([10.0]), "world": 4}
    for index, node in enumerate(nodes):
        (workers,) = node.facts("WorkersStarted")
        assert (workers["node"], workers["ranks"]) == (index, [2 * index, 2 * index + 1])
        assert began <= workers["round"] <= time.time() * 100  # hundredths of a second
        for rank in workers["ranks"]:
            assert node.log(rank) == b"rank %d on node %d\n" % (rank, index)
        assert node.words.read_bytes() == b""
    assert first.left_behind() == []


def fail_on_node_1():
    dist.init_process_group("gloo")
    if os.environ["NBTORCHJOB_NODE"] == "1":
        raise ValueError("no such column: " + "é" * 9000)
    dist.barrier()


def test_the_first_failure_is_told_in_the_termination_message_too(folder, start):
    nodes = start_two(start, pack(folder, fail_on_node_1, nodes=2), "indexedjob")
    assert [node.wait() for node in nodes] == [exits.USER_ERROR, exits.USER_ERROR]
    assert len(nodes[1].facts("RankFailed")) == 1, [node.frames for node in nodes]
    (failed,) = nodes[1].facts("RankFailed")
    assert (failed["node"], failed["rank"], failed["error"]["type"]) == (1, 1, "ValueError")
    assert b"ValueError: no such column" in nodes[1].log(1)
    words = nodes[1].words.read_bytes()
    assert len(words) <= MOST
    fact = json.loads(words)
    assert fact["event"] == "RankFailed"
    assert fact["error"]["message"].startswith("no such column: é")
    assert fact["error"]["frames"][-1]["name"] == "fail_on_node_1"


def fail_once():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RecoverableError("once")
    return "second"


def test_a_restart_counts_rounds_on_and_forgets_the_first_failure(folder, start):
    node = start(pack(folder, fail_once, max_restarts=1))
    assert node.wait() == 0
    assert node.value() == "second"
    first, second = node.facts("WorkersStarted")
    assert second["round"] == first["round"] + 1
    assert node.words.read_bytes() == b""


# --- signals and sudden deaths ---------------------------------------------------------------------


def hang(signals=False):
    if signals:
        signal.signal(signal.SIGTERM, lambda *_: print("asked to stop"))
    print("started", os.getpid(), flush=True)
    print("half a line", end="")
    while True:
        signal.pause()


def started(node):
    return b"half a line" in node.log()


def test_sigterm_before_the_first_rendezvous_ends_it_with_a_code_of_its_own(folder, start):
    node = start(pack(folder, hang, nodes=2), NBTORCHJOB_NODE="0", PET_RDZV_ENDPOINT="127.0.0.1:0")
    node.until(lambda node: list(node.temp.glob("nbtorchjob-*/node.log")))
    node.process.terminate()
    assert node.wait() == exits.CANCELLED
    assert node.left_behind() == []


def test_sigterm_ends_ranks_and_their_last_words_are_there(folder, start):
    node = start(pack(folder, hang), NBTORCHJOB_NODE="0").until(started)
    node.process.terminate()
    assert node.wait() == exits.CANCELLED
    assert node.log().endswith(b"\nhalf a line")
    assert node.left_behind() == []


@pytest.mark.parametrize(
    "within",
    [{"NBTORCHJOB_STOP_WITHIN": "1"}, {"NBTORCHJOB_STOP_WITHIN": "1000", "NBTORCHJOB_SAVE_WITHIN": "1"}],
    ids=["as in pods", "as here"],
)
def test_ranks_that_hold_out_against_sigterm_are_killed_after_the_grace_period(folder, start, within):
    node = start(pack(folder, hang, True), **within).until(started)
    node.process.terminate()
    assert node.wait() == exits.CANCELLED
    assert node.log().endswith(b"half a lineasked to stop\n")
    assert node.left_behind() == []


UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")


@pytest.mark.skipif(
    subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0,
    reason="no right to make a PID namespace",
)
@pytest.mark.parametrize("when", ["before the rendezvous", "while it runs"])
def test_pid_1_of_a_container_ends_on_sigterm(when, folder, start):
    nodes = 2 if when == "before the rendezvous" else 1
    node = start(
        pack(folder, hang, nodes=nodes),
        command=(*UNSHARE, sys.executable),
        PET_RDZV_ENDPOINT="127.0.0.1:0",
    )
    node.until(lambda node: started(node) or (nodes == 2 and list(node.temp.glob("*/node.log"))))
    (first,) = children(node.process.pid)
    kill(first, signal.SIGTERM)
    assert node.wait() == exits.CANCELLED
    assert node.left_behind() == []


def test_a_rank_killed_for_memory_is_told_and_fails_the_node(folder, start):
    node = start(pack(folder, hang)).until(started)
    kill(int(node.log().split()[1]))
    assert node.wait() == exits.USER_ERROR
    (exited,) = node.facts("RankExited")
    assert (exited["rank"], exited["signal"]) == (0, signal.SIGKILL)
    assert json.loads(node.words.read_bytes()) == exited


def test_an_agent_killed_for_memory_is_told_and_its_ranks_go_with_it(folder, start):
    node = start(pack(folder, hang)).until(started)
    (agent,) = children(node.process.pid)
    kill(agent)
    assert node.wait() == 128 + signal.SIGKILL
    (failed,) = node.facts("NodeFailed")
    assert failed["code"] == 128 + signal.SIGKILL
    assert "SIGKILL" in failed["error"]["message"]
    assert node.left_behind() == []


def leave_a_process():
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    return 1


def test_what_a_rank_leaves_running_ends_with_the_node(folder, start):
    node = start(pack(folder, leave_a_process))
    assert node.wait() == 0
    assert node.left_behind() == []


# --- logs ------------------------------------------------------------------------------------------

ODD = b"\x00\xff\x1b[31mred\x1b[0m\r10%\r\r20%\r\n\r\nfact.0 {}\n" + b"long " * 9000 + b"\nno newline"


def write(times):
    for part in (ODD, *(b"line %d\n" % number for number in range(times))):
        os.write(1, part)


def test_a_big_log_of_odd_bytes_comes_whole(folder, start):
    node = start(pack(folder, write, 100_000, nproc=2))
    assert node.wait() == 0
    content = ODD + b"".join(b"line %d\n" % number for number in range(100_000))
    assert node.log(0) == content
    assert node.log(1) == content


def see_how_much_disk_my_log_takes():
    path = os.readlink("/proc/self/fd/1")
    for _ in range(64):
        print("x" * 1_000_000, flush=True)
    while os.stat(path).st_blocks * 512 > 16_000_000:
        time.sleep(0.01)
    return os.stat(path).st_size


def test_a_log_takes_no_disk_once_it_is_sent(folder, start):
    node = start(pack(folder, see_how_much_disk_my_log_takes))
    assert node.wait() == 0
    assert node.value() == len(node.log()) == 64_000_064


def test_a_line_is_seen_while_its_rank_goes_on(folder, start):
    node = start(pack(folder, hang)).until(started)
    assert node.log().startswith(b"started")


def test_a_job_goes_on_when_nobody_reads_its_log(folder, start):
    reading, writing = os.pipe()
    node = start(pack(folder, write, 10_000), stdout=writing)
    os.close(writing)
    os.close(reading)
    assert node.wait() == 0


# --- values ----------------------------------------------------------------------------------------


def array(size):
    return np.arange(size, dtype=np.uint8)


OVERHEAD = 1024  # at least the size of the file without the array


@pytest.mark.parametrize("storage", ["none", "path", "url"])
@pytest.mark.parametrize("size", [store.BY_LOG - OVERHEAD, store.BY_LOG + 1])
def test_a_value_travels_by_the_log_or_by_the_store(size, storage, folder, start):
    shelf = folder / "a shelf"
    env = {"path": {"NBTORCHJOB_STORAGE": str(shelf)}, "url": {"NBTORCHJOB_STORAGE": shelf.as_uri()}}
    node = start(pack(folder, array, size), **env.get(storage, {}))
    assert node.wait() == 0
    value = node.value()
    if size > store.BY_LOG and storage == "none":
        assert isinstance(value, Withheld)
        assert value.size > size
        assert "--storage" in value.reason
    else:
        assert np.array_equal(value, array(size))
    stored = [path.name for path in shelf.glob("*")]
    assert len(stored) == (size > store.BY_LOG and storage != "none"), stored


# --- what can't run --------------------------------------------------------------------------------


def refused(node):
    assert node.wait() == exits.CONFIG_ERROR
    (failed,) = node.facts("NodeFailed")
    assert failed["code"] == exits.CONFIG_ERROR
    assert json.loads(node.words.read_bytes()) == failed
    return failed["error"]["message"]


def test_an_image_without_torch_is_refused(folder, start):
    node = start(pack(folder, train), command=(sys.executable, "-S"))
    assert "this image has no torch" in refused(node)


def test_a_torch_that_is_too_old_is_refused_before_it_is_imported(folder, start):
    site = folder / "site"
    (site / "torch-2.3.1.dist-info").mkdir(parents=True)
    (site / "torch-2.3.1.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.3.1\n")
    (site / "torch.py").write_text("raise SystemError('imported')\n")
    node = start(pack(folder, train), command=(sys.executable, "-S"), PYTHONPATH=str(site))
    assert refused(node) == "this node has torch 2.3.1; nbtorchjob needs 2.4 or later"


def test_a_payload_signed_with_another_key_is_refused(folder, start):
    job = pack(folder, train)
    (folder / "key").write_bytes(b"another")
    assert "signature" in refused(start(job))


def test_what_another_run_was_given_is_refused_before_anything_of_it_is_looked_at(folder, start):
    job = pack(folder, train)
    (folder / "key").write_bytes(b"another")
    (folder / "run").write_text("1.000000")
    why = refused(start(job, command=(sys.executable, "-S"), NBTORCHJOB_RUN="2.000000"))
    assert why.startswith("this node is of run 2.000000, but its host mounted the payload of run 1.000000")
    (folder / "run").unlink()
    assert "can't be read" in refused(start(job, NBTORCHJOB_RUN="2.000000"))


def test_a_key_that_is_not_mounted_is_said_where_there_is_no_torch_either(folder, start):
    job = pack(folder, train)
    (folder / "key").unlink()
    assert "key can't be read" in refused(start(job, command=(sys.executable, "-S")))


def test_a_damaged_payload_is_refused(folder, start):
    job = pack(folder, np.sum, np.ones(100_000))
    data = bytearray(job.read_bytes())
    data[500] ^= 1
    job.write_bytes(data)
    assert "buffer 0 was changed" in refused(start(job))


def test_a_container_without_a_place_for_files_is_refused(folder, start):
    node = start(pack(folder, train), NBTORCHJOB_FOLDER="/nosuch")
    assert node.wait() == exits.CONFIG_ERROR
    assert "mount one at /tmp" in node.output()


def test_several_nodes_without_a_place_to_meet_are_refused(folder, start):
    assert "PET_RDZV_ENDPOINT" in refused(start(pack(folder, train, nodes=2)))


def test_a_store_that_this_image_can_not_write_to_is_refused_at_the_start(folder, start):
    job = pack(folder, train)
    assert "--storage nosuch://bucket" in refused(start(job, NBTORCHJOB_STORAGE="nosuch://bucket"))


def test_a_node_that_waits_for_node_0_says_so_and_gives_up_in_the_end(folder, start):
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        gives_up_in_the_end(start, pack(folder, train, nodes=2, data={"web": server.url("blob.bin")}))
        server.shutdown()


def gives_up_in_the_end(start, job):
    node = start(
        job,
        NBTORCHJOB_NODE="1",
        PET_RDZV_ENDPOINT="nosuch.invalid:29400",
        PET_RDZV_CONF="join_timeout=6",
    )
    assert node.wait() == exits.INFRASTRUCTURE_ERROR
    assert "waiting for node 0 at nosuch.invalid:29400" in node.facts("Notice")[0]["text"]
    assert "waited" in node.facts("NodeFailed")[0]["error"]["message"]
    assert node.facts("Fetched")[0]["name"] == "web"
