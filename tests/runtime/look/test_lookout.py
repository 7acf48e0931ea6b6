"""A node looks at its ranks: by itself, and when asked."""

import base64
import ctypes
import json
import linecache
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from nbtorchjob import Elastic, JobSpec, submit
from nbtorchjob.runtime.ask import questions
from nbtorchjob.runtime.facts import EVENTS, samples
from nbtorchjob.runtime.look import sampler
from nbtorchjob.runtime.look.lookout import Lookout, _Stall
from nbtorchjob.runtime.rendezvous.alone import Alone
from nbtorchjob.state.facts import factlines
from nbtorchjob.state.text import attempts
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT
from tests.runtime import hangs
from tests.runtime.hangs import LONG, Stuck, begin
from tests.runtime.sampled import needs_records, sampled

# Pickle these modules' functions by value, as a notebook's: no node can import them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(hangs)

SINCE = 1e9


class Rank(threading.Thread):
    """A thread that answers a node as a rank would."""

    def __init__(self, folder, pending=(), counts=(1, 0)):
        super().__init__(daemon=True)
        self.pulse = {"counts": {"group": list(counts)}, "reports": 0, "pending": list(pending)}
        self.node = socket.socket(socket.AF_UNIX)
        questions.within(str(folder), sampler.SOCKET, self.node.connect)
        self.start()

    def run(self):
        with self.node, self.node.makefile("r") as questions, suppress(OSError):  # raised when its node ends
            for line in questions:
                question, number = line.split()
                sample = {"sample": samples.RankSample(0, "runs").to_json()}
                self.say(
                    {"at": int(number)},
                    {"of": int(number), **(self.pulse if question == "pulse" else sample)},
                )

    def say(self, *records):
        self.node.sendall("".join(json.dumps(record) + "\n" for record in records).encode())


@pytest.fixture
def told(folder, monkeypatch):
    """Return a function that returns the emitted facts, once there are ``number`` of them."""
    path = folder / "events.jsonl"
    monkeypatch.setenv(EVENTS, str(path))

    def facts(number):
        until = time.monotonic() + LIMIT
        while True:
            lines = path.read_bytes().splitlines() if path.exists() else []
            if len(lines) >= number:
                return list(factlines.read(lines))
            assert time.monotonic() < until, lines
            time.sleep(0.01)

    return facts


@pytest.fixture
def look_out(folder):
    """Yield a function that makes a node look at this process as its rank 0."""
    ends = []

    def start(*, hang_after=0.0, peers=None, **rank):
        lookout = Lookout(str(folder), 7, hang_after)
        ends.append(lookout.close)
        thread = Rank(folder, **rank) if rank else None
        ends.append(thread.join if thread else lookout.close)
        lookout.enter(3, str(folder), {0: os.getpid()}, peers or Alone())
        return lookout, thread

    yield start
    for end in ends:
        end()


class Peers(Alone):
    """Peers that record why this node wants a sample from them."""

    def __init__(self):
        self.told = []

    def want_sample(self, why):
        self.told.append(why)


def test_a_rank_that_has_yet_to_come_begins(look_out, told):
    lookout, _ = look_out()
    (record,) = lookout.answer({"question": "sample"})
    (fact,) = told(1)
    assert factlines.from_json(record) == fact
    assert (fact.node, fact.round, fact.why) == (7, 3, "asked")
    assert [(sample.rank, sample.state, sample.pid) for sample in fact.samples] == [
        (0, "begins", os.getpid())
    ]


def test_a_stall_is_told_once_and_the_next_one_again(look_out, told):
    peers = Peers()
    lookout, rank = look_out(hang_after=0.1, peers=peers, counts=(2, 1))
    assert [fact.why for fact in told(1)] == ["quiet"]
    (record,) = lookout.answer({"question": "sample"})
    assert record["why"] == "quiet"  # nothing has moved since
    rank.pulse = {**rank.pulse, "reports": 1}
    assert [fact.why for fact in told(3)] == ["quiet"] * 3
    assert peers.told == ["quiet", "quiet"]


