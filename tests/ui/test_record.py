"""A job as JSON."""

import json
import math
from functools import reduce
from html.parser import HTMLParser

import pytest

from nbtorchjob.runtime.facts.errors import Error, Frame
from nbtorchjob.state import US, JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.ui.record import below, detail, jobs_html, jobs_text, record
from tests.ui.card.retried import begun, evicted, job

SPEC = {"retry": {"retries": 3}}


def state(*events, **info):
    details = JobInfo(**{"name": "train-2222", "created": 100.0, "label": "train(lr=0.1)", **info})
    return reduce(apply, events, JobState(details))


def sent(snapshot, now=160.0):
    """Return the record as a page reads it, as JSON without infinity."""
    return json.loads(json.dumps(record(snapshot, now), allow_nan=False))


def running(**report):
    begun = [ev.NodeStarted(101.0, 0, "here", 7), ev.WorkersStarted(102.0, 0, 0, 0, (0,), 1)]
    return [*begun, *([ev.Reported(103.0, 0, 0, 0, report)] if report else [])]


@pytest.mark.parametrize(
    "events",
    [
        [ev.Suspended(105.2, True), ev.NodeExited(105.3, 0, 143, 15), ev.NodeGone(105.4, 0, "")],
        [ev.WorkersStarted(105.5, 0, 1, 1, (0,), 1)],
    ],
    ids=["suspended", "restarted"],
)
def test_who_does_not_go_on_has_no_time_left(events):
    reports = [ev.Reported(103.0 + n, 0, 0, n, {"step": n + 1, "steps": 9}) for n in range(3)]
    before = sent(state(*running(), *reports), 106.0)["progress"]
    after = sent(state(*running(), *reports, *events), 106.0)["progress"]

    assert before["left"] is not None
    assert (after["done"], after["left"]) == (3, None)


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
    ("roots", "path"),
    [(["/srv", "/home/ann"], "ml/a.ipynb"), (["/home/an"], ""), ([], "")],
)
def test_a_notebook_is_where_a_server_has_it(roots, path):
    entry = record(state(notebook="/home/ann/ml/a.ipynb"), 160.0)

    assert entry["notebook"] == "/home/ann/ml/a.ipynb"
    assert below(entry, roots) == {**entry, "notebook": path}


def test_a_running_job_says_how_far_it_is():
    entry = sent(state(*running(step=3, steps=10)))

    assert (entry["phase"], entry["attempts"], entry["nodes"]["now"]) == ("RUNNING", 1, 1)
    assert entry["progress"] == {"unit": "step", "done": 3, "total": 10, "left": None}
    assert entry["metrics"] == []


def test_the_newest_metrics_are_told_in_words_without_what_only_counts():
    snapshot = state(*running(step=3, steps=10, loss=0.41237, accuracy=0.9, speed=1e6, other=1))

    assert sent(snapshot)["metrics"] == ["loss 0.4124", "accuracy 0.9", "speed 1000000"]


def test_a_job_that_says_nothing_says_since_when():
    steps = [ev.Reported(103.0 + 2 * n, 0, 0, n, {"step": n + 1, "steps": 10}) for n in range(3)]
    entries = [sent(state(*running(), *steps), now) for now in (110.0, 120.0, 170.0)]

    assert [run["status"] for run in entries] == ["RUNNING", "RUNNING", "STALLED"]
    assert [run["still"] for run in entries] == [None, *[{"since": 107, "unit": "step", "usual": 2}] * 2]
    assert [run["progress"]["left"] for run in entries] == [11, None, None]


def test_a_job_that_never_told_anything_is_quiet_after_a_while():
    entry = sent(state(*running()), 230.0)

    assert (entry["status"], entry["still"]) == ("RUNNING", {"since": 102, "unit": None, "usual": None})


def test_reports_that_are_no_numbers_are_no_progress():
    assert sent(state(*running(step=math.nan, steps=math.inf)))["progress"] is None


def test_a_time_left_beyond_all_numbers_is_not_known():
    events = [report for step in range(1, 4) for report in running(step=step, steps=1.7e308)]

    assert sent(state(*events))["progress"]["left"] is None


def test_a_job_that_is_being_cancelled_says_so_beside_its_phase():
    entry = sent(state(*running(), ev.CancelRequested(104.0)))

    assert (entry["phase"], entry["status"], entry["terminal"]) == ("RUNNING", "CANCELLING", False)


def test_budgets_tell_what_was_used_and_null_for_no_limit():
    entry = sent(state(spec=SPEC, retry_owner=US))

    assert entry["budgets"] == {
        "failures": {"used": 0, "limit": 3},
        "preemptions": {"used": 0, "limit": None},
    }


