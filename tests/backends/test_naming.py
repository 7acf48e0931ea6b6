"""Names that are made up."""

import re
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.backends import naming
from nbtorchjob.spec.jobspec import JobSpec


def test_a_job_that_runs_once_more_is_numbered_where_its_name_was_given():
    assert list(islice(naming.again("train()", "train"), 3)) == ["train-2", "train-3", "train-4"]


def test_else_it_gets_a_new_one_each_time():
    found = list(islice(naming.again("train(lr=1)", None), 3))

    assert len(set(found)) == 3
    assert all(re.fullmatch(r"train-[a-z0-9]{4}", name) for name in found)


@given(given=st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True), number=st.integers(2, 9999))
def test_a_numbered_name_is_a_name_as_well(given, number):
    found = naming.run(given, number)

    assert JobSpec(name=found).name == found
    assert found.endswith(f"-{number}")
    assert naming.is_run(found, given)


def test_no_other_name_is_a_run_of_it():
    found = [naming.is_run(name, "train") for name in ("train", "train-2", "train-1", "train-x", "trains-2")]

    assert found == [True, True, False, False, False]
