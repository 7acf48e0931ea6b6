"""``forward`` and ``tensorboard``: connections that a notebook keeps open, lists and closes."""

import importlib.util
import json
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

from nbtorchjob.commands import connecting
from nbtorchjob.commands.table import VERBS
from nbtorchjob.errors import LineError, NotInstalledError
from nbtorchjob.machine import folders
from tests.backends.kubernetes.stage import until


class Opened:
    """A forwarded port."""

    name, connections, trouble, open = "train", 0, "", True

    def __init__(self, port, rank, local):
        self.port, self.rank, self.local, self.listens = port, rank, local or port, False
        self.url = f"http://127.0.0.1:{self.local}"

    def close(self):
        self.open = False


class Kernel:
    """A front that stays."""

    stays = True

    def __init__(self):
        self.texts: list[str] = []
        self.job = SimpleNamespace(
            name="train",
            info=SimpleNamespace(address="train", created=1.0),
            check_rank=lambda rank: None,
            forward=lambda port, rank, local: Opened(port, rank, local),
        )

    def find(self, name):
        return self.job

    def show(self, answer):
        self.texts.append(answer.text)

    say = None


@pytest.fixture
def front():
    front: Any = Kernel()
    front.say = front.texts.append
    return front


@pytest.fixture
def lines(front, monkeypatch):
    monkeypatch.setattr(connecting, "_forwards", {})

    def line(*words):
        front.texts.clear()
        VERBS["forward"].do(VERBS["forward"].parse(["train", *words]), front)
        return list(front.texts)

    return line


def test_a_port_of_a_deleted_job_is_none_of_the_next_one_with_its_name(lines, front):
    lines("6006", "--local-port", "7")
    (before,) = connecting._forwards.values()
    front.job.info.created = 2.0

    assert lines() == ["No port of train is forwarded here; %torchjob forward train PORT forwards one."]
    assert not before.open
    assert lines("6006")[0] == "http://127.0.0.1:6006 → port 6006 of rank 0 of train"


def test_a_port_stays_open_until_it_is_closed_by_word(lines):
    place = "http://127.0.0.1:6006 → port 6006 of rank 0 of train"
    first, note = lines("6006")
    assert first == place
    assert note == "Nothing listens at port 6006 of rank 0 yet: until then connections are closed at once."
    assert lines("6006:0") == [place]  # not twice
    assert lines("7000:1", "--local-port", "7")[0] == "http://127.0.0.1:7 → port 7000 of rank 1 of train"
    assert len(lines()) == 2
    assert lines("7000:1", "--end") == ["http://127.0.0.1:7 closed"]
    assert lines("--end") == ["http://127.0.0.1:6006 closed"]
    assert lines() == ["No port of train is forwarded here; %torchjob forward train PORT forwards one."]
    with pytest.raises(LineError, match="no such port of train is forwarded here"):
        lines("--end")


@pytest.mark.parametrize("wrong", ["x", "0", "65536", "6006:", "6006:x", ":1", "-1"])
def test_what_is_no_port_is_refused(lines, wrong):
    with pytest.raises(LineError):
        lines(wrong)


class Synced:
    """A fake of a folder's sync."""

    stopped = False

    def stop(self):
        self.stopped = True


@pytest.fixture
def board(front, monkeypatch, tmp_path):
    """Yield ``line``, which runs a line and returns its output, the ``synced`` folders, and the job."""
    monkeypatch.setenv(folders.STATE, str(tmp_path))
    monkeypatch.setattr(connecting, "_boards", {})
    for name in ("TENSORBOARD_PROXY_URL", "JUPYTERHUB_SERVICE_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    front.synced = []
    front.job.info = SimpleNamespace(address="train", id="local:train", created=1.0)

    def sync(folder, path):
        front.synced.append((folder, path))
        return Synced()

    front.job.sync = sync

    def line(*words):
        front.texts.clear()
        VERBS["tensorboard"].do(VERBS["tensorboard"].parse(["train", *words]), front)
        return list(front.texts)

    yield SimpleNamespace(line=line, synced=front.synced, job=front.job)
    for board in list(connecting._boards.values()):
        board.close()


def test_a_job_with_the_name_of_a_deleted_one_has_a_tensorboard_of_its_own(board):
    pytest.importorskip("tensorboard")
    shown = board.line()
    board.job.info.created = 2.0

    assert board.line() != shown
    (before, _), (after, _) = board.synced
    assert before != after


def test_a_live_tensorboard_shows_what_is_copied_as_it_grows(board):
    events = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    summaries = pytest.importorskip("tensorboard.compat.proto.summary_pb2")
    writers = pytest.importorskip("tensorboard.summary.writer.event_file_writer")

    (shown,) = board.line()
    url = shown.removeprefix("TensorBoard of train: ")
    assert url.startswith("http://127.0.0.1:")
    ((folder, path),) = board.synced
    assert path == "artifacts"
    writer = writers.EventFileWriter(str(folder / "runs"))
    value = summaries.Summary.Value(tag="loss", simple_value=0.5)
    writer.add_event(events.Event(step=1, wall_time=1.0, summary=summaries.Summary(value=[value])))
    writer.close()

    def tags():
        with urllib.request.urlopen(f"{url}data/plugin/scalars/tags") as answer:
            return json.load(answer)

    until(lambda: "loss" in tags().get("runs", {}))
    assert board.line() == [shown]  # one TensorBoard per job
    assert board.line("--end") == [f"{url} closed"]
    with pytest.raises(OSError, match=r"refused|reset"):
        tags()
    with pytest.raises(LineError, match="train isn't shown here"):
        board.line("--end")


def test_a_tensorboard_imports_none_of_the_modules_beside_the_notebook(board, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    (tmp_path / "tokenize.py").write_text("raise ImportError('not the standard library')")
    monkeypatch.chdir(tmp_path)

    (shown,) = board.line()
    assert shown.startswith("TensorBoard of train: http://127.0.0.1:")


def test_without_tensorboard_a_line_says_what_to_install(board, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotInstalledError, match="tensorboard isn't installed here: pip install tensorboard"):
        board.line()
    assert board.synced == []


def test_on_a_hub_its_address_leads_through_the_proxy(monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/me/")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert connecting._shown_at(6006) == "/user/me/proxy/6006/"
    monkeypatch.setenv("TENSORBOARD_PROXY_URL", "/p/%PORT%/")
    assert connecting._shown_at(6006) == "/p/6006/"