def test_a_job_that_waits_says_for_what():
    wait = ev.Waiting(101.0, "no room in the queue")
    cluster = {"context": "big", "namespace": "ml", "kind": "volcano"}
    entry = sent(state(wait, backend="kubernetes", cluster=cluster))

    assert entry["id"] == "kubernetes:big/ml/train-2222"
    assert entry["where"] == "kubernetes: volcano in ml, context big"
    assert "no room in the queue" in entry["pending"][0]


def test_a_job_that_was_lost_says_why():
    entry = sent(state(*running(), ev.Lost(150.0, "its supervisor was killed")))

    assert (entry["phase"], entry["terminal"], entry["ended"], entry["elapsed"]) == ("FAILED", True, 150, 50)
    assert "its supervisor was killed" in entry["failure"]


def test_a_hostile_label_is_one_short_line():
    entry = sent(state(label="<script>\n\x1b[31m" + "x" * 1000))

    assert entry["label"].startswith("<script>  [31m")
    assert len(entry["label"]) == 120


def test_all_that_is_known_has_the_error_with_its_variables():
    frame = Frame("<cell>", 3, "<module>", "1 / n", (("n", "0"), ("token", "<masked str>")))
    error = Error("ZeroDivisionError", "division by zero", (frame,), time=104.0)
    failed = ev.RankFailed(104.0, 0, 0, 0, 0, error)

    answer = json.loads(json.dumps(detail(state(*running(), failed, ev.Closed(105.0)), 160.0, {})))

    assert answer["error"]["frames"][0]["variables"] == [["n", "0"], ["token", "<masked str>"]]
    assert detail(state(), 160.0, {})["error"] is None


NOW = 1100.0
JOBS = [
    record(state, NOW)
    for state in (
        apply(JobState(JobInfo("done-2222", created=1000.0, label="train(lr=0.1)")), ev.Lost(1042.0, "gone")),
        JobState(
            JobInfo("a-longer-name-3333", created=1097.0, label="f(<b>)", nodes=(1, 3), nproc_per_node=2)
        ),
    )
]


class Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data):
        self.rows[-1].append(data)


def test_the_text_has_a_line_a_job_below_its_head():
    assert jobs_text(JOBS) == (
        "name                phase      elapsed  nodes × ranks  where  what\n"
        "done-2222           failed     42 s     1 × 1          local  train(lr=0.1)\n"
        "a-longer-name-3333  submitted  3.0 s    1:3 × 2        local  f(<b>)"
    )


def test_the_html_has_the_same_cells_escaped():
    cells = Cells()
    html = jobs_html(JOBS)
    cells.feed(html)

    assert "<b>" not in html
    assert cells.rows[2] == ["a-longer-name-3333", "submitted", "3.0 s", "1:3 × 2", "local", "f(<b>)"]
    assert ["  ".join(row).split() for row in cells.rows] == [
        line.split() for line in jobs_text(JOBS).splitlines()
    ]


def test_no_jobs_are_a_sentence():
    assert jobs_text([]) == "No jobs."
    assert "No jobs." in jobs_html([])


def test_a_job_that_was_tried_again_says_how_often():
    assert "  1 min 40 s in 2 attempts  " in jobs_text(
        [record(job(*evicted(1, 1000.0), *begun(2, 1020.0)), NOW)]
    )


def run(number, *facts, created=1000.0, name=None):
    info = JobInfo(
        name or f"sweep-r{number}",
        created=created,
        label=f"train(lr={number})",
        group="sweep",
        number=number,
        given={"lr": number},
    )
    state = JobState(info)
    for fact in facts:
        state = apply(state, fact)
    return record(state, NOW)


def test_the_runs_of_a_group_are_one_row():
    jobs = [
        JOBS[0],
        run(1, ev.Lost(1042.0, "gone")),
        run(2, ev.Waiting(1001.0, "behind 4 jobs")),
        run(1, created=1050.0, name="sweep-r1-2"),
        JOBS[1],
    ]

    assert [line.split("  ")[0] for line in jobs_text(jobs).splitlines()[1:]] == [
        "done-2222",
        "sweep",
        "a-longer-name-3333",
    ]
    assert jobs_text(jobs).splitlines()[2].split("  ", 1)[1].split("  ")[-3:] == [
        "2 runs of 1 × 1",
        "local",
        "train(…)",
    ]
    assert "  pending · 1 waiting, 1 submitted  1 min 40 s  " in jobs_text(jobs)
