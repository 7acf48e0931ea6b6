import contextlib
import itertools
import time
import timeit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob.capture import cells
from nbtorchjob.errors import CaptureError


def parse(text):
    return cells.parse("\n" + text, "<cell>")


def names(text):
    return {read.name for read in parse(text).reads}


READS = {
    "x = x + 1": {"x"},
    "x += 1": {"x"},
    "del x": {"x"},
    "x = 1\nx": set(),
    "x = 1\ndef f():\n    return x": set(),
    "def f():\n    return x\nx = 1": {"x"},
    "if c:\n    x = 1\nx": {"c", "x"},
    "for i in r:\n    loss = f(i)\n    g(loss)\nloss": {"r", "f", "g", "loss"},
    "while (n := f()):\n    n": {"f"},
    "with a() as b:\n    x = b\nx": {"a", "x"},
    "with a() as b:\n    x = b\n    x": {"a"},
    "with a(), b() as x:\n    pass\nx": {"a", "b", "x"},
    "if c:\n    x = 1\nelse:\n    x = 2\nx": {"c"},
    "if c:\n    raise SystemExit\nelse:\n    x = 2\nx": {"c", "SystemExit"},
    "c and (x := f())\nx": {"c", "f", "x"},
    "a < (x := b) < (y := c)\nx, y": {"a", "b", "c", "y"},
    "[x := i for i in r]\nx": {"r", "x"},
    "try:\n    e\nexcept KeyError as e:\n    pass": {"e", "KeyError"},
    "try:\n    x = f()\nexcept KeyError:\n    x = 1\nx": {"f", "KeyError"},
    "try:\n    x = f()\nexcept KeyError:\n    x": {"f", "KeyError", "x"},
    "try:\n    f()\nexcept:\n    exit()\nelse:\n    x = 1\nfinally:\n    y = 1\nx, y": {"f", "exit", "x"},
    "for i in r:\n    try:\n        x = f()\n    finally:\n        break\nx": {"r", "f", "x"},
    "match s:\n    case [x]:\n        pass\nx": {"s", "x"},
    "match s:\n    case [x]:\n        x\n    case x:\n        x\nx": {"s"},
    "while True:\n    x = 1\n    break\nx": set(),
    "x = 1\ndel x\nx": set(),
    "if 0:\n    missing": set(),
    "class A:\n    if c:\n        x = 1\n    y = x": {"c", "x"},
    "try:\n    x = 1\nexcept ValueError as e:\n    e\nx": {"ValueError", "x"},
    "try:\n    import fast\nfinally:\n    done(fast)": {"done", "fast"},
    "[x for x in x]": {"x"},
    "[x for x in data if x > low]": {"data", "low"},
    "{k: v for k, v in data.items()}": {"data"},
    "(y := 3)\ny": set(),
    'f"{a} {b!r:>{width}} {f(c)}"': {"a", "b", "width", "f", "c"},
    "lambda a, b=default: a + b + c": {"default", "c"},
    "@deco\ndef f(a, b=default) -> None:\n    c = a\n    return g(c)": {"deco", "default", "g"},
    "class A(Base, metaclass=M):\n    a = 1\n    b = a\n    c = c\n    def m(self):\n        return a": {
        "Base",
        "M",
        "c",
        "a",
    },
    "class A:\n    def m(self):\n        return super().m() + __class__.x": {"super"},
    "def f():\n    global g\n    g = 1\nf()\ng": {"g"},
    "def outer():\n    a = 1\n    def inner():\n        nonlocal a\n        a = b\n    return inner": {"b"},
    "match shape:\n    case Point(x=0, y=y) if y > low:\n        y\n    case Color.RED:\n        z": {
        "shape",
        "Point",
        "low",
        "Color",
        "z",
    },
    "from __future__ import annotations\ndef f(a: T) -> T: ...": set(),
    "await f(x)": {"f", "x"},
    "async for a in source():\n    a": {"source"},
    "import os.path as p, sys\np, sys": set(),
    "for i in range(3):\n    if i: break\n    else: continue": {"range"},
    "a.b.c": {"a"},
    "__name__": set(),
    "x: int = 1": {"int"},
}


@pytest.mark.parametrize(("text", "expected"), READS.items(), ids=READS)
def test_a_cell_reads_what_it_has_not_surely_set(text, expected):
    assert names(text) == expected


def test_a_read_knows_its_line_in_the_notebook_cell():
    assert parse("a = 1\n\nfoo(a)").reads == (cells.NameRead("foo", 4),)


def test_a_name_whose_error_is_caught_is_guarded():
    cell = parse("try:\n    x\nexcept NameError:\n    x = 1\ny")
    guarded = {read.name: read.guarded for read in cell.reads}
    assert guarded == {"x": True, "NameError": False, "y": False}


def test_a_caught_exception_of_another_kind_guards_nothing():
    assert not any(r.guarded for r in parse("try:\n    x\nexcept Exception:\n    pass").reads)


def test_names_set_anywhere_are_known():
    text = "import a.b\nfrom c import d as e\ndef f():\n    global g\n    g = l = 1\nif f: h = 1"
    assert parse(text).sets == {"a", "e", "f", "g", "h"}


def test_imports_are_found_inside_functions_too():
    cell = parse("import a.b\ndef f():\n    from c.d import e\n    from . import z")
    assert cell.imports == {"a.b", "c.d"}
    assert not cell.star
    assert parse("from os import *").star


