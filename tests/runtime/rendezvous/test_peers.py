"""Nodes that end together: real agents and ranks, with a node or a rank taken away from them."""

import itertools
import json
import math
import os
import select
import signal
import socket
import socketserver
import sys
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from nbtorchjob import Elastic, JobSpec, Leaving, RecoverableError, Retry, attempt, capture, leaving
from nbtorchjob.payload import archive
from nbtorchjob.runtime.facts import emit, exits
from nbtorchjob.runtime.rendezvous import rendezvous
from nbtorchjob.runtime.rendezvous.alone import PeersEnded
from nbtorchjob.runtime.rendezvous.peers import END, LINGER_S, PREFIX, Peers
from nbtorchjob.runtime.rendezvous.rendezvous import Endpoint, dynamic
from nbtorchjob.runtime.rendezvous.signed import SignedStore
from nbtorchjob.runtime.store.frames import LogPiece
from tests.backends.kubernetes.nodes import KEY, Node, children, kill
from tests.patience import LIMIT
from tests.ports import free_port

# As in a notebook, whose functions no node can import.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

SILENCE = 3  # seconds
QUICK = f"silence={SILENCE},last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


@pytest.fixture
def start(folder):
    """Start the nodes of a job that runs ``fn``; they end with the test."""
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
        """Start one more node of the job, as an operator that has lost one does."""
        started.append(node(index, ports[-1], **env))
        return started[-1]

    nodes.__dict__["another"] = another
    yield nodes
    for one in started:
        one.end()


def together(node, nodes):
    """Whether the ranks of all nodes have met: of an elastic job some may begin before the others come."""
    begun = node.facts("WorkersStarted")
    if not begun or begun[-1]["world_size"] != nodes:
        return False
    where = (begun[-1]["ranks"][0], begun[-1]["round"])
    pieces = [each for each in list(node.frames) if type(each) is LogPiece]
    return any(b"ready" in each.data for each in pieces if (each.rank, each.round) == where)


def running(nodes):
    for node in nodes:
        node.until(lambda node: together(node, len(nodes)))
    return nodes


def ends(nodes):
    """Return the nodes' exit codes, which come long before a collective's timeout."""
    return [node.wait() for node in nodes]


def taken_away(node):
    """End all of a node's processes at once, as when its host is gone."""
    (agent,) = children(node.process.pid)
    kill(node.process.pid)
    kill(agent)


def failing_on(nodes, how, waiting):
    """Fail on some nodes as ``how`` says; the ranks of the others wait."""
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
    """Meet the others until the file ``stop`` is there; give how many they are."""
    dist.init_process_group("gloo")
    print("ready", flush=True)
    while True:
        if dist.get_rank() == 0:
            time.sleep(0.02)
        seen = torch.tensor(float(os.path.exists(stop)))
        dist.all_reduce(seen)
        if seen.item():
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


