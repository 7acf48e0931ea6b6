"""The card in JupyterLab: live, ended, and in an untrusted notebook."""

import re

import pytest

from tests.browser.axe import violations

HOSTILE = "<script>window.owned = 1</script><img src=x onerror='window.owned = 1'>"
LOAD = "%load_ext nbtorchjob"
# Runs until the test has seen enough and creates the file.
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

# Until the file exists, rank 1 keeps rank 0 waiting.
HANGS = """%%torchjob --name hangs --nproc-per-node 2 --hang-after 2
import time
from pathlib import Path
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
while dist.get_rank() == 1 and not Path({gate!r}).exists():
    time.sleep(0.05)
dist.all_reduce(torch.ones(4))
"""


@pytest.fixture
def running(lab, gate, request):
    """Yield a notebook in which the second cell runs a job and draws its curve."""
    cells = [LOAD, GATED.format(gate=str(gate), hostile=HOSTILE)]
    notebook = lab.open(re.sub(r"\W+", "-", request.node.name), cells)
    notebook.run(0)
    notebook.run(1)
    notebook.output(1).locator(".nbtorchjob img").wait_for()
    yield notebook
    gate.touch()
    notebook.page.close()


def ended(notebook, gate):
    gate.touch()
    notebook.output(1).locator(".nbt-state:text-is('Succeeded')").wait_for()
    notebook.idle()


def newer_line(rank_log):
    """Wait until the log shows a line that it didn't show before."""
    newest = int(rank_log.inner_text().split()[-1])
    expect = pytest.importorskip("playwright.sync_api").expect
    expect(rank_log).not_to_have_text(re.compile(rf"line {newest}\s*$"), timeout=60_000)


def test_the_card_is_live_and_the_saved_one_is_static(running, gate):
    card = running.output(1).locator(".nbtorchjob")
    assert card.locator(".nbt-state").inner_text() == "Running"
    newer_line(card.locator("details pre").first)

    ended(running, gate)

    assert "→ 'done'" in card.inner_text()
    card_output, value = running.saved().cells[1].outputs
    assert set(card_output.data) == {"text/html", "text/plain"}
    assert "<script" not in card_output.data["text/html"]
    assert value.data["text/plain"] == "'done'"


def test_a_log_that_the_reader_opened_stays_open(running, gate):
    log = running.output(1).locator("details:has(> summary:text('rank 1'))")
    assert log.get_attribute("open") is None

    log.locator("summary").click()
    newer_line(log.locator("pre"))
    ended(running, gate)

    assert log.get_attribute("open") is not None
    assert log.locator("pre").is_visible()  # though the card of a job that succeeded is folded


def test_a_notebook_from_somebody_else_shows_the_card_and_runs_nothing(running, gate, lab):
    ended(running, gate)
    notebook = running.saved()
    notebook.cells[0].source += "\n# changed, so that its signature is void"

    tab = lab.open_as("untrusted", notebook)
    card = tab.output(1).locator(".nbtorchjob")
    for part in ("details", "curves", "rank 0"):
        card.locator("summary", has_text=part).first.click()

    trusted = "() => jupyterapp.shell.currentWidget.content.model.cells.get(1).trusted"
    assert tab.page.evaluate(trusted) is False
    assert card.locator("img").evaluate("chart => chart.naturalWidth") > 100
    reading = card.locator(".nbtorchjob-readings > *").first
    assert reading.get_attribute("title").startswith("step 1")
    assert reading.bounding_box()["width"] > 1
    assert HOSTILE in card.locator("pre").first.inner_text()
    for page in (running.page, tab.page):
        assert page.evaluate("() => window.owned") is None
    tab.page.close()


def test_two_interrupts_cancel_the_job(running, gate):
    running.command("notebook:interrupt-kernel")
    running.output(1).get_by_text("Stopped waiting").wait_for()
    running.command("notebook:interrupt-kernel")

    running.output(1).locator(".nbt-state:text-is('Cancelled')").wait_for()
    running.idle()
    assert not gate.exists()


