"""A lab in JupyterLab: cell after cell on ranks that stay."""

import pytest

CELLS = [
    "%load_ext nbtorchjob",
    "%%torchjob --keep explore --nproc-per-node 2\nimport time; time.sleep(2)\nseen = [1]\nlen(seen)",
    "%%torchjob --on explore\nprint('second')\nseen.append(2)\ntime.sleep(3)\nlen(seen)",
    "%%torchjob --on explore\nseen.clear()\n1 / 0",
    "%%torchjob --on explore\nseen",
    "%torchjob end explore",
]


def test_cells_run_one_after_the_other_on_ranks_that_stay(lab, tmp_path):
    expect = pytest.importorskip("playwright.sync_api").expect
    notebook = lab.open("labs", CELLS)
    page = notebook.page
    notebook.run(0)
    notebook.run(1)
    expect(notebook.output(1)).to_contain_text("explore#1", timeout=60_000)
    notebook.idle()
    notebook.run(2)
    expect(notebook.output(2)).to_contain_text("explore#2", timeout=60_000)
    page.screenshot(path=tmp_path / "runs.png")
    notebook.idle()
    expect(notebook.output(2)).to_contain_text("second")
    notebook.run(3)
    expect(notebook.output(3)).to_contain_text("ZeroDivisionError", timeout=60_000)
    notebook.idle()
    notebook.run(4)
    notebook.idle()
    expect(notebook.output(4)).to_contain_text("[]")
    page.screenshot(path=tmp_path / "after.png")
    notebook.run(5)
    notebook.idle()
    expect(notebook.output(5)).to_contain_text("explore ends")
    expect(notebook.output(1)).to_contain_text("→ 1")  # the server drew nothing after the end
    page.close()
