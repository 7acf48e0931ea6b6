"""Run the cells of ``cells.md``, which CI doesn't run, on two ranks of this machine; print a table.

``python -m tests.frameworks [WORD]``: only the cells with the word in their title.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from nbtorchjob.machine import folders

LIMIT_S = 300.0
_CELL = re.compile(r"^## (.+?) \((.+?)\)\n\n(.*?)^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Cell:
    """A framework's cell: the packages to list with versions, the result if it runs, its line's arguments."""

    title: str
    packages: tuple[str, ...]
    seen: str
    arguments: str
    artifacts: bool
    code: str


def cells() -> Iterator[Cell]:
    """Yield the cells of the page beside this file."""
    for title, packages, about, code in _CELL.findall((Path(__file__).parent / "cells.md").read_text()):
        sign, *more = filter(None, about.split("\n"))
        fields = dict(line.split(": ", 1) for line in more)
        yield Cell(
            title, (*packages.split(", "),), sign, fields.get("arguments", ""), "artifacts" in fields, code
        )


def tried(shell: Any, cell: Cell) -> str:
    """Run a cell as a job; return the reason for a failure, "" if it has none."""
    behind = f" -- {cell.arguments}" if cell.arguments else ""
    with capture_output():
        run = shell.run_cell(f"%%torchjob --nproc-per-node 2 -d -o job{behind}\n{cell.code}")
    if not run.success:
        return repr(run.error_in_exec or run.error_before_exec)
    job = shell.user_ns["job"]
    failed = job.exception(LIMIT_S)
    if failed is not None:
        return str(failed)
    if cell.artifacts and not job.artifacts():
        return "it left no artifacts"
    job.delete()
    return ""


def main(word: str) -> int:
    """Print a row for each cell, and the reason for a failure; return the exit code."""
    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext nbtorchjob").raise_error()
    print("| what | version | seen |\n| --- | --- | --- |")
    bad = 0
    for cell in cells():
        if word.lower() not in cell.title.lower():
            continue
        try:
            versions = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in cell.packages)
        except PackageNotFoundError as exc:
            print(f"| {cell.title} | {exc.name} isn't installed | |", flush=True)
            continue
        why = tried(shell, cell)
        print(f"| {cell.title} | {versions} | {cell.seen if not why else 'fails'} |", flush=True)
        if why:
            print(why, file=sys.stderr)
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as state:
        os.environ.setdefault(folders.STATE, state)
        sys.exit(main(" ".join(sys.argv[1:])))