def test_a_rank_that_waits_in_a_call_that_no_recorder_has_is_told_too(look_out, told):
    _, rank = look_out(hang_after=0.1, counts=(1, 1))
    rank.pulse = {**rank.pulse, "waits": True}
    assert [fact.why for fact in told(1)] == ["quiet"]


@pytest.mark.parametrize(("age", "limit"), [(7.0, 8.0), (1796.0, 1800.0)])
def test_a_call_that_is_about_to_give_up_is_told_though_ranks_move(look_out, told, age, limit):
    peers = Peers()
    look_out(peers=peers, counts=(2, 1), pending=[[time.time() - age, limit]])
    assert [fact.why for fact in told(1)] == ["timeout"]
    assert peers.told == ["timeout"]


@pytest.mark.parametrize("by", [-3600.0, 86400.0], ids=["back", "ahead"])
def test_a_call_is_sampled_shortly_before_it_gives_up_though_the_clock_is_set(by, monkeypatch):
    stall, wall, monotonic = _Stall([]), time.time, time.monotonic
    pulse = {0: {"counts": {"group": [2, 1]}, "reports": 0, "pending": [[wall(), 1800.0]]}}
    stall.look(pulse)
    monkeypatch.setattr(time, "time", lambda: wall() + by)
    stall.look(pulse)
    assert list(stall.reasons(0.0)) == []
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 1797.0)
    assert list(stall.reasons(0.0)) == ["timeout"]


def test_a_sample_of_ranks_that_have_all_ended_is_no_news(look_out, told):
    lookout, _ = look_out()
    lookout.sample("asked")
    lookout.ended({0: 0})
    (sample,) = lookout.sample("quiet")["samples"]
    assert sample["state"] == "ended"
    assert [fact.why for fact in told(1)] == ["asked"]


def test_another_node_may_ask(look_out, told):
    peers = Peers()
    look_out(peers=peers, counts=(1, 1))
    peers.on_sample_wanted("quiet")
    assert [fact.why for fact in told(1)] == ["quiet"]
    assert peers.told == []


def test_a_node_tells_its_sample_to_one_that_gathers_them_and_gathers_them_itself(look_out, told):
    peers: Any = Peers()
    peers.gather = lambda seconds: iter([(8, b"packed")])
    lookout, _ = look_out(peers=peers)
    records: queue.Queue[dict[str, Any]] = queue.Queue()
    peers.on_gather(records.put)
    assert records.get(timeout=LIMIT)["why"] == "asked"

    can, other, own = lookout.answer({"question": "sample", "all": 1.0})
    assert (can, other) == ({"gathers": True}, {"of": 8, "packed": base64.b64encode(b"packed").decode()})
    assert (own["event"], own["node"]) == ("Sampled", 7)


def test_another_nodes_wish_is_answered_before_ranks_end(look_out, told):
    peers = Peers()
    lookout, _ = look_out(peers=peers)
    lookout._reason = "timeout"  # as set while the thread that looks has yet to wake
    peers.on_end()
    assert [fact.why for fact in told(1)] == ["timeout"]
    peers.on_end()
    assert len(told(1)) == 1


def test_what_ranks_were_in_is_known_once_they_have_returned_and_are_gone(look_out, told):
    lookout, _ = look_out(counts=(1, 1))
    before = lookout.sample("asked")["samples"]
    lookout.returned()
    lookout.ended({0: -9})
    assert lookout.sample("timeout")["samples"] == before


