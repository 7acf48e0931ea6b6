import ast

import pytest
from hypothesis import given
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
    "with a() as b:\n    x = b\nx": {"a"},
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
    assert parse("a = 1\n\nfoo(a)").reads == (cells.Read("foo", 4),)


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
    found = parse(text).entry
    assert (found and found.name) == entry


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
    ],
)
def test_ipython_syntax_is_refused_by_its_line(text, line):
    with pytest.raises(CaptureError, match=rf"line {line}: .* is IPython's"):
        parse(text)


def test_a_syntax_error_is_pythons_own():
    with pytest.raises(SyntaxError) as caught:
        parse("x = 1\nif x\n  y")
    assert (caught.value.filename, caught.value.lineno, caught.value.text) == ("<cell>", 3, "if x\n")


WORDS = st.sampled_from("abcd")
SIMPLE = st.builds("{} = {}".format, WORDS, WORDS)
BLOCKS = st.recursive(
    st.lists(SIMPLE, min_size=1, max_size=3),
    lambda inner: st.builds(
        lambda head, body, after: [head, *("    " + line for line in body), *after],
        st.builds("{}:".format, st.one_of(st.builds("if {}".format, WORDS), st.just("if 1"))),
        inner,
        inner,
    ),
    max_leaves=4,
)


@given(BLOCKS)
def test_a_cell_given_the_names_it_reads_never_misses_one(lines):
    text = "\n".join(lines)
    namespace = dict.fromkeys(names(text), 1)
    exec(compile(ast.parse(text), "<cell>", "exec"), namespace)  # no NameError
