"""Run the corpus from one Python, in a kernel's place, on others: ``-m tests.capture.pythons OTHER...``

The module imports only what capturing needs, so any Python can stand for a kernel. The others have no torch:
cells that name it are left out. It prints a line for each pair, with the differences below it. Without
arguments it tries all pairs of this machine's interpreters: those of pyenv, those on PATH, and those that
``NBTORCHJOB_PYTHONS`` names.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.capture.corpus import Example, corpus, difference
from tests.capture.ranks import Ranks

_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
_HERE = sys.version_info[:2]
_NEEDED = ("cloudpickle", "packaging", "platformdirs")  # to capture: they are pure Python
_NO_SOURCE = "has no source|have no source"
_OLDER = r"line \d+ of .* isn't Python 3.\d+'s: .*; use an image or environment with Python 3"
# Cells that can't mean the same on a Python older than 3.<number>, by title, and a pattern for the message.
_REFUSED = {
    "functions: a function defined by exec": (99, _NO_SOURCE),
    "functions: a module made by hand": (99, _NO_SOURCE),
    "functions: a module made by hand and put among modules": (99, _NO_SOURCE),
    "classes: a dataclass with keyword-only fields, order and a ClassVar": (
        10,
        "dataclasses support from Python 3.10 on",
    ),
    "imported: objects that others are compared with": (10, "has no attribute 'KW_ONLY'"),
    "classes: ParamSpec and TypeVarTuple": (10, "Can't get attribute"),
    "classes: a Literal, Optional and a union": (
        10,
        "Subscripted generics cannot be used with class and instance",
    ),
    "classes: a generic class and function (3.12)": (12, _OLDER),
    "classes: type aliases (3.12)": (12, "Can't get attribute 'TypeAliasType'"),
    "classes: type aliases and generics of the cell (3.12)": (12, _OLDER),
    "flow: a match that doesn't match": (10, _OLDER),
    "flow: an exception group (3.11)": (11, _OLDER),
}
# Cells that Python itself runs differently from 3.<number> on, by title, and a pattern for the difference.
_OTHERWISE = {
    "flow: an annotated name without a value": (14, "__annotations__"),
    "classes: a Literal, Optional and a union": (14, "Union"),
    "classes: a __getattr__ that needs its own attributes (3.11)": (11, "can't be pickled|Unpicklable"),
    "functions: a closure with an empty variable": (11, "free variable 'later'"),
}


def interpreters() -> dict[tuple[int, int], str]:
    """Return this machine's interpreters by their minor versions, without the running one."""
    pythons: dict[tuple[int, int], str] = {}
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))

    def add(python: str) -> None:
        with contextlib.suppress(OSError, subprocess.CalledProcessError, ValueError):  # it doesn't run
            pythons.setdefault(version(python), python)

    for python in filter(None, os.environ.get("NBTORCHJOB_PYTHONS", "").split(os.pathsep)):
        add(python)
    for minor in range(9, 15):
        # A test module calls this at collection, so it runs only interpreters that pyenv doesn't name.
        for path in root.glob(f"versions/3.{minor}.*/bin/python3.{minor}"):
            pythons.setdefault((3, minor), str(path))
        if (3, minor) not in pythons and (on_path := shutil.which(f"python3.{minor}")):
            add(on_path)
    pythons.pop(_HERE, None)
    return dict(sorted(pythons.items()))


def version(python: str) -> tuple[int, int]:
    """Return the minor version of an interpreter."""
    text = subprocess.run([python, "-c", _VERSION], capture_output=True, text=True, check=True).stdout
    major, minor = map(int, text.split("."))
    return major, minor


def examples() -> list[Example]:
    """Return the cells of the corpus that this Python can run without torch and other libraries."""
    cases = [case for case in corpus() if case.since <= _HERE]
    return [case for case in cases if not re.search(r"\b(torch|toolz)\b|\bnp\.", case.before + case.cell)]


def compared(python: str, folder: Path, cells: Iterable[Example]) -> list[str]:
    """Run cells on ``python``, each in a folder of its own; return the unexpected differences."""
    rank_version = version(python)
    ranks = Ranks(folder, python)
    differences = []
    try:
        for number, cell in enumerate(cells):
            with _notebook(folder / f"cell {number}"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                words = difference(cell, ranks)
            if not _expected(cell.title, words, rank_version):
                differences.append(f"{cell.title}: {words or 'it is the same'}")
    finally:
        ranks.close()
    return differences


@contextlib.contextmanager
def _notebook(folder: Path) -> Iterator[None]:
    """Set up a ``__main__`` and a working folder for one cell."""
    main, modules, before = sys.modules["__main__"], set(sys.modules), Path.cwd()
    folder.mkdir()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.modules["__main__"] = type(sys)("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name in set(sys.modules) - modules:
            del sys.modules[name]
        sys.path.remove(str(folder))
        os.chdir(before)


def _expected(title: str, words: str, rank_version: tuple[int, int]) -> bool:
    minor, pattern = _REFUSED.get(title, (0, ""))
    if rank_version < (3, minor):
        return bool(re.search(pattern, words))
    minor, pattern = _OTHERWISE.get(title, (0, ""))
    between = (rank_version < (3, minor)) != ((3, minor) > _HERE)
    return not words or bool(between and re.search(pattern, words))


def main(pythons: list[str], every: int = 1) -> None:
    """Compare this Python with each of ``pythons``; exit with 1 if something differs."""
    good = True
    for python in pythons:
        rank_version, cells = version(python), examples()[::every]
        with tempfile.TemporaryDirectory() as folder:
            lines = compared(python, Path(folder), cells)
        good = good and not lines
        pair = f"3.{_HERE[1]} -> 3.{rank_version[1]}"
        print(f"{pair}: {len(cells)} cells, {len(lines)} differ", *lines, sep="\n    ", flush=True)
    sys.exit(not good)


def from_kernel(python: str, others: Iterable[str], folder: Path, every: int = 1) -> subprocess.Popen[str]:
    """Start an interpreter that, in the kernel's place, compares itself with others, as ``main`` does.

    Copies the packages that it needs to capture into ``folder``.
    """
    for name in _NEEDED:
        source = Path(importlib.import_module(name).__file__ or "").parent
        shutil.copytree(source, folder / name, dirs_exist_ok=True)
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{folder}"}
    line = [python, "-m", "tests.capture.pythons", f"--every={every}", *others]
    return subprocess.Popen(line, env=env, text=True, stdout=subprocess.PIPE, cwd=root)


def all_pairs() -> None:
    """Compare each interpreter that can stand for a kernel with all others."""
    pythons = {**interpreters(), _HERE: sys.executable}
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for kernel_version, python in sorted(pythons.items()):
            others = [
                pythons[rank_version] for rank_version in sorted(pythons) if rank_version != kernel_version
            ]
            if kernel_version >= (3, 10):
                kernel = from_kernel(python, others, Path(folder))
                for line in kernel.stdout or ():
                    print(line, end="", flush=True)
                good = not kernel.wait() and good
    sys.exit(not good)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--every", type=int, default=1, help="take only each so many-th cell")
    arguments.add_argument("pythons", nargs="*")
    chosen = arguments.parse_args()
    main(chosen.pythons, chosen.every) if chosen.pythons else all_pairs()
