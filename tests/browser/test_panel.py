"""The configuration panel in JupyterLab: from its fields to a finished job."""

import re

import pytest

from tests.browser.axe import violations

PANEL = """%load_ext nbtorchjob
from nbtorchjob import *
def train(lr=0.1): return lr + 41.9
panel = ConfigPanel({spec})
panel"""


@pytest.fixture
def opened(lab, request):
    """Yield a function that opens a panel for a spec, in a notebook of the test's own."""
    notebooks = []

    def panel(spec="JobSpec(Elastic(1, 1))", *cells):
        name = re.sub(r"\W+", "-", request.node.name)
        notebook = lab.open(name, [PANEL.format(spec=spec), *cells])
        notebooks.append(notebook)
        notebook.run(0)
        notebook.output(0).locator(".nbtorchjob-panel").wait_for()
        return notebook

    yield panel
    for notebook in notebooks:
        notebook.page.close()


def panel(notebook):
    return notebook.output(0).locator(".nbtorchjob-panel")


def fill(notebook, label, text):
    field = panel(notebook).get_by_label(label, exact=True)
    field.fill(text)
    field.press("Tab")


def unfold(notebook, *titles):
    for title in titles:
        panel(notebook).get_by_role("button", name=title).click()


def line(notebook):
    return panel(notebook).locator(".nbtorchjob-text pre").first


def test_a_function_is_run_from_the_panel_to_its_value(opened):
    notebook = opened()
    fill(notebook, "nproc-per-node", "2")
    line(notebook).get_by_text("%%torchjob --nproc-per-node 2").wait_for()
    panel(notebook).get_by_role("button", name="Run", exact=True).click()

    notebook.output(0).locator(".nbt-state:text-is('Succeeded')").wait_for()
    assert "→ 42.0" in notebook.output(0).locator(".nbtorchjob").last.inner_text()


def test_a_bare_magic_uses_what_the_panel_says(opened):
    notebook = opened("JobSpec(Elastic(1, 1))", "%%torchjob\nimport os; os.environ['WORLD_SIZE']")
    fill(notebook, "nproc-per-node", "3")
    line(notebook).get_by_text("--nproc-per-node 3").wait_for()
    notebook.run(1)

    notebook.output(1).locator("pre").get_by_text("'3'", exact=True).wait_for()


def test_what_is_wrong_stands_beside_its_field_and_nothing_can_be_run(opened):
    notebook = opened()
    unfold(notebook, "Advanced", "Launch")
    fill(notebook, "max-restarts", "many")
    wrong = panel(notebook).locator(".nbtorchjob-wrong")
    wrong.wait_for()

    assert "got 'many', but it must be a whole number" in wrong.inner_text()
    assert panel(notebook).get_by_role("button", name="Run", exact=True).is_disabled()

    fill(notebook, "max-restarts", "2")
    wrong.wait_for(state="detached")
    panel(notebook).get_by_role("button", name="Run", exact=True, disabled=False).wait_for()


def test_the_fields_change_with_the_launch(opened):
    notebook = opened()
    unfold(notebook, "Advanced", "Launch")
    panel(notebook).get_by_label("max-restarts", exact=True).wait_for()
    panel(notebook).get_by_role("button", name="PyTorch").click()
    panel(notebook).get_by_label("max-restarts", exact=True).wait_for(state="hidden")

    # The kernel sends the call after the fields.
    panel(notebook).locator("pre", has_text="submit(").filter(has_text="PyTorch(").wait_for()


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast"])
def test_axe_finds_nothing_wrong_with_the_panel(opened, theme):
    notebook = opened()
    unfold(notebook, "Advanced", "Launch")
    fill(notebook, "max-restarts", "many")
    panel(notebook).locator(".nbtorchjob-wrong").wait_for()

    assert violations(notebook.page, ".nbtorchjob-panel", theme) == []
