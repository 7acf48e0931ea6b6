"""Generated names of jobs.

Also notes and tags that a user puts on a job: where they show, how to search for them, and that they stay.
"""

import json
import re
import time
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob import SpecError, api, attach
from nbtorchjob.backends import backend, naming
from nbtorchjob.commands.table import VERBS
from nbtorchjob.errors import LineError
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.ui.card import render
from nbtorchjob.ui.record import record
from tests.backends.local.acted import Acted


def test_a_job_that_runs_once_more_is_numbered_where_its_name_was_given():
    assert list(islice(naming.again("train()", "train"), 3)) == ["train-2", "train-3", "train-4"]


def test_else_it_gets_a_new_one_each_time():
    names = list(islice(naming.again("train(lr=1)", None), 3))

    assert len(set(names)) == 3
    assert all(re.fullmatch(r"train-[a-z0-9]{4}", name) for name in names)


@pytest.mark.parametrize(
    ("label", "stem"),
    [("CNN überall-4", "cnn-uberall-4"), ("cafe\u0301(lr=1)", "cafe"), ("训练", "job"), ("2-Läufe", "laufe")],
)
def test_a_generated_name_keeps_letters_with_accents(label, stem):
    assert naming.stem(naming.generate(label)) == stem


@given(base=st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True), number=st.integers(2, 9999))
def test_a_numbered_name_is_a_name_as_well(base, number):
    name = naming.run(base, number)

    assert JobSpec(name=name).name == name
    assert name.endswith(f"-{number}")
    assert naming.is_run(name, base)


def test_no_other_name_is_a_run_of_it():
    checks = [naming.is_run(name, "train") for name in ("train", "train-2", "train-1", "train-x", "trains-2")]

    assert checks == [True, True, False, False, False]


@pytest.fixture
def job():
    """Yield a job with a folder that the test writes."""
    job = Acted()
    yield job
    job.remove()


def says(verb, *words):
    """Return the answers of a verb, as text and as data."""
    row = VERBS[verb]
    assert row.answers is not None
    return [(answer.text, answer.data) for answer in row.answers(row.parse(words), attach)]


def listed(*words):
    ((text, data),) = [answer for answer in says("list", *words) if "jobs" in answer[1]]
    return text, [row["name"] for row in data["jobs"]]


def test_a_running_and_an_ended_job_take_notes_and_tags(job):
    job.begin()
    assert says("note", job.name) == [
        (f"{job.name}: no note, no tags", {"name": job.name, "note": "", "tags": []})
    ]
    ((text, _),) = says("tag", job.name, "baseline", "#lr:0.1")
    assert text == f"{job.name}: #baseline #lr:0.1"

    job.end()
    ((text, data),) = says("note", job.name, "the", "one", "to", "beat")
    assert text == f"{job.name}: #baseline #lr:0.1 · the one to beat"
    assert data == {"name": job.name, "note": "the one to beat", "tags": ["baseline", "lr:0.1"]}
    ((text, _),) = says("tag", job.name, "lr:0.1", "none", "--remove")
    assert text == f"{job.name}: #baseline · the one to beat"
    ((text, _),) = says("note", job.name, "--clear")
    assert text == f"{job.name}: #baseline"
    for verb, words in (("note", ["a", "--clear"]), ("tag", ["--remove"])):
        with pytest.raises(LineError):
            says(verb, job.name, *words)


def test_they_show_in_lists_cards_descriptions_and_records_and_are_searched(job):
    other = Acted()
    job.begin()
    job.end()
    assert job.name in listed()[1]  # ended, and read once
    attach(job.name).note("Warmup was TOO short")
    attach(job.name).tag("v2")

    text, names = listed("#v2", "too")
    assert names == [job.name]
    assert "acted · #v2 · Warmup was TOO short" in text
    assert listed("#v2", "nowhere") == ("No job matches '#v2 nowhere'.", [])
    assert {job.name, other.name} <= {*listed("ACTED")[1]}
    state = api.snapshot(job.name)
    assert "#v2 · Warmup was TOO short" in render.html(state, time.time())
    ((description, _),) = says("describe", job.name)
    assert "#v2 · Warmup was TOO short" in description
    entry = record(state, time.time())
    assert (entry["note"], entry["tags"]) == ("Warmup was TOO short", ["v2"])
    other.remove()


@pytest.mark.parametrize(
    "note", ["\u0645\u06cc\u200c\u0645\u0627\u0646\u062f", "by \U0001f469\u200d\U0001f4bb"]
)
def test_a_note_may_have_the_joiners_of_persian_and_emoji(job, note):
    attach(job.name).note(note)

    annotated = attach(job.name).state.annotated
    assert annotated is not None
    assert annotated.note == note


@pytest.mark.parametrize("note", ["\u202egnp.exe", "\x1b[2J"])
def test_a_note_may_not_act_on_what_shows_it(job, note):
    with pytest.raises(SpecError, match="printable characters"):
        attach(job.name).note(note)


def test_a_handle_that_has_seen_the_end_knows_them_at_once(job):
    job.begin()
    job.end()
    handle = attach(job.name)
    assert handle.wait(60)

    for tag in ("one", "two"):
        handle.tag(tag)
    assert handle.state.annotated is not None
    assert handle.state.annotated.tags == ("one", "two")


def test_an_ended_job_is_kept_no_longer_for_a_note(job):
    job.begin()
    job.end()
    before = job.folder.events.stat().st_mtime_ns

    attach(job.name).note("late")

    assert job.folder.events.stat().st_mtime_ns == before
    assert json.loads(job.folder.events.read_text().splitlines()[-1])["note"] == "late"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"note": "x" * 2001}, "at most 2,000 printable characters"),
        ({"add": ["two words"]}, "a word of at most 63 letters"),
        ({"add": [""]}, "a word of at most 63 letters"),
        ({"add": ["x" * 64]}, "a word of at most 63 letters"),
        ({"tags": ["-v"]}, "a word of at most 63 letters"),
        ({"tags": ["_draft"]}, "which begins with a letter or digit"),
        ({"add": [".hidden"]}, "which begins with a letter or digit"),
        ({"add": [f"t{n}" for n in range(33)]}, "at most 32 tags"),
    ],
)
def test_what_is_no_note_or_tag_is_refused_and_changes_nothing(job, change, words):
    state = api.snapshot(job.name)
    with pytest.raises(SpecError, match=words):
        naming.annotate(backend("local"), state, **change)
    assert api.snapshot(job.name).annotated is None
