"""Try this environment, and write what came of it into docs/tried.md: ``python -m tests.tried NAME``.

``NAME`` says what is special in it, such as "torch 2.9.1": its row is replaced. What failed is printed.
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

Each row is an environment in which a real kernel has run the {number} things below, on the local backend.
`make tried WITH="torch==2.9.1"` tries one and writes its row; `make test-torch VERSION=2.9.1` also runs the
tests of ranks there.
What a version of torch misses is in `%torchjob doctor`. Nightly builds aren't on PyPI, so none was tried.

`make pythons` has each Python of a machine capture cells for each other one, as a kernel from 3.10 on and as
a node from 3.9 on; with 3.9 to 3.14 these are 25 pairs. In a browser, JupyterLab 4.2.5 was tried beside the
pinned one.

| with | Python | {packages} | came of it |
| --- | --- | {rules} | --- |
"""


def main(name: str) -> int:
    """Run the checks, write the page, print what failed; return the exit code."""
    failed = kernel.run()
    titles = [check.title for check in kernel.checks()]
    row = [name, ".".join(map(str, sys.version_info[:3])), *map(_version, _PACKAGES), _said(failed, titles)]
    rows = {**_rows(), name: f"| {' | '.join(row)} |"}
    head = _BEFORE.format(
        number=len(titles), packages=" | ".join(_PACKAGES), rules=" | ".join("---" for _ in _PACKAGES)
    )
    listed = "\n".join(f"- {title}" for title in titles)
    PAGE.write_text("\n".join([head.rstrip("\n"), *rows.values(), "", "## The things", "", listed, ""]))
    for title, shown in failed.items():
        print(f"{title}:\n{shown}\n", file=sys.stderr)
    return 1 if failed else 0


def _said(failed: dict[str, str], titles: list[str]) -> str:
    if not failed:
        return "all right"
    if len(failed) == len(titles) or not failed.keys() <= {*titles}:
        return "nothing works"
    return f"all but: {'; '.join(failed)}"


def _rows() -> dict[str, str]:
    """Return the rows that the page has, by name."""
    lines = PAGE.read_text().split("\n") if PAGE.exists() else []
    rows = [line for line in lines if line.startswith("| ")][2:]
    return {row.split(" | ")[0].removeprefix("| "): row for row in rows}


def _version(name: str) -> str:
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tried-") as state:
        os.environ[folders.STATE] = state
        os.chdir(state)
        sys.exit(main(" ".join(sys.argv[1:]) or "as installed"))
