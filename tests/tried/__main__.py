"""Try this environment, and write the results into docs/tried.md: ``python -m tests.tried [--gpu] NAME``.

``NAME`` names what is special in it, such as "torch 2.9.1": its row is replaced. Failures are printed.
With ``--gpu`` it runs the cells of ``gpu.md`` in place of those of ``cells.md``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from nbtorchjob.machine import folders
from tests.tried import kernel

PAGE = Path(__file__).parents[2] / "docs" / "tried.md"
_PACKAGES = ("torch", "cloudpickle", "ipykernel", "ipython", "ipywidgets", "numpy")
_BEFORE = """# What was tried with what

Each row is an environment in which a real kernel has run the things that are listed below its table, on the
local backend. `make tried WITH="torch==2.9.1"` tries one and writes its row; `make test-torch VERSION=2.9.1`
runs the tests of ranks there, which 2.4.1 and 2.14.1 pass, and `make gpu` tries a GPU.
What a version of torch misses is in `%torchjob doctor`. Nightly builds aren't on PyPI, so none was tried.

`make pythons` has each Python of a machine capture cells for each other one, as a kernel from 3.10 on and as
a node from 3.9 on; with 3.9 to 3.14 these are 25 pairs. In pods of an emulated cluster, cells, labs and `map`
ran on Python 3.10 and 3.9 (torch 2.4.1) and on 3.12 (torch 2.14.1), sent from 3.11. In a browser,
all tests but those of Notebook 7.4 pass in JupyterLab 4.2.5, as in the pinned one.
"""
_TITLES = {"cells.md": "On any machine", "gpu.md": "On a machine with an NVIDIA GPU"}


def main(page: str, name: str) -> int:
    """Run the checks of ``page``, write the row of ``name``, print failures; return the exit code."""
    failed = kernel.run(page)
    write(page, name, failed)
    for title, shown in failed.items():
        print(f"{title}:\n{shown}\n", file=sys.stderr)
    return 1 if failed else 0


def write(page: str, name: str, failed: dict[str, str]) -> None:
    """Write a row into its table, and the rest of docs/tried.md as it was."""
    titles = [check.title for check in kernel.checks(page)]
    row = [name, ".".join(map(str, sys.version_info[:3])), *map(_version, _PACKAGES), _said(failed, titles)]
    tables = {other: _rows(title) for other, title in _TITLES.items()}
    tables[page][name] = f"| {' | '.join(row)} |"
    head = f"| with | Python | {' | '.join(_PACKAGES)} | came of it |"
    rules = f"|{' --- |' * (len(_PACKAGES) + 3)}"
    sections = [
        "\n".join(
            [f"## {_TITLES[other]}", "", head, rules, *rows.values(), ""]
            + [f"- {check.title}" for check in kernel.checks(other)]
        )
        for other, rows in tables.items()
    ]
    PAGE.write_text("\n".join([_BEFORE, "\n\n".join(sections), ""]))


def _said(failed: dict[str, str], titles: list[str]) -> str:
    if not failed:
        return "all right"
    if len(failed) == len(titles) or not failed.keys() <= {*titles}:
        return "nothing works"
    return f"all but: {'; '.join(failed)}"


def _rows(title: str) -> dict[str, str]:
    """Return the rows of a table of the page, by name."""
    _, _, section = (PAGE.read_text() if PAGE.exists() else "").partition(f"## {title}\n")
    lines = section.partition("\n## ")[0].split("\n")
    rows = [line for line in lines if line.startswith("| ")][2:]
    return {row.split(" | ")[0].removeprefix("| "): row for row in rows}


def _version(name: str) -> str:
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    page, arguments = "cells.md", sys.argv[1:]
    if arguments[:1] == ["--gpu"]:
        page, arguments = "gpu.md", arguments[1:]
    with tempfile.TemporaryDirectory(prefix="tried-") as state:
        os.environ[folders.STATE] = state
        os.chdir(state)
        sys.exit(main(page, " ".join(arguments) or "as installed"))