def test_attributes_are_found_for_the_import_of_submodules():
    assert {"futures", "Executor"} <= parse("def f(): concurrent.futures.Executor").attributes


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("def a(): ...\nclass B: ...\ndef c(): ...\nimport os", "c"),
        ('"""What it does."""\nasync def a(): ...', "a"),
        ("def a(): ...\na()", None),
        ("x = 1\ndef a(): ...", None),
        ("class A: ...", None),
        ('"""Text."""', None),
    ],
)
def test_a_cell_of_definitions_has_its_last_function_as_entry(text, entry):
    function = parse(text).entry
    assert (function and function.name) == entry


@pytest.mark.parametrize("text", ["", "  \n", "# nothing\n\n"])
def test_an_empty_cell_is_refused(text):
    with pytest.raises(CaptureError, match="the cell is empty"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\n%timeit x", 3),
        ("!pip install x", 2),
        ("files = !ls", 2),
        ("x?", 2),
        ("if x:\n    %time f()", 3),
        ("page = '\f'\n%timeit x", 3),
    ],
)
def test_ipython_syntax_is_refused_by_its_line(text, line):
    with pytest.raises(CaptureError, match=rf"line {line}: .* is IPython's"):
        parse(text)


def test_a_syntax_error_is_pythons_own():
    with pytest.raises(SyntaxError) as caught:
        parse("x = 1\nif x\n  y")
    assert (caught.value.filename, caught.value.lineno, caught.value.text) == ("<cell>", 3, "if x\n")


_NAMES = st.sampled_from("abcd")
_EXPRESSIONS = st.one_of(
    _NAMES,
    st.builds("({} and ({} := 0))".format, _NAMES, _NAMES),
    st.builds("(({} := 1) if {} else {})".format, _NAMES, _NAMES, _NAMES),
    st.builds("(1 < {} < ({} := 2))".format, _NAMES, _NAMES),
    st.builds("[({} := {}) for _ in range({})]".format, _NAMES, _NAMES, st.integers(0, 1)),
    st.builds("(lambda: {})()".format, _NAMES),
)
_SIMPLE = st.one_of(
    st.builds("{} = {}".format, _NAMES, _EXPRESSIONS),
    st.builds("seen.append({})".format, _EXPRESSIONS),
    st.builds("del {}".format, _NAMES),
    st.builds("{} = later = lambda: {}".format, _NAMES, _NAMES),
    st.sampled_from(["raise KeyError", "if odd(): break", "if odd(): continue", "break"]),
)


def _lines(head, body):
    return [head, *("    " + line for line in body)]


def _compound(inner):
    name, some = _NAMES, _EXPRESSIONS
    return st.one_of(
        st.builds(lambda c, x, y: _lines(f"if {c}:", x) + _lines("else:", y), some, inner, inner),
        st.builds(lambda x: _lines("if odd():", x), inner),
        st.builds(
            lambda n, x, y: _lines(f"for {n} in range(2):", x) + _lines("else:", y), name, inner, inner
        ),
        st.builds(lambda x: _lines("while odd():", x), inner),
        st.builds(lambda n, x: _lines(f"with suppress(KeyError, NameError) as {n}:", x), name, inner),
        st.builds(lambda n, x: _lines(f"with suppress(KeyError), fails() as {n}:", x), name, inner),
        st.builds(
            lambda n, x, y, z: (
                _lines("try:", x) + _lines(f"except KeyError as {n}:", y) + _lines("finally:", z)
            ),
            *(name, inner, inner, inner),
        ),
        st.builds(
            lambda c, n, x: _lines(f"match {c}:", _lines(f"case [{n}] | {{'k': {n}}}:", x)), some, name, inner
        ),
        st.builds(lambda n, x: _lines("class K:", [*x, f"z = {n}"]), name, inner),
        st.builds(lambda n, x: [*_lines("def f():", [f"global {n}", *x]), "f()"], name, inner),
    )


_PROGRAMS = st.recursive(
    st.lists(_SIMPLE, min_size=1, max_size=3),
    lambda inner: st.lists(_compound(inner), min_size=1, max_size=3).map(
        lambda parts: list(itertools.chain(*parts))
    ),
    max_leaves=8,
)


def _run(code, values):
    seen: list[object] = []
    count = iter([1, 0, 1, 1, 0, 1, 0, 0, 1, 0] * 30)

    @contextlib.contextmanager
    def fails():
        yield from [][:0] if next(count) else [None]

    tools = {"seen": seen, "odd": lambda: next(count), "suppress": contextlib.suppress, "fails": fails}
    try:
        exec(code, {**values, **tools})
    except Exception as exc:
        seen.append(type(exc))
    return [repr(value).partition(" at 0x")[0] for value in seen]


@settings(max_examples=150)
@given(_PROGRAMS)
def test_a_cell_runs_as_well_with_only_what_it_reads(lines):
    text = "\n".join(lines)
    try:
        code = compile(text, "<cell>", "exec")
    except SyntaxError:  # a break outside a loop
        return
    notebook = {name: f"the notebook's {name}" for name in "abcd"}
    reads = {read.name for read in cells.parse(text, "<cell>").reads}
    subset = {name: value for name, value in notebook.items() if name in reads}
    assert _run(code, subset) == _run(code, notebook), text


def test_a_long_cell_takes_as_long_as_it_is():
    def took(count):  # without the time to collect other tests' garbage
        text = "\n".join(f"if n{i}:\n    x{i} = n{i}\ny{i} = x{i}" for i in range(count))
        return min(timeit.repeat(lambda: parse(text), timer=time.process_time, number=1, repeat=3))

    assert took(2000) < 20 * took(400)
