"""Shipped files on a node: where they lie, what they never replace, and what a forged table can't do."""

import hashlib
import io
import json
import os
import stat
import zipfile

import pytest

from nbtorchjob.runtime import store
from nbtorchjob.runtime.install import shipped
from nbtorchjob.runtime.store.payload import CONTENT, HEADER, SHIPPED, Payload, PayloadError


@pytest.fixture
def node(folder, monkeypatch):
    """Return a node's folder; the working directory is an image's folder beside it."""
    (folder / "image").mkdir()
    (folder / "node").mkdir()
    monkeypatch.chdir(folder / "image")
    monkeypatch.setenv("NBTORCHJOB_EVENTS", str(folder / "events.jsonl"))
    return folder / "node"


@pytest.fixture
def image(node):
    """Return the image's working folder."""
    return node.parent / "image"


def row(path, data, at=0, *, executable=False, mtime=None):
    return [path, executable, len(data), hashlib.sha256(data).hexdigest(), mtime, at]


def lay(node, *rows, content=b""):
    with zipfile.ZipFile(node.parent / "job.pyz", "w") as archive:
        archive.writestr(HEADER, "{}")
        archive.writestr(SHIPPED, json.dumps(rows))
        archive.writestr(CONTENT, content)
    os.chdir(shipped.lay(Payload(str(node.parent / "job.pyz")), str(node)))


def notices(node):
    path = node.parent / "events.jsonl"
    return [json.loads(line)["text"] for line in path.read_text().splitlines()] if path.exists() else []


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_files_lie_in_the_working_folder_to_be_read(node, image):
    (image / "configs").mkdir()
    lay(node, row("configs/a", b"12"), row("deep/er/run", b"345", 2, executable=True), content=b"12345")
    assert os.getcwd() == str(image)
    assert (image / "configs/a").read_bytes() == b"12"
    assert (image / "deep/er/run").read_bytes() == b"345"
    assert (mode(image / "configs/a"), mode(image / "deep/er/run")) == (0o444, 0o555)
    lay(node, row("configs/a", b"12"), content=b"12")  # as on a volume that nodes share
    assert (os.getcwd(), notices(node)) == (str(image), [])
    assert sorted(path.name for path in image.rglob("*")) == ["a", "configs", "deep", "er", "run"]


def other_content(image):
    (image / "configs" / "a").write_text("mine")
    return "has a different configs/a"


def not_executable(image):
    (image / "configs" / "a").write_text("12")
    return "has a different configs/a"


def a_link(image):
    (image.parent / "elsewhere").mkdir()
    (image / "configs").rmdir()
    (image / "configs").symlink_to("../elsewhere")
    return "configs is a link"


def a_file(image):
    (image / "configs").rmdir()
    (image / "configs").write_text("mine")
    return "configs is a file"


def read_only(image):
    return "can't be written to"


@pytest.mark.parametrize("obstacle", [other_content, not_executable, a_link, a_file, read_only])
def test_what_was_there_stays_and_ranks_work_beside_it(obstacle, node, image, monkeypatch):
    (image / "data").mkdir()
    (image / "data" / "big").write_text("big")
    (image / "configs").mkdir()
    why = obstacle(image)
    if obstacle is read_only:  # the tests may run as root, who can write anywhere
        monkeypatch.setattr(os, "access", lambda path, how: False)
    before = {path: path.read_bytes() for path in image.parent.rglob("*") if path.is_file()}

    lay(node, row("configs/a", b"12", executable=True), content=b"12")

    work = node / "work"
    assert os.getcwd() == str(work)
    assert (work / "configs/a").read_bytes() == b"12"
    assert (work / "data/big").read_text() == "big"
    assert {path: path.read_bytes() for path in before} == before
    assert not (image.parent / "elsewhere" / "a").exists()
    (notice,) = notices(node)
    assert notice.startswith(f"ranks work in {work}: ")
    assert why in notice


def test_what_lies_beside_a_shipped_file_is_there_too(node, image):
    (image / "configs").mkdir()
    (image / "configs" / "a").write_text("mine")
    (image / "configs" / "b").write_text("b")
    lay(node, row("configs/a", b"12"), content=b"12")
    assert sorted(path.name for path in (node / "work/configs").iterdir()) == ["a", "b"]
    assert (node / "work/configs/b").read_text() == "b"


def test_a_file_system_that_refuses_is_worked_around(node, image, monkeypatch):
    def refuses(path, mode=0o777, exist_ok=False):
        if path.startswith(str(image)):
            raise OSError(122, "Disk quota exceeded", path)
        real(path, mode, exist_ok)

    real = os.makedirs
    monkeypatch.setattr(os, "makedirs", refuses)
    lay(node, row("configs/a", b"12"), content=b"12")
    assert (node / "work/configs/a").read_bytes() == b"12"
    assert f"the shipped files can't be written to {image} (Disk quota exceeded)" in notices(node)[0]


@pytest.mark.parametrize(
    "paths",
    [
        ["/etc/x"], ["../x"], ["a/../../x"], ["a//x"], [""], ["."], ["a/"], ["x\0y"],
        ["x", "x"], ["x", "x/y"], ["x/y", "x"],
    ],
)  # fmt: skip
def test_a_forged_table_leads_nowhere(paths, node, image):
    with pytest.raises(PayloadError, match="isn't a usable path"):
        lay(node, *(row(path, b"12") for path in paths), content=b"12")
    assert [*image.iterdir()] == [*node.iterdir()] == []


def test_a_big_file_comes_from_the_store_once_it_is_what_was_shipped(node, image, folder):
    stored = folder / "stored"
    stored.write_bytes(b"big" * 1000)
    lay(node, row("big", b"big" * 1000, f"file://{stored}"))
    assert (image / "big").read_bytes() == b"big" * 1000
    with pytest.raises(PayloadError, match=r"forged at .*stored isn't what was shipped"):
        lay(node, row("forged", b"good", str(stored)))
    longer = io.BytesIO()
    assert store.digest(str(stored), longer, 10) != hashlib.sha256(b"bigbigbigb").hexdigest()
    assert len(longer.getvalue()) == 11
    with pytest.raises(PayloadError, match=r"gone can't be fetched from /nowhere \(FileNotFoundError: "):
        lay(node, row("gone", b"good", "/nowhere"))
    assert [path.name for path in image.iterdir()] == ["big"]


def here(path, data, at=0):
    return row(path.name, data, at, mtime=path.stat().st_mtime_ns)


def test_on_the_notebooks_machine_files_are_there_until_they_change(node, image):
    small, big = image / "small", image / "big"
    small.write_text("12")
    big.write_text("345")
    rows = here(small, b"12"), here(big, b"345", None)
    lay(node, *rows, content=b"12")
    assert os.getcwd() == str(image)
    assert notices(node) == []

    small.write_text("edited")
    lay(node, *rows, content=b"12")
    work = node / "work"
    assert os.getcwd() == str(work)
    assert ((work / "small").read_text(), (work / "big").read_text()) == ("12", "345")
    assert notices(node) == [f"ranks work in {work}: small has changed since the job was sent"]

    os.chdir(image)
    small.unlink()
    lay(node, *rows, content=b"12")  # the next attempt, over the files of the last one
    assert (work / "small").read_text() == "12"
    assert notices(node)[1].endswith("small is gone since the job was sent")
    assert not small.exists()

    os.chdir(image)
    big.write_text("edited")
    with pytest.raises(PayloadError, match="big has changed since the job was sent, and it was too big to"):
        lay(node, rows[1], content=b"12")
