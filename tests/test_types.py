"""What a type checker knows of the public names: the assertions are mypy's, which reads this file too."""

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import nbtorchjob

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from typing_extensions import assert_type

    from nbtorchjob import Elastic, Job, attach, jobs, submit, torchjob
    from nbtorchjob.state import JobState

    def mean(values: list[float], lr: float = 0.1) -> float: ...
    async def counted(text: str) -> int: ...

    assert_type(submit(mean, [1.0]), Job[float])
    assert_type(submit(mean, [1.0], spec=Elastic(nnodes=2)).result(), float)
    assert_type(submit(mean, [1.0]).results(), list[float])
    assert_type(submit(mean, [1.0]).retry().result(timeout=1.0), float)
    assert_type(submit(counted, "a").result(), int)
    assert_type(submit(mean, [1.0]).__await__(), Generator[Any, None, float])
    assert_type(attach("mean-2222").result(), Any)
    assert_type(jobs(), list[JobState])

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
