"""The card in JupyterLab: live, ended, and in a notebook that nobody trusts."""

import pytest

HOSTILE = "<script>window.owned = 1</script><img src=x onerror='window.owned = 1'>"
LOAD = "%load_ext nbtorchjob"
# Goes on until the test has seen enough and makes the file.
GATED = """%%torchjob --nproc-per-node 2
import time
from pathlib import Path
from nbtorchjob import report
step = 0
while not Path({gate!r}).exists():
    step += 1
    report(step=step, loss=1 / step)
    print("line", step, flush=True)
    time.sleep(0.05)
print({hostile!r})
"done"
"""


@pytest.fixture
def gate(folder):
    return folder / "gate"


@pytest.fixture
def running(lab, gate, request):
    """Give a notebook whose second cell runs a job and draws its curve."""
    cells = [LOAD, GATED.format(gate=str(gate), hostile=HOSTILE)]
    notebook = lab.open(request.node.name, cells)
    notebook.run(0)
    notebook.run(1)
    notebook.output(1).locator(".nbtorchjob img").wait_for()
    yield notebook
    gate.touch()
    notebook.page.close()


def ended(notebook, gate, phase="succeeded"):
    gate.touch()
    notebook.output(1).locator(f".nbtorchjob b:text-is('{phase}')").wait_for()
    notebook.idle()


def newer_line(rank_log):
    """Wait until the log shows a line that it didn't show before."""
    newest = int(rank_log.inner_text().split()[-1])
    rank_log.get_by_text(f"line {newest + 5}", exact=False).wait_for()


def test_the_card_is_live_and_the_saved_one_is_static(running, gate):
    card = running.output(1).locator(".nbtorchjob")
    assert card.locator("b").first.inner_text() == "running"
    newer_line(card.locator("details pre").first)

    ended(running, gate)

    assert "Value: 'done'" in card.inner_text()
    card_output, value = running.saved().cells[1].outputs
    assert set(card_output.data) == {"text/html", "text/plain"}
    assert "<script" not in card_output.data["text/html"]
    assert value.data["text/plain"] == "'done'"


def test_a_log_that_the_reader_opened_stays_open(running, gate):
    log = running.output(1).locator("details:has(summary:text('rank 1'))")
    assert log.get_attribute("open") is None

    log.locator("summary").click()
    newer_line(log.locator("pre"))
    ended(running, gate)

    assert log.get_attribute("open") is not None


def test_a_notebook_from_somebody_else_shows_the_card_and_runs_nothing(running, gate, lab):
    ended(running, gate)
    notebook = running.saved()
    notebook.cells[0].source += "\n# changed, so that its signature is void"

    seen = lab.open_as("untrusted", notebook)
    card = seen.output(1).locator(".nbtorchjob")
    card.locator("summary").first.click()

    trusted = "() => jupyterapp.shell.currentWidget.content.model.cells.get(1).trusted"
    assert seen.page.evaluate(trusted) is False
    assert card.locator("img").evaluate("chart => chart.naturalWidth") > 100
    assert HOSTILE in card.locator("pre").first.inner_text()
    for page in (running.page, seen.page):
        assert page.evaluate("() => window.owned") is None
    seen.page.close()


def test_two_interrupts_cancel_the_job(running, gate):
    running.command("notebook:interrupt-kernel")
    running.output(1).get_by_text("Stopped waiting").wait_for()
    running.command("notebook:interrupt-kernel")

    ended(running, gate, "cancelled")


def test_one_interrupt_leaves_a_static_card_and_the_job_running(running, gate):
    running.command("notebook:interrupt-kernel")
    running.output(1).get_by_text("Detached from").wait_for()

    html = running.saved().cells[1].outputs[0].data["text/html"]
    assert "<b>running</b>" in html
    assert "<script" not in html
