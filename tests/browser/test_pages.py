"""Cards in pages outside JupyterLab: exported, in the system's forced colours, without any style."""

import re

import nbformat
import pytest
from nbconvert import HTMLExporter

from nbtorchjob import api
from nbtorchjob.commands.table import OFFERS
from nbtorchjob.ui.card import view
from nbtorchjob.ui.runs import view as runs_view
from tests.browser import scripted
from tests.browser.axe import violations_of

# The words at the start of each card.
STATES = {
    "waiting": "Waiting eval",
    "running": "Running digits",
    "swapped": "Running finetune",
    "hung": "Hung stuck",
    "debugging": "Debugging sizes",
    "failed": "Failed boom",
    "succeeded": "Succeeded baseline",
    "elastic": "Running elastic",
    "ranks": "Hung pretrain",
    "sweep": "Failed sw",
}
# In forced colours, a part that shows something by its background alone would vanish; a border stays.
_SEEN = """selector => [...document.querySelectorAll(selector)].every(part => {
  const {borderTopStyle, borderTopWidth} = getComputedStyle(part);
  return borderTopStyle === "solid" && parseFloat(borderTopWidth) >= 1;
})"""


@pytest.fixture(scope="module")
def cards(tmp_path_factory):
    """Yield the card of each state, by the state's name."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    shown = {}
    for state, expression in scripted.write().items():
        if state == "sweep":
            shown[state] = runs_view.mimebundle("sw", [job.state for job in api.group("sw")])
        else:
            name = expression.split("'")[1]
            shown[state] = view.mimebundle(api.snapshot(name), OFFERS)
    yield shown
    patch.undo()


@pytest.fixture(scope="module")
def exported(cards):
    """Return the page that nbconvert makes of a notebook with these cards."""
    outputs = [nbformat.v4.new_output("display_data", data=card) for card in cards.values()]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=outputs)])
    html, _ = HTMLExporter(embed_images=True).from_notebook_node(book)
    # These scripts, for mathematics and diagrams, would come from the network.
    return re.sub(r"<script[^>]*src=.*?</script>", "", html, flags=re.DOTALL)


@pytest.fixture
def page(chromium, exported):
    page = chromium.new_page(viewport={"width": 900, "height": 1200})
    page.route("**/*", lambda route: route.abort())
    page.set_content(exported)
    yield page
    page.close()


def heads(page):
    return [
        " ".join(text.replace("\u25cf", "").split()) for text in page.locator(".nbtorchjob").all_inner_texts()
    ]


def test_an_exported_page_shows_each_state_in_words(page):
    shown = zip(heads(page), STATES.values(), strict=True)
    assert [(text, head) for text, head in shown if not text.startswith(head)] == []


def test_without_styles_and_colours_a_card_reads_from_top_to_bottom(page):
    page.evaluate(
        """() => {
          document.querySelectorAll("style, link").forEach(part => part.remove());
          document.querySelectorAll("[style]").forEach(part => part.removeAttribute("style"));
        }"""
    )
    texts = dict(zip(STATES, heads(page), strict=True))

    assert all(texts[state].startswith(head) for state, head in STATES.items())
    for state, order in {
        "waiting": ("Waits for stuck", "%torchjob cancel stuck"),
        "running": ("epoch 26 / 40", "loss 0.2791", "rank 0 · 26 lines"),
        "hung": ("Rank 1 never entered all_reduce", "epoch 20 / 40"),
        "debugging": ("Rank 0 stops at Cell In[12], line 5", "%torchjob debug sizes"),
        "failed": ("RuntimeError: shape", "----> 9", "Your code raised this"),
        "sweep": ("7 done, 1 failed", "★ best", "rank 0: ValueError: loss is NaN"),
    }.items():
        places = [texts[state].find(part) for part in order]
        assert -1 not in places, (state, order, texts[state])
        assert places == sorted(places), (state, texts[state])
    assert all(page.locator("img.nbtorchjob-chart").nth(n).get_attribute("alt") for n in range(4))


def test_in_the_systems_few_colours_nothing_is_shown_by_a_ground_alone(page):
    page.emulate_media(forced_colors="active")

    for part in (".nbt-bar", ".nbt-ranks > span", ".nbt-node > b", ".nbt-share > div"):
        assert page.locator(part).count(), part
        assert page.evaluate(_SEEN, part), part


def test_axe_finds_nothing_wrong_with_any_state_of_an_exported_page(page):
    assert violations_of(page, ".nbtorchjob") == []


@pytest.mark.parametrize(("ground", "ink"), [("#383838", "#e3e3e3"), ("#1e1e1e", "#cccccc")])
def test_axe_finds_nothing_wrong_on_the_dark_grounds_of_colab_and_vs_code(page, cards, ground, ink):
    shown = "".join(card["text/html"] for card in cards.values())
    page.set_content(f'<!doctype html><main style="background:{ground};color:{ink}">{shown}</main>')

    assert violations_of(page, ".nbtorchjob") == []
