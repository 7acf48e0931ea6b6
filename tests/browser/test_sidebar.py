"""The sidebar: what its user does with jobs, while cells block, kernels restart and jobs fail."""

import re
import zipfile

import pytest

from tests.browser.axe import violations
from tests.browser.sidebar import THEMES

# The page in front that describes one job or compares several.
SHOWN = ".jp-nbtorchjob-page:not(.lm-mod-hidden *)"
# The first items in the menu of every job on this machine.
OPENED = ("Open Logs", "Download Logs", "Browse Files", "Attach", "Go to Cell", "Describe", "Note and Tags")

HOSTILE = "<img src=x onerror='window.owned = 1'>"
# Run until the test has seen enough and creates the gate file.
GATED = """import time
from pathlib import Path
while not Path({gate!r}).exists():
    time.sleep(0.05)
{end}"""


@pytest.fixture
def running(notebook, gate):
    """Yield a function that runs a cell, which waits for its job, and returns the cell's index."""

    def run(name, end="6 * 7"):
        index = notebook.run_new(f"%%torchjob --name {name}\n{GATED.format(gate=str(gate), end=end)}")
        notebook.sidebar.job(name, "Running")
        return index

    yield run
    gate.touch()
    notebook.page.keyboard.press("Escape")  # close what a failed test left open


@pytest.fixture
def failed(notebook):
    """Return a function that runs a cell with a failing job and returns the cell's index."""

    def run(name, text="no more"):
        index = notebook.run_new(f"%%torchjob --name {name}\nraise ValueError({text!r})")
        notebook.sidebar.job(name, "Failed")
        return index

    return run


def look_away(page):
    """Go to another tab: a user with the notebook in view gets no notice when its jobs end."""
    page.evaluate("() => { jupyterapp.commands.execute('launcher:create'); }")


def answer(page, button):
    """Press a button of the dialog that is open."""
    page.get_by_role("dialog").get_by_role("button", name=button).click()


def test_a_job_comes_up_runs_and_succeeds_and_its_end_is_told(notebook, running, gate):
    cell = running("comes-up")
    notebook.page.get_by_role("button", name=re.compile("torch jobs? running")).wait_for()
    look_away(notebook.page)
    gate.touch()

    notebook.page.get_by_role("alert").get_by_text("comes-up succeeded after").wait_for()
    notebook.sidebar.job("comes-up", "Succeeded")
    notebook.sidebar.choose("comes-up", "Go to Cell")
    notebook.output(cell).locator("pre:text-is('42')").wait_for()


def test_a_job_is_cancelled_while_the_kernel_is_busy_with_its_cell(notebook, running, gate):
    cell = running("endless")
    notebook.sidebar.press("endless", "Cancel")
    answer(notebook.page, "Cancel Job")

    notebook.output(cell).locator(".nbt-state:text-is('Cancelled')").wait_for()
    notebook.sidebar.job("endless", "Cancelled")
    notebook.idle()
    assert not gate.exists()


def test_who_takes_a_cancel_back_keeps_the_job(notebook, running, gate):
    running("kept")
    notebook.sidebar.press("kept", "Cancel")
    answer(notebook.page, "Keep It")
    gate.touch()

    notebook.sidebar.job("kept", "Succeeded")


def test_a_failed_job_is_retried_from_the_sidebar_and_from_its_card(notebook, failed):
    cell = failed("fails")
    notebook.sidebar.press("fails", "Retry")
    notebook.sidebar.job("fails-2", "Failed")

    notebook.output(cell).get_by_role("button", name="Retry").click()

    again = notebook.sidebar.job("fails-3", "Failed")
    assert "ValueError: no more" in again.inner_text()


def test_after_a_restart_of_the_kernel_a_job_is_attached_to_and_gives_its_value(notebook, running, gate):
    cell = running("survives")
    notebook.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    notebook.sidebar.press("survives", "Attach")
    condition = "cell => jupyterapp.shell.currentWidget.content.widgets.length === cell + 2"
    notebook.page.wait_for_function(condition, arg=cell)
    assert notebook.source(cell + 1) == "%torchjob attach survives"

    gate.touch()

    notebook.output(cell + 1).locator("pre:text-is('42')").wait_for()


def test_a_job_leads_to_its_cell_from_another_notebook(notebook, failed, lab):
    cell = failed("wanted")
    notebook.saved()
    other = lab.open("another", ["1"])
    other.sidebar.choose("wanted", "Go to Cell")

    active = """([path, cell]) => {
      const {context, content} = jupyterapp.shell.currentWidget;
      return context?.path === path && content.activeCellIndex === cell;
    }"""
    other.page.wait_for_function(active, arg=[notebook.path.name, cell])
    other.page.close()


