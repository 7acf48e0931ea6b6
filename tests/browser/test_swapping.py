"""Changing a running job's code: from its card, by running its edited cell again, from the sidebar."""

import pytest

from tests.browser.axe import violations
from tests.browser.sidebar import THEMES
from tests.browser.test_commands import has_cells

TRAIN = """%%torchjob --name {name} -d
import time
from pathlib import Path
from nbtorchjob import report, swap_point
scale = 1.0
def loss():
    return scale
step = 0
while not Path({gate!r}).exists():
    step += 1
    report(step=step, loss=loss())
    time.sleep(0.05)
    swap_point()
loss()
"""


@pytest.fixture
def training(lab, gate, request):
    """Yield a notebook, in which cell 2 has started a job and cell 3 attaches to it, and the job's name."""
    name = request.node.name.replace("_", "-")[:30].rstrip("-")
    cells = ["%load_ext nbtorchjob", TRAIN.format(name=name, gate=str(gate)), f"%torchjob attach {name}"]
    notebook = lab.open(request.node.name, cells)
    notebook.run(0)
    notebook.run(1)
    notebook.output(1).locator(".nbt-reads").wait_for()
    yield notebook, name
    gate.touch()
    notebook.page.close()


def test_a_value_is_set_by_keyboard_from_the_card_that_shows_it(training, gate):
    notebook, name = training
    reads = notebook.output(1).locator(".nbt-reads")
    assert "scale 1.0" in reads.inner_text()
    button = reads.get_by_role("button", name="Set values…")
    button.focus()
    notebook.page.keyboard.press("Enter")
    dialog = notebook.page.get_by_role("dialog")
    dialog.get_by_label("scale").wait_for()
    for theme in THEMES:
        assert violations(notebook.page, ".jp-Dialog", theme) == []
    dialog.get_by_label("scale").fill("3.5")
    notebook.page.keyboard.press("Enter")
    notebook.page.get_by_text(f"{name}: swapped on all ranks at call").first.wait_for()

    reads.get_by_text("3.5").wait_for()
    gate.touch()
    notebook.run(2)
    notebook.output(2).locator(".nbt-head").get_by_text("3.5").wait_for()


def test_an_edited_cell_is_swapped_in_by_one_press(training, gate):
    notebook, name = training
    put = "s => jupyterapp.shell.currentWidget.content.model.cells.get(1).sharedModel.setSource(s)"
    notebook.page.evaluate(put, notebook.source(1).replace("return scale", "return scale * 10"))
    notebook.run(1)
    asks = notebook.output(1).locator(".nbtorchjob.nbt-act")
    asks.wait_for()
    assert f"{name} still runs this cell's earlier code" in asks.inner_text()
    for theme in THEMES:
        assert violations(notebook.page, ".nbtorchjob.nbt-act", theme) == []
    assert asks.get_by_role("button").evaluate_all("all => all.map(one => one.title)") == [
        "Swap",
        "Attach",
        "New job",
    ]
    asks.get_by_role("button", name="Swap").click()

    has_cells(notebook, 4)
    notebook.output(2).get_by_text(f"{name}: swapped on all ranks at call").wait_for()
    assert notebook.source(2) == f"%torchjob swap {name}"
    gate.touch()
    notebook.run(3)
    notebook.output(3).locator(".nbt-head").get_by_text("10.0").wait_for()


def test_the_sidebar_begins_a_cell_that_swaps(training):
    notebook, name = training
    notebook.sidebar.job(name, "Running")
    assert {"Set Values…", "Swap Code…"} < {*notebook.sidebar.menu(name)}
    notebook.page.get_by_role("menuitem", name="Swap Code…").click()

    has_cells(notebook, 4)
    assert notebook.source(2) == f"%%torchjob --swap {name}\n"
