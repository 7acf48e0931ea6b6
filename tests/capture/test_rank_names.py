"""Captures for ranks that have names of their own: only the names that they lack travel."""

import pickle

import pytest

from nbtorchjob import CaptureError, JobSpec, capture
from nbtorchjob.capture import Part, RankNames
from nbtorchjob.runtime.rank import call as running
from nbtorchjob.spec import options


def notebook(text):
    namespace = {"__name__": "__main__"}
    exec(text, namespace)
    return namespace


def shipped(call):
    task = pickle.loads(call.pickle, buffers=call.buffers)
    return {**running.namespace_of(task), **dict(task["names"])}


CODE = "scale = 2\nmodel = 'mine'\ndef step(x): return model, scale, x\n"


def test_a_name_that_is_nowhere_was_looked_for_on_the_lab_too():
    with pytest.raises(CaptureError, match="nor in the cell, nor on the lab explore: did you mean 'batch'"):
        capture.from_cell("step(bach)", notebook(CODE) | {"batch": 1}, rank_names=RankNames(lab="explore"))


def test_a_name_that_the_labs_cells_have_set_is_near_too():
    rank_names = RankNames(lab="explore", suggestions=lambda: ("weights",))
    with pytest.raises(CaptureError, match="nor on the lab explore: did you mean 'weights'"):
        capture.from_cell("weigths + 1", notebook(CODE), rank_names=rank_names)


def test_the_names_to_ask_for_are_those_that_the_cells_code_reaches():
    assert set(capture.asked_for("step(batch) + len(rows)", notebook(CODE))) == {
        *("step", "batch", "rows", "model", "scale")
    }
    assert set(capture.asked_for("def f(model, n=1): return model", notebook(CODE))) == {"model"}
    assert set(capture.asked_for_call("step(1)", notebook(CODE))) >= {"model", "scale"}


def test_what_the_ranks_have_stays_here_also_where_a_function_reads_it():
    space = notebook(CODE)
    call = capture.from_cell("step(batch)", space, rank_names=RankNames(frozenset({"model", "batch"})))

    assert {"step", "scale"} <= shipped(call).keys()
    assert not {"model", "batch"} & shipped(call).keys()


def test_what_is_pushed_travels_whether_it_is_read_or_not():
    call = capture.from_cell("1", notebook(CODE), rank_names=RankNames(push={"model": "mine"}))

    assert shipped(call)["model"] == "mine"
    assert "model" in capture.ships_line(call)


def test_a_name_that_neither_has_is_refused_with_why():
    rank_names = RankNames(
        why=lambda name: "was set by cell 2, on ranks that are gone" if name == "gone" else ""
    )

    with pytest.raises(CaptureError, match=r"name 'gone' \(line 2\) was set by cell 2"):
        capture.from_cell("gone", {}, rank_names=rank_names)
    with pytest.raises(CaptureError, match="neither defined"):
        capture.from_cell("other", {}, rank_names=rank_names)


def test_a_parameter_that_the_ranks_have_is_theirs():
    call = capture.from_cell(
        "def f(model, n): return n", {"n": 1}, rank_names=RankNames(frozenset({"model"}))
    )
    task = pickle.loads(call.pickle, buffers=call.buffers)

    assert (task["theirs"], task["kwargs"]) == (["model"], {"n": 1})


def test_several_cells_need_only_what_none_before_them_sets():
    cells = [Part("a = scale", "<1>"), Part("b = a + 1", "<2>", (1,)), Part("def f(a): return a", "<3>")]
    call = capture.from_cells(cells, notebook(CODE), "lab, cells 1-3")
    task = pickle.loads(call.pickle, buffers=call.buffers)

    assert [(cell["ranks"], cell["theirs"]) for cell in task["cells"]] == [((), []), ((1,), []), ((), ["a"])]
    assert shipped(call)["scale"] == 2
    with pytest.raises(CaptureError, match="'a'"):
        capture.from_cells(cells[1:], notebook(CODE), "lab, cells 2-3")


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ("--arg n=5 -- --max-tokens 512 'a b'", "--arg n=5 -- --max-tokens 512 'a b'"),
        ("--arg n=5", "--arg n=5"),
        ("", ""),
        ("-- --hf-token abc", "<masked>"),
        ("-- --hf-token=abc", "<masked>"),
        ("-- https://me:abc@hub/", "<masked>"),
        ("--arg key='\"abc\"'", "<masked>"),
    ],
)
def test_a_cells_arguments_are_recorded_as_on_its_line_unless_one_may_be_secret(line, record):
    _, cell_options = options.parse(line, JobSpec())
    call = capture.from_cell(
        "def f(n=1, key=2): return n", {}, args=dict(cell_options.arg), argv=cell_options.argv
    )

    assert call.arguments == record


@pytest.mark.parametrize(("rank", "value"), [("0", 2), ("1", 5)])
def test_several_cells_run_in_their_order_each_on_its_ranks(rank, value, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    cells = [Part("a = scale", "<1>"), Part("a += 3", "<2>", (1,)), Part("a", "<3>")]
    call = capture.from_cells(cells, notebook(CODE), "lab")
    task = pickle.loads(call.pickle, buffers=call.buffers)

    assert running.act(task, running.namespace_of(task)) == value
