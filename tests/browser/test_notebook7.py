"""Our extension in Jupyter Notebook 7, which shows one document per page."""

import pytest

from tests.browser.conftest import TOKEN, Notebook

pytest.importorskip("notebook", reason="Notebook isn't installed")
CELL = "raise ValueError('not here')"


@pytest.fixture
def notebook(lab):
    """Yield a notebook in a page of Notebook 7; fail if an error or a warning in its console names us."""
    path = lab.write("notebook7", [CELL])
    messages = []
    page = lab.page()
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("console", lambda line: messages.append(line.text) if line.type in ("error", "warning") else None)
    page.goto(f"{lab.url}/notebooks/{path.name}?token={TOKEN}")
    yield Notebook(page, path)
    page.close()
    assert not [line for line in messages if "nbtorchjob" in line.lower()], messages


def test_a_cell_runs_as_a_job_and_its_card_s_buttons_work(notebook):
    notebook.idle()
    notebook.command("nbtorchjob:run-cell")
    notebook.page.get_by_role("dialog").get_by_role("button", name="Run").click()
    output = notebook.output(0)
    output.locator(".nbt-state:text-is('Failed')").wait_for()
    notebook.idle()  # the card was drawn for the last time
    assert notebook.source(0) == f"%%torchjob\n{CELL}"

    output.get_by_role("button", name="Open logs").click()
    logs = notebook.page.locator(".jp-nbtorchjob-log-viewer").get_by_role("log")
    logs.get_by_text("ValueError: not here").first.wait_for()
    output.get_by_role("button", name="Retry").click()

    notebook.page.get_by_text("runs again as").wait_for()
