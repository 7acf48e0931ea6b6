import json
import pickle
import sys
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.runtime.objects import codec
from nbtorchjob.runtime.rank.worker import dump


def load(data, buffers):
    return pickle.loads(data, buffers=buffers)


def home(value):
    """Return the value as it comes home, and how many pickles that took."""
    encoder = codec.Encoder(dump)
    tree = json.loads(json.dumps(encoder.encode(value)))
    buffers = [memoryview(bytearray(view)) for view in encoder.buffers]
    return codec.decode(tree, buffers, load), len(encoder.pickles)


@pytest.mark.parametrize(
    "tree",
    [
        *({"$": word} for word in ("value", "_init__", "load", "buffers", "others", "", None, 1, "buffer")),
        {"$": "list", "items": [{"$": "bytes", "buffer": 0}, {"$": "bytes", "buffer": 0}]},
        [{"$": "bytes", "buffer": 0}] * 2,
        {"$": "bytes", "buffer": 2},
        {"$": "array", "dtype": "O", "shape": [1], "buffer": 0},
        {"$": "array", "dtype": "i4,O", "shape": [1], "buffer": 0},
        {"$": "array", "dtype": "u1", "shape": [1 << 40], "buffer": 0},
        {"$": "scalar", "dtype": "V8", "buffer": 0},
        {"$": "tensor", "dtype": "load", "shape": [8], "buffer": 0, "grad": False, "parameter": False},
        {"$": "tensor", "dtype": "uint8", "shape": [1 << 40], "buffer": 0, "grad": False, "parameter": False},
        {"$": "tensor", "dtype": "uint8", "shape": [1 << 40], "buffer": 1, "grad": False, "parameter": False},
        {"$": "pickled", "index": 0},
    ],
    ids=str,
)
def test_a_tree_that_no_encoder_writes_calls_nothing_and_takes_no_memory(tree):
    with pytest.raises((KeyError, TypeError, ValueError, IndexError, RuntimeError)):
        codec.decode(
            tree, [memoryview(b"12345678"), memoryview(b"")], lambda *_: pytest.fail("it was unpickled")
        )


ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
PLAIN = st.recursive(
    ATOMS | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(ATOMS, inner, max_size=4)
        | st.dictionaries(st.text() | st.just("$"), inner, max_size=4)
        | st.sets(ATOMS, max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_plain_data_comes_home_equal(value):
    assert home(value)[0] == value


def test_plain_data_needs_no_pickle():
    value = {"loss": [0.5, 1], 3: (None, {"x"}), "w": OrderedDict(a=torch.ones(2), b=np.arange(3.0))}

    assert home(value)[1] == 0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6, dtype=torch.int8).reshape(2, 3).t(),
        torch.tensor(3, dtype=torch.bool),
        torch.ones(4, dtype=torch.bfloat16),
        torch.empty(0, 3),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(2, requires_grad=True),
    ],
    ids=str,
)
def test_tensors_come_home_with_dtype_shape_and_grad(tensor):
    value, pickles = home(tensor)

    assert torch.equal(value, tensor)
    assert (value.dtype, value.requires_grad, value.stride()) == (
        tensor.dtype,
        tensor.requires_grad,
        tensor.stride(),
    )
    assert pickles == (0 if tensor.is_contiguous() else 1)


def test_a_tensor_of_inference_stays_one():
    with torch.inference_mode():
        tensor, model = torch.ones(3), torch.nn.Linear(2, 2)
    value, _ = home([tensor, model.weight, model, torch.ones(3)])
    assert [tensor.is_inference() for tensor in (*value[:2], value[2].bias, value[3])] == [
        True,
        True,
        True,
        False,
    ]


