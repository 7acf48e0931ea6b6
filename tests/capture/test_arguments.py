import ast

import pytest

from nbtorchjob.capture import arguments
from nbtorchjob.errors import CaptureError


def function(text):
    node = ast.parse(f"def f({text}): ...").body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def bind(text, options=None, **notebook):
    return arguments.bind(function(text), options or {}, notebook)


def test_a_given_argument_comes_before_the_notebook_which_has_no_say_where_there_is_a_default():
    assert bind("a, b, c=0, d=0, *, e=0", {"a": "1", "d": "7"}, a=2, b=3, c=4, d=5, e=6) == {
        "a": 1,
        "b": 3,
        "d": 7,
    }


def test_every_kind_of_parameter_is_bound_by_name():
    values = bind("a, /, b, *rest, c, d=0, **more", {"x": "9"}, a=1, b=2, c=3, rest=4, more=5)
    assert values == {"a": 1, "b": 2, "c": 3, "x": 9}


def test_missing_arguments_are_named_with_the_way_to_give_them():
    with pytest.raises(CaptureError) as caught:
        bind("a, b=1, *, c, d=2")
    assert str(caught.value) == (
        "f() needs 'a', 'c', and the notebook has no variable of that name: give "
        "--arg a=VALUE --arg c=VALUE, or set it in the notebook"
    )


@pytest.mark.parametrize(
    ("text", "takes"), [("lr, epochs=1", "lr, epochs"), ("", "none at all"), ("*args", "none at all")]
)
def test_an_unknown_argument_is_refused_with_the_known_ones(text, takes):
    with pytest.raises(CaptureError, match=rf"no parameter 'lrr'; its parameters are: {takes}$"):
        bind(text, {"lrr": "1"}, lr=1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        ("[1, 'a']", [1, "a"]),
        ("None", None),
        ("n", 5),
        ("n * 2 + len(words)", 12),
        ("words[0].upper()", "A"),
        (" 'n' ", "n"),
        ("adam", "adam"),
        ("cuda:0", "cuda:0"),
        ("./data", "./data"),
        ("2024-01-01", "2024-01-01"),
        ("(n := 7)", 7),
    ],
)
def test_an_arguments_text_is_python_or_else_a_bare_word(text, value):
    namespace = {"n": 5, "words": ["a", "b"]}
    assert arguments.evaluate("x", text, namespace) == value
    assert namespace == {"n": 5, "words": ["a", "b"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2", "isn't Python"),
        ("two words", "put a string in quotes twice"),
        ("1/0", "ZeroDivisionError: division by zero"),
        ("adam.lr", "name 'adam' is not defined in the notebook"),
    ],
)
def test_an_arguments_text_that_is_neither_is_refused(text, message):
    with pytest.raises(CaptureError, match=message) as caught:
        arguments.evaluate("x", text, {})
    assert str(caught.value).startswith(f"--arg x={text}: ")


def test_a_run_is_told_apart_by_its_values_except_of_secrets():
    shown = arguments.shown(
        {"lr": 0.1, "token": "zzz", "max_tokens": 512, "keys": ["zzz"], "opts": {"api_key": "zzz"}}
    )

    assert arguments.as_text(shown) == (
        "lr=0.1, token=<masked str>, max_tokens=512, keys=<masked list>, opts={'api_key': <masked>}"
    )


def test_tokenizers_and_key_points_are_no_secrets():
    shown = {"tokenizer": "bert", "keypoints": "coco", "opts": {"tokenizer": "gpt2", "monkey": "see"}}

    assert arguments.shown(shown) == {**shown, "opts": str(shown["opts"])}
