"""The pages generated from the code: ``GOLDEN=write pytest tests/docs`` writes them again."""

import os
from pathlib import Path

import pytest

from docs._generate import PAGES, markdown, options
from nbtorchjob.spec import profiles
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import KEYS, TABLE, parse
from nbtorchjob.spec.overlay import value_at

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name):
    page = PAGES[name]()
    if os.environ.get("GOLDEN") == "write":
        (DOCS / name).write_text(page)

    assert page == (DOCS / name).read_text()


def test_a_bar_ends_no_cell():
    assert markdown.table(("a", "b"), [("1|2", "")]) == "| a | b |\n| --- | --- |\n| 1\\|2 |  |"


@pytest.mark.parametrize("option", TABLE, ids=lambda option: option.key)
def test_every_value_that_the_page_tries_can_be_given(option):
    for value in options.samples(option):
        parse(options.line(option, value), JobSpec())


@pytest.mark.parametrize("option", KEYS.values(), ids=lambda option: option.key)
def test_every_variable_on_the_page_is_read(option):
    value = options.samples(option)[0]
    # Without these nothing can be preemptible, and no cache is mounted.
    beside = {"NBTORCHJOB_SPOT_TOLERATION": "spot", "NBTORCHJOB_MOUNT": "type=bind,src=/var/cache,dst=/cache"}
    spec = profiles.default(environ={**beside, option.variable: value or "1"})

    assert value_at(option, spec) == value_at(option, parse(options.line(option, value), JobSpec())[0])
