"""Checkpoints that a rank keeps for the next attempt: in a folder, or by way of a store."""

import errno
import fcntl
import importlib
import json
import math
import os
import signal
import socket
import threading

import pytest

import nbtorchjob
from nbtorchjob.runtime.api import checkpoints, mirror
from nbtorchjob.runtime.api.checkpoints import attempt, checkpoint_dir, saving
from nbtorchjob.runtime.store.payload import PayloadError
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("tests.runtime.buckets")
memory = pytest.importorskip("fsspec.implementations.memory")


@pytest.fixture(params=["file", "memory"])
def store(request, folder):
    """Return the URL of an empty store."""
    for scheme in ("memory", "buckets", "patterns"):
        fsspec.filesystem(scheme).store.clear()
    return f"{request.param}://{folder}/store"


@pytest.fixture
def node(store, folder, monkeypatch):
    """Yield a function that becomes a rank of another node, with its own folder and the same store."""

    def become(name):
        home = folder / name
        home.mkdir(exist_ok=True)
        monkeypatch.setenv("NBTORCHJOB_FOLDER", str(home))
        monkeypatch.setenv("NBTORCHJOB_EVENTS", str(home / "events.jsonl"))
        monkeypatch.setenv("NBTORCHJOB_CHECKPOINTS", store)
        monkeypatch.setenv("NBTORCHJOB_ROUND", "0")
        importlib.reload(checkpoints)  # as in a new process
        return home

    before = dict(vars(checkpoints))
    yield become
    # Others have imported its functions: a reloaded function of the same name would travel by value.
    vars(checkpoints).update(before)


def here():
    folder = checkpoint_dir()
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def stored(url):
    fs, root = fsspec.core.url_to_fs(url)
    return {path[len(root) + 1 :]: fs.cat_file(path).decode() for path in fs.find(root)}


def notices(home):
    lines = (home / "events.jsonl").read_text().splitlines()
    return [record["text"] for record in map(json.loads, lines) if record["event"] == "Notice"]


def test_attempts_count_from_one(monkeypatch):
    assert attempt() == nbtorchjob.attempt() == 1
    monkeypatch.setenv("NBTORCHJOB_ATTEMPT", "3")
    assert attempt() == 3


def test_in_a_notebook_there_is_no_checkpoint_dir():
    with pytest.raises(RuntimeError, match="works on a rank only"):
        nbtorchjob.checkpoint_dir()


def test_a_job_without_a_place_for_checkpoints_says_which_option_gives_one(monkeypatch):
    monkeypatch.setenv("NBTORCHJOB_ROUND", "0")
    with saving(), pytest.raises(RuntimeError, match="--checkpoints URL"):
        checkpoint_dir()


def test_a_path_is_made_and_shared(folder, monkeypatch):
    monkeypatch.setenv("NBTORCHJOB_CHECKPOINTS", str(folder / "claim" / "job"))
    with saving():
        (checkpoint_dir() / "step").write_text("1")
    assert (folder / "claim" / "job" / "step").read_text() == "1"
    assert here() == {"step": "1"}


def test_what_one_node_wrote_another_finds(node, store):
    node("one")
    with saving():
        (checkpoint_dir() / "deep" / "er").mkdir(parents=True)
        (checkpoint_dir() / "deep" / "er" / "step").write_text("1")
        (checkpoint_dir() / "last").write_text("deep/er/step")
    assert stored(store) == {"deep/er/step": "1", "last": "deep/er/step"}

    node("two")
    with saving():
        assert here() == {"deep/er/step": "1", "last": "deep/er/step"}


