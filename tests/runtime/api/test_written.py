"""A node reports its ranks' files: a complete checkpoint and events for TensorBoard, once each."""

import json
import os
import time

import pytest

from nbtorchjob.runtime import facts
from nbtorchjob.runtime.api import artifacts, checkpoints
from nbtorchjob.runtime.facts import injected
from nbtorchjob.state.facts import events as ev
from tests.backends.kubernetes.stage import until


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Return a node's folder, with checkpoints in its subfolder ``saved``."""
    monkeypatch.setenv(facts.EVENTS, str(tmp_path / "events"))
    monkeypatch.setenv(injected.FOLDER, str(tmp_path))
    monkeypatch.setenv(checkpoints.CHECKPOINTS, str(tmp_path / "saved"))
    return tmp_path


def told(node):
    text = (node / "events").read_text() if (node / "events").exists() else ""
    return [json.loads(line)["what"] for line in text.splitlines()]


def write(path, *, old=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    if old:
        os.utime(path, (time.time() - 60,) * 2)


def test_each_is_told_once_while_ranks_run(node):
    with artifacts.telling_saved(0.01):
        write(node / "artifacts-1/runs/events.out.tfevents.1.host")
        until(lambda: told(node) == [ev.CURVES])
        write(node / "saved/step-1.pt")
        until(lambda: told(node) == [ev.CURVES, ev.CHECKPOINT])
        write(node / "saved/step-2.pt")
        time.sleep(0.05)

    assert told(node) == [ev.CURVES, ev.CHECKPOINT]


@pytest.mark.parametrize(
    ("files", "whole"),
    [
        ([], False),
        (["step-1.pt"], True),
        ([f"step-1.pt{checkpoints.PARTIAL}"], False),
        (["training/5/__0_0.distcp"], False),
        (["training/5/__0_0.distcp", "training/5/.metadata"], True),
        ([f"{checkpoints.BESIDE}swaps/code"], False),
    ],
)
def test_a_checkpoint_counts_once_it_is_whole(node, files, whole):
    with artifacts.telling_saved():
        for file in files:
            write(node / "saved" / file, old=False)

    assert told(node) == [ev.CHECKPOINT] * whole


def test_a_file_that_may_still_be_written_counts_only_when_ranks_have_ended(node):
    with artifacts.telling_saved(0.01):
        write(node / "saved/step-1.pt", old=False)
        time.sleep(0.1)
        assert told(node) == []
    assert told(node) == [ev.CHECKPOINT]


def test_of_a_folder_that_nodes_share_the_first_one_tells(node, monkeypatch):
    monkeypatch.setenv("GROUP_RANK", "1")
    monkeypatch.setattr(artifacts, "node_index", lambda: 1)
    write(node / "saved/step-1.pt")
    with artifacts.telling_saved():
        pass
    assert told(node) == []
