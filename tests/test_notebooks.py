"""The tutorials, run from top to bottom in kernels of their own, and read again as files."""

import itertools
import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import nbformat
import pytest

from notebooks.run import cards, execute
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.images import TORCH
from tests.backends.kubernetes.cluster.resources import CRDS

pytestmark = [pytest.mark.kernel, pytest.mark.torch]

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
ON_A_CLUSTER = "04-to-the-cluster"
FAILS = "raises-exception"
# For a tutorial that trains for long; its committed outputs are those of the whole training.
SMALLER = {"07-a-small-transformer": {"steps": 20, "every": 10, "goal": 4.0, "length": 20}}


def use_a_cluster(used, patch):
    if not CRDS.is_dir():
        pytest.skip("shared/crds lies beside the checkout only where the operators were recorded")
    cluster = used.enter_context(Emulator())
    patch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    patch.setenv("NAMESPACE", cluster.namespace("lab"))
    patch.setenv("IMAGE", TORCH)


def failed(book):
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    return [cell for cell in cells if any(map(is_error, cell.outputs))]


def is_error(output):
    # IPython's message about a line that it refused isn't an error output.
    return output.output_type == "error" or output.get("text", "").startswith("UsageError")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    copy = Path(shutil.copy(path, tmp_path))
    with ExitStack() as used:
        if copy.stem == ON_A_CLUSTER:
            use_a_cluster(used, monkeypatch)
        book = execute(copy, **SMALLER.get(copy.stem, {}))

    # A run takes long: all checks share one.
    fails_where_it_is_meant_to(book)
    other_jobs_succeed_or_say_why_they_wait(book)
    reads_without_a_kernel(nbformat.reads(nbformat.writes(book), as_version=4))


def fails_where_it_is_meant_to(book):
    assert failed(book) == [cell for cell in book.cells if FAILS in cell.metadata.get("tags", ())]


def other_jobs_succeed_or_say_why_they_wait(book):
    shown = [cell for cell in book.cells if FAILS not in cell.metadata.get("tags", ())]
    for card in cards(nbformat.v4.new_notebook(cells=shown)):
        # A job that nobody waits for keeps the line of its submission if that took noticeable time.
        good = "succeeded in|cancelled after|(submitted|pending|running) for|submitted · packed and sent"
        assert re.search(f" ({good}) ", card.splitlines()[0]), card


def reads_without_a_kernel(saved):
    for output in (output for cell in saved.cells for output in cell.get("outputs", ())):
        text = output.get("data", {}).get("text/plain", "")
        if text.startswith("torchjob "):
            assert set(output.data) == {"text/html", "text/plain"}
            assert output.data["text/html"].startswith(('<div class="nbtorchjob', "<pre"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_was_run_from_top_to_bottom(path):
    book = nbformat.read(path, as_version=4)
    counts = [cell.execution_count for cell in book.cells if cell.cell_type == "code"]

    assert counts == list(range(1, len(counts) + 1))
    assert all(FAILS in cell.metadata.get("tags", ()) for cell in failed(book))
    assert str(Path.home()) not in path.read_text()
    assert not re.search(r"/(work|root|home)/", path.read_text())


def test_each_tutorial_leads_to_the_next():
    for path, following in itertools.pairwise(NOTEBOOKS):
        assert f"({following.name})" in nbformat.read(path, as_version=4).cells[-1].source, path.name
