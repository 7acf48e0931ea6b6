"""The names of cells, and of later swaps, in a process that a rank's code starts."""

from typing import Any

import pytest

from nbtorchjob import capture
from nbtorchjob.payload import archive
from nbtorchjob.runtime.api import points, report
from nbtorchjob.runtime.rank import spawned
from tests.runtime.swaps import KEY, packed

pytestmark = pytest.mark.torch


@pytest.fixture
def started(tmp_path):
    """Yield a function that returns the globals of a process that a call's rank starts."""

    def start(call):
        path = tmp_path / "payload"
        names: dict[str, Any] = {}
        with path.open("wb") as file:
            archive.write_swap(file, call, KEY, {}, remote=False)
        spawned.become_main(str(path), names)
        return names

    yield start
    report.begin()


@pytest.fixture
def swap(tmp_path, monkeypatch):
    """Return a function that makes a rank swap in a cell."""
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setenv(points.KEPT_AT, str(kept))

    def keep(text):
        (kept / f"{len([*kept.iterdir()]) + 1}.payload").write_bytes(packed(text, assumes=["base", "factor"]))

    return keep


CELL = """
def base():
    return 2.0
factor = base()
scale, width, name = 1.0, 2, "net"
def loss():
    return scale
held = loss
"""


def test_it_has_of_a_swap_what_only_defines_something(started, swap):
    swap("def loss():\n    return width\nwidth = 3\nscale = factor * 2\nname = base()")
    swap("name = 'wide'\ndepth = factor")
    names = started(capture.from_cell(CELL, {}))

    assert (names["loss"](), names["held"](), names["name"]) == (3, 3, "wide")
    for name in ("factor", "scale", "depth"):
        assert name not in names
        with pytest.raises(LookupError, match=f"'{name}' is set by code of the cell"):
            names["__getattr__"](name)


def test_it_has_what_all_cells_of_its_rank_define(started, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    texts = [
        ("import os\nsize = 1", ()),
        ("def work():\n    return size", ()),
        ("size = 2", (0,)),
        ("size = 3", (1,)),
    ]
    parts = [capture.Part(text, f"<{at}>", ranks) for at, (text, ranks) in enumerate(texts)]
    names = started(capture.from_cells(parts, {}, "cells"))

    assert names["work"]() == 2