@pytest.mark.parametrize(
    "records",
    [[{"of": 1, "sample": 5}], ["no record"], [{"inode": "x"}], [[1]], [{"of": [], "at": {}}]],
    ids=["of another kind", "text", "no number", "list", "no numbers"],
)
def test_a_rank_may_say_anything(look_out, told, records):
    lookout, rank = look_out(counts=(1, 1))
    rank.say(*records)
    (sample,) = lookout.sample("asked")["samples"]
    assert sample["state"] in ("runs", "unknown", "begins")
    assert told(1)


KILLED = """
import json, os, signal, socket, sys
node = socket.socket(socket.AF_UNIX)
node.connect(sys.argv[1])
with node, node.makefile("r") as questions:
    for line in questions:
        question, number = line.split()
        if question != "pulse":
            os.kill(os.getpid(), signal.SIGKILL)
        node.sendall(json.dumps({"at": int(number)}).encode() + b"\\n")
"""


@pytest.mark.parametrize("question", ["sample", "profile"])
def test_a_rank_that_is_killed_while_it_is_asked_has_ended(question, look_out, folder):
    lookout, _ = look_out()
    with subprocess.Popen([sys.executable, "-c", KILLED, str(folder / sampler.SOCKET)]) as rank:
        lookout.enter(3, str(folder), {0: rank.pid}, Alone())

        def told():
            if question == "sample":
                (sample,) = lookout.sample("asked")["samples"]
                return sample["state"] == "ended"
            return [*lookout.profile({"rank": 0, "seconds": 9})] == [{"trouble": "it has ended"}]

        until(told)
    assert rank.returncode == -signal.SIGKILL


def test_those_who_ask_while_another_is_answered_are_answered_together(look_out, monkeypatch):
    go, facts = threading.Event(), []
    answers: list[dict[str, Any]] = []

    def tell(event, **fields):
        facts.append(fields["time"])
        assert go.wait(LIMIT)

    monkeypatch.setattr("nbtorchjob.runtime.look.lookout.emit", tell)
    lookout, _ = look_out(counts=(1, 1))
    threads = [
        threading.Thread(target=lambda: answers.append(*lookout.answer({"question": "sample"})))
        for _ in range(4)
    ]
    threads[0].start()
    until(lambda: facts)
    for thread in threads[1:]:
        thread.start()
    until(lambda: all("with self._lock" in line_of_thread(thread) for thread in threads[1:]))
    go.set()
    for thread in threads:
        thread.join()
    assert [sample["state"] for answer in answers for sample in answer["samples"]] == ["runs"] * 4
    assert len(facts) == 2
    assert {answer["time"] for answer in answers} == set(facts)


def line_of_thread(thread):
    """Return the line of code that a thread is executing."""
    frame = sys._current_frames()[thread.ident]
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def one_of_each_kind():
    """Do something different on each rank, while rank 0 waits for the others."""
    rank = int(os.environ["RANK"])
    if rank == 4:
        return
    dist.init_process_group("gloo", rank=rank, world_size=4)
    if rank == 1:
        ctypes.PyDLL(None).sleep(LONG)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 3:
        threading.Thread(target=time.sleep, args=(LONG,), name="idle").start()
        threading.Thread(target=mine, name="mine").start()
        next(iter(DataLoader(Stuck(3), sampler=[5], num_workers=1)))
    dist.all_reduce(torch.ones(2, 3))


def mine():
    time.sleep(LONG)


@pytest.fixture(scope="module")
def ranks():
    """Return a sample of ranks that each do something different."""
    (fact,) = sampled(one_of_each_kind, nproc=5, hang_after=1).values()
    return fact.samples


def line_of(text):
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.torch
def test_a_rank_tells_its_stack(ranks):
    assert (ranks[0].state, ranks[0].note) == ("runs", "")
    (main,) = ranks[0].threads
    first, *_, last = main.frames
    text = "dist.all_reduce(torch.ones(2, 3))"
    assert (main.name, first.name, first.lineno, first.line) == (
        "main",
        "one_of_each_kind",
        line_of(text),
        text,
    )
    assert (last.name, last.line) == ("all_reduce", "work.wait()")