def test_a_parameter_stays_a_parameter():
    value, _ = home({"w": torch.nn.Parameter(torch.ones(2), requires_grad=False)})

    assert type(value["w"]) is torch.nn.Parameter
    assert not value["w"].requires_grad


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3).T,
        np.array("2024-01-01", dtype="datetime64[D]"),
        np.array(["a", "bc"]),
        np.zeros((0, 2)),
        np.array([], dtype="M8[s]"),
        np.float32(0.5),
        np.bool_(True),
    ],
    ids=repr,
)
def test_arrays_and_numpy_scalars_come_home_as_they_were(array):
    value, pickles = home(array)

    np.testing.assert_array_equal(value, array)
    assert (type(value), value.dtype) == (type(array), array.dtype)
    assert value.flags.f_contiguous == array.flags.f_contiguous
    assert pickles == (0 if array.flags.c_contiguous else 1)


def test_what_shares_comes_home_sharing():
    class Kept:
        def __init__(self, inside):
            self.inside = inside

    base, array, inside = torch.zeros(4), np.zeros(4), [1]
    parts, _ = home([base, base[2:], array, torch.from_numpy(array)[1:], inside, Kept(inside)])

    parts[0][2], parts[2][1] = 7, 8
    assert (parts[1][0], parts[3][0]) == (7, 8)
    assert parts[5].inside is parts[4]


def test_parts_that_cannot_be_pickled_leave_the_rest():
    encoder = codec.Encoder(dump)
    broken: dict[str, object] = {
        "loss": [0.5],
        "gen": (i for i in "ab"),
        "in": [({1: open},), {"f": iter, 2: print}],
    }
    broken["in"][0][0]["g"] = broken["gen"]  # type: ignore[index]
    tree = encoder.encode(broken)

    assert [path for path, *_ in encoder.lost] == ["['gen']", "['in'][0][0]['g']"]
    buffers = [memoryview(bytearray(view)) for view in encoder.buffers]
    value = codec.decode(tree, buffers, load, ["no", "nor"])
    assert value == {"loss": [0.5], "gen": "no", "in": [({1: open, "g": "nor"},), {"f": iter, 2: print}]}


def test_a_long_list_of_floats_is_one_buffer():
    value = [float(n) / 3 for n in range(1000)]
    encoder = codec.Encoder(dump)

    tree = encoder.encode(value)

    assert (tree["$"], [len(b) for b in encoder.buffers]) == ("floats", [8000])
    assert home(value)[0] == value


def test_what_is_not_plain_is_pickled_together_so_that_it_stays_linked():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    value, pickles = home({"model": model, "optimizer": optimizer, "epoch": 3})

    assert pickles == 1
    assert value["optimizer"].param_groups[0]["params"][0] is value["model"].weight
    assert value["epoch"] == 3


def test_an_object_that_is_in_a_value_twice_is_one_object_at_home():
    row = [1, 2]
    value, pickles = home({"a": row, "b": row})

    assert value["a"] is value["b"]
    assert pickles == 1


def test_a_cycle_and_a_deep_nest_come_home():
    cycle: list[object] = [1]
    cycle.append(cycle)
    value, _ = home(cycle)

    assert value[1] is value


def test_tensors_inside_a_pickle_travel_out_of_band():
    encoder = codec.Encoder(dump)

    encoder.encode(torch.nn.Linear(256, 256))

    pickled = encoder.buffers[encoder.pickles[0]]
    assert len(pickled) < 10_000
    assert max(len(b) for b in encoder.buffers) == 256 * 256 * 4


def test_a_state_dict_keeps_its_modules_versions():
    state, pickles = home(torch.nn.BatchNorm1d(2).state_dict())

    assert state._metadata[""] == {"version": 2}
    assert pickles == 0


def test_an_integer_too_long_for_text_comes_home():
    assert home({"n": 10**5000}) == ({"n": 10**5000}, 1)


def test_the_metadata_of_an_arrays_dtype_stays():
    array = np.zeros(2, np.dtype("i1", metadata={"enum": {"A": 1}}))

    assert home(array)[0].dtype.metadata == {"enum": {"A": 1}}


def test_an_open_file_is_lost_by_its_path_and_a_stream_is_the_other_processs(tmp_path):
    encoder = codec.Encoder(dump)
    with (tmp_path / "log").open("w") as file:
        encoder.encode({"log": file, "loss": 1})

    assert [path for path, *_ in encoder.lost] == ["['log']"]
    assert home({"out": sys.stdout})[0]["out"] is sys.stdout
