"""Cached data is made once for all processes, and never taken from anybody else."""

import asyncio
import os
import time

import pytest

from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.machine import folders
from nbtorchjob.machine.loop import Changes
from tests.patience import LIMIT


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(folders.STATE, str(tmp_path / "state"))
    return folders.cache_dir() / "things"


class Made:
    """A factory that makes something different each time."""

    count = 0

    def __call__(self):
        self.count += 1
        return b"%d" % self.count


def test_it_is_made_once_of_each_name():
    make = Made()

    assert [folders.cached("things", name, make) for name in "aabab"] == [b"1", b"1", b"2", b"1", b"2"]


@pytest.mark.parametrize("harm", [b"", b"short", b"x" * 100])
def test_what_a_disk_has_lost_some_of_is_made_anew(folder, harm):
    folders.cached("things", "a", lambda: b"whole")
    (folder / "a").write_bytes(harm)

    assert folders.cached("things", "a", lambda: b"anew") == b"anew"
    assert folders.cached("things", "a", lambda: b"again") == b"anew"


def test_what_others_could_have_written_is_not_taken(folder):
    folders.cached("things", "a", lambda: b"mine")
    folder.chmod(0o777)

    assert folders.cached("things", "a", lambda: b"made") == b"made"


def test_where_nothing_can_be_kept_it_is_made_each_time(folder):
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    make = Made()

    assert [folders.cached("things", "a", make) for _ in range(2)] == [b"1", b"2"]


@pytest.mark.parametrize("place", [folders.state_dir, folders.cache_dir])
def test_a_home_that_nobody_has_is_no_place_to_keep_jobs(place, monkeypatch):
    monkeypatch.setenv(folders.STATE, "~nobody-here/jobs")

    with pytest.raises(NBTorchJobError, match=r"^jobs can't be kept in ~nobody-here/jobs \(.*\): set NB"):
        place()


def test_what_making_it_raises_is_raised_and_leaves_nothing(folder):
    def fails():
        raise OSError("no module to read")

    with pytest.raises(OSError, match="no module to read"):
        folders.cached("things", "a", fails)
    assert not list(folder.iterdir())


def test_the_newest_stay(folder):
    make = Made()
    for number in range(40):
        folders.cached("things", f"{number}", make)
        os.utime(folder / f"{number}", (number, number))
    folders.cached("things", "new", make)

    assert {path.name for path in folder.iterdir()} == {"new", *map(str, range(9, 40))}


@pytest.fixture
def compiled(monkeypatch, folder):
    """Return the compilers' cache folder, in a state folder of the test's own."""
    monkeypatch.setenv(folders.STATE, str(folder))
    return folder / "cache" / "compiled"


def used(path, days):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    for place in (path, path.parent):
        os.utime(place, (time.time() - days * 86400,) * 2)


def test_what_nobody_used_for_long_is_removed(compiled):
    folders.compiler_variables()
    used(compiled / "inductor" / "ab" / "old.so", 31)
    used(compiled / "inductor" / "cd" / "new.so", 29)

    folders.thin_out_caches()

    assert [path.name for path in compiled.rglob("*.so")] == ["new.so"]


FOR_EVER = 1e6  # seconds


def told(path, act):
    """Run ``act`` and wait for a change of ``path``; raise ``TimeoutError`` if none is reported."""

    async def wait():
        changes = Changes(path)
        try:
            act()
            await asyncio.wait_for(changes.wait(FOR_EVER), LIMIT)
        finally:
            changes.close()

    asyncio.run(wait())


def test_a_write_ends_the_wait(tmp_path):
    file = tmp_path / "events"
    file.touch()
    told(file, lambda: file.write_text("fact\n"))


def test_a_write_while_nobody_waits_counts(tmp_path):
    file = tmp_path / "events"
    file.touch()

    async def wait():
        changes = Changes(file)
        for _ in range(2):
            file.write_text("fact\n")
            await asyncio.wait_for(changes.wait(FOR_EVER), LIMIT)
        changes.close()
        changes.close()

    asyncio.run(wait())


def test_without_a_file_the_time_ends_the_wait(tmp_path):
    async def wait():
        changes = Changes(tmp_path / "none")
        await changes.wait(0.001)
        changes.close()

    asyncio.run(asyncio.wait_for(wait(), LIMIT))