@pytest.mark.parametrize("store", ["file", "memory", "patterns"], indirect=True)
def test_a_file_arrives_whatever_its_name_has(node, store):
    files = {"best1.pt": "1", "best?.pt": "2", "layers=[64,64]/last.ckpt": "3", "*": "4"}
    node("one")
    with saving():
        for name, text in files.items():
            (checkpoint_dir() / name).parent.mkdir(exist_ok=True)
            (checkpoint_dir() / name).write_text(text)
    assert stored(store) == files

    node("two")
    with saving():
        assert here() == files
        (checkpoint_dir() / "best?.pt").unlink()
    assert stored(store) == {name: text for name, text in files.items() if name != "best?.pt"}


@pytest.mark.parametrize("store", ["file", "buckets", "patterns"], indirect=True)
def test_a_file_takes_the_place_of_a_folder(node, store):
    node("one")
    last = checkpoint_dir() / "last"
    with saving():
        (last / "deep").mkdir(parents=True)
        (last / "deep" / "shard").write_text("1")
    with saving():
        (last / "deep" / "shard").unlink()
        (last / "deep").rmdir()
        last.rmdir()
        last.write_text("2")
    assert stored(store) == {"last": "2"}

    node("two")
    with saving():
        assert here() == {"last": "2"}


def test_a_job_that_never_asks_leaves_the_store_alone(node, store):
    home = node("one")
    with saving():
        pass
    assert stored(store) == {}
    assert list(home.iterdir()) == []


def test_what_is_written_while_the_node_runs_is_sent_meanwhile(node, store):
    node("one")
    fs, root = fsspec.core.url_to_fs(store)
    with saving(every_s=0.01):
        (checkpoint_dir() / "step").write_text("1")
        until(lambda: fs.exists(f"{root}/step"))
        assert stored(store) == {"step": "1"}


def test_what_is_written_is_sent_also_when_the_node_fails(node, store):
    node("one")

    def fails():
        (checkpoint_dir() / "step").write_text("1")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), saving():
        fails()
    assert stored(store) == {"step": "1"}


def test_the_last_to_send_a_file_wins_and_both_go_on_from_there(node, store):
    node("one")
    with saving():
        (checkpoint_dir() / "step").write_text("one")
    node("two")
    with saving():
        (checkpoint_dir() / "step").write_text("two, later")
    node("one")
    assert here() == {"step": "two, later"}


def test_a_process_that_starts_again_on_a_node_keeps_what_was_not_sent_yet(node, store):
    node("one")
    with saving():
        (checkpoint_dir() / "step").write_text("old")
    (checkpoint_dir() / "step").write_text("newer here")
    node("two")
    with saving():
        (checkpoint_dir() / "step").write_text("two")
    node("one")
    with saving():
        assert here() == {"step": "newer here"}
    assert stored(store) == {"step": "newer here"}


def test_what_is_removed_here_is_removed_there_unless_another_node_wrote_it_since(node, store):
    node("one")
    with saving():
        for name in ("first", "second"):
            (checkpoint_dir() / name).write_text("1")
    node("two")
    with saving():
        (checkpoint_dir() / "second").write_text("written since")
    home = node("one")
    for name in ("first", "second"):
        (home / "checkpoints" / name).unlink()
    with saving():
        pass
    assert stored(store) == {"second": "written since"}


def test_what_is_removed_while_it_is_sent_arrives_and_only_then_goes_what_it_replaced(
    node, store, monkeypatch
):
    node("one")
    fs, _ = fsspec.core.url_to_fs(store)
    put, steps = type(fs).put_file, iter(range(3, 30))

    def slow(*args, **kwargs):
        put(*args, **kwargs)
        rotated(checkpoint_dir(), next(steps))  # like a program that saves faster than a store takes files

    def rotated(folder, step):
        (folder / str(step)).mkdir()
        for name in ("model", "optimizer"):
            (folder / str(step) / name).write_text(str(step))
        if (folder / str(step - 1)).is_dir():
            for name in ("model", "optimizer"):
                (folder / str(step - 1) / name).unlink()
            (folder / str(step - 1)).rmdir()

    with saving(every_s=LIMIT):
        send = mirror.Mirror(store, str(checkpoint_dir())).send
        rotated(checkpoint_dir(), 1)
        send()
        rotated(checkpoint_dir(), 2)
        monkeypatch.setattr(type(fs), "put_file", slow)
        for _ in range(3):
            send()
            kept = stored(store)
            newest = max(int(name.split("/")[0]) for name in kept)
            assert {f"{newest}/model", f"{newest}/optimizer"} <= kept.keys()
        assert newest > 3
        assert "1/model" not in kept


