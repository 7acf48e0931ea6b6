"""A node packs what its ranks leave: how much of it, and what it reports of the rest."""

import json
import os
import zipfile

import pytest

import nbtorchjob
from nbtorchjob.runtime import store
from nbtorchjob.runtime.api import artifacts
from nbtorchjob.runtime.api.artifacts import artifacts_dir, sending
from nbtorchjob.runtime.facts import injected
from nbtorchjob.runtime.objects import wire

KEY = b"k" * 32


@pytest.fixture
def rank(folder, monkeypatch):
    """Make this process a rank of a node with a folder; return the folder."""
    monkeypatch.setenv("NBTORCHJOB_FOLDER", str(folder))
    monkeypatch.setenv("NBTORCHJOB_EVENTS", str(folder / "events.jsonl"))
    monkeypatch.setenv("NBTORCHJOB_ROUND", "0")
    return folder


def told(folder):
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def packed(folder, attempt=1):
    with zipfile.ZipFile(folder / f"artifacts-{attempt}.zip") as file:
        return file.namelist()


def test_in_a_notebook_there_is_no_artifacts_dir():
    with pytest.raises(RuntimeError, match="works on a rank only"):
        nbtorchjob.artifacts_dir()


def test_a_node_that_was_given_nothing_says_nothing(rank):
    with sending(KEY):
        artifacts_dir()
    assert told(rank) == []
    assert not (rank / "artifacts-1.zip").exists()


def test_what_is_left_is_sent_though_the_node_fails(rank):
    (artifacts_dir() / "deep").mkdir()
    (artifacts_dir() / "deep" / "file").write_text("1234")
    with pytest.raises(ZeroDivisionError), sending(KEY):
        raise ZeroDivisionError
    assert packed(rank) == ["deep/file"]
    (event,) = told(rank)
    assert [event[name] for name in ("event", "attempt", "files", "total")] == ["ArtifactsReady", 1, 1, 4]


def test_by_the_log_the_smallest_go_and_the_others_are_named(rank, monkeypatch):
    monkeypatch.setenv(injected.STREAM, "1")
    with sending(KEY):
        for name, size in (("big", store.BY_LOG), ("small", 100), ("middle", store.BY_LOG - 1000)):
            (artifacts_dir() / name).write_bytes(b"\0" * size)
    assert packed(rank) == ["small", "middle"]
    notice, event = told(rank)
    assert notice["text"] == (
        "left out of node 0's artifacts: big (4.2 MB); at most 10000 files and 4 MiB are sent back: "
        "set --storage for more"
    )
    assert event["ref"].startswith("log#")
    assert event["size"] <= store.BY_LOG


def test_through_a_store_all_go(rank, monkeypatch):
    monkeypatch.setenv(injected.STREAM, "1")
    monkeypatch.setenv(store.STORAGE, str(rank / "shelf"))
    store.check()
    with sending(KEY):
        (artifacts_dir() / "big").write_bytes(b"\0" * (store.BY_LOG + 1))
    (event,) = told(rank)
    assert event["ref"].startswith(f"{rank}/shelf/attempt-1-node-0.zip#")


def test_a_store_that_refuses_them_is_said(rank, monkeypatch):
    monkeypatch.setenv(injected.STREAM, "1")
    monkeypatch.setenv(store.STORAGE, str(rank / "nowhere" / "shelf"))
    with sending(KEY):
        (artifacts_dir() / "big").write_bytes(b"\0" * (store.BY_LOG + 1))
    (notice,) = told(rank)
    assert notice["text"].startswith("the artifacts of node 0 can't be sent: --storage ")


def test_of_too_many_the_rest_is_named(rank, monkeypatch):
    monkeypatch.setattr(artifacts, "MOST_FILES", 2)
    with sending(KEY):
        for number in range(8):
            (artifacts_dir() / f"{number}").touch()
    assert packed(rank) == ["0", "1"]
    notice, _ = told(rank)
    assert ": 2 (0.0 MB), 3 (0.0 MB), 4 (0.0 MB), 5 (0.0 MB) and 2 more; at most 2 files" in notice["text"]
    assert (rank / "artifacts-1" / "7").exists()  # still there if the node had its own disk


def test_what_is_removed_or_grows_meanwhile_costs_no_other_file(rank, monkeypatch):
    plain = wire.plain

    def meanwhile(path, flags):
        if path.endswith("gone"):
            os.unlink(path)
        if path.endswith("grows"):
            with open(path, "ab") as file:
                file.write(b"more")
        return plain(path, flags)

    monkeypatch.setattr(wire, "plain", meanwhile)
    with sending(KEY):
        for name in ("gone", "grows", "stays"):
            (artifacts_dir() / name).write_text("text")
    with zipfile.ZipFile(rank / "artifacts-1.zip") as file:
        assert {name: file.read(name) for name in file.namelist()} == {"grows": b"text", "stays": b"text"}
    notice, event = told(rank)
    assert notice["text"] == "left out of node 0's artifacts: gone (No such file or directory)"
    assert (event["files"], event["total"]) == (2, 8)


def test_a_name_that_is_no_text_is_told_and_left_out(rank):
    with sending(KEY):
        (artifacts_dir() / "fine").touch()
        (artifacts_dir() / os.fsdecode(b"\xff")).touch()
        (artifacts_dir() / "two\nlines").touch()
    assert packed(rank) == ["fine"]
    notice, _ = told(rank)
    assert "two\\nlines (" in notice["text"]
    assert "\\udcff (" in notice["text"]


def test_a_later_attempt_here_sends_what_one_left_that_was_killed_and_nothing_twice(rank, monkeypatch):
    (artifacts_dir() / "first").touch()
    monkeypatch.setenv("NBTORCHJOB_ATTEMPT", "2")
    with sending(KEY):
        (artifacts_dir() / "second").touch()
    with sending(KEY):
        (artifacts_dir() / "late").touch()
    assert (packed(rank, 1), packed(rank, 2)) == (["first"], ["second"])
    assert [event["attempt"] for event in told(rank)] == [1, 2]
