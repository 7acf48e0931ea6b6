"""A job's files in the sidebar: a tree with keyboard control, which opens text, tables and images."""

from tests.browser.axe import violations_of

SHOWN = ".jp-nbtorchjob-page:not(.lm-mod-hidden *)"
WRITES = """import base64, time
from pathlib import Path
from nbtorchjob import artifacts_dir, checkpoint_dir
folder = artifacts_dir()
(folder / "runs").mkdir()
(folder / "runs" / "loss.csv").write_text("step,loss\\n0,1.5\\n1,0.5\\n")
(folder / "runs" / "page.html").write_text("<script>window.owned = 1</script>")
(folder / "curve.svg").write_text(
    "<svg xmlns='http://www.w3.org/2000/svg' width='300' height='80' onload='window.owned = 1'>"
    "<polyline points='0,10 100,60 300,70' fill='none' stroke='green' stroke-width='4'/></svg>"
)
(checkpoint_dir() / "last.pt").write_bytes(bytes(2000))
while not Path({gate!r}).exists():
    time.sleep(0.05)
"""


def test_files_of_a_running_and_an_ended_job_are_browsed_by_keyboard(notebook, gate):
    page = notebook.page
    notebook.run_new(f"%%torchjob --name writer\n{WRITES.format(gate=str(gate))}")
    notebook.sidebar.job("writer", "Running")
    notebook.sidebar.choose("writer", "Browse Files")
    tree = page.get_by_role("tree", name="Files of writer")
    tree.get_by_role("treeitem", name="last.pt").wait_for()

    rows = tree.get_by_role("treeitem")
    names = [row.split("\n")[0] for row in rows.all_inner_texts()]
    assert names == ["artifacts", "runs", "loss.csv", "page.html", "curve.svg", "checkpoints", "last.pt"]
    assert tree.evaluate("tree => tree === document.activeElement")
    assert violations_of(page, ".jp-nbtorchjob-sidebar") == []

    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    table = page.locator(SHOWN)
    table.get_by_role("cell", name="0.5").wait_for()
    assert table.get_by_role("columnheader").all_inner_texts() == ["step", "loss"]
    assert violations_of(page, SHOWN) == []

    rows.filter(has_text="page.html").click()
    page.locator(SHOWN).get_by_text("<script>window.owned = 1</script>").wait_for()
    gate.touch()
    notebook.sidebar.job("writer", "Succeeded")
    tree.focus()
    rows.filter(has_text="curve.svg").click()
    image = page.locator(SHOWN).get_by_role("img", name="artifacts/curve.svg")
    image.wait_for()
    page.wait_for_function(
        "image => image.complete && image.naturalWidth === 300", arg=image.element_handle()
    )
    assert page.evaluate("() => window.owned") is None
    assert (image.get_attribute("src") or "").startswith("data:")  # a blob URL would have JupyterLab's origin
    rows.filter(has_text="last.pt").click()
    page.locator(SHOWN).get_by_text("This file can’t be previewed").wait_for()
    with page.expect_download() as download:
        page.locator(SHOWN).get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "last.pt"

    tree.focus()
    page.keyboard.press("Escape")
    tree.wait_for(state="detached")


def test_a_note_and_tags_are_put_on_a_job_and_found(notebook):
    page = notebook.page
    notebook.run_new("%%torchjob --name noted\n1")
    notebook.sidebar.job("noted", "Succeeded")
    notebook.sidebar.choose("noted", "Note and Tags")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Note").fill("the one to beat")
    dialog.get_by_label("Tags").fill("baseline lr:0.1")
    assert violations_of(page, ".jp-Dialog-content") == []
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="detached")

    notebook.sidebar.search("#baseline beat")
    page.locator(".jp-nbtorchjob-jobs-gist").get_by_text("#baseline #lr:0.1").wait_for()
