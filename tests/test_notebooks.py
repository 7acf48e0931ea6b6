"""The tutorials, run from top to bottom in a kernel of their own, and read again as files."""

import shutil
from pathlib import Path

import nbclient
import nbformat
import pytest

pytestmark = [pytest.mark.kernel, pytest.mark.torch]

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def book(request, tmp_path_factory):
    """Give a notebook as it is saved once it was run."""
    copy = tmp_path_factory.mktemp("notebooks") / request.param.name
    shutil.copy(request.param, copy)
    book = nbformat.read(copy, as_version=4)
    client = nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(copy.parent)}})
    client.execute()
    nbformat.write(book, copy)
    return nbformat.read(copy, as_version=4)


def outputs(book):
    return [output for cell in book.cells for output in cell.get("outputs", ())]


def cards(book):
    found = [output.get("data", {}) for output in outputs(book)]
    return [data for data in found if data.get("text/plain", "").startswith("torchjob ")]


def test_no_cell_fails(book):
    assert [output for output in outputs(book) if output["output_type"] == "error"] == []


def test_every_job_succeeds(book):
    assert cards(book)
    for card in cards(book):
        assert " SUCCEEDED in " in card["text/plain"].splitlines()[0]


def test_what_is_saved_reads_without_a_kernel(book):
    for card in cards(book):
        assert set(card) == {"text/html", "text/plain"}
        assert card["text/html"].startswith('<div class="nbtorchjob"')
    assert "widgets" not in book.metadata
    assert not any("application/vnd.jupyter.widget-view+json" in o.get("data", {}) for o in outputs(book))
