"""The elements of cards."""

import re
from pathlib import Path

from nbtorchjob.state import Phase
from nbtorchjob.ui import elements
from nbtorchjob.ui.elements import PHASES, text_line

STATES = Path(__file__).parents[2] / "labextension" / "style" / "states.css"
CARD = Path(elements.__file__).parent / "card" / "style.css"


def test_each_phase_has_a_colour_and_the_extension_s_style_knows_no_other_state():
    named = re.findall(r"data-nbtorchjob-state='(\w+)'", STATES.read_text())

    assert PHASES.keys() == {*Phase}
    assert {name.upper() for name in named} - {"WAITING", "SUSPENDED", "ATTENTION"} <= {
        phase.value for phase in Phase
    }
    assert {"running", "failed", "succeeded"} < {*named}


def test_card_and_sidebar_have_the_same_colour_for_each_state():
    card = dict(
        re.findall(
            r"\.(nbt-\w+) \{ --nbt-tone: color-mix\(in srgb, ([^,]+), currentcolor\)", CARD.read_text()
        )
    )
    mixed = r"color-mix\(in srgb, ([^,]+), var\(--jp-ui-font-color1\)\)"
    sidebar = dict(re.findall(rf"='(\w+)'\] \{{\s*--jp-nbtorchjob-state: {mixed}", STATES.read_text()))

    names = {"nbt-run": "running", "nbt-ok": "succeeded", "nbt-bad": "failed", "nbt-act": "attention"}
    assert {names[name]: mix for name, mix in card.items()} == sidebar


def test_an_option_isnt_broken_in_two_lines():
    assert '>raise <span style="white-space:nowrap">--shm-size</span> &lt;b&gt;<' in text_line(
        "raise --shm-size <b>"
    )