def test_one_interrupt_leaves_a_card_that_the_server_draws_on(running, gate):
    running.command("notebook:interrupt-kernel")
    running.output(1).get_by_text("Detached from").wait_for()
    assert ">Running</b>" in running.saved().cells[1].outputs[0].data["text/html"]
    newer_line(card(running).locator("details pre").first)

    ended(running, gate)


def card(notebook):
    return notebook.output(1).locator(".nbtorchjob")


def drawn_again(notebook):
    """Wait until the card has been redrawn twice."""
    for _ in range(2):
        progress = card(notebook).locator("img").first.evaluate_handle("chart => chart")
        notebook.page.wait_for_function("chart => !chart.isConnected", arg=progress)


def test_the_cancel_button_works_while_the_cell_blocks(running, gate):
    card(running).get_by_role("button", name="Cancel").click()
    running.page.get_by_role("dialog").get_by_role("button", name="Cancel Job").click()

    running.output(1).locator(".nbt-state:text-is('Cancelled')").wait_for()
    running.idle()
    assert not gate.exists()
    assert card(running).get_by_role("button", name="Cancel").count() == 0


def test_a_press_counts_though_the_card_is_drawn_before_the_release(running, gate):
    detach = card(running).get_by_role("button", name="Detach")
    drawn_again(running)
    detach.hover()
    running.page.mouse.down()
    drawn_again(running)
    running.page.mouse.up()

    running.output(1).get_by_text("Stopped waiting").wait_for()
    ended(running, gate)


def test_a_cancel_that_the_reader_takes_back_changes_nothing(running, gate):
    card(running).get_by_role("button", name="Cancel").click()
    running.page.get_by_role("dialog").get_by_role("button", name="Keep It").click()
    newer_line(card(running).locator("details pre").first)

    ended(running, gate)


def test_the_detach_button_stops_the_wait_and_leaves_the_job(running):
    newer_line(card(running).locator("details pre").first)
    card(running).get_by_role("button", name="Detach").click()
    running.output(1).get_by_text("Detached from").wait_for()

    assert ">Running</b>" in running.saved().cells[1].outputs[0].data["text/html"]


def test_the_search_shows_the_lines_that_match_and_keeps_the_focus_while_the_card_is_drawn(running, gate):
    search = card(running).get_by_role("searchbox", name="search in logs")
    search.press_sequentially("LINE 7", delay=100)
    drawn_again(running)
    shown = card(running).locator("details pre").first.inner_text().split("\n")

    assert search.input_value() == "LINE 7"
    assert search.evaluate("search => search === document.activeElement")
    assert all("line 7" in line for line in shown if line)

    search.fill("nowhere")
    card(running).locator("details[open]").first.wait_for(state="detached")
    search.fill("")
    newer_line(card(running).locator("details pre").first)
    ended(running, gate)


@pytest.mark.parametrize("part", ["button", "details:last-of-type summary"])
def test_the_focus_stays_where_it_is_while_the_card_is_drawn(lab, gate, part):
    cells = [LOAD, GATED.format(gate=str(gate), hostile=HOSTILE)]
    notebook = lab.open(f"focus-{part.partition(':')[0]}", cells)
    notebook.run(0)
    notebook.run(1)
    card(notebook).get_by_role("button", name="Detach").wait_for()
    find = "part => document.querySelector(`.nbtorchjob ${part}`)"
    card(notebook).locator("summary", has_text="rank 1 ·").wait_for()  # the first drawings lack it
    # In one step: between two steps the card may be redrawn.
    notebook.page.evaluate(f"part => ({find})(part).focus()", part)
    drawn_again(notebook)

    assert notebook.page.evaluate(f"part => ({find})(part) === document.activeElement", part)
    ended(notebook, gate)
    notebook.page.close()


def test_a_job_that_hangs_says_why_and_its_stacks_are_a_press_away(lab, gate):
    notebook = lab.open("hangs", [LOAD, HANGS.format(gate=str(gate))])
    notebook.run(0)
    notebook.run(1)
    card(notebook).get_by_text("rank 1 never entered all_reduce #1").wait_for()
    stacks = notebook.page.locator(".jp-nbtorchjob-page pre", has_text="waits in all_reduce #1")

    card(notebook).get_by_role("button", name="Stacks").click()
    stacks.wait_for()
    assert re.search(r"rank 1:\n.*> Cell In\[2\], line \d", stacks.inner_text(), re.DOTALL)
    notebook.command("application:close")
    stacks.wait_for(state="detached")
    notebook.sidebar.choose("hangs", "Stacks")
    stacks.wait_for()
    gate.touch()
    notebook.page.close()


