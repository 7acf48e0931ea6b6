"""``%%torchjob --swap``, ``swap`` and ``set`` in a real shell, on a real job and on a real lab."""

from typing import Any

import pytest

from nbtorchjob import CaptureError, NameTakenError, SwapError, api
from nbtorchjob.commands import front
from tests.backends.local.real import seen

pytestmark = pytest.mark.torch

TRAIN = """%%torchjob --name {name} -d --nproc-per-node 2 {more}
import os, time
from nbtorchjob import report, swap_point
rate = 1.0
def loss():
    return rate
out, step = [], 0
while True:
    out.append(loss())
    if os.path.exists({go!r}):
        break
    report(step=step, value=out[-1])  # what is swapped here, or below, runs once at least
    step += 1
    time.sleep(0.01)
    swap_point()
[value for at, value in enumerate(out) if at == 0 or value != out[at - 1]]
"""


def test_a_cell_a_file_and_values_change_a_running_job(notebook, tmp_path):
    go, file = tmp_path / "go", tmp_path / "new.py"
    notebook.run(TRAIN.format(name="swapped", more="", go=str(go)))
    job = api.attach("swapped")
    seen(job, lambda state: len(state.series) == 2)
    notebook.run("factor = 10")
    notebook.run("%%torchjob --swap swapped --or-back\ndef loss():\n    return rate * factor")
    assert "swapped: swapped on all ranks at call " in notebook.out
    assert "  loss  replaced" in notebook.out
    notebook.run("%torchjob set swapped rate=0.5")
    rates = tmp_path / "swapped_rates.py"
    rates.write_text("rate = 7\n")
    script = "# coding: latin-1\nfrom swapped_rates import rate  # Zoë's\n"
    file.write_text(f"{script}if __name__ == '__main__':\n    raise SystemExit\n", encoding="latin-1")
    notebook.run(f"%torchjob swap swapped {file}")
    assert "  rate  replaced" in notebook.out
    rates.write_text("rate = 8\n")
    why = "swapped_rates.py has changed since the ranks imported it"
    assert why in notebook.error(f"%torchjob swap swapped {file}", SwapError)
    assert "line 2 does more than define something" in notebook.error(
        "%%torchjob --swap swapped\nprint(rate)", CaptureError
    )
    assert "rate=os: expected a plain value" in notebook.error("%torchjob set swapped rate=os", SwapError)
    assert "--within can't be given without --swap" in notebook.refusal("%%torchjob --within 5\n1")
    # The job's own cell again, edited: ``swap`` takes the differences.
    assert "expected a FILE, as no edited cell of the job was run" in notebook.refusal(
        "%torchjob swap swapped"
    )
    cell = TRAIN.format(name="swapped", more="", go=str(go)).replace("rate = 1.0", "rate = 8")
    error = notebook.error(cell, NameTakenError)
    assert (
        "%%torchjob --swap swapped changes its code as it runs, %torchjob attach swapped follows it" in error
    )
    notebook.run("%torchjob swap swapped")
    assert "  rate  replaced" in notebook.out
    assert "  loss  replaced" in notebook.out
    edited = cell.replace("rate = 8", "rate = 9").partition("\n")[2]
    notebook.run(f"%%torchjob --swap swapped\n{edited}")
    assert "  rate  replaced" in notebook.out
    assert "isn't what swapped runs" in notebook.error(
        "%%torchjob --swap swapped\n"
        + edited.replace("step += 1", "step += 2").replace("rate = 9", "rate = 1"),
        SwapError,
    )
    go.touch()

    assert notebook.value("%torchjob result swapped" if job.wait(180) else "") == [1.0, 10.0, 5.0, 70, 8, 9]
    notebook.run("%torchjob describe swapped")
    assert "What was swapped" in notebook.out


def test_the_cell_that_a_lab_runs_is_changed(notebook, tmp_path):
    go = tmp_path / "go"
    notebook.run("%%torchjob --keep swaplab --nproc-per-node 2\nrate = 1.0")
    notebook.run(
        "%%torchjob --on swaplab -d\n" + TRAIN.format(name="x", more="", go=str(go)).partition("\n")[2]
    )
    lab = api.lab("swaplab")
    seen(lab.newest, lambda state: len(state.series) == 2)
    notebook.run("%%torchjob --swap swaplab\ndef loss():\n    return 3.0")
    assert "  loss  replaced" in notebook.out
    go.touch()

    assert lab.newest.result(180) == [1.0, 3.0]
    notebook.run("%torchjob promote swaplab --dry-run")
    assert "Note: cell 2 runs as it was swapped: loss" in notebook.out
    assert "return 3.0" in notebook.out
    assert "return rate" not in notebook.out
    assert "swaplab is idle: run the cell on it" in notebook.error("%torchjob set swaplab rate=2", SwapError)
    lab.end()


def test_a_cell_without_a_name_that_is_edited_and_run_again_is_offered_as_a_swap(
    notebook, tmp_path, monkeypatch
):
    go = tmp_path / "go"
    request = {"metadata": {"cellId": "c1"}}
    monkeypatch.setattr(notebook.shell, "get_parent", lambda: request, raising=False)
    cell = TRAIN.format(name="x", more="", go=str(go)).replace("--name x ", "")
    notebook.run(cell)
    job: Any = front.newest()
    seen(job, lambda state: len(state.series) == 2)
    notebook.run(cell.replace("return rate", "return rate * 2"))

    assert (
        f"Note: {job.name} still runs this cell's earlier code: %%torchjob --swap {job.name}" in notebook.out
    )
    other: Any = front.newest()
    notebook.run(f"%torchjob swap {job.name}")
    assert "  loss  replaced" in notebook.out
    go.touch()
    assert job.result(180) == [1.0, 2.0]
    other.delete()