def test_a_job_is_described(notebook, failed):
    failed("described")
    notebook.sidebar.choose("described", "Describe")

    page = notebook.page.locator(SHOWN)
    page.get_by_text("ValueError: no more").first.wait_for()
    assert page.locator("h1").inner_text().startswith("described failed")
    assert "raise ValueError('no more')" in page.locator("pre").last.inner_text()
    assert notebook.page.get_by_role("tab", name="Job: described").is_visible()


@pytest.fixture
def compared(notebook, failed):
    """Run two jobs that fail; yield the page that compares them."""
    for loss in (1, 2):
        failed(f"compared-{loss}", f"loss {loss}")
    sidebar = notebook.sidebar
    sidebar.search("compared-")
    for loss in (1, 2):
        sidebar.node.get_by_text(f"compared-{loss}", exact=True).click(
            modifiers=["Control"], position={"x": 3, "y": 5}
        )
    sidebar.node.get_by_role("button", name="Compare", exact=True).click()
    page = notebook.page.locator(SHOWN)
    page.get_by_text("2 jobs compared").wait_for()
    yield page
    sidebar.node.get_by_role("button", name="Clear", exact=True).click()


def test_two_jobs_are_compared(notebook, compared):
    page = compared
    assert "+raise ValueError('loss 2')" in page.locator("pre").last.inner_text()
    assert notebook.page.get_by_role("tab", name="Compare: 2 jobs").is_visible()


@pytest.mark.usefixtures("compared")
def test_axe_finds_nothing_wrong_with_a_comparison(notebook):
    wrong = {theme: violations(notebook.page, SHOWN, theme) for theme in THEMES}

    assert not any(wrong.values()), wrong


def test_a_job_is_deleted_once_that_was_confirmed(notebook, failed):
    failed("deleted")
    row = notebook.sidebar.job("deleted")
    notebook.sidebar.press("deleted", "Delete")
    answer(notebook.page, "Keep It")
    assert row.is_visible()

    notebook.sidebar.press("deleted", "Delete")
    answer(notebook.page, "Delete Job")

    row.wait_for(state="detached")


def test_only_what_makes_sense_is_offered(notebook, running, gate):
    running("some-job")
    offered = notebook.sidebar.menu("some-job")
    assert offered == [*OPENED, "Stacks", "Set Values…", "Swap Code…", "Cancel", "Delete"]
    notebook.page.keyboard.press("Escape")
    gate.touch()
    notebook.sidebar.job("some-job", "Succeeded")

    offered = notebook.sidebar.menu("some-job")
    assert offered == [*OPENED, "Retry", "Delete"]
    notebook.page.keyboard.press("Escape")


def test_what_a_job_left_is_downloaded(notebook):
    write = "from nbtorchjob import artifacts_dir\n(artifacts_dir() / 'loss.csv').write_text('0.5')"
    notebook.run_new(f"%%torchjob --name leaves\n{write}")
    notebook.sidebar.job("leaves", "Succeeded")
    assert "Download Artifacts" in notebook.sidebar.menu("leaves")

    with notebook.page.expect_download() as download:
        notebook.page.get_by_role("menuitem", name="Download Artifacts").click()
    with zipfile.ZipFile(download.value.path()) as file:
        assert file.read("leaves/loss.csv") == b"0.5"
    assert download.value.suggested_filename == "leaves-artifacts.zip"


def test_the_search_finds_jobs_by_what_is_known_of_them(notebook, failed):
    failed("needle")
    sidebar = notebook.sidebar
    sidebar.search("needle fail")
    sidebar.node.get_by_text("1 job found").wait_for()
    sidebar.search("nowhere")
    sidebar.node.get_by_role("button", name="Show all jobs").click()

    sidebar.job("needle")


@pytest.fixture
def sweep(notebook):
    """Run a cell as three jobs, one of which fails; return the row that stands for them, unfolded."""
    notebook.run_new("%%torchjob --each lr=1,2,3 --name sweep\nif lr == 2:\n    raise ValueError('no more')")
    row = notebook.sidebar.job("sweep", "Failed")
    if row.get_attribute("aria-expanded") == "false":
        row.click()
    return row


def test_the_runs_of_a_group_are_one_row_that_unfolds_and_is_deleted(notebook, sweep):
    sidebar, page = notebook.sidebar, notebook.page
    assert "2 done, 1 failed · test_sidebar.ipynb · 3 runs" in sweep.inner_text()
    runs = sidebar.node.locator("[role=row][aria-level='3'] .jp-nbtorchjob-jobs-name")
    assert runs.all_inner_texts() == ["sweep-r1", "sweep-r2", "sweep-r3"]

    assert "ValueError: no more" in sidebar.job("sweep-r2", "Failed").inner_text()
    assert sidebar.menu("sweep") == ["Attach to All Runs", "Retry Failed Runs", "Delete All Runs"]
    page.get_by_role("menuitem", name="Delete All Runs").click()
    answer(page, "Delete Jobs")
    sweep.wait_for(state="detached")


