"""The data cache: what a job uses stays, what nobody uses for long goes, and the oldest goes to make room."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from nbtorchjob.runtime.data import cache

DAY = 24 * 3600.0


@pytest.fixture
def folder(tmp_path):
    """Yield a cache's folder; make its data writable afterwards, because nodes leave data read-only."""
    (tmp_path / "cache").mkdir()
    yield tmp_path / "cache"
    for at, _, _ in os.walk(tmp_path):
        os.chmod(at, 0o755)


def put(folder, where, size=1000, days=0.0):
    """Put data, last used that many days ago, into a cache; return its path."""
    path = cache.place(str(folder), where, "1")
    os.makedirs(f"{path}/deep")
    with cache.alone(path, lambda: None) as lock:
        cache.describe(lock, where, size)
    with open(f"{path}/deep/file", "wb") as file:
        file.write(bytes(size))
    os.chmod(f"{path}/deep", 0o555)
    os.chmod(path, 0o555)
    used = cache.use(path)
    assert used is not None
    used.close()
    for name in (f"{path}.lock", f"{path}.used"):
        os.utime(name, (time.time() - days * DAY,) * 2)
    return path


def trimmed(folder, needs=0, free=10_000, total=1_000_000, monkeypatch=None):
    usage = shutil.disk_usage(folder)._replace(free=free, total=total)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    return [entry.where for entry in cache.trim(str(folder), needs, time.time())]


def left(folder):
    return [entry.where for entry in cache.entries(str(folder))]


def test_what_was_unused_for_a_month_goes_and_the_rest_stays(folder, monkeypatch):
    old, new = put(folder, "hf://old", days=31), put(folder, "hf://new", days=29)

    assert trimmed(folder, monkeypatch=monkeypatch) == []
    assert (left(folder), os.path.exists(old), os.path.exists(new)) == (["hf://new"], False, True)
    assert sorted(os.listdir(folder)) == sorted(os.path.basename(new) + end for end in ("", ".lock", ".used"))


def test_what_was_used_longest_ago_makes_room(folder, monkeypatch):
    for days, where in ((3, "three"), (1, "one"), (2, "two")):
        put(folder, where, days=days)

    assert trimmed(folder, needs=9_000, monkeypatch=monkeypatch) == []
    assert trimmed(folder, needs=11_000, free=10_500, monkeypatch=monkeypatch) == ["three", "two", "one"]
    for days, where in ((3, "three"), (1, "one"), (2, "two")):
        put(folder, where, days=days)
    # A cache takes at most half of its disk.
    assert trimmed(folder, needs=3_000, free=10_000, total=10_000, monkeypatch=monkeypatch) == ["three"]
    assert left(folder) == ["two", "one"]


def test_nothing_goes_for_what_has_no_room_anyway(folder, monkeypatch):
    put(folder, "kept")

    assert trimmed(folder, needs=20_000, monkeypatch=monkeypatch) == []
    assert left(folder) == ["kept"]


USES = """
import os, sys, time
from nbtorchjob.runtime.data import cache
for user in sys.argv[2:]:
    os.setuid(int(user))
file = cache.use(sys.argv[1])
print(bool(file), flush=True)
time.sleep(600)
"""


def test_what_a_running_node_uses_is_never_removed_and_a_killed_ones_is_free(folder, monkeypatch):
    path = put(folder, "hf://used", days=60)
    node = subprocess.Popen([sys.executable, "-c", USES, path], stdout=subprocess.PIPE, text=True)
    assert node.stdout is not None
    assert node.stdout.readline() == "True\n"
    (entry,) = cache.entries(str(folder))
    assert entry.used > time.time() - 600
    for name in (f"{path}.lock", f"{path}.used"):
        os.utime(name, (0, 0))

    assert trimmed(folder, needs=10_500, monkeypatch=monkeypatch) == []
    assert (cache.is_idle(entry), cache.remove(entry)) == (False, False)
    assert os.path.exists(f"{path}/deep/file")

    node.kill()
    node.wait()
    node.stdout.close()
    assert cache.is_idle(entry)
    assert cache.remove(entry)
    assert os.listdir(folder) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_users_node_keeps_what_it_uses():
    with tempfile.TemporaryDirectory() as shared:
        os.chmod(shared, 0o755)
        path = put(Path(shared), "hf://shared")
        with subprocess.Popen([sys.executable, "-c", USES, path, "2000"], stdout=subprocess.PIPE) as node:
            try:
                assert node.stdout is not None
                assert node.stdout.readline() == b"True\n"
                (entry,) = cache.entries(shared)
                assert not cache.remove(entry)
            finally:
                node.kill()
        assert cache.remove(entry)


def test_what_is_being_fetched_is_left_alone_and_half_a_fetch_goes(folder):
    path = cache.place(str(folder), "hf://half", "1")
    os.makedirs(cache.partial(path))
    with cache.alone(path, lambda: None) as lock:
        cache.describe(lock, "hf://half", 0)
        with open(cache.partial(path) + "/file", "wb") as file:
            file.write(bytes(500))
        (entry,) = cache.entries(str(folder))
        assert (entry.where, entry.size) == ("hf://half", 500)
        assert not cache.remove(entry)

    assert cache.remove(entry)
    assert os.listdir(folder) == []


def test_other_files_in_its_folder_stay_though_they_are_named_as_locks(folder, monkeypatch):
    (folder / "env").mkdir()
    (folder / "env" / "file").write_text("own")
    for name in ("env.lock", "poetry.lock"):
        (folder / name).write_text("own")
        os.utime(folder / name, (0, 0))

    assert trimmed(folder, needs=10_500, monkeypatch=monkeypatch) == []
    assert left(folder) == []
    assert sorted(os.listdir(folder)) == ["env", "env.lock", "poetry.lock"]
    assert (folder / "env" / "file").read_text() == "own"


def test_data_that_somebody_removed_by_hand_can_be_fetched_while_another_job_holds_it(folder):
    path = put(folder, "hf://gone")
    used = cache.use(path)
    os.chmod(path, 0o755)
    os.chmod(f"{path}/deep", 0o755)
    shutil.rmtree(path)

    assert cache.use(path) is None
    with cache.alone(path, lambda: pytest.fail("it waits")):
        pass
    assert used is not None
    used.close()


def test_a_cache_that_can_not_be_written_to_is_used_as_it_is(folder, monkeypatch):
    path = put(folder, "hf://kept")

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache, "_open_locked", refused)
    used = cache.use(path)
    assert used is not None
    used.close()
    assert cache.use(cache.place(str(folder), "hf://other", "1")) is None
