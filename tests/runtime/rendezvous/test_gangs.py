"""Nodes that end together: real agents and ranks, of which a test kills a node or a rank."""

import itertools
import os
import signal
import sys
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from nbtorchjob import Elastic, JobSpec, Leaving, RecoverableError, Retry, attempt, capture, leaving
from nbtorchjob.payload import archive
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.store.frames import LogPiece
from tests.backends.kubernetes.nodes import KEY, Node, children, kill
from tests.ports import free_port

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

SILENCE = 3  # seconds
QUICK = f"silence={SILENCE},last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


@pytest.fixture
def start(folder):
    """Yield a function that starts the nodes of a job that runs ``fn``; they end with the test."""
    started, ports = [], []

    def nodes(fn, *args, nnodes=2, nproc=1, retry=None, all_ranks=False, command=(), **launch):
        elastic = Elastic(nnodes=nnodes, nproc_per_node=nproc, start_method="forkserver", **launch)
        spec = JobSpec(elastic, retry=retry, all_ranks=all_ranks)
        with open(folder / "job.pyz", "wb") as file:
            archive.write(file, capture.from_function(fn, args), spec, KEY)
        (folder / "key").write_bytes(KEY)
        port = free_port()
        ports.append(port)
        for index in range(elastic.max_nodes):
            started.append(node(index, port, command))
        return started

    def node(index, port, command=(), **env):
        return Node(
            folder / "job.pyz",
            command=command,
            **env,
            NBTORCHJOB_NODE=str(index),
            NBTORCHJOB_STOP_WITHIN="2",
            PET_LOCAL_ADDR=f"127.0.0.{index + 1}",
            PET_RDZV_ENDPOINT=f"127.0.0.1:{port}",
            PET_RDZV_CONF=QUICK,
        )

    def another(index, **env):
        """Start one more node of the job, as an operator does when it has lost one."""
        started.append(node(index, ports[-1], **env))
        return started[-1]

    nodes.__dict__["another"] = another
    yield nodes
    for member in started:
        member.end()


def together(node, nodes):
    """Return whether the ranks of all nodes have met; in an elastic job some may begin before others join."""
    begun = node.facts("WorkersStarted")
    if not begun or begun[-1]["world_size"] != nodes:
        return False
    where = (begun[-1]["ranks"][0], begun[-1]["round"])
    pieces = [frame for frame in list(node.frames) if type(frame) is LogPiece]
    return any(b"ready" in piece.data for piece in pieces if (piece.rank, piece.round) == where)


def running(nodes):
    for node in nodes:
        node.until(lambda node: together(node, len(nodes)))
    return nodes


def ends(nodes):
    """Return the nodes' exit codes, which come long before a collective's timeout."""
    return [node.wait() for node in nodes]


def taken_away(node):
    """Kill all processes of a node at once, as when its host is gone."""
    (agent,) = children(node.process.pid)
    kill(node.process.pid)
    kill(agent)


def failing_on(nodes, how, waiting):
    """Fail with ``how`` on some nodes; on the others wait, in a collective or asleep."""
    dist.init_process_group("gloo")
    print("ready", flush=True)
    if os.environ["NBTORCHJOB_NODE"] in nodes:
        how()
    if waiting == "collective":
        dist.barrier()
    time.sleep(1000)


class Flaky(OSError):
    pass


def throw(kind):
    def how():
        raise kind("no luck")

    return how


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


RETRY = Retry(retries=1, retry_on=("builtins.OSError",))


@pytest.mark.parametrize(
    ("how", "codes"),
    [
        (throw(ValueError), [exits.USER_ERROR, exits.USER_ERROR]),
        (throw(Flaky), [exits.RECOVERABLE_ERROR, exits.RECOVERABLE_ERROR]),
        (kill_myself, [exits.RECOVERABLE_ERROR, exits.RECOVERABLE_ERROR]),
    ],
    ids=["ValueError", "retry_on", "SIGKILL"],
)
def test_when_one_rank_fails_the_nodes_whose_ranks_sleep_end_too(how, codes, start):
    other, failing = start(failing_on, ("1",), how, "sleep", retry=RETRY)
    assert ends([failing, other]) == codes


