"""The record of a job: it reads back as it was written, and anything else is an error of one line."""

import json

import pytest

from nbtorchjob.errors import DamagedError, SpecError
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import JobInfo
from nbtorchjob.state.info import read, write

SPEC = JobSpec(Elastic("1:4", 2), retry=Retry(retries=3), env={"A": "1"})
INFO = JobInfo(
    "train",
    created=1.5,
    label="train(x)",
    nodes=(1, 4),
    sources={"a.py": ("In[1]", "é")},
    spec=SPEC.to_json(),
)
PLAIN = json.loads(write(INFO))

WRONG = {
    "empty": "",
    "cut short": write(INFO)[:-9],
    "no text": b"\xff\xfe\x00",
    "a number": "5",
    "a list": "[]",
    "null": "null",
    "no fields": "{}",
    "deep": "[" * 200_000,
    "no name": {"name": None},
    "a name that isn't printed": {"name": "\x1b[31ma"},
    "one number of nodes": {"nodes": [1]},
    "nodes that are a number": {"nodes": 1},
    "no time": {"created": float("nan")},
    "a label that is a number": {"label": 5},
    "sources without their labels": {"sources": {"a.py": "text"}},
    "sources that are a list": {"sources": [1]},
    "a spec that is a number": {"spec": 5},
    "budgets that are a number": {"spec": {"retry": 5}},
    "budgets that are a text": {"spec": {"retry": "retries"}},
    "a budget below none": {"spec": {"retry": {"retries": -1}}},
}
SPECS = {
    "no launch": {"retry": None},
    "a launch that is a number": {"launch": 5},
    "an unknown launch": {"launch": {"kind": "Later"}},
    "a list as launch's kind": {"launch": {"kind": []}},
    "a cluster that is a text": {"launch": {"kind": "Elastic"}, "cluster": "storage"},
}


def test_what_a_run_was_given_keeps_its_order():
    arguments = {"seed": 0, "lr": 0.1, "batch": 8}

    assert [*read(write(JobInfo("sweep-r1", given=arguments)), "local", "sweep-r1").given] == [*arguments]


def refused(work):
    with pytest.raises(DamagedError) as caught:
        work()
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("the record of train can't be read (")
    assert message.endswith("): %torchjob delete train removes it")


def test_what_is_written_is_read():
    assert read(write(INFO), "local", "train") == INFO
    assert read(write(INFO).encode(), "local", "train").jobspec == SPEC


def test_a_part_is_laid_over_what_was_read_before():
    rest = write(INFO, {*PLAIN} - {"sources", "label"})
    info = read(rest, "local", "train")

    assert (info.sources, info.label) == ({}, "")
    assert read(write(INFO, {"sources", "label"}), "local", "train", onto=info) == INFO


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_record_that_is_none_is_told_of_in_a_line(wrong):
    text = json.dumps({**PLAIN, **wrong}) if isinstance(wrong, dict) else wrong
    refused(lambda: read(text, "local", "train"))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_spec_that_is_none_is_told_of_where_it_is_asked_for(spec):
    info = read(json.dumps({**PLAIN, "spec": spec}), "local", "train")
    refused(lambda: info.jobspec)


def test_what_a_later_version_wrote_down_is_left_aside():
    launch = {**PLAIN["spec"]["launch"], "later": 1}
    spec = {**PLAIN["spec"], "later": 1, "launch": launch, "retry": {**PLAIN["spec"]["retry"], "later": 1}}
    info = read(json.dumps({**PLAIN, "later": [1], "spec": spec}), "local", "train")

    assert info.jobspec == SPEC
    assert info.retry == SPEC.retry


def test_a_value_that_only_a_later_version_allows_is_said_to_be_one():
    info = read(json.dumps({**PLAIN, "spec": {**PLAIN["spec"], "backend": "later"}}), "local", "train")
    with pytest.raises(SpecError, match="backend: got 'later'"):
        info.jobspec  # noqa: B018


def test_a_spec_is_built_once_and_is_no_part_of_what_is_written():
    info = read(write(INFO), "local", "train")

    assert info.jobspec is info.jobspec
    assert info.retry is info.retry
    assert write(info) == write(INFO)
    assert info == INFO
