"""What may be asked for that runs are stopped early, and what is refused."""

import pytest

from nbtorchjob import SpecError
from nbtorchjob.errors import DamagedError
from nbtorchjob.spec import options
from nbtorchjob.spec.early import Early
from nbtorchjob.spec.jobspec import JobSpec, build
from nbtorchjob.state import JobInfo


def early(line):
    many = options.parse(f"--each lr=1,2 {line}", JobSpec())[1].many
    assert many is not None
    return many.early


def test_a_line_says_it_and_gets_itself_back():
    line = "--each lr=1,2 --stop-when 'loss > 2 * best_loss' --halve acc --by epoch --factor 4 --largest acc"
    spec, cell = options.parse(line, JobSpec())

    assert cell.many is not None
    assert cell.many.early == Early(
        stop_when="loss > 2 * best_loss", halve="acc", by="epoch", factor=4, largest=("acc",)
    )
    assert options.parse(options.magic_line(spec, cell), JobSpec()) == (spec, cell)


def test_a_record_gives_it_back():
    asked = early("--halve loss --at-least 2")

    assert build(Early, asked.record()) == asked
    assert JobInfo("g-r1", early=asked.record()).stops_early == asked
    assert early("").record() == {}
    assert JobInfo("g-r1").stops_early is None


@pytest.mark.parametrize(
    ("record", "error"),
    [({"stop_when": "loss >"}, SpecError), ({"largest": 3, "halve": "a"}, SpecError), ([1], DamagedError)],
)
def test_a_record_that_makes_no_sense_is_damaged(record, error):
    with pytest.raises(error):
        JobInfo("g-r1", early=record).stops_early  # noqa: B018


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--stop-when 'loss >> 2'", "--stop-when: got 'loss >> 2', but it must be a condition"),
        ("--halve loss --factor 1", "--factor: got 1, but it must be a whole number, 2 or more"),
        ("--halve loss --at-least 0", "--at-least: got 0"),
        ("--halve ''", "--halve: got '', but it must be the name of a metric"),
        ("--by epoch", "--by can't be given without --halve or --stop-when"),
        ("--stop-when 'acc < 1' --largest acc", "--largest can't be given without --halve acc, or best_acc"),
    ],
)
def test_what_makes_no_sense_is_refused(line, said):
    with pytest.raises(SpecError) as caught:
        early(line)
    assert str(caught.value).startswith(said)


def test_it_needs_runs():
    with pytest.raises(SpecError, match="--each is required"):
        options.parse("--stop-when 'loss > 2'", JobSpec())
