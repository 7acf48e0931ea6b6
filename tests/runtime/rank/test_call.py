import ast
import asyncio
import linecache
import pickle
import sys
import traceback
import typing
from pathlib import Path
from typing import Any

import pytest

from nbtorchjob.runtime.rank import call


@pytest.fixture(autouse=True)
def main(monkeypatch):
    """Restore the tests' own ``__main__`` and arguments: a rank gets others."""
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", sys.argv)


def anchor(**values):
    namespace = {"__name__": "__main__", **values}
    exec("def anchor(): ...", namespace)
    return namespace.pop("anchor")


def cell(text, *, entry=None, kwargs=None, flags=0, names=(), **values):
    return {
        "cell": text,
        "filename": "<cell 1>",
        "flags": flags,
        "namespace": anchor(**values),
        "entry": entry,
        "kwargs": kwargs or {},
        "argv": ["cell"],
        "names": list(names),
    }


def function(fn, *args, **kwargs):
    return {"function": fn, "args": args, "kwargs": kwargs, "argv": ["f"], "names": []}


def test_the_last_expression_is_the_value():
    assert call.run(cell("y = x + 1\ny * 2", x=1)) == 4
    assert call.run(cell("'text'")) == "text"


@pytest.mark.parametrize("text", ["y = 1", "if True:\n    1", "def f(): return 1", "1\nimport os"])
def test_a_cell_that_ends_in_a_statement_gives_none(text):
    assert call.run(cell(text)) is None


def test_the_namespace_shows_nothing_of_ours():
    names = call.run(cell("x\nsorted(globals())", x=1))
    assert names == ["__builtins__", "__name__", "x"]


def test_a_cell_may_await_at_its_top():
    text = "import asyncio\nawait asyncio.sleep(0)\n[i async for i in source()]"
    space = anchor()
    exec("async def source():\n    yield 1\n    yield 2", space.__globals__)
    assert call.run({**cell(text), "namespace": space}) == [1, 2]


def test_an_entry_is_called_with_its_arguments():
    text = "def f(a, /, b=2, c=3, *, d): return a, b, c, d"
    assert call.run(cell(text, entry="f", kwargs={"a": 1, "c": 9, "d": 4})) == (1, 2, 9, 4)
    text = "def f(a=1, b=2, /, **more): return a, b, more"
    assert call.run(cell(text, entry="f", kwargs={"b": 5, "x": 6})) == (1, 5, {"x": 6})
    assert call.run(cell("async def f(a): return a", entry="f", kwargs={"a": 1})) == 1


def test_a_function_is_called_and_awaited():
    async def slow(a, b):
        await asyncio.sleep(0)
        return a + b

    assert call.run(function(divmod, 7, 2)) == (3, 1)
    assert call.run(function(slow, 1, b=2)) == 3


def test_a_traceback_shows_the_cells_lines(monkeypatch):
    monkeypatch.delitem(linecache.cache, "<cell 1>", raising=False)
    with pytest.raises(ZeroDivisionError) as caught:
        call.run(cell("\ndef f(x):\n    return 1 / x\nf(0)"))
    last = traceback.extract_tb(caught.value.__traceback__)[-2:]
    assert [(f.filename, f.lineno, f.line) for f in last] == [
        ("<cell 1>", 4, "f(0)"),
        ("<cell 1>", 3, "return 1 / x"),
    ]


@pytest.mark.parametrize("odd", ["\x0c", "\u2028"])
def test_a_traceback_shows_a_cells_lines_below_a_character_that_ends_no_line(monkeypatch, odd):
    monkeypatch.delitem(linecache.cache, "<cell 1>", raising=False)
    with pytest.raises(ZeroDivisionError) as caught:
        call.run(cell(f"page = '''{odd}'''\ndef f(x):\n    return 1 / x\nf(0)"))
    last = traceback.extract_tb(caught.value.__traceback__)[-2:]
    assert [(f.lineno, f.line) for f in last] == [(4, "f(0)"), (3, "return 1 / x")]


def test_compiler_flags_of_the_notebook_hold():
    import __future__

    text = "def f(x: missing): ...\nf.__annotations__['x']"
    assert call.run(cell(text, flags=__future__.annotations.compiler_flag)) == "missing"


def test_classes_of_the_cell_can_be_pickled_by_name():
    text = "import pickle\nclass A: ...\na = A()\ntype(pickle.loads(pickle.dumps(a))) is A"
    assert call.run(cell(text))


def test_definitions_that_came_with_objects_are_found_by_name():
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("class A: ...\nclass B: ...", space)
    names = [("A", space["A"]), ("B", space["B"])]
    data = call.run(cell("import pickle\npickle.dumps(a)", a=space["A"](), names=names))
    assert type(pickle.loads(data)) is space["A"]
    content = call.run({**function(pickle.dumps, space["B"]()), "names": names})
    assert type(pickle.loads(content)) is space["B"]


def test_the_cells_own_name_wins_over_a_definition_that_came_along():
    space = {"__name__": "__main__"}
    exec("class A: ...", space)
    assert call.run(cell("A", A=1, names=[("A", space["A"])])) == 1


def test_main_is_the_cells_namespace():
    text = "import __main__\n__main__.y = 2\n__main__.x, y, vars(__main__) is globals()"
    assert call.run(cell(text, x=1)) == (1, 2, True)
    assert not hasattr(sys.modules["__main__"], "missing")
    call.run(cell("class A:\n    b: 'B'\nclass B: ..."))
    space = vars(sys.modules["__main__"])
    assert typing.get_type_hints(space["A"])["b"] is space["B"]


def test_it_parses_on_an_older_python():
    ast.parse(Path(call.__file__).read_text(), feature_version=(3, 7))
