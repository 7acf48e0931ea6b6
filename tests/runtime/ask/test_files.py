"""A node's files, by the names that it gives them."""

from typing import Any, cast

import pytest

from nbtorchjob.runtime.api import checkpoints
from nbtorchjob.runtime.ask import files
from nbtorchjob.runtime.ask.answering import Question
from nbtorchjob.runtime.facts.injected import FOLDER


def listed(below):
    answers: Any = files.answer(cast(Question, {"list": below}))
    *rows, last = answers
    names = [name for record in rows for name, _, _ in record["files"]]
    assert last["listed"] == len(names)
    return names


@pytest.fixture
def artifacts(tmp_path, monkeypatch):
    """Return the folder of the ranks' artifacts, in a home that is a link to another disk."""
    (tmp_path / "disk" / "artifacts-1" / "runs" / "3").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    monkeypatch.setenv(FOLDER, str(tmp_path / "home"))
    monkeypatch.setattr(checkpoints, "folder", lambda: None)
    root = tmp_path / "disk" / "artifacts-1"
    (root / "runs" / "3" / "model.pt").write_text("weights")
    (root / "loss").write_text("1")
    return root


def test_files_are_named_as_they_were_asked_for(artifacts):
    (artifacts / "latest").symlink_to("runs/3")
    (artifacts / "best.pt").symlink_to("runs/3/model.pt")

    assert listed("") == listed("artifacts/") == ["artifacts/loss", "artifacts/runs/3/model.pt"]
    assert listed("artifacts/runs/3") == ["artifacts/runs/3/model.pt"]
    assert listed("artifacts/latest") == listed("artifacts/latest/model.pt") == ["artifacts/latest/model.pt"]
    assert listed("artifacts/best.pt") == ["artifacts/best.pt"]


@pytest.mark.parametrize(
    "path", ["artifacts/out/passwd", "artifacts/./loss", "artifacts//loss", "artifacts/runs/../loss"]
)
def test_nothing_is_at_a_path_that_leads_out_or_has_another_name(artifacts, path):
    (artifacts / "out").symlink_to("/etc")

    assert listed(path) == []
