"""A failed rank's variables come home with its frames, the user's innermost first, whatever they are."""

import json
import threading
import types

import pytest

from nbtorchjob.runtime.facts.errors import MAX_VARIABLES, Error, from_exception
from nbtorchjob.runtime.facts.locals import with_variables
from tests.patience import LIMIT


def told(fn, *args, seconds=LIMIT, each=LIMIT):
    with pytest.raises(Exception) as caught:  # noqa: PT011 whatever the function raises
        fn(*args)
    exc = caught.value
    exc.__traceback__ = exc.__traceback__ and exc.__traceback__.tb_next  # this test's own frame
    return with_variables(from_exception(exc), exc, seconds, each)


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
data = [each for each in range(count)]
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
    """Whose repr ends only once the test has."""

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
        [frame] = told(blocked, each=0.05).frames
    finally:
        Blocks.over.set()

    before, slow, after = frame.variables
    assert slow == ("slow", SLOW)
    assert before[1] in ("1", SLOW)  # on a machine that is busy
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