def test_the_links_lead_to_the_whole_log_and_to_the_description(running):
    links = {name: card(running).get_by_role("link", name=name).first for name in ("full log", "Describe")}
    urls = {name: link.evaluate("link => link.href") for name, link in links.items()}
    log, described = (running.page.request.get(urls[name]).text() for name in ("full log", "Describe"))

    assert log.startswith("line 1\nline 2\n")
    assert "Nodes:" in described or "Where:" in described


def loaded_anew(notebook):
    notebook.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    notebook.page.reload()


def restarted(notebook):
    restart = "() => jupyterapp.shell.currentWidget.sessionContext.restartKernel()"
    notebook.page.evaluate(restart)


@pytest.mark.parametrize("cut", [loaded_anew, restarted])
def test_where_no_kernel_draws_any_more_the_server_does(running, gate, cut):
    newer_line(card(running).locator("details pre").first)
    cut(running)
    card(running).get_by_role("button", name="Attach").wait_for()
    newer_line(card(running).locator("details pre").first)
    assert card(running).get_by_role("button", name="Open logs").is_visible()
    assert card(running).get_by_role("button", name="Detach").count() == 0

    gate.touch()

    card(running).locator(".nbt-state:text-is('Succeeded')").wait_for()
    assert card(running).get_by_role("button", name="Cancel").count() == 0


def test_a_card_whose_job_was_deleted_says_so_and_keeps_what_it_showed(running):
    name = card(running).locator("b").nth(1).inner_text()
    running.command("notebook:interrupt-kernel")
    card(running).get_by_role("button", name="Attach").wait_for()
    running.sidebar.choose(name, "Delete")
    running.page.get_by_role("dialog").get_by_role("button", name="Delete Job").click()

    card(running).get_by_text("This job was deleted").wait_for()

    assert card(running).locator(".nbt-state").inner_text() == "Deleted"
    card(running).locator("img").wait_for(state="attached")  # in a closed part if the end was drawn first
    assert card(running).get_by_role("button").count() == 0


def test_a_card_that_already_shows_the_end_says_that_its_job_was_deleted(running):
    """Imitate the deletion of a running job: it is cancelled first, and a poll in between draws that."""
    name = card(running).locator("b").nth(1).inner_text()
    running.command("notebook:interrupt-kernel")
    card(running).get_by_role("button", name="Attach").wait_for()
    running.sidebar.choose(name, "Cancel")
    running.page.get_by_role("dialog").get_by_role("button", name="Cancel Job").click()
    card(running).locator(".nbt-state:text-is('Cancelled')").wait_for()

    running.sidebar.choose(name, "Delete")
    running.page.get_by_role("dialog").get_by_role("button", name="Delete Job").click()

    card(running).locator(".nbt-state:text-is('Deleted')").wait_for()
    assert card(running).get_by_text("This job was deleted").is_visible()


def test_where_no_server_takes_a_press_the_card_says_what_to_do_instead(running, gate, lab):
    cells = [LOAD, GATED.format(gate=str(gate), hostile=HOSTILE)]
    other = lab.open("elsewhere", cells)
    other.page.route("**/nbtorchjob/api/**", lambda route: route.fulfill(status=404))
    running.command("notebook:interrupt-kernel")
    other.run(0)
    other.run(1)
    card(other).locator("img").wait_for()

    assert "interrupt the kernel to stop waiting" in card(other).inner_text()
    assert card(other).get_by_role("button", name="Cancel").count() == 0
    other.page.close()


def test_axe_finds_nothing_wrong_with_the_card_in_any_theme(running, gate):
    for stop in (lambda: None, lambda: ended(running, gate)):
        stop()
        for theme in ("JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast"):
            assert violations(running.page, ".nbtorchjob", theme) == []