# A node is told of the loss just as it asks the store who waits to join.
TOLD_MEANWHILE = """
import os, runpy, signal, sys
del sys.argv[0]
sys.path.insert(0, sys.argv[0])
from nbtorchjob.runtime.rendezvous.rendezvous import Watched
ask = Watched.num_nodes_waiting
def num_nodes_waiting(self):
    if os.path.exists("killed"):
        signal.raise_signal(signal.SIGUSR1)
    return ask(self)
Watched.num_nodes_waiting = num_nodes_waiting
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
    """Step, and save where ranks leave, until a node that joined has made some steps, too."""
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
    ("index", "told", "number", "code"),
    # A Job tells one of the lost node's number how often that has failed; a spare has a number of its own.
    [(1, {"NBTORCHJOB_FAILURES": "1"}, 2, exits.OK), (1, {}, 2, exits.OK), (2, {}, 1, exits.CANCELLED)],
    ids=["a Job's", "a PyTorchJob's", "spare"],
)
def test_a_node_in_place_of_a_lost_one_is_an_attempt_on_every_rank_and_a_spare_one_is_none(
    index, told, number, code, folder, start
):
    nodes = running(start(count_until, str(folder / "stop"), nnodes="1:2", all_ranks=True))
    nodes[1].process.terminate()
    assert nodes[1].wait() == exits.CANCELLED
    nodes[0].until(lambda node: len(node.facts("WorkersStarted")) == 2)
    new = start.another(index, **told)
    nodes[0].until(lambda node: node.facts("WorkersStarted")[-1]["world_size"] == 2)
    new.until(lambda node: together(node, 2))
    (folder / "stop").touch()
    assert nodes[0].wait() == exits.OK
    assert (nodes[0].value(0), new.until(lambda node: node.facts("ValueReady")).value(1)) == (number, number)
    if code:
        new.process.terminate()  # it waits for that: its Job counts what ended well
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


# --- by itself, over a store of its own --------------------------------------------------------------


@pytest.fixture
def store():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def gangs(store):
    """Make the gangs of nodes 0 and 1 in round 7; how what node 1 asks and watches goes may be said."""
    made = []

    def two(*, elastic=False, silence=60.0, hosted=False, asking=None, watching=None):
        def connect():
            return SignedStore(TCPStore("127.0.0.1", store.port, is_master=False), KEY)

        configs = {"elastic": elastic, "silence": silence}
        found = [
            Peers(connect(), connect, connect(), 0, **configs, hosted=hosted),
            Peers(
                Kept(connect(), **(asking or {})),
                lambda: Kept(connect(), **(watching or {})),
                Kept(connect(), **(watching or {})),
                1,
                **configs,
                hosted=False,
            ),
        ]
        made.extend(found)
        for node, peers in enumerate(found):
            peers.enter(7, (0, 1), node)
        return found

    yield two
    for peers in made:
        peers.close()


def eventually(condition):
    give_up = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def ended(peers):
    try:
        peers.check()
    except PeersEnded as exc:
        return exc.code
    return None


@pytest.mark.parametrize(
    ("word", "others"), [(1, 1), (2, 1), (200, 200), (201, 201), (202, 201)], ids=lambda code: str(code)
)
def test_a_node_of_a_fixed_size_job_takes_the_others_along(word, others, gangs):
    one, other = gangs()
    assert one.tell(word) == word
    eventually(lambda: ended(other))
    assert ended(other) == others
    assert ended(one) is None


@pytest.mark.parametrize("word", [201, 202])
def test_the_others_of_an_elastic_job_meet_again(word, gangs):
    one, other = gangs(elastic=True)
    one.tell(word)
    eventually(lambda: other.peer_lost)
    other.enter(8, (1,), 1)
    assert not other.peer_lost
    assert ended(other) is None


def test_a_node_that_the_others_went_on_without_meets_them_again(gangs):
    one, other = gangs(elastic=True)
    other.enter(7, (1,), 1)
    eventually(lambda: one.peer_lost)
    assert not other.peer_lost
    assert ended(one) is None


def test_a_node_that_the_others_went_on_without_ends_once_they_have_succeeded(gangs):
    one, other = gangs(elastic=True)
    other.enter(8, (1,), 1)
    other.finish(LIMIT)
    eventually(lambda: ended(one) is not None)
    assert ended(one) == exits.OK
    assert ended(other) is None


def test_a_failure_is_not_taken_back_by_who_has_returned(gangs):
    one, other = gangs()
    one.tell(exits.USER_ERROR)
    with pytest.raises(PeersEnded) as caught:
        other.finish(LIMIT)
    assert caught.value.code == exits.USER_ERROR


def test_the_first_word_stands(gangs):
    one, other = gangs()
    assert one.tell(exits.RECOVERABLE_ERROR) == exits.RECOVERABLE_ERROR
    assert other.tell(exits.USER_ERROR) == exits.RECOVERABLE_ERROR


def test_a_loss_isnt_told_where_another_word_stands(gangs):
    one, other = gangs()
    one.tell(exits.USER_ERROR)
    assert other.tell(exits.INFRASTRUCTURE_ERROR) == exits.USER_ERROR


class Kept:
    """A connection of one node to the store, of which a test decides how some of it goes."""

    def __init__(self, store, **otherwise):
        self._store, self._otherwise = store, otherwise

    def below(self, prefix):
        return Kept(self._store.below(prefix), **self._otherwise)

    def __getattr__(self, name):
        own, theirs = self._otherwise.get(name), getattr(self._store, name)
        return partial(own, theirs) if own else theirs


def leaving_on_bye():
    """Return what makes a store go as soon as this node has said that it has read the last word."""
    gone = threading.Event()

    def say(theirs, key, value):
        theirs(key, value)
        if "bye" in key:
            gone.set()

    def ask(theirs, *keys):
        if gone.is_set():
            raise RuntimeError("Broken pipe")
        return theirs(*keys)

    return gone, {"set": say, "get": ask, "check": ask}


def test_the_last_word_is_read_before_the_store_may_go(gangs):
    _, otherwise = leaving_on_bye()
    one, other = gangs(watching=otherwise)
    one.tell(exits.USER_ERROR)
    eventually(lambda: ended(other))
    assert ended(other) == exits.USER_ERROR


def test_who_looks_late_whether_all_have_returned_ends_well_without_the_store(gangs):
    gone, otherwise = leaving_on_bye()

    def late(theirs, keys):
        if "done" in keys[0]:
            gone.wait(LIMIT)
        return otherwise["check"](theirs, keys)

    one, other = gangs(watching=otherwise, asking={"check": late})
    with ThreadPoolExecutor() as pool:
        finishing = pool.submit(other.finish, LIMIT)
        one.finish(LIMIT)
        finishing.result()
    assert ended(other) is None


def test_a_node_that_is_silent_as_it_has_failed_isnt_lost(gangs):
    def unheard(theirs, keys):
        return keys != [END] and theirs(keys)

    one, other = gangs(silence=2, watching={"check": unheard})
    one.tell(exits.USER_ERROR)
    one.close()
    eventually(lambda: ended(other))
    assert ended(other) == exits.USER_ERROR


def test_who_hosts_the_store_waits_for_none_that_ends_by_itself(gangs):
    one, other = gangs(hosted=True)
    looked = threading.Event()
    other.on_sample_wanted = lambda why: looked.set()
    one.want_sample("now")
    assert looked.wait(LIMIT)
    other.tell(exits.CANCELLED)
    other.close()
    began = time.monotonic()
    one.close()
    assert time.monotonic() - began < LINGER_S


def test_nodes_that_have_ended_well_have_nothing_to_leave(gangs):
    one, other = gangs()
    with ThreadPoolExecutor() as pool:
        finishing = pool.submit(other.finish, LIMIT)
        eventually(lambda: one.say("bound", "12"))
        assert one.say("bound", "12") == ["12", "0"]
        eventually(lambda: one.say("left", "1"))
        one.finish(LIMIT)
        finishing.result()


def test_a_node_that_never_beats_is_lost(gangs):
    one, _ = gangs(silence=2)
    one.enter(7, (0, 5), 0)
    eventually(lambda: ended(one))
    with pytest.raises(PeersEnded, match="node 5 has been silent for 2 s"):
        one.check()


def test_an_end_that_its_agent_does_not_heed_is_noticed(gangs):
    one, other = gangs(silence=math.inf)
    one.tell(exits.USER_ERROR)
    eventually(lambda: other.pulse(0.1))
    assert other.pulse(0.1).code == exits.USER_ERROR
    assert ended(other)
    assert other.pulse(0.0) is None


def test_a_connection_that_takes_long_to_open_is_no_silence(store):
    may_open = threading.Event()

    def connect():
        may_open.wait(LIMIT)
        return SignedStore(TCPStore("127.0.0.1", store.port, is_master=False), KEY)

    peers = Peers(
        SignedStore(store, KEY), connect, SignedStore(store, KEY), 0, elastic=False, hosted=False, silence=2
    )
    assert [peers.pulse(0.0) for _ in range(5)] == [None] * 5
    may_open.set()
    peers.close()
    assert ended(peers) is None


def test_a_host_that_answers_no_more_before_the_first_round_is_gone_too(store, monkeypatch):
    monkeypatch.setattr("nbtorchjob.runtime.rendezvous.peers.LOOK_S", 0.001)
    may_answer = threading.Event()

    def connect():
        return SignedStore(TCPStore("127.0.0.1", store.port, is_master=False), KEY)

    def late(check, keys):
        may_answer.wait(LIMIT)
        return check(keys)

    peers = Peers(connect(), connect, Kept(connect(), check=late), 0, elastic=False, hosted=False, silence=2)
    give_up = time.monotonic() + LIMIT
    while not peers.pulse(0.0):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    may_answer.set()
    assert ended(peers) == exits.INFRASTRUCTURE_ERROR
    peers.close()


def test_who_is_to_end_hears_first_that_a_sample_is_wanted(gangs):
    one, other = gangs()
    heard = []
    other.on_sample_wanted = lambda why: heard.append(why)
    other.on_end = lambda: heard.append("end")
    one.want_sample("timeout")
    one.tell(exits.USER_ERROR)
    eventually(lambda: ended(other) == exits.of_peer(exits.USER_ERROR))
    assert heard[:2] == ["timeout", "end"]


def test_a_node_knows_once_the_ranks_of_all_others_have_returned(gangs):
    one, other = gangs()
    assert not one.others_done()
    other.finish(0.0)
    assert one.others_done()
    assert not other.others_done()


def test_of_many_nodes_none_asks_for_every_other_one_as_it_waits_for_the_last(store, monkeypatch):
    monkeypatch.setattr("nbtorchjob.runtime.rendezvous.peers._EVERY", 1 << 30)
    nodes = range(20)
    asked: list[list[list[str]]] = [[] for _ in nodes]

    def connect(node):
        def count(check, keys):
            asked[node].append(keys)
            return check(keys)

        inner = SignedStore(TCPStore("127.0.0.1", store.port, is_master=False), KEY)
        return Kept(inner, check=count)

    gang = [
        Peers(
            connect(node),
            partial(connect, node),
            connect(node),
            node,
            elastic=False,
            silence=60.0,
            hosted=False,
        )
        for node in nodes
    ]
    for node, peers in enumerate(gang):
        peers.enter(7, nodes, node)
    with ThreadPoolExecutor(len(gang)) as pool:
        waiting = [pool.submit(peers.finish, LIMIT) for peers in gang[1:]]
        eventually(lambda: all(any("over" in keys[-1] for keys in part if keys) for part in asked[1:]))
        assert not any(future.done() for future in waiting)
        assert max(len(keys) for part in asked for keys in part) <= 2
        gang[0].finish(LIMIT)
        for future in waiting:
            future.result(LIMIT)
    words = SignedStore(TCPStore("127.0.0.1", store.port, is_master=False), KEY).below(PREFIX)
    assert words.check([END])  # which a node that gave up waiting doesn't say
    assert words.get(END) == b"0"
    with ThreadPoolExecutor(len(gang)) as pool:
        pool.map(Peers.close, gang)


def test_a_sample_is_told_by_other_nodes_too_once_and_by_those_that_end(gangs, store, folder, monkeypatch):
    monkeypatch.setenv(emit.EVENTS, str(folder / "events.jsonl"))
    one, other = gangs()
    record = {"event": "Sampled", "node": 1, "round": 7, "why": "timeout", "samples": [], "time": 5.0}

    def told():
        return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]

    other.show_sample(record)
    one.show_sample({**record, "node": 0})
    eventually(lambda: (folder / "events.jsonl").exists() and len(told()) == 2)
    assert sorted(told(), key=lambda each: each["node"]) == [{**record, "node": 0}, record]
    for before in (32, 48):  # a mark, a nonce: whoever reads the store without the key sees nothing else
        with pytest.raises(zlib.error):
            zlib.decompress(store.get(f"{PREFIX}/7/seen/1")[before:])
    other.show_sample({**record, "time": 6.0})
    one.tell(exits.USER_ERROR)
    one.close()
    eventually(lambda: len(told()) == 3)
    assert told()[2] == {**record, "time": 6.0}


def test_one_node_gathers_what_all_do_and_leaves_nothing_of_it_behind(gangs, store):
    one, other = gangs()
    other.on_gather = lambda give: give({"node": 1, "time": 5.0})
    for _ in range(2):
        assert [(node, json.loads(zlib.decompress(data))) for node, data in one.gather(LIMIT)] == [
            (1, {"node": 1, "time": 5.0})
        ]
    began, keys = time.monotonic(), store.num_keys()
    other.on_gather = lambda give: None
    assert list(one.gather(0.2)) == []
    assert time.monotonic() - began < LIMIT
    assert store.num_keys() <= keys + 4  # news, and beats


def words_of(store):
    return SignedStore(TCPStore("127.0.0.1", store.port, is_master=False), KEY).below(PREFIX)


def test_of_two_who_ask_at_once_what_all_do_each_is_told(gangs):
    both_ask = threading.Event()

    def late(check, keys):
        if keys == ["7/gather"]:
            both_ask.wait(LIMIT)
        return check(keys)

    one, other = gangs(watching={"check": late})
    other.on_gather = lambda give: give({"node": 1})
    with ThreadPoolExecutor() as pool:
        asking = [pool.submit(lambda: [node for node, _ in one.gather(LIMIT)]) for _ in range(2)]
        time.sleep(0.2)
        both_ask.set()
        assert [future.result() for future in asking] == [[1], [1]]


def test_nothing_stays_of_what_is_told_late_or_to_who_has_left(gangs, store):
    sealed: list[str] = []
    gives: list[Callable[[dict[str, int]], None]] = []

    def note(seal, key, value):
        sealed.append(key)
        seal(key, value)

    one, other = gangs(asking={"seal": note})
    other.on_gather = gives.append
    eventually(lambda: list(one.gather(0.3)) == [] and gives)
    gives[0]({"node": 1})
    other.on_gather = lambda give: give({"node": 1})
    asking = one.gather(LIMIT)
    assert next(asking)[0] == 1
    asking.close()
    assert len(sealed) == 2
    assert [words_of(store).check([key]) for key in sealed] == [False, False]


def test_a_node_that_has_heard_that_ranks_ask_doesnt_wake_all_again(gangs, store):
    one, other = gangs()
    one.say_asks()
    eventually(lambda: other.asks)
    newest = words_of(store).get("news")
    one.say_asks()
    other.say_asks()
    assert words_of(store).get("news") == newest


def meet(port, host="127.0.0.1", **configs):
    conf = {"is_host": 0, "join_timeout": 30, **configs}
    return dynamic(f"{host}:{port}", "job", (2, 2), None, conf, KEY)


@pytest.mark.parametrize(("word", "code"), [(exits.CONFIG_ERROR, exits.USER_ERROR), (exits.OK, exits.OK)])
def test_who_comes_to_a_job_that_is_over_ends_as_it_did(word, code, store):
    SignedStore(store, KEY).below(PREFIX).set(END, str(word))
    with pytest.raises(PeersEnded) as caught:
        meet(store.port)
    assert caught.value.code == code


@pytest.mark.parametrize("name", ["was/0", END])
def test_a_node_passes_by_a_job_that_had_its_name_before_and_still_ends(name, store, monkeypatch):
    former = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    SignedStore(former, b"o" * 32).below(PREFIX).set(name, "0")
    places = [former.port, former.port, store.port]  # as a name may lead to pods of both
    monkeypatch.setattr(rendezvous, "_await", lambda *_: (("127.0.0.1", places.pop(0)), "127.0.0.1"))
    monkeypatch.setattr(rendezvous, "_AGAIN_S", 0.0)

    met = Endpoint("node-0.same:29400", timedelta(seconds=LIMIT), KEY).join(LIMIT, lambda found: found)
    met.set("word", "1")
    assert (places, store.check(["word"]), former.check(["word"])) == ([], True, False)


def test_the_name_of_node_0_may_be_unknown_again_once_it_has_answered(store, monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # it sets it
    known = socket.getaddrinfo
    # torch asks the system itself, which knows no such name.
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _, *more, **options: known("127.0.0.1", *more, **options)
    )
    peers = meet(store.port, "node-0.invalid", read_timeout=1).peers
    assert peers.tell(exits.USER_ERROR) == exits.USER_ERROR
    peers.close()


class Cut(socketserver.ThreadingTCPServer):
    """Passes all on to the store at a port, but cuts one connection once ``left`` bytes have gone there."""

    daemon_threads = True

    def __init__(self, port, left):
        super().__init__(("127.0.0.1", 0), Passing)
        self.store, self.left = port, left


class Passing(socketserver.BaseRequestHandler):
    server: Cut

    def handle(self):
        with socket.create_connection(("127.0.0.1", self.server.store)) as far:
            while True:
                for end in select.select([self.request, far], [], [])[0]:
                    data = end.recv(4096)
                    if end is self.request and self.server.left is not None:
                        data = data[: self.server.left]
                        self.server.left -= len(data)
                    if not data:
                        return
                    (far if end is self.request else self.request).sendall(data)
                    if self.server.left == 0:
                        self.server.left = None
                        return


# torch greets with 10 bytes (2.13); what is asked comes behind them.
@pytest.mark.parametrize("after", [10, 60, 120])
def test_a_store_that_goes_while_a_node_arrives_is_that_of_a_node_0_to_be_replaced(after, store, monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # it sets it
    with Cut(store.port, after) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        peers = meet(server.server_address[1]).peers
        assert peers.tell(exits.USER_ERROR) == exits.USER_ERROR
        assert server.left is None
        peers.close()
        server.shutdown()


def test_who_comes_early_waits_for_the_next_node_0(monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # it sets it
    old = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = old.port
    SignedStore(old, KEY).below(PREFIX).set(END, str(exits.INFRASTRUCTURE_ERROR))
    with pytest.raises(TimeoutError, match="node 0 to start anew"):
        meet(port, join_timeout=0)
    with ThreadPoolExecutor() as pool:
        met = pool.submit(meet, port)
        del old
        new = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        peers = met.result(LIMIT).peers
    assert peers.tell(exits.USER_ERROR) == exits.USER_ERROR
    peers.close()
    assert SignedStore(new, KEY).below(PREFIX).get(END) == b"1"


def test_who_takes_a_lost_nodes_place_while_its_gang_still_ends_waits_for_the_next_one(monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # it sets it
    old = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = old.port
    SignedStore(old, KEY).below(PREFIX).set("was/0", "7")
    late = meet(port)
    with ThreadPoolExecutor() as pool:
        found = pool.submit(late.next_rendezvous)
        SignedStore(old, KEY).below(PREFIX).set(END, str(exits.INFRASTRUCTURE_ERROR))
        del old
        new = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        other = meet(port)
        assert other.next_rendezvous().world_size == found.result(LIMIT).world_size == 2
    for each in (late, other):
        each.peers.close()
        each.shutdown()
    del new
