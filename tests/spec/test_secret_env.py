"""Variables with values that appear nowhere."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

import nbtorchjob
from nbtorchjob.backends.local import directory
from nbtorchjob.errors import SpecError
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import magic_line, parse
from nbtorchjob.ui import page, record
from nbtorchjob.ui.card import describe
from tests.patience import LIMIT

VALUE = "hunter2-hunter2"
URL = f"postgres://me:{VALUE}@db/x"


def test_what_looks_secret_is_in_no_text_of_a_spec_and_reaches_whoever_sends_it():
    spec = JobSpec(env={"HF_TOKEN": VALUE, "DB": URL, "TOKENIZERS_PARALLELISM": "false"})

    for text in (repr(spec), json.dumps(spec.to_json()), magic_line(spec)):
        assert VALUE not in text
        assert "HF_TOKEN" in text
    assert dict(spec.env) == {"TOKENIZERS_PARALLELISM": "false"}
    assert spec.secrets() == {"HF_TOKEN": VALUE, "DB": URL}
    assert pickle.loads(pickle.dumps(spec)).secrets() == spec.secrets()
    assert JobSpec.from_json(spec.to_json()).secret_env == ("HF_TOKEN", "DB")


def test_a_secret_of_this_process_goes_by_its_name(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", VALUE)
    spec, _ = parse("--secret-env WANDB_API_KEY", JobSpec())

    assert VALUE not in repr(spec)
    assert spec.secrets() == {"WANDB_API_KEY": VALUE}
    monkeypatch.delenv("WANDB_API_KEY")
    with pytest.raises(SpecError, match=r"WANDB_API_KEY.*a variable that is set"):
        spec.secrets()


@pytest.mark.parametrize("name", ["A=1", "a b", "", "-x"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(SpecError, match="secret_env"):
        JobSpec(secret_env=[name])


def test_a_plain_value_laid_over_a_secret_one_is_plain():
    spec, _ = parse("--env DB=sqlite://", JobSpec(env={"DB": URL}))

    assert (dict(spec.env), spec.secret_env, spec.secrets()) == ({"DB": "sqlite://"}, (), {})


@pytest.mark.parametrize("name", ["HF_TOKEN", "PLAIN"])
def test_a_line_that_names_a_secret_means_this_processs_value(name, monkeypatch):
    profile = JobSpec(env={name: "the profile's", "OTHER_TOKEN": "abc"})

    spec, _ = parse(f"--secret-env {name}", profile)

    with pytest.raises(SpecError, match=rf"{name}.*a variable that is set"):
        spec.secrets()
    monkeypatch.setenv(name, VALUE)
    assert (dict(spec.env), spec.secrets()) == ({}, {name: VALUE, "OTHER_TOKEN": "abc"})
    assert parse(magic_line(spec, base=profile), profile)[0] == spec


def test_a_line_over_a_profile_leaves_its_secrets_to_it():
    profile = JobSpec(env={"HF_TOKEN": "abc"})
    spec, _ = parse("--nnodes 2", profile)

    assert magic_line(spec, base=profile) == "--nnodes 2"


@pytest.mark.torch
def test_a_secret_value_reaches_the_ranks_here_and_is_in_no_record_of_the_job(monkeypatch):
    monkeypatch.setenv("MINE", f"mine-{VALUE}")
    spec = JobSpec(env={"HF_TOKEN": VALUE}, secret_env=["MINE"])
    job = nbtorchjob.submit(lambda: [os.environ["HF_TOKEN"], os.environ["MINE"]], spec=spec)

    assert job.result(LIMIT) == [VALUE, f"mine-{VALUE}"]
    monkeypatch.delenv("MINE")
    again = job.retry()
    assert again.result(LIMIT) == [VALUE, f"mine-{VALUE}"]
    for run in (job, again):
        state = run.state
        pages = (page.description(state, 0.0, {}, Path("/")), record.detail(state, 0.0, {}))
        shown = (json.dumps(pages, default=str), describe.text(state, 0.0, {}, Path("/")))
        kept = (directory.jobs_dir() / run.name / "job.json").read_text()
        assert not [text for text in (*shown, kept) if VALUE in text]
    with pytest.raises(SpecError, match="secret_env"):
        nbtorchjob.submit(int, spec=JobSpec(secret_env=["MINE"]))


def test_a_secret_of_any_name_that_a_system_takes_stays_where_a_spec_is_changed():
    spec = JobSpec(env={"0TOKEN": "a"})

    assert replace(spec, grace=9).hidden == {"0TOKEN": "a"}
    with pytest.raises(SpecError, match="secret_env"):
        JobSpec(secret_env=("0TOKEN",))  # this process can't have a variable of that name