@pytest.mark.torch
@needs_records
def test_a_rank_tells_the_call_that_it_waits_in(ranks):
    (group,) = ranks[0].groups
    assert (group.ranks, group.backend, group.label) == ((0, 1, 2, 3), "gloo", "default_pg")
    *_, call = group.calls
    assert (call.op, call.done, call.sizes, call.dtypes) == ("all_reduce", False, ((2, 3),), ("float32",))
    assert (call.timeout, call.p2p, call.peer) == (1800, False, None)
    assert 0 < time.time() - call.since < LIMIT


@pytest.mark.torch
def test_a_rank_whose_lock_is_held_in_c_is_read_from_outside(ranks):
    assert ranks[1].state == "busy"
    (main,) = ranks[1].threads
    (frame,) = main.frames
    assert (frame.filename, frame.name, frame.lineno) == (
        __file__,
        "one_of_each_kind",
        line_of("ctypes.PyDLL"),
    )


@pytest.mark.torch
def test_a_rank_that_is_stopped_or_has_returned_is_called_so(ranks):
    assert [rank.state for rank in (ranks[2], ranks[4])] == ["stopped", "ended"]
    assert ranks[4].threads == ()
    last_seen = [frame.name for thread in ranks[2].threads for frame in thread.frames]
    assert last_seen in ([], ["one_of_each_kind"])  # the rank may stop before its node first asks it
    assert ranks[4].note == "it has returned"


@pytest.mark.torch
def test_threads_of_interest_are_the_users_and_those_that_work_for_him(ranks):
    assert [thread.name for thread in ranks[3].threads] == ["main", "mine"]
    # The name that torch sets: older versions use the name of the rank's own main thread.
    assert re.fullmatch("child processes: 1 pt_(data_worker|main_thread) sleeping", ranks[3].note)
    assert ranks[3].threads[0].frames[0].line.startswith("next(iter(DataLoader(")


def rank_1_prints():
    """Print on rank 1, while rank 0 waits for it."""
    if begin() == 1:
        while True:
            print("on it", flush=True)
            time.sleep(0.1)
    dist.barrier()


@pytest.mark.torch
@needs_records
def test_the_node_of_a_missing_rank_is_asked_by_the_other_one():
    facts = sampled(rank_1_prints, nodes=2, nproc=1, hang_after=1)
    assert [facts[node].why for node in (0, 1)] == ["quiet", "quiet"]
    (waits,), (prints,) = facts[0].samples, facts[1].samples
    assert [call.op for call in waits.groups[0].calls if not call.done] == ["barrier"]
    assert (prints.rank, prints.threads[0].frames[0].name) == (1, "rank_1_prints")


UNEVEN = "rank 1 made 8 calls in the default group, and ranks 0, 2 made 7 before"
TOO_BIG = "rank 2 entered all_reduce float32[4000], but ranks 0-1 all_reduce float32[8]"


@pytest.mark.torch
@needs_records
@pytest.mark.parametrize(
    ("nodes", "case", "words"),
    [
        *((nodes, "one_step_more", f"{UNEVEN} returning") for nodes in (1, 3)),
        (1, "one_step_more_in_the_group", f"{UNEVEN} leaving it"),
        *((nodes, "too_big", TOO_BIG) for nodes in (1, 3)),
    ],
)
@pytest.mark.filterwarnings("ignore:nproc_per_node=")
def test_a_collective_that_broke_off_is_told_with_what_each_rank_called(nodes, case, words):
    job = submit(hangs.ALL[case], spec=JobSpec(Elastic(nnodes=nodes, nproc_per_node=3 // nodes)))
    job.wait(LIMIT)

    heading, *rest = attempts.lines(job.state)
    assert heading.startswith("a collective gave up: ")
    assert words in heading
    assert not any("Ranks called it with other sizes" in line or "equally often?" in line for line in rest)
    job.delete()
