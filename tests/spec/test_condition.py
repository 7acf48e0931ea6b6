"""The small grammar of ``--stop-when``: the values of conditions, and refusals with their place."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob import SpecError
from nbtorchjob.spec import condition
from nbtorchjob.spec.condition import BEST, MEDIAN, OWN, Name

KNOWN = {
    Name(OWN, "loss"): 4.0,
    Name(OWN, "epoch"): 3.0,
    Name(BEST, "loss"): 1.5,
    Name(MEDIAN, "loss"): 2.0,
    Name(OWN, "val/loss"): 7.0,
    Name(OWN, "best_acc"): 0.5,
    Name(OWN, "nan"): math.nan,
}
FOUND = {"loss": 4.0, "epoch": 3.0, "best_loss": 1.5, "median_loss": 2.0}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("loss > 2 * best_loss", True),
        ("loss > 2 + best_loss * 2", False),
        ("loss > median_loss and epoch >= 3", True),
        ("loss > median_loss and not epoch >= 3", False),
        ("not (loss < 1 or epoch == 3)", False),
        ("loss < 1 or loss < 2 or epoch / 3 == 1", True),
        ("1 < median_loss < loss <= 4", True),
        ("1 < median_loss < loss < 4", False),
        ("-loss + 8 - 3 - 1 == 0 and loss != +.5e1", True),
        ("`val/loss` > 6 and `best_acc` == 0.5", True),
        ("nan != nan and not nan < 1", True),  # as in Python
        ("best_acc < 1", False),  # the group's best acc, which isn't known
        ("not best_acc < 1", False),
        ("acc < 1 or loss == 4", True),
        ("acc < 1 and loss == 4", False),
        ("not (acc < 1 and loss == 5)", True),
        ("loss / (epoch - 3) > 0", False),
        ("loss / 1e-300 / 1e-300 > 1e308", True),
    ],
)
def test_a_condition_holds_or_not(text, holds):
    assert condition.parse(text).holds(KNOWN.get) is holds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "(it is empty)"),
        ("loss = 2", "(at character 6: '=' is written '==')"),
        ("loss > 2 && epoch > 1", "(at character 10: '&&' is written 'and')"),
        ("loss", "(at character 1: a number, where a comparison is needed)"),
        ("epoch > 1 and loss + 1", "(at character 15: a number, where a comparison is needed)"),
        ("1 + (loss > 2) > 3", "(at character 6: true or false, where a number is needed)"),
        ("loss > ", "(it ends where a number, a metric's name or '(' is expected)"),
        ("(loss > 2", "(it ends where ')' for the '(' at character 1 is expected)"),
        ("loss > 2)", "(at character 9: ')', where an operator, or the end is expected)"),
        ("__import__('os') > 1", "(at character 11: '(', where an operator, or the end is expected)"),
        ("loss.real > 1", "(at character 5: '.', where an operator, or the end is expected)"),
        ("loss ** 2 > 1", "(at character 6: '**', where an operator, or the end is expected)"),
        ("loss > 'a'", '(at character 8: "\'", where a number'),
        ("loss > and", "(at character 8: 'and', where a number"),
        ("(" * 99 + "1 > 2", "(at character 52: more than 50 nested parentheses)"),
        ("loss > 1" + " " * 500 + "0", "(it has 509 characters, at most 500)"),
    ],
)
def test_what_is_no_condition_is_refused_with_where(text, reason):
    with pytest.raises(SpecError) as caught:
        condition.parse(text)

    message = str(caught.value)
    assert reason in message
    assert "\n" not in message
    assert message.startswith("stop_when: got ")


@settings(max_examples=100)
@given(st.one_of(st.text(max_size=40), st.text("loss 12.+-*/<>=!()`andortbest_me\n\x00", max_size=40)))
def test_whatever_is_typed_is_a_condition_or_refused(text):
    try:
        rule = condition.parse(text)
    except SpecError:
        return
    assert rule.holds(lambda name: 1.0) in (True, False)
    assert rule.holds(lambda name: None) in (True, False)


_SIGNS, _COMPARED = st.sampled_from("+-*"), st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
_NUMBERS = st.recursive(
    st.integers(0, 99).map(str) | st.sampled_from(sorted(FOUND)),
    lambda n: st.tuples(n, _SIGNS, n).map(" ".join) | n.map("({})".format) | n.map("-{}".format),
    max_leaves=6,
)
_TRUTHS = st.recursive(
    st.tuples(_NUMBERS, _COMPARED, _NUMBERS).map(" ".join),
    lambda t: (
        st.tuples(t, st.sampled_from(["and", "or"]), t).map(" ".join)
        | t.map("not {}".format)
        | t.map("({})".format)
    ),
    max_leaves=4,
)


@settings(max_examples=50)
@given(_TRUTHS.filter(lambda text: len(text) < 400))
def test_it_means_what_python_means(text):
    expected = eval(text, {}, dict(FOUND))

    assert condition.parse(text).holds(KNOWN.get) is expected
