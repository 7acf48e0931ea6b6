"""The program that leads to a node's socket from within its container."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from contextlib import contextmanager
from pathlib import Path

import cloudpickle
import pytest

from nbtorchjob.backends.talk import Conversation
from nbtorchjob.payload import program
from nbtorchjob.runtime.ask import answering, questions
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.start import boot
from tests.backends.kubernetes.nodes import KEY, Node, pack
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

OWN = questions.node_key(KEY, "", 0)


@pytest.fixture(params=[True, False], ids=["far", "here"])
def payload(folder, request):
    """Return the path of a payload's program."""
    path = folder / "job.pyz"
    path.write_bytes(program.archive(remote=request.param))
    return path


@pytest.fixture
def temp(folder):
    """Return the container's temporary folder."""
    path = folder / "tmp"
    path.mkdir()
    return path


@pytest.fixture
def node(temp):
    """Start answering as a node, beside the socket of a node that has ended."""
    for name in ("nbtorchjob-gone", "nbtorchjob-here"):
        (temp / name).mkdir()
    endpoint = socket.socket(socket.AF_UNIX)
    questions.within(str(temp / "nbtorchjob-gone"), questions.SOCKET, endpoint.bind)
    endpoint.close()
    answering.serve(str(temp / "nbtorchjob-here"), OWN, {"who": lambda question: iter([{"node": 0}])})


@contextmanager
def leading(temp, payload, seconds=1000):
    """Run the program that leads to the node, in a Python with only the standard library."""
    command = [sys.executable, "-S", "-c", questions.PROGRAM, str(payload), str(seconds)]
    env = {"PATH": os.environ["PATH"], "TMPDIR": str(temp)}
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        try:
            yield process
        finally:
            process.kill()


def answered(temp, payload, question="who"):
    talk = Conversation(0, OWN, {"question": question})
    with leading(temp, payload) as process:
        while not talk.over:
            data = process.stdout.read1(1 << 16)
            assert data, process.wait(LIMIT)
            process.stdin.write(talk.hear(data))
            process.stdin.flush()
        assert process.wait(LIMIT) == 0
    return talk.answer


def code(temp, payload, **how):
    with leading(temp, payload, **how) as process:
        return process.wait(LIMIT)


@pytest.mark.usefixtures("node")
def test_it_leads_to_the_node_that_lives(temp, payload):
    assert answered(temp, payload).records == ({"node": 0},)


@pytest.mark.usefixtures("node")
def test_it_ends_with_whoever_asked_or_after_a_while(temp, payload):
    with leading(temp, payload) as process:
        assert process.stdout.read1(1 << 16)
        process.stdin.close()
        assert process.wait(LIMIT) == 0
    assert code(temp, payload, seconds=1) == -14


def test_both_ends_may_write_at_once(temp, payload):
    size = 4 << 20
    (temp / "nbtorchjob-here").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    questions.within(str(temp / "nbtorchjob-here"), questions.SOCKET, listener.bind)
    listener.listen()
    upload = bytearray()

    def node():  # like all nodes, reads nothing while it writes
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(LIMIT / 4)
            peer.sendall(bytes(size))
            while len(upload) < size:
                upload.extend(peer.recv(1 << 16))

    def say(process):
        process.stdin.write(b"1" * size)
        process.stdin.flush()

    with leading(temp, payload) as process, listener:
        threads = [threading.Thread(target=node), threading.Thread(target=say, args=(process,))]
        for thread in threads:
            thread.start()
        output = process.stdout.read(size)
        for thread in threads:
            thread.join(LIMIT)
    assert (output == bytes(size), upload == b"1" * size) == (True, True)


def test_what_is_not_there_is_told_apart(temp, payload, folder):
    assert code(temp, payload) == questions.NO_NODE
    shutil.copy(boot.__file__, payload)
    assert code(temp, payload) == questions.NO_PAYLOAD
    with zipfile.ZipFile(payload, "w") as older:
        older.writestr("nbtorchjob/__init__.py", "")
        older.writestr("nbtorchjob/runtime/__init__.py", "")
        older.writestr("__main__.py", "raise SystemExit('a second node')")
    assert code(temp, payload) == questions.OLDER


def wait(path):
    import time

    while not Path(path).exists():
        time.sleep(0.01)


@pytest.mark.torch
def test_a_node_whose_payload_was_put_together_is_found(folder):
    job = pack(folder, wait, str(folder / "go"))
    job.rename(folder / "part-000")
    shutil.copy(boot.__file__, job)
    node = Node(job)
    try:
        node.until(lambda node: node.facts("WorkersStarted"))
        assert answered(node.temp, job, "nonsense").trouble == "it knows no question 'nonsense'"
        (folder / "go").touch()
        assert node.wait() == exits.OK
        assert not node.output()
    finally:
        node.end()
