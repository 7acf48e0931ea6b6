"""Many jobs in one table."""

from html.parser import HTMLParser

from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state import events as ev
from nbtorchjob.ui import jobs_table
from nbtorchjob.ui.record import record
from tests.ui.card.retried import begun, evicted, job

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
    assert jobs_table.text(JOBS) == (
        "name                phase      elapsed  nodes × ranks  where  what\n"
        "done-2222           failed     42 s     1 × 1          local  train(lr=0.1)\n"
        "a-longer-name-3333  submitted  3.0 s    1:3 × 2        local  f(<b>)"
    )


def test_the_html_has_the_same_cells_escaped():
    cells = Cells()
    html = jobs_table.html(JOBS)
    cells.feed(html)

    assert "<b>" not in html
    assert cells.rows[2] == ["a-longer-name-3333", "submitted", "3.0 s", "1:3 × 2", "local", "f(<b>)"]
    assert ["  ".join(row).split() for row in cells.rows] == [
        line.split() for line in jobs_table.text(JOBS).splitlines()
    ]


def test_no_jobs_are_a_sentence():
    assert jobs_table.text([]) == "No jobs."
    assert "No jobs." in jobs_table.html([])


def test_a_job_that_was_tried_again_says_how_often():
    assert "  1 min 40 s in 2 attempts  " in jobs_table.text(
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

    assert [line.split("  ")[0] for line in jobs_table.text(jobs).splitlines()[1:]] == [
        "done-2222",
        "sweep",
        "a-longer-name-3333",
    ]
    assert jobs_table.text(jobs).splitlines()[2].split("  ", 1)[1].split("  ")[-3:] == [
        "2 runs of 1 × 1",
        "local",
        "train(…)",
    ]
    assert "  pending · 1 waiting, 1 submitted  1 min 40 s  " in jobs_table.text(jobs)
