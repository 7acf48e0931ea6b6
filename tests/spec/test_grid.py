"""The runs that a line requests."""

import itertools

import numpy
import pytest

from nbtorchjob import SpecError
from nbtorchjob.errors import DamagedError
from nbtorchjob.spec import grid, options
from nbtorchjob.spec.grid import Early
from nbtorchjob.spec.jobspec import JobSpec, build
from nbtorchjob.state import JobInfo

NOTEBOOK = {"rates": [0.1, 0.2], "one": 1, "text": "ab", "space": {"a": [1]}, "none": []}
NOTEBOOK |= {"itertools": itertools, "numpy": numpy}


def look_up(expression):
    return eval(expression, dict(NOTEBOOK))


def rows(line):
    many = options.parse(line, JobSpec())[1].many
    assert many is not None
    return grid.rows(many, look_up)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-2,1e-3", [0.01, 0.001]),
        ("3", [3]),
        ("adam,sgd", ["adam", "sgd"]),
        ("adam,0.1,None,True", ["adam", 0.1, None, True]),
        ("'a,b',c", ["'a", "b'", "c"]),
        ('"a","b"', ["a", "b"]),
        ("[1,2]", [1, 2]),
        ("[1,2],[3]", [[1, 2], [3]]),
        ("(1,2),(3,4)", [(1, 2), (3, 4)]),
        ("0:3", [0, 1, 2]),
        ("3:0:-1", [3, 2, 1]),
        ("-2:1", [-2, -1, 0]),
        ("10:51:20", [10, 30, 50]),
        ("$rates", [0.1, 0.2]),
        ("{[x * 2 for x in rates]}", [0.2, 0.4]),
        ("{range(3)}", [0, 1, 2]),
    ],
)
def test_values_are_lists_ranges_or_the_notebooks_own(text, values):
    assert grid.values("lr", text, look_up) == values


def test_several_names_make_the_product_whose_last_name_varies_fastest():
    assert rows("--each lr=1,2 --each seed=0:2") == [
        {"lr": 1, "seed": 0},
        {"lr": 1, "seed": 1},
        {"lr": 2, "seed": 0},
        {"lr": 2, "seed": 1},
    ]


def test_zip_pairs_them():
    assert rows("--each lr=1,2 --each seed=0:2 --zip") == [{"lr": 1, "seed": 0}, {"lr": 2, "seed": 1}]


def test_a_sample_is_the_same_for_the_same_seed():
    line = "--each lr=0:9000 --each seed=0:9000 --sample 20 --seed {}"

    first, again, other = rows(line.format(0)), rows(line.format(0)), rows(line.format(1))

    assert first == again != other
    assert len({tuple(row.values()) for row in first}) == 20
    assert len(rows("--each lr=1,2 --sample 20")) == 2


@pytest.mark.parametrize("values", ["0:50000", "{list(range(50000))}", "{iter(range(50000))}"])
def test_a_sample_is_of_all_values_of_a_long_list(values):
    [*first, last] = rows(f"--each x={values} --sample 2000")

    assert len(first) == 1999
    assert last["x"] > 45_000
    with pytest.raises(SpecError, match=r"x has 50000, y has 20000.*the same number"):
        rows(f"--each x={values} --each y=0:20000 --zip --sample 3")