def test_node_0_fails_and_the_others_read_why_before_their_store_is_gone(start):
    nodes = start(failing_on, ("0",), throw(ValueError), "sleep", nnodes=3)
    assert ends(nodes) == [exits.USER_ERROR] * 3
    assert [node.facts("NodeFailed") for node in nodes] == [[], [], []]


def test_ranks_of_one_node_end_with_a_lone_one_that_fails(start):
    def fail():
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            raise RecoverableError
        time.sleep(1000)

    (node,) = start(fail, nnodes=1, nproc=2, retry=RETRY)
    assert node.wait() == exits.RECOVERABLE_ERROR


def return_on_node_1():
    dist.init_process_group("gloo")
    print("ready", flush=True)
    if os.environ["NBTORCHJOB_NODE"] == "0":
        time.sleep(2)
        raise ValueError("late")


def test_a_node_whose_ranks_have_returned_ends_with_the_others(start):
    assert ends(start(return_on_node_1)) == [exits.USER_ERROR, exits.USER_ERROR]


@pytest.mark.parametrize("waiting", ["sleep", "collective"])
def test_a_fixed_size_job_ends_when_a_node_is_silent(waiting, start):
    nodes = running(start(failing_on, (), None, waiting))
    taken_away(nodes[1])
    assert nodes[0].wait() == exits.INFRASTRUCTURE_ERROR


def test_the_others_end_when_the_node_that_hosts_their_store_is_gone(start):
    nodes = running(start(failing_on, (), None, "sleep", nnodes="1:2"))
    taken_away(nodes[0])
    assert nodes[1].wait() == exits.INFRASTRUCTURE_ERROR
    (failed,) = nodes[1].facts("NodeFailed")
    assert "can't be reached" in failed["error"]["message"]
    assert "\n" not in failed["error"]["message"]


def test_a_host_that_answers_no_more_is_gone_too(start):
    nodes = running(start(failing_on, (), None, "sleep"))
    (agent,) = children(nodes[0].process.pid)
    kill(agent, signal.SIGSTOP)
    assert nodes[1].wait() == exits.INFRASTRUCTURE_ERROR
    assert "can't be reached" in nodes[1].facts("NodeFailed")[0]["error"]["message"]


def sum_up(stop):
    """Meet the others until the file ``stop`` exists; return the number of ranks."""
    dist.init_process_group("gloo")
    print("ready", flush=True)
    while True:
        if dist.get_rank() == 0:
            time.sleep(0.02)
        flag = torch.tensor(float(os.path.exists(stop)))
        dist.all_reduce(flag)
        if flag.item():
            return dist.get_world_size()


def sleep_until(stop):
    dist.init_process_group("gloo")
    print("ready", flush=True)
    while not os.path.exists(stop):
        time.sleep(0.02)
    return dist.get_world_size()


@pytest.mark.parametrize(
    ("work", "how"), [(sum_up, "silent"), (sleep_until, "silent"), (sleep_until, "told")]
)
def test_an_elastic_job_goes_on_without_a_node(work, how, folder, start):
    nodes = running(start(work, str(folder / "stop"), nnodes="1:2"))
    if how == "silent":
        taken_away(nodes[1])
    else:
        nodes[1].process.terminate()
        assert nodes[1].wait() == exits.CANCELLED
    nodes[0].until(lambda node: together(node, 1))
    assert {begun["restart"] for begun in nodes[0].facts("WorkersStarted")} == {0}
    (folder / "stop").touch()
    assert nodes[0].wait() == 0
    assert nodes[0].value() == 1


