"""A job as JSON."""

import json
import math
from functools import reduce

import pytest

from nbtorchjob.runtime.facts.errors import Error, Frame
from nbtorchjob.state import US, JobInfo, JobState, apply
from nbtorchjob.state import events as ev
from nbtorchjob.ui.record import detail, record

SPEC = {"retry": {"retries": 3}}


def state(*events, **info):
    told = JobInfo(**{"name": "train-2222", "created": 100.0, "label": "train(lr=0.1)", **info})
    return reduce(apply, events, JobState(told))


def sent(found, now=160.0):
    """Return the record as a page reads it, whose JSON knows no infinity."""
    return json.loads(json.dumps(record(found, now), allow_nan=False))


def running(**report):
    begun = [ev.NodeStarted(101.0, 0, "here", 7), ev.WorkersStarted(102.0, 0, 0, 0, (0,), 1)]
    return [*begun, *([ev.Reported(103.0, 0, 0, 0, report)] if report else [])]


def test_a_new_job_has_all_fields():
    assert sent(state()) == {
        "id": "local:train-2222",
        "name": "train-2222",
        "label": "train(lr=0.1)",
        "backend": "local",
        "where": "local",
        "phase": "SUBMITTED",
        "status": "SUBMITTED",
        "terminal": False,
        "notebook": "",
        "cell": "",
        "created": 100.0,
        "started": None,
        "ended": None,
        "elapsed": 60.0,
        "nodes": {"asked": [1, 1], "now": 0},
        "nproc_per_node": 1,
        "attempts": 0,
        "restarts": {"used": 0, "limit": 0},
        "budgets": {},
        "kept": False,
        "lab": None,
        "promoted": "",
        "group": "",
        "run": 0,
        "pending": ["importing torch"],
        "failure": None,
        "progress": None,
        "metrics": [],
        "still": None,
        "artifacts": 0,
        "resumable": False,
        "curves": False,
        "note": "",
        "tags": [],
        "uses": [],
    }


@pytest.mark.parametrize(
    ("roots", "told"),
    [(None, "/home/ann/ml/a.ipynb"), (["/srv", "/home/ann"], "ml/a.ipynb"), (["/home/an"], ""), ([], "")],
)
def test_a_notebook_is_where_a_server_has_it(roots, told):
    found = record(state(notebook="/home/ann/ml/a.ipynb"), 160.0, roots)

    assert found["notebook"] == told


def test_a_running_job_says_how_far_it_is():
    found = sent(state(*running(step=3, steps=10)))

    assert (found["phase"], found["attempts"], found["nodes"]["now"]) == ("RUNNING", 1, 1)
    assert found["progress"] == {"unit": "step", "done": 3, "total": 10, "left": None}
    assert found["metrics"] == []


def test_the_newest_metrics_are_told_in_words_without_what_only_counts():
    told = state(*running(step=3, steps=10, loss=0.41237, accuracy=0.9, speed=1e6, other=1))

    assert sent(told)["metrics"] == ["loss 0.4124", "accuracy 0.9", "speed 1000000"]


def test_a_job_that_says_nothing_says_since_when():
    steps = [ev.Reported(103.0 + 2 * n, 0, 0, n, {"step": n + 1, "steps": 10}) for n in range(3)]
    found = [sent(state(*running(), *steps), now) for now in (110.0, 120.0, 170.0)]

    assert [each["status"] for each in found] == ["RUNNING", "RUNNING", "STALLED"]
    assert [each["still"] for each in found] == [None, *[{"since": 107, "unit": "step", "usual": 2}] * 2]
    assert [each["progress"]["left"] for each in found] == [11, None, None]


def test_a_job_that_never_told_anything_is_quiet_after_a_while():
    found = sent(state(*running()), 230.0)

    assert (found["status"], found["still"]) == ("RUNNING", {"since": 102, "unit": None, "usual": None})


def test_reports_that_are_no_numbers_are_no_progress():
    assert sent(state(*running(step=math.nan, steps=math.inf)))["progress"] is None


def test_a_time_left_beyond_all_numbers_is_not_known():
    told = [report for step in range(1, 4) for report in running(step=step, steps=1.7e308)]

    assert sent(state(*told))["progress"]["left"] is None


def test_a_job_that_is_being_cancelled_says_so_beside_its_phase():
    found = sent(state(*running(), ev.CancelRequested(104.0)))

    assert (found["phase"], found["status"], found["terminal"]) == ("RUNNING", "CANCELLING", False)


def test_budgets_tell_what_was_used_and_null_for_no_limit():
    found = sent(state(spec=SPEC, retry_owner=US))

    assert found["budgets"] == {
        "failures": {"used": 0, "limit": 3},
        "preemptions": {"used": 0, "limit": None},
    }


def test_a_job_that_waits_says_for_what():
    wait = ev.Waiting(101.0, "no room in the queue")
    cluster = {"context": "big", "namespace": "ml", "kind": "volcano"}
    found = sent(state(wait, backend="kubernetes", cluster=cluster))

    assert found["id"] == "kubernetes:big/ml/train-2222"
    assert found["where"] == "kubernetes: volcano in ml, context big"
    assert "no room in the queue" in found["pending"][0]


def test_a_job_that_was_lost_says_why():
    found = sent(state(*running(), ev.Lost(150.0, "its supervisor was killed")))

    assert (found["phase"], found["terminal"], found["ended"], found["elapsed"]) == ("FAILED", True, 150, 50)
    assert "its supervisor was killed" in found["failure"]


def test_a_hostile_label_is_one_short_line():
    found = sent(state(label="<script>\n\x1b[31m" + "x" * 1000))

    assert found["label"].startswith("<script>  [31m")
    assert len(found["label"]) == 120


def test_all_that_is_known_has_the_error_with_its_variables():
    frame = Frame("<cell>", 3, "<module>", "1 / n", (("n", "0"), ("token", "<masked str>")))
    error = Error("ZeroDivisionError", "division by zero", (frame,), time=104.0)
    failed = ev.RankFailed(104.0, 0, 0, 0, 0, error)

    told = json.loads(json.dumps(detail(state(*running(), failed, ev.Closed(105.0)), 160.0, {})))

    assert told["error"]["frames"][0]["variables"] == [["n", "0"], ["token", "<masked str>"]]
    assert detail(state(), 160.0, {})["error"] is None
