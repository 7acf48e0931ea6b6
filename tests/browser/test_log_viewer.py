"""The log viewer: the ranks' output, live and afterwards, in a tab beside the notebook."""

import json
import re
import zipfile

import pytest

from tests.browser.axe import violations
from tests.browser.conftest import TOKEN
from tests.browser.sidebar import THEMES

VIEWER = ".jp-nbtorchjob-log-viewer"
SEEN = f":not(.lm-mod-hidden) > {VIEWER}"
REACHES = """line => [...document.querySelectorAll(".jp-nbtorchjob-log-rows")].some(
  rows => [...rows.textContent.matchAll(/line (\\d+) of/g)].some(found => found[1] >= line))"""
# Each rank prints lines until the test has seen enough and creates the gate file.
WRITING = """%%torchjob --nproc-per-node 2 --name {name}
import os, time
from pathlib import Path
rank, line = os.environ["RANK"], 0
while not Path({gate!r}).exists():
    line += 1
    print("line", line, "of rank", rank, flush=True)
    time.sleep(0.02)
print("rank", rank, "wrote", line)
"""
FAILING = """%%torchjob --nproc-per-node 2 --name {name}
import os, time
for line in range(300):
    print("line", line)
if os.environ["RANK"] == "1":
    raise ValueError("rank 1 has had enough")
time.sleep(60)
"""


class Logs:
    """A tab with a job's logs."""

    def __init__(self, page, name):
        self.page = page
        page.get_by_role("tab", name=f"Logs: {name}").wait_for()
        self.node = page.locator(f"{VIEWER}:visible").filter(has_text=name)

    def line(self, text):
        """Wait until a line with this text is in view."""
        line = self.node.get_by_text(text).first
        line.wait_for()
        return line

    def newest(self):
        """Return the number of a line that is in view."""
        return int(self.line(re.compile(r"line \d+ of rank 0$")).inner_text().split()[1])

    def reaches(self, line):
        """Wait until a line with this number or a later one is in view: none stays in view for long."""
        self.page.wait_for_function(REACHES, arg=line)

    def button(self, name):
        return self.node.get_by_role("button", name=name, exact=True)

    def count(self, text):
        """Search for a text; return the number of lines that contain it."""
        self.button("Search").click()
        self.node.get_by_role("searchbox", name="Search all lines").fill(text)
        counter = self.node.get_by_role("search").get_by_text(re.compile(r"[\d,]+ lines$"))
        counter.wait_for()
        return int(counter.inner_text().split()[-2].replace(",", ""))


@pytest.fixture
def writing(notebook, gate):
    """Yield a function that opens the logs of a job with two ranks, which write until the gate exists."""

    def open_(name):
        notebook.run_new(WRITING.format(name=name, gate=str(gate)))
        notebook.sidebar.job(name, "Running").click()
        return Logs(notebook.page, name)

    yield open_
    gate.touch()


def ended(notebook, gate, name):
    """Let the job end; wait until it has succeeded."""
    gate.touch()
    notebook.sidebar.job(name, "Succeeded")


def laid_out(answer, name):
    """Return whether JupyterLab saves a layout with that job's logs: it does so a while after they open."""
    request = answer.request
    if request.method != "PUT" or "api/workspaces" not in request.url:
        return False
    return name in json.dumps(request.post_data_json["data"].get("layout-restorer:data"))


def wrote(logs):
    """Wait for the ranks' last lines; return the number of lines that they report."""
    lines = [logs.line(re.compile(rf"rank {rank} wrote \d+$")).inner_text() for rank in (0, 1)]
    return sum(int(line.split()[-1]) for line in lines)


def test_the_lines_of_all_ranks_come_as_they_are_written(notebook, writing, gate):
    logs = writing("merged")
    for rank in (0, 1):
        logs.line(re.compile(rf"line \d+ of rank {rank}$"))
    ended(notebook, gate, "merged")

    assert wrote(logs) == logs.count("of rank")


def test_ranks_stand_side_by_side(notebook, writing, gate):
    logs = writing("columns")
    logs.button("Merged").click()
    for rank in (0, 1):
        pane = logs.node.get_by_role("log", name=f"Log of rank {rank}")
        pane.get_by_text(f"of rank {rank}").first.wait_for()
        assert pane.get_by_text(f"of rank {1 - rank}").count() == 0


def test_who_scrolls_up_stays_there_until_they_jump_to_the_end(notebook, writing, gate):
    logs = writing("followed")
    logs.reaches(100)
    logs.node.get_by_role("log").hover()
    notebook.page.mouse.wheel(0, -1_000_000)  # the log grows by 1,800 pixels a second
    logs.line(re.compile("line 1 of rank 0$"))
    jump = logs.node.get_by_role("button", name=re.compile("new lines"))
    jump.wait_for()
    assert logs.button("Follow").get_attribute("aria-pressed") == "false"
    ended(notebook, gate, "followed")

    jump.click()

    wrote(logs)
    assert logs.button("Follow").get_attribute("aria-pressed") == "true"


def test_a_search_goes_from_line_to_line(notebook, writing, gate):
    logs = writing("searched")
    ended(notebook, gate, "searched")
    wrote(logs)
    assert logs.count("line 1 of rank") == 2

    search = logs.node.get_by_role("searchbox", name="Search all lines")
    at = logs.node.get_by_role("search").get_by_text(re.compile("^[12] of 2 lines$"))
    search.press("Enter")
    at.wait_for()
    before = at.inner_text()
    search.press("Enter")
    at.filter(has_not_text=before).wait_for()
    logs.line(re.compile("line 1 of rank [01]$"))


