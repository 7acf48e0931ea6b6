"""A value in one line: of its class only the repr runs, and whatever that does is survived."""

import collections
import enum
import json
import os
import subprocess
import sys
import threading
import types

import pytest
import torch

from nbtorchjob.runtime.facts.described import MAX_REPR, described, with_variables
from nbtorchjob.runtime.facts.errors import MAX_VARIABLES, Error, from_exception
from tests.patience import LIMIT

NAN, INF = float("nan"), float("inf")


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 2)
        self.same = self.first


Pair = collections.namedtuple("Pair", "one other")
Colour = enum.IntEnum("Colour", "RED")
Setting = enum.Enum("Setting", {"TOKEN": "token"}, type=str)

KNOWN = {
    "float32[32, 0] cpu, finite": torch.zeros(32, 0),
    "float32[3] cpu, 1 NaN, 1 Inf: min 1, max 1, mean 1": torch.tensor([1.0, NAN, INF]),
    "float32[2] cpu, 2 NaN": torch.tensor([NAN, NAN]),
    "bfloat16[2] cpu, finite: min 1, max 1, mean 1, requires grad": torch.ones(2).bfloat16().requires_grad_(),
    "float32[2] cpu Parameter, finite: min 1, max 1, mean 1, requires grad": torch.nn.Parameter(
        torch.ones(2)
    ),
    "float32[] cpu = nan": torch.tensor(NAN),
    "int64[4] cpu, min 0, max 3, mean 1.5": torch.arange(4),
    "bool[3] cpu, 2 of 3 true": torch.tensor([True, True, False]),
    "float32[2] meta": torch.empty(2, device="meta"),
    "float32[2, 2] cpu, sparse_coo": torch.eye(2).to_sparse(),
    "float32[1000, 1000] cpu, finite: min 0, max 0, mean 0 (of 1 number in 4)": torch.zeros(1000, 1000),
    "float32[1000, 999] cpu": torch.zeros(999, 1000).T,
    "float32[2] cpu, finite: min 1, max 1, mean 1": torch.ones(2),
    "Net, a module of 8 parameters": Net(),
    "ReLU, a module of 0 parameters, in eval mode": torch.nn.ReLU().eval(),
    "float32[2, 3] ndarray": torch.ones(2, 3).numpy(),
    "list of 2: [float32[2] cpu, 1 NaN, int64[3] cpu]": [torch.tensor([NAN, 1.0]), torch.arange(3)],
    "list of 7: [0, 1, 2, 3, 4, …]": [*range(7)],
    "dict of 2: {'a': 1, 2: list of 1: [None]}": {"a": 1, 2: [None]},
    "tuple of 0: ()": (),
    "<int of 3,001 bits>": 1 << 3000,
    "<Colour.RED: 1>": Colour.RED,
    "class int": int,
    "function <lambda>": lambda: None,
    "1.5": 1.5,
    "'a b'": "a b",
}


@pytest.mark.parametrize(("line", "value"), KNOWN.items(), ids=KNOWN)
def test_a_value_is_described_in_a_line(line, value):
    assert described(value) == line


def test_a_named_tuple_and_a_subclass_are_called_by_their_class():
    assert described(Pair(1, 2)).endswith("Pair of 2: (1, 2)")
    assert described(collections.OrderedDict(a=1)) == "collections.OrderedDict of 1: {'a': 1}"


def test_a_long_text_is_cut_and_says_how_long_it_is():
    line = described("x" * 5000)

    assert line.endswith("… (5,000 characters)")
    assert len(line) < MAX_REPR + 30


def test_a_container_in_containers_ends_somewhere():
    loop: list[object] = []
    loop.append(loop)

    assert len(described(loop)) < 200
    assert len(described([["x" * 300] * 9] * 9)) < 500


class Told:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


@pytest.mark.parametrize(
    "value",
    [
        {"HF_TOKEN": "s3cret"},
        {b"api-key": b"s3cret"},
        {"nested": [{"Password": "s3cret"}]},
        {Setting.TOKEN: "s3cret"},
        [("x-api-key", "s3cret"), ("accept", "*")],
        Told("Config(lr=0.1, api_token='s3cret', more=1)"),
        Told("environ({'AWS_SECRET_ACCESS_KEY': 's3cret'})"),
        Told("password=s3cret"),
        "https://example.org/?token=s3cret",
        "https://me:s3cret@example.org/simple",
    ],
)
def test_what_looks_secret_inside_is_masked(value):
    line = described(value)

    assert "s3cret" not in line
    assert "masked" in line


@pytest.mark.parametrize("name", ["token", "api_key", "PASSWORD", "my_secret", "credentials"])
def test_of_a_name_that_looks_secret_only_the_type_is_told(name):
    assert described("s3cret", name) == "<masked str>"
    assert described({"a": "s3cret"}, name) == "<masked dict>"


def test_a_number_is_data_unless_it_may_be_a_key():
    assert described(512, "num_tokens") == "512"
    assert described(0.5, "key_scale") == "0.5"
    assert described(1 << 100, "private_key") == "<masked int>"


def test_a_tensor_is_no_secret_whatever_it_is_called():
    assert described(torch.zeros(1, 0), "key") == "float32[1, 0] cpu, finite"


class Exits:
    def __repr__(self):
        raise SystemExit


class Lies(type):
    """A metaclass that raises when its classes are inspected."""

    def __getattribute__(cls, name):
        raise AssertionError(name)

    def __instancecheck__(cls, other):
        raise AssertionError

    def __subclasscheck__(cls, other):
        raise AssertionError


class Lying(metaclass=Lies):
    def __repr__(self):
        return "told"


class Asked:
    """An object with attributes that must not be read, not even ``__class__``."""

    def __getattribute__(self, name):
        raise AssertionError(name)

    def __repr__(self):
        return "told"


