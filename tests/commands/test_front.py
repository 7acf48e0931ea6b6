"""The memory that a session has of its jobs."""

from types import SimpleNamespace
from typing import Any, cast

from nbtorchjob.commands import front


def test_a_job_with_the_name_of_a_deleted_one_has_no_cell_that_was_edited_for_that():
    jobs: list[Any] = [
        SimpleNamespace(info=SimpleNamespace(address="train", created=at)) for at in (1.0, 2.0)
    ]
    cell = front.EditedCell("lr = 1", "<cell>", cast("Any", None))
    front.keep_edited(jobs[0], cell)

    assert [front.edited(job) for job in jobs] == [cell, None]
    front.end()