def test_a_sample_may_be_of_more_combinations_than_a_machine_counts():
    line = " ".join(f"--each {name}=0:1000" for name in "abcdefgh")
    sampled = rows(f"{line} --sample 500")

    assert len({tuple(row.values()) for row in sampled}) == 500
    columns = zip(*(row.values() for row in sampled), strict=True)
    assert all(len({*column}) > 300 for column in columns)
    with pytest.raises(SpecError, match="at most 10,000: --sample N"):
        rows(line)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--each lr=", "at least one value"),
        ("--each lr=[]", "--each lr: got '\\[\\]', but it must be at least one value"),
        ("--each lr=$none", "at least one value"),
        ("--each lr=3:3", "at least one value"),
        ("--each lr=1 --each lr=2", "distinct names"),
        ("--each 1r=1", "each: got '1r', but it must be a Python name"),
        ("--each lr=1,2 --each s=1,2,3 --zip", "lr has 2, s has 3.*the same number of values for each name"),
        ("--each lr=0:200 --each s=0:200", "200 × 200 runs.*at most 10,000: --sample N"),
        ("--each lr=0:1000000000000", "at most 10,000"),
        ("--each lr=0:20000", "20,000 runs.*at most 10,000: --sample N"),
        (f"--each lr={'1' * 5000}:3", "a range of numbers with fewer digits"),
        ("--each lr=0:3:0", "whose step isn't 0"),
        ("--each lr={itertools.repeat(0)} --sample 3", "at most 10,000,000 values"),
        (
            "--each lr={map(len,[1])}",
            "an expression that can be evaluated here .TypeError: object of type 'int' has no len",
        ),
        ("--each lr={numpy.array(3.0)}", "evaluated here .TypeError: iteration over a 0-d array"),
        ("--each lr=$nowhere", "NameError: name 'nowhere' is not defined"),
        ("--each lr=$one", "a list of values; it is of type int"),
        ("--each lr={one},2", "one expression in braces, such as {.a, b.}"),
        ("--each opt=[adam,sgd]", r"--each opt: got '\[adam,sgd\]', but it .* brackets: quote the texts"),
        ("--each 'b=(1,2),none'", r"--each b: got '\(1,2\),none', but it .* brackets: quote the texts"),
        ("--each lr=$text", "it is of type str"),
        ("--each lr=$space", "it is of type dict"),
        ("--each lr=1 --at-once 0", "at-once.*1 or more"),
        ("--each lr=1 --on lab", "--on can't be given with --each"),
        ("--each lr=1 --rehearse", "--rehearse can't be given with --each"),
        ("--zip", "--each is required: NAME=VALUES"),
    ],
)
def test_what_makes_no_runs_is_said_clearly(line, reason):
    with pytest.raises(SpecError, match=reason):
        rows(line)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("--nnodes $n", "--NNODES $N"),
        ("--each lr=$rates --name $n", "--each 'lr=$rates' --NAME $N"),
        ("-d --each=lr={[1, {'a': 2}, \"}\"]} $n", "-D --each 'lr={[1, {'\"'\"'a'\"'\"': 2}, \"}\"]}' $N"),
        ("--each lr=1,2 $n", "--EACH LR=1,2 $N"),
        ("--each lr=$a.b --each s=$c", "--each 'lr=$a.b' --each 's=$c'"),
        ("--each lr={[1", "--each 'lr={[1'"),
        ("--each lr={a},{b} --each s=$c", "--EACH LR={A},{B} --each 's=$c'"),
        ("--each s={lo}:{hi} -d", "--EACH S={LO}:{HI} -D"),
    ],
)
def test_the_notebooks_values_are_not_expanded_to_text(line, kept):
    assert grid.kept(line, str.upper) == kept


def test_a_line_of_such_options_reads_back():
    line = "--each lr=1,2 --each seed=0:3 --zip --sample 2 --at-once 2"
    spec, cell = options.parse(line, JobSpec())

    assert options.parse(options.magic_line(spec, cell), JobSpec()) == (spec, cell)


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
    rule = early("--halve loss --at-least 2")

    assert build(Early, rule.record()) == rule
    assert JobInfo("g-r1", early=rule.record()).stops_early == rule
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
    ("line", "reason"),
    [
        ("--stop-when 'loss >> 2'", "--stop-when: got 'loss >> 2', but it must be a condition"),
        ("--halve loss --factor 1", "--factor: got 1, but it must be a whole number, 2 or more"),
        ("--halve loss --at-least 0", "--at-least: got 0"),
        ("--halve ''", "--halve: got '', but it must be the name of a metric"),
        ("--by epoch", "--by can't be given without --halve or --stop-when"),
        ("--stop-when 'acc < 1' --largest acc", "--largest can't be given without --halve acc, or best_acc"),
    ],
)
def test_what_makes_no_sense_is_refused(line, reason):
    with pytest.raises(SpecError) as caught:
        early(line)
    assert str(caught.value).startswith(reason)


def test_it_needs_runs():
    with pytest.raises(SpecError, match="--each is required"):
        options.parse("--stop-when 'loss > 2'", JobSpec())
