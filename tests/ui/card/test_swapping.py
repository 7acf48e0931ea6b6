"""Swaps that a card offers: of the values that a running job's code reads, and of an edited cell."""

import html
import json
import re

from nbtorchjob.commands.table import OFFERS
from nbtorchjob.state.facts.events import Swapped
from nbtorchjob.ui.card import render, sending
from tests.ui.card.test_render import build, ended, reports, started

CELL = """
rate, lr, mode, token = 0.5, 1.0, "<b>", "hidden"
rate = 0.25
mode = "<b>"
token = "hidden"
def loss(out):
    return out * rate + other if mode else token
for step in range(100):
    loss(step)
"""
INFO = {"sources": {"a": ("Cell In[3]", CELL)}, "name": "train", "captured": {"other": ("3", "")}}
RUNNING = build(*started(), *reports(2), **INFO)


def buttons(card):
    pattern = r'title="([^"]*)"[^>]*data-commandlinker-command="([^"]*)" data-commandlinker-args="([^"]*)"'
    return [
        (title, command, json.loads(html.unescape(args)))
        for title, command, args in re.findall(pattern, card)
    ]


def words(card):
    return html.unescape(re.sub("<[^>]*>", "", card))


def reads(card):
    row = re.search(r'<div class="nbt-reads".*?</div>', card)
    return re.sub("<[^>]*>", "", row[0]).split() if row else []


def test_a_running_job_shows_the_values_that_its_code_reads_and_a_button_that_sets_them():
    card = render.html(RUNNING, 1005.0, offers=OFFERS)

    assert reads(card) == ["reads", "mode", "&#x27;&lt;b&gt;&#x27;", "other", "3", "rate", "0.25"]
    assert ("Set values…", "nbtorchjob:set", {"id": "local:train", "created": 1000.0}) in buttons(card)
    assert ("Swap code…", "nbtorchjob:swap", {"id": "local:train", "created": 1000.0}) in buttons(card)
    swapped = Swapped(1004.0, 0, 0, 1, "s", "ada", "rate = 7", "", {"rate": "replaced"}, "report()", 1)
    assert reads(render.html(build(*started(), *reports(2), swapped, **INFO), 1005.0))[-1] == "7"


def test_a_job_whose_code_cant_be_swapped_shows_none():
    ended_ = build(*started(), *reports(2), *ended(0), **INFO)
    silent = build(*started(), **INFO)
    for state in (ended_, silent):
        card = render.html(state, 1010.0, offers=OFFERS)
        assert reads(card) == []
        assert not {"nbtorchjob:set", "nbtorchjob:swap"} & {command for _, command, _ in buttons(card)}


def test_an_edited_cell_can_be_swapped_in_attached_to_or_run_beside_its_job():
    card = sending.choice(RUNNING, CELL.replace("out * rate", "out - rate"), "--name train-2 -d")

    assert buttons(card) == [
        ("Swap", "nbtorchjob:swap", {"id": "local:train", "created": 1000.0, "edited": "true"}),
        ("Attach", "nbtorchjob:attach", {"id": "local:train", "created": 1000.0}),
        ("New job", "nbtorchjob:run-cell", {"options": "--name train-2 -d"}),
    ]
    assert "all its ranks go on with the cell's loss, by %torchjob swap train" in words(card)


def test_an_edited_cell_that_cant_be_swapped_in_says_why():
    card = sending.choice(RUNNING, CELL.replace("range(100)", "range(9)"), "")

    assert [title for title, *_ in buttons(card)] == ["Attach"]
    assert "line 8 of the cell (for step in range(9):) isn't what train runs" in words(card)
    assert "while it runs: train is submitted" in words(sending.choice(build(**INFO), CELL, ""))