# The node gets the signal of a loss just as it asks the store how many nodes wait to join.
TOLD_MEANWHILE = """
import os, runpy, signal, sys
del sys.argv[0]
sys.path.insert(0, sys.argv[0])
from nbtorchjob.runtime.rendezvous.rendezvous import WatchedRendezvous
ask = WatchedRendezvous.num_nodes_waiting
def num_nodes_waiting(self):
    if os.path.exists("killed"):
        signal.raise_signal(signal.SIGUSR1)
    return ask(self)
WatchedRendezvous.num_nodes_waiting = num_nodes_waiting
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_word_of_a_loss_that_comes_after_a_collective_has_failed_is_a_loss_still(folder, start):
    command = (sys.executable, "-c", TOLD_MEANWHILE)
    work = (sum_up, str(folder / "stop"))
    nodes = running(start(*work, nnodes="1:2", monitor_interval=1000, command=command))
    (folder / "killed").touch()
    taken_away(nodes[1])
    nodes[0].until(lambda node: together(node, 1))
    (folder / "stop").touch()

    assert nodes[0].wait() == 0


def step_until_joined(folder):
    """Step until a node that joined has made some steps, too; save the step when ranks leave."""
    dist.init_process_group("gloo")
    print("ready", flush=True)
    saved, ranks = folder / "saved", dist.get_world_size()
    begin = int(saved.read_text()) if saved.exists() else 0
    for step in range(begin, begin + 20 if begin and ranks == 4 else sys.maxsize):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.005)
        if dist.get_rank() == 0:
            with open(folder / "steps", "a") as file:
                file.write(f"{step} {ranks}\n")
        if leaving():
            if dist.get_rank() == 0:
                saved.write_text(str(step + 1))
            raise Leaving
    return ranks


def test_ranks_save_before_a_node_leaves_and_before_one_joins(folder, start):
    nodes = start(step_until_joined, folder, nnodes="1:2", nproc=2, monitor_interval=0.2)
    for node in nodes:
        node.until(lambda node: together(node, 4))
    nodes[1].process.terminate()
    assert nodes[1].wait() == exits.LEFT
    nodes[0].until(lambda node: together(node, 2))
    start.another(1)

    assert nodes[0].wait() == exits.OK
    assert nodes[0].value() == 4
    lines = [line.split() for line in (folder / "steps").read_text().splitlines()]
    steps, ranks = zip(*([int(word) for word in line] for line in lines), strict=True)
    assert steps == (*range(len(steps)),)
    assert [size for size, _ in itertools.groupby(ranks)] == [4, 2, 4]
    assert {begun["restart"] for begun in nodes[0].facts("WorkersStarted")} == {0}


def count_until(stop):
    sum_up(stop)
    return attempt()


@pytest.mark.parametrize(
    ("index", "variables", "number", "code"),
    # A Job gives a pod of the lost node's index its number of failures; a spare has an index of its own.
    [(1, {"NBTORCHJOB_FAILURES": "1"}, 2, exits.OK), (1, {}, 2, exits.OK), (2, {}, 1, exits.CANCELLED)],
    ids=["a Job's", "a PyTorchJob's", "spare"],
)
def test_a_node_in_place_of_a_lost_one_is_an_attempt_on_every_rank_and_a_spare_one_is_none(
    index, variables, number, code, folder, start
):
    nodes = running(start(count_until, str(folder / "stop"), nnodes="1:2", all_ranks=True))
    nodes[1].process.terminate()
    assert nodes[1].wait() == exits.CANCELLED
    nodes[0].until(lambda node: len(node.facts("WorkersStarted")) == 2)
    new = start.another(index, **variables)
    nodes[0].until(lambda node: node.facts("WorkersStarted")[-1]["world_size"] == 2)
    new.until(lambda node: together(node, 2))
    (folder / "stop").touch()
    assert nodes[0].wait() == exits.OK
    assert (nodes[0].value(0), new.until(lambda node: node.facts("ValueReady")).value(1)) == (number, number)
    if code:
        new.process.terminate()  # a spare waits for SIGTERM: its Job counts the nodes that succeeded
    assert new.wait() == code


def sleep_long():
    dist.init_process_group("gloo")
    print("ready", flush=True)
    time.sleep(2 * SILENCE)
    print("later", flush=True)


def test_a_job_that_was_suspended_with_its_machine_goes_on(start):
    nodes = running(start(sleep_long))
    agents = [pid for node in nodes for pid in children(node.process.pid)]
    for pid in agents:
        kill(pid, signal.SIGSTOP)
    for node in nodes:
        node.until(lambda node: b"later" in node.log(node.facts("WorkersStarted")[0]["ranks"][0]))
    for pid in agents:
        kill(pid, signal.SIGCONT)
    assert ends(nodes) == [0, 0]
