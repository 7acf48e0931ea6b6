"""Files that a job names: which ones go along, in what form, and the errors for those that can't."""

import hashlib
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from nbtorchjob import JobSpec, capture
from nbtorchjob.capture import identity, shipped
from nbtorchjob.errors import CaptureError, SpecError
from nbtorchjob.spec.cluster import Cluster


@pytest.fixture
def tree(tmp_path):
    """Return a notebook's folder."""
    (tmp_path / "configs" / "deep").mkdir(parents=True)
    (tmp_path / "configs" / "a.yaml").write_text("lr: 1")
    (tmp_path / "configs" / "deep" / "run.sh").write_text("#!/bin/sh")
    (tmp_path / "configs" / "deep" / "run.sh").chmod(0o755)
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def paths(tree, *names, **more):
    return [file.path for file in shipped.collect(names, tree, **more).files]


def refused(tree, *names, **more):
    with pytest.raises(CaptureError) as caught:
        shipped.collect(names, tree, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_goes_along_is_told_from_what_went_before_by_what_it_holds(tree):
    def told():
        return [ship.digest for ship in shipped.collect(["configs", "tokenizer.json"], tree).ships]

    folder, file = told()
    assert told() == [folder, file]
    (tree / "configs" / "a.yaml").write_text("lr: 2")
    assert told()[0] not in ("", folder)
    assert told()[1] == file != ""


def test_folders_and_files_go_along_with_what_they_hold(tree):
    contents = shipped.collect(["configs", "tokenizer.json"], tree)
    assert [(f.path, f.size, f.executable) for f in contents.files] == [
        ("configs/a.yaml", 5, False),
        ("configs/deep/run.sh", 9, True),
        ("tokenizer.json", 2, False),
    ]
    assert contents.files[0].data == b"lr: 1"
    assert contents.files[0].sha256 == hashlib.sha256(b"lr: 1").hexdigest()
    assert [(ship.name, ship.type, ship.size) for ship in contents.ships] == [
        ("configs/", "2 files", 14),
        ("tokenizer.json", "file", 2),
    ]
    assert contents.notes == ()


def test_one_that_is_named_twice_goes_once(tree):
    assert paths(tree, "configs", "configs/a.yaml", ".") == [
        "configs/a.yaml",
        "configs/deep/run.sh",
        "tokenizer.json",
    ]


def test_hidden_files_bytecode_and_checkpoints_go_only_by_name(tree):
    for name in (".env", ".git/HEAD", "__pycache__/a.pyc", "deep/.ipynb_checkpoints/a", "checkpoints/1.pt"):
        (tree / "configs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / "configs" / name).touch()
    contents = shipped.collect(["configs"], tree)
    assert [file.path for file in contents.files] == ["configs/a.yaml", "configs/deep/run.sh"]
    (note,) = contents.notes
    assert note.startswith(
        "left out of shipped folders: configs/.env, configs/.git, configs/__pycache__ and 2 more"
    )
    (tree / "configs/venv").mkdir()
    (tree / "configs/venv/pyvenv.cfg").touch()
    assert paths(tree, "configs") == ["configs/a.yaml", "configs/deep/run.sh"]
    assert paths(tree, "configs/.env", "configs/checkpoints") == [
        "configs/.env",
        "configs/checkpoints/1.pt",
    ]
    (tree / "empty").mkdir()
    assert refused(tree, "empty") == "--ship empty: there is no file in it to ship"
    (tree / "empty" / ".hidden").touch()
    assert "only what is left out of folders: empty/.hidden" in refused(tree, "empty")


def test_links_within_the_tree_are_what_they_lead_to(tree):
    (tree / "best.sh").symlink_to("configs/deep/run.sh")
    (tree / "all").symlink_to("configs")
    (file, *_) = shipped.collect(["best.sh"], tree).files
    assert (file.path, file.data, file.executable) == ("best.sh", b"#!/bin/sh", True)
    assert paths(tree, "all") == ["all/a.yaml", "all/deep/run.sh"]


def test_what_leads_elsewhere_or_nowhere_is_refused(tree, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").touch()
    (tree / "configs" / "out").symlink_to(outside / "secret")
    expected = f"--ship configs/out: it leads out of the notebook's folder, to {outside}/secret: put a copy"
    assert refused(tree, "configs").startswith(expected)
    (tree / "configs" / "out").unlink()
    (tree / "configs" / "deep" / "back").symlink_to("../../configs")
    assert "configs/deep/back: it is a link to a folder that contains it" in refused(tree, "configs")
    (tree / "configs" / "deep" / "back").unlink()
    (tree / "configs" / "gone").symlink_to("nowhere")
    assert refused(tree, "configs") == "--ship configs/gone: it can't be read (No such file or directory)"


def test_what_is_no_file_is_refused_and_not_opened(tree):
    os.mkfifo(tree / "pipe")
    assert refused(tree, "pipe") == "--ship pipe: it is a pipe, and only files can be shipped"
    with socket.socket(socket.AF_UNIX) as server:
        cwd = os.getcwd()
        try:
            os.chdir(tree)  # a socket's path has to be short
            server.bind("sock")
        finally:
            os.chdir(cwd)
    assert "it is a socket" in refused(tree, "sock")


def test_what_is_not_there_is_said_with_what_is(tree):
    reason = refused(tree, "configs/b.yaml")
    assert reason == (
        f"--ship configs/b.yaml: there is no such file or folder in {tree}; did you mean configs/a.yaml?"
    )


def test_a_file_that_can_not_be_read_is_named(tree, monkeypatch):
    def denied(path, *args):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", denied)
    assert refused(tree, "tokenizer.json") == "--ship tokenizer.json: it can't be read (Permission denied)"


def test_a_name_that_is_no_text_is_refused(tree):
    (tree / os.fsdecode(b"configs/\xff")).touch()
    assert refused(tree, "configs") == "--ship: the name of 'configs/\\udcff' isn't printable: rename it"


@pytest.mark.parametrize("small", [True, False])
def test_a_file_that_changes_while_it_is_read_is_not_sent(tree, small, monkeypatch):
    path = tree / "tokenizer.json"
    path.write_bytes(b"x" * (10 if small else shipped.SMALL + 1))

    def sha256(*args):
        with open(path, "ab") as file:
            file.write(b"more")
        return real(*args)

    real = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", sha256)
    expected = "--ship tokenizer.json: it changed while it was read: send it once nothing writes to it"
    assert refused(tree, "tokenizer.json") == expected


def test_too_many_and_too_much_is_refused_before_it_is_read(tree, monkeypatch):
    text = refused(tree, "configs", "tokenizer.json", limit=10)
    assert text == (
        "the shipped files are 16 B, but at most 10 B can be sent through the API; the biggest: "
        "configs/deep/run.sh (9 B), configs/a.yaml (5 B), tokenizer.json (2 B): put them in a store, "
        "--storage URL, or on a --mount"
    )
    deep = tree / "deep" / "/".join("d" * 150)
    deep.mkdir(parents=True)
    assert "its folders are nested more than 100 deep" in refused(tree, "deep")
    monkeypatch.setattr(shipped, "MOST_SMALL_BYTES", 10)
    assert "at most 10 B of small files can be sent" in refused(tree, "configs")
    monkeypatch.setattr(shipped, "MOST_FILES", 1)
    text = "--ship configs: there are more than 1 files: ship an archive of them, or put them on a --mount"
    assert refused(tree, "configs") == text


def test_a_big_file_is_left_where_it_is_unless_all_has_to_go_along(tree, monkeypatch):
    monkeypatch.setattr(shipped, "SMALL", 4)
    (big,) = shipped.collect(["configs/a.yaml"], tree).files
    assert (big.data, big.sha256) == (None, hashlib.sha256(b"lr: 1").hexdigest())
    (kept,) = shipped.collect(["configs/a.yaml"], tree, hashed=False).files
    assert (kept.data, kept.sha256, kept.source) == (None, "", (tree / "configs/a.yaml").resolve())
    (sent,) = shipped.collect(["configs/a.yaml"], tree, limit=100).files
    assert sent.data == b"lr: 1"


def test_data_goes_by_each_name_that_it_has_here_and_a_link_to_a_folder_above_leads_no_further(tree):
    (tree / "model" / "step-100").mkdir(parents=True)
    (tree / "model" / "step-100" / "m.pt").write_text("weights")
    (tree / "model" / "latest").symlink_to("step-100")
    (tree / "model" / "best.pt").symlink_to("step-100/m.pt")
    (tree / "model" / "step-100" / "all").symlink_to("..")
    (tree / "model" / "gone").symlink_to("step-99")
    spec = JobSpec(backend="kubernetes", data={"model": "./model"}, cluster=Cluster(storage="s3://bucket"))

    (folder,) = shipped.collect_data(spec, tree)

    assert [file.path for file in folder.files] == ["best.pt", "latest/m.pt", "step-100/m.pt"]


def test_another_content_is_another_call(tree):
    def digest():
        call = capture.from_function(print)
        return identity.of(call.with_files(shipped.collect(["configs"], tree)))

    first = digest()
    assert digest() == first != identity.of(capture.from_function(print))
    (tree / "configs" / "a.yaml").write_text("lr: 2")
    second = digest()
    (tree / "configs" / "a.yaml").chmod(0o755)
    assert len({first, second, digest()}) == 3


@pytest.mark.parametrize("value", ["/data", "../data", "a/../../b", "~/x", "", "a\nb"])
def test_a_path_that_leads_elsewhere_is_no_option(value):
    with pytest.raises(SpecError, match="ship"):
        JobSpec(ship=[value])


def test_paths_have_one_form():
    paths: list[Any] = ["configs/", "./configs", Path("a//b"), "."]
    assert JobSpec(ship=paths).ship == ("configs", "a/b", ".")
    assert JobSpec.from_json(JobSpec(ship=["configs/"]).to_json()).ship == ("configs",)
    with pytest.raises(SpecError, match="a list of paths"):
        JobSpec(ship="configs")


def test_data_that_is_not_there_is_named_with_the_folder(tree):
    for place in ("nothing", "~nobody-here/x"):
        with pytest.raises(CaptureError, match=f"d={place}: there is no such file or folder in {tree}$"):
            shipped.check_data(JobSpec(data={"d": place}), tree)


def test_data_that_is_a_pipe_or_has_no_possible_name_is_one_line(tree):
    os.mkfifo(tree / "pipe")
    for place, why in (("pipe", "it is neither a file nor a folder"), ("x" * 300, "File name too long")):
        with pytest.raises(CaptureError, match=f"--data d={place}: .*{why}"):
            shipped.check_data(JobSpec(data={"d": place}), tree)