def test_what_is_replaced_by_a_file_that_is_too_young_to_be_sent_stays(node, store, monkeypatch):
    def without_leases(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    node("one")
    monkeypatch.setattr(fcntl, "fcntl", without_leases)  # as on a file system that a test can't mount
    with saving(every_s=LIMIT):
        patient, at_once = (mirror.Mirror(store, str(checkpoint_dir()), quiet_s=s) for s in (math.inf, 0))
        (checkpoint_dir() / "first").write_text("1")
        at_once.send()
        (checkpoint_dir() / "first").unlink()
        (checkpoint_dir() / "second").write_text("2")
        patient.send()
        assert stored(store) == {"first": "1"}
    assert stored(store) == {"second": "2"}


def test_what_is_no_file_holds_up_no_other_and_a_link_to_a_folder_is_named_once(node, store, monkeypatch):
    home = node("one")
    with saving():
        folder = checkpoint_dir()
        (folder / "step").mkdir()
        (folder / "step" / "rank-0").write_text("1")
        (folder / "loop").symlink_to("loop")
        (folder / "last").symlink_to("step/rank-0")
        (folder / "latest").symlink_to("step")
        os.mkfifo(folder / "pipe")
        monkeypatch.chdir(folder)  # a socket's whole path could be too long
        with socket.socket(socket.AF_UNIX) as end:
            end.bind("socket")
        assert checkpoints.unsent(str(folder)) == {"step/rank-0", "last"}
    assert stored(store) == {"step/rank-0": "1", "last": "1"}
    assert checkpoints.unsent(str(folder)) == set()
    (notice,) = notices(home)
    assert notice.startswith("the link latest among the checkpoints leads to a folder, and isn't sent to ")


def test_a_file_that_is_open_for_writing_is_left_for_the_next_time(node, store):
    node("one")
    with saving():
        step, send = checkpoint_dir() / "step", mirror.Mirror(store, str(checkpoint_dir())).send
        step.write_text("good")
        send()
        with open(step, "w") as file:
            for piece in ("", "bet", "ter"):
                file.write(piece)
                file.flush()
                send()
                assert stored(store) == {"step": "good"}
        send()
        assert stored(store) == {"step": "better"}


def test_a_file_that_is_written_while_it_is_sent_is_left_for_the_next_time(node, store, monkeypatch):
    node("one")
    fs, _ = fsspec.core.url_to_fs(store)
    put, later = type(fs).put_file, ["2nd"]

    def slow(*args, **kwargs):
        put(*args, **kwargs)
        if later:
            (checkpoint_dir() / "step").write_text(later.pop())

    monkeypatch.setattr(type(fs), "put_file", slow)  # a real store can't be changed during a transfer
    with saving():
        (checkpoint_dir() / "step").write_text("1st")
        mirror.Mirror(store, str(checkpoint_dir())).send()
        assert stored(store) == {}
    assert stored(store) == {"step": "2nd"}


def test_files_that_are_sent_together_take_their_places_once_all_are_there(node, store, monkeypatch):
    node("one")
    fs, _ = fsspec.core.url_to_fs(store)
    put, fails = type(fs).put_file, ["optimizer"]

    def slow(fs, source, target, *args, **kwargs):
        if fails and fails[0] in target:
            raise OSError("the node is killed here")
        put(fs, source, target, *args, **kwargs)

    with saving():
        for name in ("model", "optimizer"):
            (checkpoint_dir() / name).write_text("1")
    node("two")
    with saving():
        for name in ("model", "optimizer"):
            (checkpoint_dir() / name).write_text("2")
        monkeypatch.setattr(type(fs), "put_file", slow)  # a real store can't be stopped during a transfer
        with pytest.raises(OSError, match="killed"):
            mirror.Mirror(store, str(checkpoint_dir())).send()
        node("three")
        assert here() == {"model": "1", "optimizer": "1"}
        fails.clear()
        node("two")
    assert {name: text for name, text in stored(store).items() if "partial" not in name} == {
        "model": "2",
        "optimizer": "2",
    }


def test_what_ranks_save_as_they_leave_is_sent_once_they_have(node, store):
    node("one")
    with saving(every_s=0.001) as saved:
        folder = checkpoint_dir()
        (folder / "before").touch()
        until(lambda: "before" in stored(store))
        saved.held = True
        (folder / "model").touch()
        mirror.Mirror(store, str(folder)).send(is_held=lambda: saved.held)
        assert "model" not in stored(store)
        saved.send(lambda: False)
        assert "model" not in stored(store)
        saved.send(lambda: True)
        assert "model" in stored(store)
        (folder / "half").touch()
    assert "half" not in stored(store)


def test_a_signal_to_end_waits_until_all_is_sent(node, store, monkeypatch):
    node("one")
    fs, _ = fsspec.core.url_to_fs(store)
    put = type(fs).put_file

    def told(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        put(*args, **kwargs)

    def stop(*_):
        raise InterruptedError

    monkeypatch.setattr(type(fs), "put_file", told)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(InterruptedError), saving():
            (checkpoint_dir() / "step").write_text("1")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stored(store) == {"step": "1"}


def test_a_file_of_the_same_size_and_time_is_another_one(node, store):
    node("one")
    with saving():
        step, send = checkpoint_dir() / "step", mirror.Mirror(store, str(checkpoint_dir())).send
        step.write_text("1")
        send()
        was = step.stat()
        step.write_text("2")
        os.utime(step, ns=(was.st_atime_ns, was.st_mtime_ns))
        send()
        assert stored(store) == {"step": "2"}


def test_where_open_files_are_not_known_only_quiet_ones_are_sent(node, store, monkeypatch):
    def without_leases(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    home = node("one")
    (home / "checkpoints").mkdir()
    (home / "checkpoints" / "step").write_text("1")
    monkeypatch.setattr(fcntl, "fcntl", without_leases)  # as on a file system that a test can't mount
    with saving():
        mirror.Mirror(store, str(checkpoint_dir()), quiet_s=math.inf).send()
        assert stored(store) == {}
    assert stored(store) == {"step": "1"}


def test_a_store_that_refuses_is_told_once_and_tried_again(node, store, monkeypatch):
    home = node("one")
    fs, _ = fsspec.core.url_to_fs(store)
    put, broken, attempts = type(fs).put_file, [True], threading.Semaphore(0)

    def flaky(self, *args, **kwargs):
        attempts.release()
        if broken:
            raise OSError("the bucket is gone")
        put(self, *args, **kwargs)

    monkeypatch.setattr(type(fs), "put_file", flaky)  # a store that refuses for a while
    with saving(every_s=0.01):
        (checkpoint_dir() / "step").write_text("1")
        assert all(attempts.acquire(timeout=LIMIT) for _ in range(3))
        broken.clear()
    assert stored(store) == {"step": "1"}
    assert notices(home) == [f"checkpoints of node 0 can't be sent to {store}: OSError: the bucket is gone"]


def test_a_store_that_can_not_be_listed_is_not_taken_for_an_empty_one(node, store, monkeypatch):
    node("one")
    fs, _ = fsspec.core.url_to_fs(store)

    def refuse(self, *args, **kwargs):
        raise PermissionError("no access")

    monkeypatch.setattr(type(fs), "ls", refuse)  # only a remote store refuses this
    with pytest.raises(PermissionError, match="no access"):
        checkpoint_dir()


def test_notes_that_were_cut_short_cost_nothing_but_a_transfer(node, store):
    home = node("one")
    with saving():
        (checkpoint_dir() / "step").write_text("1")
    (home / "checkpoints.json").write_text('{"step": {"he')
    node("one")
    with saving():
        assert here() == {"step": "1"}
    assert stored(store) == {"step": "1"}


def test_a_worker_that_is_forked_during_a_transfer_holds_up_no_other(folder, monkeypatch):
    workers = []

    def get_file(*args, **options):
        workers.append(os.fork())
        if not workers[-1]:
            try:
                signal.pause()
            finally:
                os._exit(0)
        return before(*args, **options)

    store = fsspec.filesystem("buckets")
    before = store.get_file
    monkeypatch.setattr(store, "get_file", get_file)
    store.pipe_file("mine/step", b"7")
    try:
        mirror.Mirror("buckets://mine", str(folder / "checkpoints"), quiet_s=0).fill()

        with open(folder / "checkpoints.json") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)


@pytest.mark.parametrize("target", ["/proc/nosuch", "nosuch://bucket"])
def test_a_target_that_can_not_be_used_is_found_before_the_work(target, monkeypatch):
    monkeypatch.setenv("NBTORCHJOB_CHECKPOINTS", target)
    with pytest.raises(PayloadError, match=f"--checkpoints {target} from this image"), saving():
        pytest.fail("the node ran")


def test_in_a_store_of_objects_no_bucket_is_made_by_the_way(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "step").write_text("7")

    mirror.Mirror("buckets://mine/checkpoints", str(folder), quiet_s=0).send(ended=True)

    assert fsspec.filesystem("buckets").cat_file("mine/checkpoints/sub/step") == b"7"


@pytest.mark.parametrize("name", ["../../.bashrc", "a/../../../.bashrc", "./.."])
def test_a_name_in_the_store_that_leads_out_of_the_folder_is_refused(name, node, store, folder):
    # An object store such as S3 takes such names; a path in the memory store is a key as well.
    fs, root = fsspec.core.url_to_fs(f"memory://{folder}/store")
    fs.store.clear()
    fs.pipe_file(f"{root}/kept", b"kept")
    fs.store[f"{root}/{name}"] = fs.store[f"{root}/kept"]
    before = {*folder.rglob("*")}
    with pytest.raises(ValueError, match="leads out of it: remove"):
        mirror.Mirror(f"memory://{folder}/store", str(folder / "here")).fill()
    assert {path.name for path in {*folder.rglob("*")} - before} <= {"here", "here.json"}


def test_swaps_of_earlier_attempts_are_fetched_without_the_checkpoints(node, store, monkeypatch):
    home = node("first")
    monkeypatch.setenv("NBTORCHJOB_STREAM", "x")
    monkeypatch.setenv("NBTORCHJOB_RUN", "1.5")
    os.makedirs(checkpoints.beside("swaps"))
    (home / "checkpoints" / ".nbtorchjob-swaps-1.5" / "1.payload").write_text("a swap")
    (home / "checkpoints" / "weights.pt").write_text("many gigabytes")
    with saving():
        pass
    home = node("second")
    monkeypatch.setenv("NBTORCHJOB_ATTEMPT", "2")

    assert checkpoints.fetched("swaps") == str(home / "checkpoints" / ".nbtorchjob-swaps-1.5")
    assert [path.name for path in (home / "checkpoints").rglob("*") if path.is_file()] == ["1.payload"]
    assert here() == {".nbtorchjob-swaps-1.5/1.payload": "a swap", "weights.pt": "many gigabytes"}
    # A job that was never swapped has no such folder in the store.
    assert checkpoints.fetched("others") == str(home / "checkpoints" / ".nbtorchjob-others-1.5")
