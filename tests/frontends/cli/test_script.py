"""Words after ``--`` as a function's arguments."""

import functools
import inspect
import linecache
import sys

import pytest

from nbtorchjob.errors import LineError
from nbtorchjob.frontends.cli.script import arguments, load


def train(lr, steps: int = 3, tag: str = "", *, fast=False, words: "str" = ""):
    """Stand for the function of a script."""


def many(*words: str, **more):
    """Take anything."""


@pytest.mark.parametrize(
    ("words", "args", "kwargs"),
    [
        ("0.1", [0.1], {}),
        ("-1 4", [-1, 4], {}),
        ("--lr 3 --steps=5", [], {"lr": 3, "steps": 5}),
        ("--lr -1", [], {"lr": -1}),
        ("cuda:0 --fast", ["cuda:0"], {"fast": True}),
        ("[1,2] --fast False", [[1, 2]], {"fast": False}),
        ("1 2 3", [1, 2, "3"], {}),
        ("1 --tag 3 --words 4", [1], {"tag": "3", "words": "4"}),
        ("1 --tag=", [1], {"tag": ""}),
    ],
)
def test_words_are_literals_else_text(words, args, kwargs):
    assert arguments(train, words.split()) == (args, kwargs)


def test_dashes_in_a_name_stand_for_underscores():
    assert arguments(many, ["1", "2", "--batch-size", "8"]) == (["1", "2"], {"batch_size": 8})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "missing a required argument: 'lr'"),
        ("1 --lr 2", "multiple values for argument 'lr'"),
        ("1 --rate 2", "unexpected keyword argument 'rate'"),
        ("1 2 3 4", "too many positional arguments"),
    ],
)
def test_what_the_function_does_not_take_is_told_with_what_it_takes(words, message):
    with pytest.raises(LineError, match=message) as caught:
        arguments(train, words.split())

    assert str(caught.value).startswith("train(lr, steps: int = 3, ")


def test_what_is_called_needs_no_name_of_its_own():
    fn = functools.partial(train, steps=2)

    assert arguments(fn, ["0.1"]) == ([0.1], {})
    with pytest.raises(LineError, match=r"^partial\(lr, .*unexpected keyword argument 'bad'"):
        arguments(fn, ["1", "--bad", "1"])


def test_what_does_not_say_what_it_takes_is_refused():
    with pytest.raises(LineError, match=r"^max has no signature"):
        arguments(max, ["1", "2"])


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_the_source_of_a_scripts_function_is_its_own_below_an_odd_character(tmp_path, monkeypatch, odd):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "train.py"
    path.write_text(f"def half(x):\n    return x / 2\n# {odd} page 2\n\ndef twice(x):\n    return x * 2\n")

    script = load(path)

    assert inspect.getsource(script.twice) == "def twice(x):\n    return x * 2\n"
    linecache.cache.pop(str(path))