def test_only_lines_with_a_text_are_shown(notebook, writing, gate):
    logs = writing("filtered")
    ended(notebook, gate, "filtered")
    wrote(logs)
    logs.node.get_by_role("searchbox", name="Show only lines with this text").fill("wrote")

    logs.node.get_by_text("of rank").first.wait_for(state="detached")
    wrote(logs)


def test_a_failed_job_opens_at_its_failure(notebook):
    notebook.run_new(FAILING.format(name="opens-at-failure"))
    notebook.sidebar.job("opens-at-failure", "Failed").click()
    logs = Logs(notebook.page, "opens-at-failure")

    logs.node.get_by_role("log").get_by_text("ValueError: rank 1 has had enough").first.wait_for()
    assert logs.button("Go to failure").is_visible()
    assert logs.button("Rank 1 (1 of 2) ▾").is_visible()


def test_a_job_with_the_name_of_a_deleted_one_opens_its_own_log(notebook):
    notebook.run_new("%%torchjob --name namesake\nprint('of the first')")
    notebook.sidebar.job("namesake", "Succeeded").click()
    logs = Logs(notebook.page, "namesake")
    logs.line("of the first")
    download = logs.node.get_by_role("link", name="Download", exact=True)
    assert download.is_visible()

    notebook.sidebar.press("namesake", "Delete")
    notebook.page.get_by_role("dialog").get_by_role("button", name="Delete Job").click()
    logs.node.get_by_text("Succeeded, deleted").wait_for()
    assert not download.is_visible()
    notebook.run_new("%%torchjob --name namesake\nprint('of the second')\nraise ValueError('no')")
    row = notebook.sidebar.job("namesake", "Failed")
    assert notebook.page.locator(VIEWER).get_by_text("Succeeded, deleted").count() == 1
    row.click()

    logs.line("of the second")
    assert notebook.page.locator(VIEWER).get_by_text("of the first").count() == 0


def test_a_rank_s_log_is_downloaded_as_it_was_written(notebook, writing, gate):
    logs = writing("downloaded")
    ended(notebook, gate, "downloaded")
    wrote(logs)
    logs.button("All 2 ranks ▾").click()
    with notebook.page.expect_download() as download:
        logs.node.get_by_role("link", name="Download").nth(1).click()
    text = download.value.path().read_text()

    assert download.value.suggested_filename == "rank-1.log"
    first, *_, last, _ = text.split("\n")
    assert (first, last) == ("line 1 of rank 1", f"rank 1 wrote {text.count('of rank')}")

    with notebook.page.expect_download() as download:
        logs.node.get_by_role("link", name="Download all").click()
    with zipfile.ZipFile(download.value.path()) as file:
        assert file.read("downloaded/rank-1.log").decode() == text
    assert download.value.suggested_filename == "downloaded-logs.zip"


def test_a_link_to_a_line_opens_the_log_there(notebook, lab):
    # Rank 1's line: rank 0 ends as soon as rank 1 fails, whatever rank 0 has written by then.
    notebook.run_new(FAILING.format(name="linked"))
    notebook.sidebar.job("linked", "Failed")
    page = lab.page()
    query = "nbtorchjob-logs=local:linked&nbtorchjob-line=1.201"
    page.goto(f"{lab.url}/lab/workspaces/linked?token={TOKEN}&{query}")

    assert Logs(page, "linked").line("line 200").is_visible()
    assert page.locator(".jp-nbtorchjob-log-current").inner_text() == "line 200"
    page.close()


def test_a_page_that_is_loaded_anew_has_the_log_again_and_goes_on(notebook, writing, gate):
    with notebook.page.expect_response(lambda answer: laid_out(answer, "loaded-anew")):
        logs = writing("loaded-anew")
    logs.reaches(20)
    notebook.page.reload()
    logs = Logs(notebook.page, "loaded-anew")
    sidebar = notebook.sidebar
    logs.reaches(logs.newest() + 100)
    sidebar.job("loaded-anew", "Running")
    ended(notebook, gate, "loaded-anew")

    assert wrote(logs) == logs.count("of rank")


def test_a_log_goes_on_after_its_connection_was_cut(notebook, writing, gate):
    sockets = []

    def pass_on(socket):
        socket.connect_to_server()
        sockets.append(socket)

    notebook.page.route_web_socket(re.compile("nbtorchjob/api/jobs/.*/logs"), pass_on)
    notebook.page.reload()  # an open page keeps the sockets that it has
    logs = writing("cut")
    logs.reaches(20)
    sockets[0].close()
    logs.reaches(logs.newest() + 100)
    ended(notebook, gate, "cut")

    assert wrote(logs) == logs.count("of rank")
    assert len(sockets) > 1


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_nothing_wrong_with_logs(notebook, writing, gate, theme):
    logs = writing(f"axe-logs-{len(theme)}")
    logs.reaches(20)
    wrong = {"merged": violations(notebook.page, SEEN, theme)}
    logs.button("Merged").click()
    wrong["columns"] = violations(notebook.page, SEEN, theme)
    logs.count("line 1")
    logs.button("All 2 ranks ▾").click()
    wrong["searched"] = violations(notebook.page, SEEN, theme)

    assert not any(wrong.values()), wrong
