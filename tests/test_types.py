"""The types of the public names: the assertions are for mypy, which reads this file, too."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nbtorchjob

ROOT = Path(__file__).parents[1]
CONSUMER = ROOT / "tests" / "programs" / "consumer.py"

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from typing_extensions import assert_type

    from nbtorchjob import Elastic, Job, attach, jobs, submit, torchjob
    from nbtorchjob.state import JobState
    from nbtorchjob.tables import Jobs

    def mean(values: list[float], lr: float = 0.1) -> float: ...
    async def counted(text: str) -> int: ...

    assert_type(submit(mean, [1.0]), Job[float])
    assert_type(submit(mean, [1.0], spec=Elastic(nnodes=2)).result(), float)
    assert_type(submit(mean, [1.0]).results(), list[float])
    assert_type(submit(mean, [1.0]).retry().result(timeout=1.0), float)
    assert_type(submit(counted, "a").result(), int)
    assert_type(submit(mean, [1.0]).__await__(), Generator[Any, None, float])
    assert_type(attach("mean-2222").result(), Any)
    assert_type(jobs(), Jobs)
    assert_type(jobs()[0], JobState)

    as_job = torchjob(Elastic(nnodes=2))(mean)
    assert_type(as_job([1.0], lr=3.0), float)
    assert_type(as_job.submit([1.0]), Job[float])
    as_job("ab")  # type: ignore[arg-type]
    as_job([1.0], rate=3.0)  # type: ignore[call-arg]

    @torchjob()
    async def later(text: str) -> int: ...

    assert_type(later("a"), int)
    nbtorchjob.sumbit  # type: ignore[attr-defined]  # noqa: B018


def test_a_type_checker_sees_each_public_name_where_it_is_taken_from():
    tree = ast.parse(Path(nbtorchjob.__file__).read_text())
    shown = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module != "typing"
    }

    assert shown == nbtorchjob._LATE
    hooks = {"load_ipython_extension", "unload_ipython_extension"}
    assert {*shown, *hooks} == {*nbtorchjob.__all__}


@pytest.fixture
def elsewhere(tmp_path):
    """Return a user's module outside the checkout, where only ``py.typed`` marks the package as typed."""
    return Path(shutil.copy(CONSUMER, tmp_path))


def test_mypy_understands_the_code_of_a_user(elsewhere):
    # Use the cache of `make types`: without it this takes a minute.
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", *options, elsewhere.name]
    done = subprocess.run(command, cwd=elsewhere.parent, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


def test_pyright_understands_it_too(elsewhere):
    pyright = shutil.which("basedpyright", path=Path(sys.executable).parent) or shutil.which("pyright")
    if pyright is None:
        pytest.skip("neither basedpyright nor pyright is installed")
    # By default pyright heeds these comments, and would report nothing.
    elsewhere.write_text(re.sub(r"  # type: ignore.*", "", elsewhere.read_text()))
    command = [pyright, "--outputjson", "--level", "error", "--pythonpath", sys.executable, elsewhere.name]
    done = subprocess.run(command, cwd=elsewhere.parent, capture_output=True, text=True, check=False)
    lines = CONSUMER.read_text().splitlines()
    errors = {
        diagnostic["range"]["start"]["line"] for diagnostic in json.loads(done.stdout)["generalDiagnostics"]
    }

    assert errors == {number for number, line in enumerate(lines) if "type: ignore" in line}
