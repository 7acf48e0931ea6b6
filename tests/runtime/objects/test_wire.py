import os
import pickle

import numpy as np
import pytest
import torch

from nbtorchjob.runtime.objects import wire
from nbtorchjob.runtime.rank.worker import dump

KEY = b"k" * 32


def load(data, buffers):
    return pickle.loads(data, buffers=buffers)


@pytest.fixture
def path(folder):
    return str(folder / "rank-0.value")


def test_a_value_comes_back_from_its_file(path):
    value = {"loss": 0.5, "weights": torch.arange(1000.0), "model": torch.nn.Linear(3, 3)}

    size = wire.write_value(path, value, dump, KEY)
    copy = wire.read_value(path, load, KEY)

    assert size == os.path.getsize(path)
    assert torch.equal(copy["weights"], value["weights"])
    assert torch.equal(copy["model"].weight, value["model"].weight)


def test_a_big_array_is_mapped_and_can_be_written_to(path):
    wire.write_value(path, np.zeros(200_000), dump, KEY)

    array = wire.read_value(path, load, KEY)
    array[0] = 7.0

    assert not array.flags.owndata
    assert wire.read_value(path, load, KEY)[0] == 0.0


def test_another_key_is_refused_before_anything_is_unpickled(path):
    wire.write_value(path, Bomb(), dump, KEY)

    with pytest.raises(wire.WireError, match="signature"):
        wire.read_value(path, load, b"x" * 32)


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


def test_a_changed_pickle_is_refused_before_it_is_unpickled(path):
    wire.write_value(path, Bomb(), dump, KEY)
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"tampered")

    with pytest.raises(wire.WireError, match="changed"):
        wire.read_value(path, load, KEY)


@pytest.mark.parametrize("keep", [0, 10, 60, 200])
def test_a_file_cut_short_is_refused(path, keep):
    wire.write_value(path, {"w": torch.ones(1000)}, dump, KEY)
    os.truncate(path, keep)

    with pytest.raises(wire.WireError):
        wire.read_value(path, load, KEY)


def test_a_value_that_can_not_be_pickled_is_told_as_such(path):
    class Broken:
        def __reduce__(self):
            raise RuntimeError("no way")

    wire.write_value(path, broken := Broken(), dump, KEY)
    substitute = wire.read_value(path, load, KEY)

    assert isinstance(substitute, wire.Unpicklable)
    assert substitute.type.endswith(".Broken")
    assert substitute.error.message == "no way"
    lost: list[wire.Unpicklable] = []
    wire.write_value(path, {"x": [1, broken]}, dump, KEY)
    assert wire.read_value(path, load, KEY, lost) == {"x": [1, *lost]}
    assert (lost[0].path, repr(lost[0])) == ("['x'][1]", f"<{substitute.type} that couldn't be pickled>")


def test_a_failed_write_leaves_nothing(folder):
    target = folder / "gone" / "rank-0.value"

    with pytest.raises(FileNotFoundError):
        wire.write_value(str(target), 1, dump, KEY)

    assert list(folder.iterdir()) == []
