"""The debugger in JupyterLab: the card of a rank that stops, and pdb on that rank in a cell."""

import pytest

CELL = """%%torchjob --name stops --nproc-per-node 2
import datetime, os, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
rank, t = dist.get_rank(), torch.ones(1)
def step(x):
    y = x + 1
    if rank == 1:
        breakpoint()
    return y * 2
z = step(rank)
dist.all_reduce(t)
z
"""


def test_pdb_in_a_cell_on_a_rank_that_stops(lab, tmp_path):
    expect = pytest.importorskip("playwright.sync_api").expect
    notebook = lab.open("debugging", ["%load_ext nbtorchjob", CELL, "%torchjob debug", "%torchjob attach"])
    page = notebook.page
    notebook.run(0)
    notebook.run(1)
    card = notebook.output(1)
    expect(card).to_contain_text("Rank 1 stops at Cell In[2], line 9, in `step`, for", timeout=60_000)
    notebook.command("notebook:interrupt-kernel")
    notebook.idle()

    notebook.run(2)
    prompt = page.locator(".jp-Stdin-input")

    def typed(line, answer):
        expect(prompt).to_have_count(1, timeout=60_000)
        field = prompt.element_handle()
        field.fill(line)
        field.press("Enter")
        # JupyterLab removes the answered field, on a busy machine after the next one has appeared.
        page.wait_for_function("field => !field.isConnected", arg=field, timeout=60_000)
        expect(notebook.output(2)).to_contain_text(answer, timeout=60_000)

    typed("p y, rank", "(2, 1)")
    typed("n", "--Return--")
    page.screenshot(path=tmp_path / "prompt.png")
    typed("c", "rank 1 has returned")
    notebook.idle()
    notebook.run(3)
    expect(notebook.output(3)).to_contain_text("2", timeout=60_000)
    page.screenshot(path=tmp_path / "end.png")
    page.close()
