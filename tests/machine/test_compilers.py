"""What compilers have made is kept for a month after its last use."""

import os
import time

import pytest

from nbtorchjob.machine import compilers, folders


@pytest.fixture
def compiled(monkeypatch, folder):
    """Return the folder that compilers are led to, in a state folder of the test's own."""
    monkeypatch.setenv(folders.STATE, str(folder))
    return folder / "cache" / "compiled"


def used(path, days):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    for each in (path, path.parent):
        os.utime(each, (time.time() - days * 86400,) * 2)


def test_what_nobody_used_for_long_is_removed(compiled):
    compilers.variables()
    used(compiled / "inductor" / "ab" / "old.so", 31)
    used(compiled / "inductor" / "cd" / "new.so", 29)

    compilers.thin_out()

    assert [path.name for path in compiled.rglob("*.so")] == ["new.so"]
