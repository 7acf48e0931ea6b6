"""The commands that act on a notebook: a cell runs as a job, the panel's line goes to a cell."""

import pytest

from tests.browser.axe import violations
from tests.browser.sidebar import THEMES

CELL = "import os\nint(os.environ['WORLD_SIZE']) + 41"
PANEL = "from nbtorchjob import *\npanel = ConfigPanel(JobSpec(Elastic(1, 2)))\npanel"


@pytest.fixture
def fresh(lab, request):
    """Yield a function that opens a notebook of the test's own, in which the magics aren't loaded."""
    pages = []

    def open_(*cells):
        notebook = lab.open(request.node.name, cells)
        pages.append(notebook.page)
        notebook.select(0)
        notebook.idle()
        return notebook

    yield open_
    for page in pages:
        page.close()


def from_palette(notebook, label):
    """Choose a command by its name, as a user does who doesn't know its place."""
    page = notebook.page
    page.keyboard.press("Control+Shift+C")
    page.get_by_placeholder("SEARCH", exact=True).fill(label)
    page.locator(".lm-CommandPalette-item").filter(has_text=label).first.click()


def size(notebook, nodes="", ranks=""):
    """Answer the dialog that asks for a job's nodes and ranks."""
    dialog = notebook.page.get_by_role("dialog")
    dialog.get_by_label("Nodes", exact=True).fill(nodes)
    dialog.get_by_label("Ranks per node").fill(ranks)
    dialog.get_by_role("button", name="Run").click()


def panel(notebook):
    return notebook.output(0).locator(".nbtorchjob-panel")


def insert(notebook):
    """Press the panel's button that puts its line into the notebook."""
    panel(notebook).get_by_role("button", name="Insert into a cell").click()


def has_cells(notebook, count):
    """Wait until the notebook has so many cells."""
    cells = "count => jupyterapp.shell.currentWidget.content.widgets.length === count"
    notebook.page.wait_for_function(cells, arg=count)


def test_a_cell_runs_as_a_job_from_the_palette_where_nothing_is_loaded(fresh):
    notebook = fresh(CELL)
    from_palette(notebook, "Run Cell as Torch Job")
    size(notebook)

    notebook.output(0).locator("pre").get_by_text("42", exact=True).wait_for()
    assert notebook.source(0) == f"%%torchjob\n{CELL}"


def test_a_notebook_is_asked_once_for_its_jobs_size(fresh):
    notebook = fresh(CELL, CELL)
    notebook.command("nbtorchjob:run-cell")
    size(notebook, ranks="2")
    notebook.output(0).locator("pre").get_by_text("43", exact=True).wait_for()
    notebook.run(1, "nbtorchjob:run-cell")

    notebook.output(1).locator("pre").get_by_text("43", exact=True).wait_for()
    assert notebook.source(1) == f"%%torchjob --nproc-per-node 2\n{CELL}"


def test_who_takes_the_question_back_runs_nothing(fresh):
    notebook = fresh(CELL)
    notebook.command("nbtorchjob:run-cell")
    notebook.page.get_by_role("dialog").wait_for()
    notebook.page.keyboard.press("Escape")
    notebook.page.get_by_role("dialog").wait_for(state="detached")

    assert notebook.source(0) == CELL


def test_axe_finds_nothing_wrong_with_the_question(fresh):
    notebook = fresh(CELL)
    notebook.command("nbtorchjob:run-cell")
    notebook.page.get_by_role("dialog").wait_for()
    wrong = {theme: violations(notebook.page, ".jp-Dialog", theme) for theme in THEMES}
    notebook.page.keyboard.press("Escape")

    assert not any(wrong.values()), wrong


def test_a_cell_that_has_its_line_keeps_it_and_runs_from_the_toolbar(fresh):
    source = f"%%torchjob --nproc-per-node 2\n{CELL}"
    notebook = fresh(source)
    notebook.page.locator(".jp-cell-toolbar [data-command='nbtorchjob:run-cell']").click()

    notebook.output(0).locator("pre").get_by_text("43", exact=True).wait_for()
    assert notebook.source(0) == source


def test_a_cell_runs_as_a_job_by_its_shortcut(fresh):
    notebook = fresh(CELL)
    notebook.page.locator(".jp-Notebook .cm-content").first.click()
    notebook.page.keyboard.press("Control+Shift+Enter")
    notebook.page.get_by_role("dialog").wait_for()
    notebook.page.keyboard.press("Enter")

    notebook.output(0).locator("pre").get_by_text("42", exact=True).wait_for()


def test_a_cell_of_another_magic_is_refused_and_stays_as_it_was(fresh):
    notebook = fresh("%%bash\nls")
    from_palette(notebook, "Run Cell as Torch Job")

    notebook.page.get_by_role("dialog").get_by_text("This cell is run by %%bash").wait_for()
    assert notebook.source(0) == "%%bash\nls"


def test_the_panel_is_opened_from_the_sidebar(fresh):
    notebook = fresh("1")
    notebook.sidebar.node.get_by_role("button", name="Open the options panel").click()

    notebook.output(1).locator(".nbtorchjob-panel").wait_for()
    assert notebook.source(1) == "%torchjob config"


def test_the_panel_s_line_goes_to_a_new_cell_and_then_replaces_that_one_s(fresh):
    notebook = fresh(PANEL, "x = 1")
    notebook.run(0)
    insert(notebook)
    has_cells(notebook, 3)
    line = "%%torchjob --nproc-per-node"
    assert [notebook.source(index) for index in range(3)] == [PANEL, f"{line} 2\n", "x = 1"]

    ranks = panel(notebook).get_by_label("nproc-per-node", exact=True)
    ranks.fill("4")
    ranks.press("Tab")
    panel(notebook).get_by_text(f"{line} 4").wait_for()
    insert(notebook)

    source = "jupyterapp.shell.currentWidget.content.model.cells.get(1).sharedModel.source"
    notebook.page.wait_for_function(f"() => {source}.includes('4')")
    assert [notebook.source(index) for index in range(3)] == [PANEL, f"{line} 4\n", "x = 1"]


def test_a_command_without_a_job_asks_which_one_is_meant(fresh):
    notebook = fresh("%%torchjob --name chosen\n1")
    notebook.page.evaluate("() => jupyterapp.commands.execute('nbtorchjob:run-cell')")
    notebook.sidebar.job("chosen", "Succeeded")
    from_palette(notebook, "Describe Torch Job")
    dialog = notebook.page.get_by_role("dialog")
    dialog.get_by_role("combobox").select_option(index=0)
    dialog.get_by_role("button", name="Describe").click()

    notebook.page.get_by_role("heading", name="chosen succeeded").wait_for()
