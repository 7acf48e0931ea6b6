"""A rank answers its node, and the code that it runs sees nothing of that."""

import json
import os
import queue
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from nbtorchjob import JobSpec, submit
from nbtorchjob.runtime.ask import questions
from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.runtime.facts.samples import Collective, Group, RankSample, Thread
from nbtorchjob.runtime.look import outside, recorder, sampler
from nbtorchjob.runtime.look.sampler import Sampler, bounded
from tests.patience import LIMIT
from tests.runtime.sampled import needs_records

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def node(folder):
    """Yield the node's end of the connection to this process, which is rank 3."""
    with socket.socket(socket.AF_UNIX) as listener:
        questions.within(str(folder), sampler.SOCKET, listener.bind)
        listener.listen()
        Sampler(3).start(str(folder))
        connection, _ = listener.accept()
    connection.settimeout(LIMIT)
    with connection, connection.makefile("r") as lines:
        yield connection, lines


def said(lines):
    return json.loads(lines.readline())


def test_it_has_pythons_lock_before_it_answers(node):
    connection, lines = node
    hello = said(lines)
    connection.sendall(b"sample-10000 8\nsample-10000 9\n")
    assert said(lines) == {"at": 9}
    answer = said(lines)
    assert (answer["of"], answer["sample"]["rank"], answer["sample"]["state"]) == (9, 3, "runs")
    main, *_ = answer["sample"]["threads"]
    assert main["name"] == "main"
    assert "test_it_has_pythons_lock_before_it_answers" in [frame["name"] for frame in main["frames"]]
    assert hello["thread"] in map(int, os.listdir("/proc/self/task"))


def test_a_rank_waits_in_its_first_init_process_group(node, monkeypatch):
    connection, lines = node
    monkeypatch.setattr(recorder, "counts", dict)
    monkeypatch.setattr(recorder, "sequence_numbers", dict)
    said(lines)
    code: dict[str, Any] = {}
    text = "def init_process_group(there):\n    return there.get()\n"
    exec(compile(text, f"/site-packages/{sampler.C10D}", "exec"), code)
    mailbox: queue.Queue[str] = queue.Queue()
    waited = []

    def ask():
        for number in range(1, 1000):  # the main thread may not be waiting yet
            connection.sendall(b"pulse %d\n" % number)
            said(lines)
            waited.append(said(lines)["waits"])
            if waited[-1]:
                break
        mailbox.put("all")

    asking = threading.Thread(target=ask)
    asking.start()
    assert code["init_process_group"](mailbox) == "all"
    asking.join()
    assert (waited[0], waited[-1]) == (False, True)


def test_a_file_that_took_the_number_of_its_socket_is_left_alone(node):
    connection, lines = node
    fd = said(lines)["fd"]
    users, other = socket.socketpair()
    with users, other:
        os.dup2(users.fileno(), fd)
        with suppress(BrokenPipeError):  # the thread may notice the other file before its first wait
            connection.sendall(b"pulse 1\n")
        assert lines.readline() == ""  # the thread has ended
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(1)
        os.write(fd, b"mine")
        assert other.recv(9) == b"mine"
        os.close(fd)


def unix_sockets():
    """Return the unix sockets that this process has open."""
    inodes = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return {link for link in links if link.removeprefix("socket:[").removesuffix("]") in inodes}


def look():
    """Return what code can see of the sampler in its rank."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))
    dist.init_process_group("gloo")
    for _ in range(recorder.SIZE + 10):
        dist.all_reduce(torch.ones(1))
    dump = torch._C._distributed_c10d._dump_fr_trace_json(True, False)
    os.kill(os.getpid(), signal.SIGUSR1)
    before = unix_sockets()
    child = os.fork()
    if child == 0:
        os._exit(len(before & unix_sockets()))
    return {
        "size": os.environ.get("TORCH_FR_BUFFER_SIZE"),
        "entries": len(json.loads(dump)["entries"]),
        "threads": [thread.name for thread in threading.enumerate()],
        "handler": signal.getsignal(outside.SIGNAL),
        "waited for": signal.sigtimedwait((signal.SIGUSR1,), LIMIT) is not None,
        "sockets": len(before),
        "inherited": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
    }


UNSEEN = {
    "threads": ["MainThread", "flush"],
    "handler": signal.SIG_DFL,
    "waited for": True,
    "sockets": 1,
    "inherited": 0,
}


@pytest.mark.torch
@needs_records
def test_code_sees_nothing_of_it_and_the_recorder_is_on():
    assert submit(look).result(LIMIT) == {"size": str(recorder.SIZE), "entries": recorder.SIZE, **UNSEEN}


def recorded():
    """Make 30 calls; return how many of them are recorded."""
    dist.init_process_group("gloo")
    for _ in range(30):
        dist.all_reduce(torch.ones(1))
    return len(json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))["entries"])


@pytest.mark.torch
@needs_records
def test_a_recorder_of_the_users_own_size_stays():
    assert submit(recorded, spec=JobSpec(env={"TORCH_NCCL_TRACE_BUFFER_SIZE": "20"})).result(LIMIT) == 20


@pytest.mark.parametrize("most", [300, 3000, 30_000])
def test_a_sample_is_bounded(most):
    frames = tuple(Frame(f"/a/file/{n}.py", n, "function", "a line " * 20) for n in range(60))
    calls = tuple(Collective(n, "all_reduce", 1e9, True, ((1, 2, 3),)) for n in range(16))
    groups = tuple(Group(f"group {n}", tuple(range(8)), calls) for n in range(64))
    whole = RankSample(0, "runs", 1, (Thread("main", frames),) * 17, groups)
    sample = bounded(whole, most)
    assert len(json.dumps(sample.to_json())) <= most
    assert sample.note.endswith("fit here") or sample.note.endswith("too long to show")
    assert bounded(sample, most) == sample
