"""A node and its rank change the code together: a failure on the way neither ends nor blocks them."""

import errno
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from nbtorchjob.runtime.api import checkpoints, points
from nbtorchjob.runtime.api.points import POINT, Page
from nbtorchjob.runtime.ask.answering import Question
from nbtorchjob.runtime.facts import injected
from nbtorchjob.runtime.node.kept import KeptSwaps
from nbtorchjob.runtime.node.swaps import Swaps
from nbtorchjob.runtime.rank import swapped, swapping
from nbtorchjob.runtime.rendezvous.alone import Alone
from nbtorchjob.runtime.rendezvous.signed import SignedStore
from nbtorchjob.runtime.store.payload import Payload
from tests.patience import LIMIT
from tests.runtime.swaps import KEY, packed

pytestmark = pytest.mark.torch

fork = multiprocessing.get_context("fork")


def pack(text, id_="s1", *, within=60, **more):
    """Return the payload of a client's request for a swap."""
    return packed(text, id=id_, within=within, by="", text=text, diff="", **more)


class Asked(Question):
    """A question from a client that has sent all of it at once and stays connected."""

    def __init__(self, id_, data):
        dict.__init__(self, id=id_, size=len(data))
        self._said = [data]
        self.left = False

    def hear(self, seconds):
        if self.left:
            raise ConnectionError
        return self._said.pop() if self._said else None


class Store(dict):  # type: ignore[type-arg]
    """The store of a round of one node."""

    set = dict.__setitem__


class Job:
    """A node with one rank that steps in a thread until the node ends."""

    def __init__(self, folder, space, *, keeps=True):
        self.space, self.files = space, folder / "files"
        round_ = folder / "round-0"
        round_.mkdir()
        self.page = Page.create(str(round_), 1)
        self.swaps = Swaps(0, str(folder), str(self.files), KEY, keeps=keeps)
        self.swaps.kept.agree(Store(), 0, 1, None)
        self.swaps.enter(0, str(round_), self.page, {0: 0}, Alone())
        points.begin(str(round_), 0)
        swapping.install()
        self._ends = threading.Event()
        self._rank = threading.Thread(target=self._step)
        self._node = threading.Thread(target=self._look)
        self.failed: list[Exception] = []
        self._rank.start()
        self._node.start()

    def _step(self):
        while not self._ends.wait(0.001):
            self.space["step"]()
            points.of[POINT].passed()

    def _look(self):
        try:
            while not self._ends.wait(0.001):
                self.swaps.look(set(), False)
        except Exception as exc:  # would end a real node
            self.failed.append(exc)

    def swap(self, text, id_="s1", **more):
        """Return the node's answer to a swap."""
        _, answer = self.swaps.swap(Asked(id_, pack(text, id_, **more)))
        return answer

    def end(self):
        self._ends.set()
        self._rank.join(LIMIT)
        self._node.join(LIMIT)
        assert not self._rank.is_alive()
        assert not self.failed


