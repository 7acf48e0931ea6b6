"""Run a notebook headless, and say how its last job ended and where the results lie.

python notebooks/run.py NOTEBOOK [--out FOLDER]     a copy and its page, in FOLDER
python notebooks/run.py NOTEBOOK... --keep          the notebooks themselves, as they are committed
"""

from __future__ import annotations

import argparse
import re
import site
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat
from nbconvert import HTMLExporter

WIDGET = "application/vnd.jupyter.widget-view+json"


def execute(notebook: Path, **parameters: float) -> nbformat.NotebookNode:
    """Return ``notebook``, executed in its own folder; a cell that fails must be tagged raises-exception.

    ``parameters`` take the place of what its cell tagged ``parameters`` sets, by a cell behind that one, as
    papermill (2.6) does it: a tutorial that trains for a minute is tried out in a second.
    """
    book: nbformat.NotebookNode = nbformat.read(notebook, as_version=4)
    if parameters:
        [at] = [n for n, cell in enumerate(book.cells) if "parameters" in cell.metadata.get("tags", ())]
        given = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
        book.cells.insert(at + 1, nbformat.v4.new_code_cell(given))
    where = {"metadata": {"path": str(notebook.parent)}}
    # Of each kernel ipykernel warns that it listens on this machine without encryption (7.4).
    quiet = ["--log-level=ERROR"]
    nbclient.NotebookClient(
        book,
        timeout=600,
        resources=where,
        record_timing=False,
        store_widget_state=False,
        extra_arguments=quiet,
    ).execute()
    return book


def keep(notebook: Path) -> None:
    """Execute ``notebook`` in place, without what only says where it was run."""
    book = execute(notebook)
    book.metadata.pop("widgets", None)
    for output in (output for cell in book.cells for output in cell.get("outputs", ())):
        output.get("data", {}).pop(WIDGET, None)  # no kernel has it any more
    text = nbformat.writes(book)
    for path, shown in [*((path, "site-packages") for path in site.getsitepackages()), (Path.home(), "~")]:
        text = text.replace(str(path), shown)
    kernel = re.escape(tempfile.gettempdir()) + r"/ipykernel_\d+"  # a folder by its process
    notebook.write_text(re.sub(kernel, "ipykernel", text) + "\n")


def run(notebook: Path, out: Path) -> tuple[nbformat.NotebookNode, Path, Path]:
    """Execute ``notebook``; give it with the paths of a copy in ``out`` and of its HTML."""
    book = execute(notebook)
    out.mkdir(parents=True, exist_ok=True)
    copy = out / notebook.name
    nbformat.write(book, copy)
    html, _ = HTMLExporter().from_notebook_node(book)
    page = copy.with_suffix(".html")
    page.write_text(html)
    return book, copy, page


def cards(book: nbformat.NotebookNode) -> Iterator[str]:
    """Yield the plain text of each job's card in an executed notebook."""
    for cell in book.cells:
        for output in cell.get("outputs", ()):
            text = output.get("data", {}).get("text/plain", "")
            if text.startswith("torchjob "):
                yield text


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    for notebook in given.notebook:
        if given.keep:
            keep(notebook)
        else:
            _show(*run(notebook, given.out))


def _show(book: nbformat.NotebookNode, copy: Path, page: Path) -> None:
    for card in list(cards(book))[-1:]:
        lines = card.splitlines()
        print(lines[0], *(line for line in lines if line.startswith("value: ")), sep="\n")
    print(f"notebook: {copy}\npage:     {page}")


if __name__ == "__main__":
    main()