@pytest.mark.usefixtures("sweep")
def test_axe_finds_nothing_wrong_with_runs_that_are_unfolded(notebook):
    wrong = {theme: violations(notebook.page, ".jp-nbtorchjob-sidebar", theme) for theme in THEMES}

    assert not any(wrong.values()), wrong


def test_a_failure_is_told_with_a_way_to_its_logs(notebook, running, gate):
    running("told", "raise ValueError('no more')")
    look_away(notebook.page)
    gate.touch()
    alert = notebook.page.get_by_role("alert").filter(has_text="told failed after")
    alert.get_by_role("button", name="Open Logs").click()

    logs = notebook.page.locator(".jp-nbtorchjob-log-viewer").get_by_role("log")
    logs.get_by_text("ValueError: no more").first.wait_for()


def test_the_panel_of_what_runs_lists_jobs_while_they_run(notebook, running, gate):
    running("under-way")
    notebook.page.get_by_role("tab", name="Running Terminals and Kernels").click()
    entry = notebook.page.locator(".jp-RunningSessions-item").filter(has_text="under-way")
    entry.wait_for()

    gate.touch()

    entry.wait_for(state="detached")


def test_by_keyboard_alone_a_job_is_found_and_ended(notebook, running):
    running("by-keys")
    sidebar, keys = notebook.sidebar, notebook.page.keyboard
    sidebar.search("by-keys")
    # Past the search's clear button and the sort order to the list, then from its heading to the job.
    for key in ("Tab", "Tab", "Tab", "ArrowDown", "Delete"):
        keys.press(key)
    notebook.page.get_by_role("dialog").wait_for()
    keys.press("Enter")

    sidebar.job("by-keys", "Cancelled")
    sidebar.search("")


def test_whatever_a_job_says_of_itself_stays_text(notebook, running, gate):
    page = notebook.page
    running("hostile", f"raise ValueError({HOSTILE!r})")
    look_away(page)
    gate.touch()
    page.get_by_role("alert").get_by_text(HOSTILE).wait_for()
    row = notebook.sidebar.job("hostile")
    row.hover()
    row.get_by_title(HOSTILE).wait_for()

    row.click()
    page.locator(".jp-nbtorchjob-log-rows").get_by_text(HOSTILE).first.wait_for()
    notebook.sidebar.choose("hostile", "Describe")
    page.locator(".jp-nbtorchjob-page").get_by_text(HOSTILE).first.wait_for()

    assert page.evaluate("() => window.owned") is None


@pytest.fixture
def no_jobs(notebook):
    """Make the server list no jobs until the test ends."""
    listing = {"jobs": [], "removed": [], "whole": True, "mark": "", "notes": [], "unseen": []}
    refresh = notebook.sidebar.node.get_by_role("button", name="Refresh")
    notebook.page.route("**/nbtorchjob/api/jobs*", lambda route: route.fulfill(json=listing))
    refresh.click()
    yield
    notebook.page.unroute_all()
    refresh.click()


@pytest.mark.usefixtures("no_jobs")
def test_where_there_are_no_jobs_it_says_how_to_start_one(notebook):
    notebook.sidebar.node.get_by_text("No torch jobs yet.").wait_for()
    notebook.sidebar.node.get_by_role("button", name="Run cell as torch job").wait_for()


@pytest.mark.usefixtures("no_jobs")
def test_axe_finds_nothing_wrong_where_there_are_no_jobs(notebook):
    notebook.sidebar.node.get_by_text("No torch jobs yet.").wait_for()
    wrong = {theme: violations(notebook.page, ".jp-nbtorchjob-sidebar", theme) for theme in THEMES}

    assert not any(wrong.values()), wrong


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_nothing_wrong_with_jobs_menu_and_description(notebook, failed, theme):
    name = f"axe-{len(theme)}"
    failed(name)
    notebook.sidebar.choose(name, "Describe")
    notebook.page.locator(".jp-nbtorchjob-page").get_by_text("ValueError").last.wait_for()
    notebook.sidebar.menu(name)

    parts = (".jp-nbtorchjob-sidebar", ".lm-Menu", SHOWN)
    wrong = {part: violations(notebook.page, part, theme) for part in parts}
    notebook.page.keyboard.press("Escape")

    assert not any(wrong.values()), wrong
