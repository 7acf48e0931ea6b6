"""Files that jobs share in a store stay while any job uses them, and go after a month without a user."""

import hashlib
import os
import threading
import time

import pytest

from nbtorchjob import capture
from nbtorchjob.backends import backend
from nbtorchjob.backends.kubernetes.payload import shared
from nbtorchjob.capture import shipped
from nbtorchjob.errors import CaptureError, SubmitError
from nbtorchjob.machine import folders
from tests.patience import LIMIT

MONTH_S = 31 * 24 * 3600


@pytest.fixture
def storage(folder, monkeypatch):
    """Return a store with one file that two jobs use."""
    monkeypatch.setenv(folders.STATE, str(folder / "state"))
    monkeypatch.setenv("KUBECONFIG", str(folder / "none"))
    (folder / "big").write_bytes(b"x" * (shipped.SMALL + 1))
    storage = f"{folder}/jobs"
    for run in ("first", "second"):
        put(folder, run)
    return storage


def put(folder, run):
    shipment = shipped.collect(["big"], folder)
    shared.put_files(f"{folder}/jobs", run, shipment.files)


def name(folder):
    return hashlib.sha256((folder / "big").read_bytes()).hexdigest()


def aged(folder, *paths):
    for path in paths:
        os.utime(folder / "jobs" / path, (time.time() - MONTH_S,) * 2)


def unused(storage, alive=None, *, installs=False):
    return shared.unused(storage, alive, installs=installs)


def test_a_file_that_no_job_uses_any_more_is_removed_once_it_is_old(storage, folder):
    file = f"_shipped/{name(folder)}"
    shared.done(storage, "first")
    aged(folder, file)
    assert unused(storage) == []  # the second job uses it
    shared.done(storage, "second")
    shared.done(storage, "second")
    (leftover,) = unused(storage)

    assert str(leftover) == "262 kB in 1 file that no job uses"
    (left,) = backend("kubernetes").leftovers()
    assert (left.name, left.description) == (f"{storage}/_shipped", str(leftover))
    backend("kubernetes").clear(left)

    assert not (folder / "jobs" / file).exists()
    assert unused(storage) == []
    put(folder, "third")
    assert (folder / "jobs" / file).exists()
    shared.done(storage, "third")
    assert unused(storage) == []  # the file is young


def test_a_job_that_is_repeated_uses_what_the_first_one_did(storage, folder):
    shared.use_again(storage, "again", "first")
    shared.use_again(storage, "other", "unknown")
    shared.done(storage, "first")
    shared.done(storage, "second")
    aged(folder, f"_shipped/{name(folder)}")

    assert unused(storage) == []


def test_of_jobs_that_somebody_else_has_deleted_only_the_uses_from_here_are_known_to_be_over(
    storage, folder, monkeypatch
):
    aged(folder, f"_shipped/{name(folder)}", "_shipped/uses/first", "_shipped/uses/second")
    assert unused(storage) == []  # nobody knows which jobs exist
    assert unused(storage, {"second"}) == []
    (folder / "jobs/_shipped/uses/first").write_text("no JSON")
    monkeypatch.setenv(folders.STATE, str(folder / "elsewhere"))
    assert unused(storage, {}) == []
    monkeypatch.setenv(folders.STATE, str(folder / "state"))

    (leftover,) = unused(storage, {})
    shared.remove(leftover, {})

    assert not (folder / "jobs/_shipped" / name(folder)).exists()


ODD_USES = {
    "nothing": b"",
    "deep": b"[" * 100_000,
    "no object": b"[1, 2]",
    "no files": b'{"owner": "a"}',
    "other files": b'{"owner": "a", "files": [["%b"], 5]}',
    "no list": b'{"owner": "a", "files": "%b"}',
    "no text": b"\xff\xfe",
    "too long": b'{"owner": "a", "files": ["%b"], "more": "' + b"x" * shared._USE_BYTES + b'"}',
}


@pytest.mark.parametrize("content", ODD_USES.values(), ids=ODD_USES)
def test_a_use_that_nobody_here_wrote_holds_nothing_and_stops_no_tidying(storage, folder, content):
    for run in ("first", "second"):
        shared.done(storage, run)
    aged(folder, f"_shipped/{name(folder)}")
    (folder / "jobs/_shipped/uses/odd").write_bytes(content.replace(b"%b", name(folder).encode()))

    assert [str(advice) for advice in unused(storage)] == ["262 kB in 1 file that no job uses"]
    with pytest.raises(SubmitError, match="can't be used from here"):
        shared.use_again(storage, "again", "odd")


def test_who_begins_to_use_a_file_as_it_is_removed_keeps_it_or_stores_it_anew(storage, folder):
    file = folder / f"jobs/_shipped/{name(folder)}"
    for run in ("first", "second"):
        shared.done(storage, run)
    aged(folder, file.relative_to(folder / "jobs"))
    (leftover,) = unused(storage)

    # The remover hasn't looked yet, and will see the use.
    put(folder, "third")
    shared.remove(leftover, None)
    assert file.exists()
    assert [path.name for path in file.parent.iterdir() if path.is_file()] == [file.name]

    # The remover has looked already: the job waits until the file is gone.
    going = file.with_name(f"{file.name}.going")
    going.write_bytes(b"")
    sent = threading.Thread(target=put, args=(folder, "fourth"))
    sent.start()
    file.unlink()
    going.unlink()
    sent.join(LIMIT)
    assert file.stat().st_size == shipped.SMALL + 1


def test_what_was_installed_goes_unless_a_job_may_take_it(storage, folder):
    kept = folder / "jobs/.packages/a.tgz"
    kept.parent.mkdir()
    kept.write_bytes(b"x" * 1000)
    assert unused(storage) == []
    aged(folder, ".packages/a.tgz")

    assert unused(storage, installs=True) == []
    (leftover,) = unused(storage)
    shared.remove(leftover, None)

    assert not kept.exists()
    assert shared.remembered() == [storage]


def test_big_files_are_stored_once_and_whole(folder, monkeypatch):
    monkeypatch.setattr(shipped, "SMALL", 4)
    (folder / "big").write_bytes(b"12345")
    (folder / "small").write_bytes(b"123")
    call = capture.from_cell("1", {}).with_files(shipped.collect(["big", "small"], folder))
    files = call.stored
    store, name = folder / "store" / "_shipped", hashlib.sha256(b"12345").hexdigest()

    shared.put_files(str(folder / "store"), "run", files)
    assert {path.name: path.read_bytes() for path in store.iterdir() if path.is_file()} == {name: b"12345"}
    when = (store / name).stat().st_mtime_ns
    shared.put_files(f"file://{folder}/store/", "run", files)
    assert (store / name).stat().st_mtime_ns == when

    (store / name).write_bytes(b"12")  # the part that a killed kernel leaves, in a store that shows it
    shared.put_files(str(folder / "store"), "run", files)
    assert (store / name).read_bytes() == b"12345"

    (store / name).unlink()
    (folder / "big").write_bytes(b"54321")
    with pytest.raises(CaptureError, match="--ship big: it changed while it was read"):
        shared.put_files(str(folder / "store"), "run", files)
    assert [path.name for path in store.iterdir()] == ["uses"]
    with pytest.raises(SubmitError, match=r"nosuch://bucket/_shipped/.* can't be used from here"):
        shared.put_files("nosuch://bucket", "run", files)
    assert "nosuch://bucket" not in shared.remembered()
