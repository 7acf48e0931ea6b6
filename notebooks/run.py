"""Run a notebook headless, and say how its last job ended and where the results lie.

python notebooks/run.py NOTEBOOK [--out FOLDER]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat
from nbconvert import HTMLExporter


def run(notebook: Path, out: Path) -> tuple[nbformat.NotebookNode, Path, Path]:
    """Execute ``notebook`` in its own folder; give it with the paths of the copy and its HTML."""
    book = nbformat.read(notebook, as_version=4)
    client = nbclient.NotebookClient(
        book, timeout=600, resources={"metadata": {"path": str(notebook.parent)}}
    )
    client.execute()
    out.mkdir(parents=True, exist_ok=True)
    copy = out / notebook.name
    nbformat.write(book, copy)
    html, _ = HTMLExporter().from_notebook_node(book)
    page = copy.with_suffix(".html")
    page.write_text(html)
    return book, copy, page


def cards(book: nbformat.NotebookNode) -> Iterator[str]:
    """Give the plain text of each job's card in an executed notebook."""
    for cell in book.cells:
        for output in cell.get("outputs", ()):
            text = output.get("data", {}).get("text/plain", "")
            if text.startswith("torchjob "):
                yield text


def main() -> None:
    """Run the notebook named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out"))
    given = parser.parse_args()
    book, copy, page = run(given.notebook, given.out)
    for card in list(cards(book))[-1:]:
        lines = card.splitlines()
        print(lines[0], *(line for line in lines if line.startswith("value: ")), sep="\n")
    print(f"notebook: {copy}\npage:     {page}")


if __name__ == "__main__":
    main()