@pytest.fixture
def space(monkeypatch):
    """Return the namespace of a rank's ``__main__``."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec("def step():\n    return 'old'\nlr = 1", vars(main))
    return vars(main)


@pytest.fixture
def job(folder, space, monkeypatch):
    monkeypatch.setenv("NBTORCHJOB_EVENTS", str(folder / "events.jsonl"))
    monkeypatch.setattr(points, "page", None)
    started = Job(folder, space)
    yield started
    started.end()
    points._forget()
    points.on_swap = points.on_trial = None


def facts(folder, kind):
    records = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [record for record in records if record["event"] == kind]


def full(*args, **more):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_before_all_are_ready_refuses_the_swap(job, space, monkeypatch, folder):
    monkeypatch.setattr(shutil, "copyfile", full)
    answer = job.swap("lr = 2")

    assert (answer["outcome"], answer["why"]) == ("", "unable")
    assert answer["troubles"] == ["node 0 can't take it: [Errno 28] No space left on device"]
    assert space["lr"] == 1


def test_a_disk_that_fails_after_that_is_a_notice(job, space, folder):
    replace = os.replace
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(os, "replace", lambda a, b: full() if b.endswith("1.payload") else replace(a, b))
        answer = job.swap("lr = 2")

    assert (answer["outcome"], space["lr"]) == ("swapped", 2)
    assert "node 0 can't keep swap 1" in facts(folder, "Notice")[0]["text"]
    assert [fact["number"] for fact in facts(folder, "Swapped")] == [1]
    # The next swap has its own number: another node has the first, and sends it to this node later.
    assert job.swap("lr = 3", "s2")["number"] == 2
    assert [os.path.basename(path) for path in swapping.earlier(str(folder / "swaps"))] == ["2.payload"]
    assert job.swaps.kept.count() == 0


def test_all_is_put_back_where_a_rank_fails_at_the_change(job, space, folder):
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(swapped.Change, "_recompile", lambda self: self._undo and 1 / 0)
        answer = job.swap("lr = 2\ndef step():\n    return 'new'")

    assert (answer["outcome"], answer["errors"][0]["error"]["type"]) == ("back", "ZeroDivisionError")
    assert (space["lr"], space["step"]()) == (1, "old")
    assert "rank 0: ZeroDivisionError" in facts(folder, "Swapped")[0]["back"]
    assert swapping.earlier(str(folder / "swaps")) == []
    assert [path.name for path in (folder / "swaps").iterdir()] == []
    assert job.swap("lr = 3", "s2")["outcome"] == "swapped"


def test_a_rank_that_has_no_room_to_say_how_it_failed_ends_no_node(job, space, folder):
    replace, fails = os.replace, threading.Event()

    def fail(change):
        if change._undo:
            fails.set()
            raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(swapped.Change, "_recompile", fail)
        broken.setattr(os, "replace", lambda a, b: full() if fails.is_set() else replace(a, b))
        assert job.swap("lr = 2")["outcome"] == "back"
    assert facts(folder, "Swapped")[0]["back"] == "a rank failed"
    assert space["lr"] == 1


def test_a_swap_waits_for_another_unless_whoever_asked_has_left(job, space):
    space["gate"] = threading.Event()
    first = threading.Thread(target=job.swap, args=("x = gate.wait(60)",), kwargs={"assumes": ["gate"]})
    first.start()
    until = time.monotonic() + LIMIT
    while job.page[points.NUMBER] == 0:
        assert time.monotonic() < until
    question = Asked("s2", pack("lr = 2", "s2"))
    answers = job.swaps.swap(question)
    assert next(answers) == {"has": True}
    question.left = True
    assert next(answers) == {}
    answers.close()
    space["gate"].set()
    first.join(LIMIT)

    assert (space["x"], space["lr"]) == (True, 1)


def test_a_local_module_comes_along_and_goes_with_a_swap_that_is_refused(job, space, folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder / "files"))
    bad = job.swap("import losses_a\nlr = losses_a.lr / 0", files=[("losses_a.py", "lr = 2")])
    assert bad["errors"][0]["error"]["type"] == "ZeroDivisionError"
    assert not (folder / "files" / "losses_a.py").exists()
    files = [("losses_a.py", "lr = 3"), ("words.txt", "a")]
    assert job.swap("import losses_a\nlr = losses_a.lr", "s2", files=files)["outcome"] == "swapped"
    assert space["lr"] == 3
    # A later attempt gets the module in a new folder.
    shutil.rmtree(folder / "files")
    KeptSwaps(0, str(folder / "swaps"), str(folder / "files"), KEY).agree(Store(), 0, 1, None)
    assert (folder / "files" / "losses_a.py").read_text() == "lr = 3"

    edited = [("losses_a.py", "lr = 4"), ("words.txt", "b")]
    answer = job.swap("from losses_a import lr", "s3", files=edited)
    assert "losses_a.py has changed since the ranks imported it" in answer["errors"][0]["error"]["message"]
    assert (folder / "files" / "losses_a.py").read_text() == "lr = 3"
    assert (folder / "files" / "words.txt").read_text() == "a"
    sys.modules.pop("losses_a")


def keep(node, folder, barrier, answers):
    """Run as one of several nodes that keep swaps at the same moment."""
    kept = KeptSwaps(node, str(folder / str(node)), str(folder / "files"), KEY)
    kept._first = True  # as while one round's first node still keeps swaps, and the next round's begins
    source = folder / "source"
    trouble = []
    for _ in range(200):
        barrier.wait(LIMIT)
        try:
            kept.stage(str(source))
            kept.keep()
        except OSError as exc:
            trouble.append(repr(exc))
    answers.put(trouble)


def test_nodes_that_share_a_folder_of_checkpoints_dont_meet_there(folder, monkeypatch):
    monkeypatch.setenv("NBTORCHJOB_CHECKPOINTS", str(folder / "checkpoints"))
    monkeypatch.setenv("NBTORCHJOB_STREAM", "x")
    (folder / "source").write_bytes(bytes(50_000))
    barrier, answers = fork.Barrier(3), fork.SimpleQueue()
    nodes = [fork.Process(target=keep, args=(node, folder, barrier, answers)) for node in range(3)]
    for node in nodes:
        node.start()
    assert [answers.get() for _ in nodes] == [[], [], []]
    for node in nodes:
        node.join(LIMIT)

    assert len(swapping.earlier(checkpoints.beside("swaps"))) == 200


def test_a_job_that_resumes_another_leaves_the_swaps_of_that_alone(folder, monkeypatch):
    monkeypatch.setenv("NBTORCHJOB_CHECKPOINTS", str(folder / "checkpoints"))
    monkeypatch.setenv("NBTORCHJOB_STREAM", "x")
    (folder / "source").write_bytes(pack("lr = 1"))

    def agreed(run, attempt):
        monkeypatch.setenv("NBTORCHJOB_RUN", run)
        kept = KeptSwaps(0, str(folder / run / attempt), str(folder / "files"), KEY)
        return kept, kept.agree(Store(), 0, 1, None)

    old, _ = agreed("1.5", "first")
    old.stage(str(folder / "source"))
    old.keep()

    assert agreed("2.5", "first")[1] == 0
    assert agreed("1.5", "second")[1] == 1


def test_nodes_whose_hosts_mounted_the_secret_at_different_times_begin_with_the_same_swaps(
    folder, monkeypatch
):
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for node, numbers in (("0", [1]), ("1", [1, 2])):
        (folder / node / "mounted").mkdir(parents=True)
        for number in numbers:
            (folder / node / "mounted" / f"{number}.payload").write_bytes(pack(f"lr = {number}"))
    (folder / "1" / "mounted" / "3.payload").write_bytes(b"signed by nobody")
    monkeypatch.setenv("NBTORCHJOB_EVENTS", str(folder / "events.jsonl"))
    earlier = swapping.earlier
    # Real nodes are processes, each with a folder of its own.
    monkeypatch.setattr(
        swapping, "earlier", lambda path: earlier(path.format(threading.current_thread().name))
    )
    monkeypatch.setenv(injected.SWAPS, str(folder / "{}" / "mounted"))

    def begin(node):
        kept = KeptSwaps(node, str(folder / str(node) / "swaps"), str(folder / "files"), KEY)
        kept.agree(connect(), node, 2, connect)

    def connect():
        return SignedStore(TCPStore("127.0.0.1", store.port, is_master=False), KEY)

    nodes = [threading.Thread(target=begin, args=[node], name=str(node)) for node in (0, 1)]
    for thread in nodes:
        thread.start()
    for thread in nodes:
        thread.join(LIMIT)
    for node in ("0", "1"):
        payloads = [
            Payload(path).header["swap"]["text"] for path in swapping.earlier(str(folder / node / "swaps"))
        ]
        assert payloads == ["lr = 1", "lr = 2"]


def test_a_device_in_the_place_of_an_earlier_attempts_swap_is_not_read(folder, monkeypatch):
    mounted = folder / "mounted"
    mounted.mkdir()
    (mounted / "..data").write_bytes(pack("lr = 1"))
    (mounted / "1.payload").symlink_to("..data")  # like the files of a mounted Secret
    (mounted / "2.payload").symlink_to("/dev/null")
    monkeypatch.setenv(injected.SWAPS, str(mounted))
    monkeypatch.setenv("NBTORCHJOB_EVENTS", str(folder / "events.jsonl"))

    assert KeptSwaps(0, str(folder / "swaps"), str(folder / "files"), KEY).agree(Store(), 0, 1, None) == 1
    assert "it isn't a file" in (folder / "events.jsonl").read_text()


def test_what_an_earlier_attempt_left_is_checked_as_the_ranks_read_it(folder, monkeypatch):
    monkeypatch.setenv("NBTORCHJOB_CHECKPOINTS", str(folder / "checkpoints"))
    monkeypatch.setenv("NBTORCHJOB_STREAM", "x")
    monkeypatch.setenv("NBTORCHJOB_EVENTS", str(folder / "events.jsonl"))
    beside = Path(checkpoints.beside("swaps"))
    beside.mkdir(parents=True)
    payloads = {number: pack(f"lr = {number}") for number in (1, 2, 3)}
    for number, data in payloads.items():
        (beside / f"{number}.payload").write_bytes(data)
    (beside / "x.payload").write_bytes(b"no swap")
    verify, paths = Payload.verify, []

    def exchange(payload, key):
        for path in beside.iterdir():
            path.write_bytes(b"exchanged")
        paths.append(payload.path)
        verify(payload, key)

    monkeypatch.setattr(Payload, "verify", exchange)
    kept = KeptSwaps(0, str(folder / "swaps"), str(folder / "files"), KEY)

    assert kept.agree(Store(), 0, 1, None) == 1
    assert (folder / "swaps" / "1.payload").read_bytes() == payloads[1]
    assert all(path.startswith(str(folder / "swaps")) for path in paths)
    assert "swaps of earlier attempts aren't made again" in facts(folder, "Notice")[0]["text"]
