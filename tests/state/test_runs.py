"""A run of a group as a row of its table."""

from functools import reduce

from nbtorchjob.state import JobInfo, JobState, apply, runs
from nbtorchjob.state import events as ev


def test_no_column_hides_another_one_of_its_name():
    info = JobInfo("sweep-r7", group="sweep", number=7, given={"lr": 0.1, "run": 3})
    facts: list[ev.Event] = [
        ev.WorkersStarted(0.0, 0, 0, 0, (0,), 1),
        ev.Reported(1.0, 0, 0, 0, {"lr": 0.05, "loss": 2.0, "value": 1.0}),
    ]

    row = runs.row(reduce(apply, facts, JobState(info)), 2.0, "mine")

    assert (row["run"], row["params.run"]) == (7, 3)
    assert (row["lr"], row["metrics.lr"], row["loss"]) == (0.1, 0.05, 2.0)
    assert (row["value"], row["metrics.value"]) == ("mine", 1.0)
