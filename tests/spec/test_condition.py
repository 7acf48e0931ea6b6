"""When a run is stopped early."""

import math

import pytest

from nbtorchjob import SpecError
from nbtorchjob.spec.condition import Condition

VALUES = {"loss": 3.0, "best_loss": 1.0, "median_loss": 2.0, "epoch": 4.0, "nan": math.nan}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("loss > 2 * best_loss", True),
        ("loss > 2 * best_loss and epoch > 4", False),
        ("loss > 2 * best_loss or epoch > 4", True),
        ("not loss > median_loss", False),
        ("1 < loss <= 3", True),
        ("-loss < (1 - 2) / 0.5", True),
        ("loss / 0 > 1", False),
        ("loss != 3", False),
        ("nan > 1", False),
        ("accuracy < 0.5", False),
        ("not accuracy < 0.5", False),
    ],
)
def test_it_holds_for_what_a_run_reports(text, holds):
    assert Condition(text).holds(VALUES) is holds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "loss",
        "loss >",
        "loss + 1",
        "True",
        "loss > '1'",
        "__import__('os').system('true') > 0",
        "loss.real > 1",
        "loss > [1][0]",
        "loss ** 9 > 1",
        "(loss := 1) > 0",
        "loss in best_loss",
        "1 if loss else 0",
        "loss > True",
        "loss > 1 #" + "x" * 500,
    ],
)
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(SpecError, match="a condition of metrics, best_METRIC"):
        Condition(text)