class Items(list):  # type: ignore[type-arg]
    def __len__(self):
        raise AssertionError

    def __iter__(self):
        raise AssertionError


class Sub(torch.Tensor):  # type: ignore[misc]
    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        raise AssertionError


class Shapeless(torch.nn.Module):  # type: ignore[misc]
    @property
    def device(self):
        raise AssertionError

    def parameters(self, recurse=True):
        raise AssertionError


HOSTILE = {
    "<Exits whose repr raised SystemExit>": Exits(),
    "told": Asked(),
    "Items of 2: [1, 2]": Items([1, 2]),
    "float32[2] cpu Sub": torch.ones(2).as_subclass(Sub),
}


@pytest.mark.parametrize(("line", "value"), HOSTILE.items(), ids=HOSTILE)
def test_a_hostile_object_is_survived(line, value):
    assert described(value).replace(__name__ + ".", "") == line


def test_a_hostile_class_is_not_asked():
    assert described(Lying()) == "told"
    assert described(Shapeless()) == "Shapeless, a module of 0 parameters"


def test_a_repr_that_is_huge_or_no_text_is_survived():
    assert len(described(Told("x" * 10_000_000))) == MAX_REPR
    assert "whose repr raised TypeError" in described(Told(5))
    assert "whose repr raised RecursionError" in described(Recursive())


class Recursive:
    def __repr__(self):
        return repr(self)


def test_no_library_is_imported_for_it():
    program = (
        "import sys; from nbtorchjob.runtime.facts.described import described; described({1: [object()]})"
    )
    libraries = "assert not {'torch', 'numpy', 'pandas'} & sys.modules.keys()"

    subprocess.run([sys.executable, "-c", f"{program}; {libraries}"], check=True, env={**os.environ})


def told(fn, *args, seconds=LIMIT, each_seconds=LIMIT):
    with pytest.raises(Exception) as caught:  # noqa: PT011 whatever the function raises
        fn(*args)
    exc = caught.value
    exc.__traceback__ = exc.__traceback__ and exc.__traceback__.tb_next  # this test's own frame
    return with_variables(from_exception(exc), exc, seconds, each_seconds)


def inner(batch, token):
    half = batch / 2
    raise ValueError(half)


def outer():
    json = types.ModuleType("json")
    rate = 0.5
    inner(4, f"{json}")
    return rate


def test_each_frame_has_its_arguments_and_locals():
    error = told(outer)

    assert [dict(frame.variables) for frame in error.frames] == [
        {"rate": "0.5"},
        {"batch": "4", "token": "<masked str>", "half": "2.0"},
    ]


def test_they_survive_the_wire():
    error = told(outer)

    assert Error.from_json(json.loads(json.dumps(error.to_json()))) == error


CELL = """
import math
def helper(x):
    return math.sqrt(x)
class Thing: pass
lr = 0.1
data = [number for number in range(count)]
helper(-count)
"""


def test_of_a_cell_those_are_told_that_its_code_names():
    space = {"count": 3, "unused": 1, "__name__": "__main__"}

    error = told(exec, compile(CELL, "<cell-1>", "exec"), space)

    cell, helper = error.frames[-2:]
    assert dict(cell.variables) == {"lr": "0.1", "data": "list of 3: [0, 1, 2]", "count": "3"}
    assert helper.variables == (("x", "-3"),)


def caused():
    near = 1
    try:
        inner(2, "x")
    except ValueError as exc:
        raise KeyError(near) from exc


def test_what_caused_it_has_its_variables_too():
    error = told(caused)

    assert error.cause is not None
    assert dict(error.frames[0].variables)["near"] == "1"
    assert ("batch", "2") in error.cause.frames[-1].variables


def in_a_library():
    text = "{"
    return json.loads(text)


def test_frames_of_libraries_have_none():
    first, *others = told(in_a_library).frames

    assert first.variables == (("text", "'{'"),)
    assert len(others) > 1
    assert not any(frame.variables for frame in others)


class Blocks:
    """An object with a repr that blocks until the test is over."""

    over = threading.Event()

    def __repr__(self):
        self.over.wait()
        return ""


def blocked():
    before, slow, after = 1, Blocks(), 2
    raise ValueError(before, slow.over, after)


SLOW = "<takes too long to print>"


def test_a_repr_that_blocks_is_left_behind():
    try:
        [frame] = told(blocked, each_seconds=0.05).frames
    finally:
        Blocks.over.set()

    before, slow, after = frame.variables
    assert slow == ("slow", SLOW)
    assert before[1] in ("1", SLOW)  # on a busy machine
    assert after[1] in ("2", SLOW)


def test_when_the_time_is_over_the_rest_is_left_out():
    [frame] = told(blocked, seconds=0.0).frames

    assert len(frame.variables) <= 3


def big(depth):
    held = dict.fromkeys(range(5), "x" * 190)
    if depth:
        big(depth - 1)
    raise ValueError(len(held))


def test_there_is_room_for_the_innermost_frames():
    error = told(big, 200)

    assert error.variables_size <= MAX_VARIABLES
    assert len(json.dumps([frame.variables for frame in error.frames])) < 1.2 * MAX_VARIABLES
    assert len(error.frames[-1].variables) == 2


class Namespace(dict):  # type: ignore[type-arg]
    def __iter__(self):
        raise AssertionError

    keys = items = __iter__


class Meta(type):
    @classmethod
    def __prepare__(cls, name, bases, /):  # type: ignore[override]
        return Namespace()


def in_a_class():
    class Body(metaclass=Meta):
        raise ValueError


def test_a_mapping_of_somebodys_own_is_not_read():
    assert [frame.variables for frame in told(in_a_class).frames] == [(), ()]
