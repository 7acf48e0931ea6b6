"""Code from another Python, compiled from its source: this Python claims to be another version."""

import dataclasses
import datetime
import enum
import linecache
import pickle
import sys
import traceback
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from nbtorchjob.capture.pickling import Pickler
from nbtorchjob.runtime.objects import pickler, sources


def codes(text):
    return sources.functions(text, "<cell>")


@pytest.mark.parametrize(
    "text",
    [
        "f, g = lambda x: x + 1, lambda x: x - 1",
        "f, g = lambda: 1, lambda: 1",
        "@d(lambda f: f)\n@d\ndef f(x=lambda: 1) -> (lambda: 2):\n    return lambda: [lambda: i for i in x]",
        "class A:\n    def f(self): return super()\n    @property\n    def f(self): return lambda: __class__",
        "async def f():\n    async for x in f(): yield (lambda: x)",
        "try: pass\nfinally:\n    f = lambda: 3",
        "def _1_(): return lambda: _1_",
    ],
)
def test_each_function_is_found_by_its_place_in_the_syntax_tree(text):
    names = [code.co_name for code in codes(text)]
    spelled = [word for word in ("f", "_1_", "<lambda>") for _ in range(names.count(word))]

    assert sorted(names) == sorted(spelled)
    assert len(names) == text.count("def ") + text.count("lambda")
    for code in codes(text):
        assert code.co_firstlineno <= text.count("\n") + 1


def test_functions_that_share_a_line_keep_their_order():
    functions = [types.FunctionType(code, {}) for code in codes("f, g = lambda x: x + 1, lambda x: x - 1")]

    assert [fn(5) for fn in functions] == [6, 4]


def test_code_that_never_runs_has_no_function():
    assert codes("if 0:\n    def f(): pass\ndef g(): pass")[0] is None


@pytest.fixture
def notebook(monkeypatch):
    """Return a function that runs a cell, as a kernel does, in a ``__main__`` of its own."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    def run(text, filename="<cell 1>", keep=True):
        if keep:
            linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec", 0, True), vars(main))
        return vars(main)

    return run


def sent(monkeypatch, value, **options):
    """Pickle a value as Python 3.99 would."""
    with monkeypatch.context() as patch:
        patch.setattr(sources, "HERE", "3.99")
        return pickler.dumps(value, Pickler, lambda buffer: None, sourced=True, **options)


def arrived(monkeypatch, value):
    """Pickle a value as Python 3.99 would, and load it here."""
    data = sent(monkeypatch, value)
    monkeypatch.setattr("nbtorchjob.runtime.objects.rebuilt._tagged", {})  # so that its classes are made anew
    return pickle.loads(data)


CELL = """
import functools
def outer(n):
    def inner(x, *, y=1):
        return [x + n + y + k for k in range(2)]
    return inner
f = outer(10)

class A:
    @functools.lru_cache
    def m(self): return __class__

    def fails(self):
        x = 0
        return 1 / x
"""


def test_closures_and_methods_come_with_their_cells_defaults_and_lines(notebook, monkeypatch):
    names = notebook(CELL)
    f, cls = arrived(monkeypatch, (names["f"], names["A"]))

    assert f(1) == [12, 13]
    assert cls().m() is cls is not names["A"]
    with pytest.raises(ZeroDivisionError) as caught:
        cls().fails()
    frame = traceback.extract_tb(caught.tb)[-1]
    assert (frame.filename, frame.lineno, frame.line) == ("<cell 1>", 15, "return 1 / x")


def test_bytecode_of_another_python_is_never_made_into_code(notebook, monkeypatch):
    names = notebook(CELL)
    data = sent(monkeypatch, names["f"])
    monkeypatch.setattr(
        "nbtorchjob.runtime.objects.rebuilt.same", None
    )  # the function that would take the received code

    assert pickle.loads(data)(1) == [12, 13]


def test_only_the_statements_of_what_is_sent_go_along(notebook, monkeypatch):
    names = notebook("secret = 'abc'\ndef f(): return 1\n\n\ndef g(): return 'def'; x = 3\n")
    data = sent(monkeypatch, names["g"])

    assert b"secret" not in data
    assert b"return 1" not in data
    assert pickle.loads(data).__code__.co_firstlineno == 5


def test_a_script_is_compiled_with_its_imports_and_a_cell_a_statement_at_a_time(notebook, monkeypatch):
    text = "import os\ndef f(): return os.getpid()\nx = 'left out'\n"
    whole = notebook(text)["f"]
    alone: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("\ndef f(): return os.getpid()\n", "<cell 1>", "exec"), alone)

    for function in (whole, alone["f"]):
        codes_ = sources.Codes()
        codes_.add(function.__code__)
        assert codes_.table()["lacking"] == []
        assert "left out" not in codes_.table()["files"][0]["text"]


def test_future_imports_of_other_cells_hold(notebook, monkeypatch):
    notebook("from __future__ import annotations", "<cell 0>")
    text = "def f(x: missing): return (lambda y: y)(x)"
    names: dict[str, object] = {}
    linecache.cache["<cell 2>"] = (len(text), None, [text], "<cell 2>")
    import __future__

    exec(compile(text, "<cell 2>", "exec", __future__.annotations.compiler_flag, True), names)

    assert arrived(monkeypatch, names["f"]).__annotations__ == {"x": "missing"}


def test_an_edited_file_has_no_source(tmp_path, monkeypatch):
    file = tmp_path / "script.py"
    file.write_text("def f(): return 1\n")
    names = {"__name__": "__main__"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    file.write_text("def f(): return 2\n")

    with pytest.raises(
        RuntimeError, match=r"f \(line 1 of .*script.py\) is Python 3.99's bytecode, and has no source"
    ):
        arrived(monkeypatch, names["f"])()


def test_what_has_no_source_is_named_and_says_so_once_it_is_called(notebook, monkeypatch):
    names = notebook("def f(): return 1\nclass A:\n    def m(self): return f()", keep=False)
    linecache.cache.pop("<cell 1>", None)
    codes_ = sources.Codes()
    for fn in (names["f"], names["A"].m):
        codes_.add(fn.__code__)

    with pytest.raises(sources.SourceError, match=r"m \(line 3 of <cell 1>\), f \(line 1 of <cell 1>\) have"):
        sources.check(codes_.table())
    with pytest.raises(RuntimeError, match="has no source"):
        arrived(monkeypatch, names["f"])()


def test_syntax_that_a_python_doesnt_know_is_refused_with_its_line():
    table = sources.Codes().table(("<cell 7>", "x = 1\nmatch x:\n    case 1: pass\n"))

    sources.check(table)
    with pytest.raises(sources.SourceError, match=r"line 3 of <cell 7> isn't Python 3.9's: .*: case 1: pass"):
        sources.check(table, "3.9")


def test_a_source_that_gives_other_code_here_is_refused(notebook, monkeypatch):
    names = notebook("def f(a): return a.b\n")
    data = sent(monkeypatch, names["f"])

    with pytest.raises(
        sources.SourceError, match=r"f \(line 1 of <cell 1>\) compiles to different code on Python"
    ):
        pickle.loads(data.replace(b"return a.b", b"return a.c"))


MADE = """
import dataclasses, enum, functools, typing, collections
@dataclasses.dataclass(order=True)
class Data:
    x: int
    xs: list = dataclasses.field(default_factory=list)
    many: typing.ClassVar[int] = 3
    seed: dataclasses.InitVar[int] = 5
    def __post_init__(self, seed): self.seeded = seed
    def twice(self): return self.x * 2
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: int = 1
class Color(enum.Enum):
    RED = 1
    GREEN = [2]
    ALSO = 1
    def low(self): return self.name.lower()
class Perm(enum.Flag):
    R = 4
    W = 2
    RW = 6
Point = collections.namedtuple("Point", "x y", defaults=[7])
class Named(typing.NamedTuple):
    a: int
    b: str = "b"
    def both(self): return (self.a, self.b)
@typing.runtime_checkable
class Runs(typing.Protocol):
    def run(self): ...
@functools.singledispatch
def kind(x): return "other"
@kind.register(int)
def _(x): return kind("x") + "int"
"""


def test_what_class_makers_wrote_is_written_again(notebook, monkeypatch):
    names = notebook(MADE)
    originals = [
        names[name] for name in ("Data", "Frozen", "Color", "Perm", "Point", "Named", "Runs", "kind")
    ]
    data, frozen, color, perm, point, named, runs, kind = arrived(monkeypatch, originals)

    record = data(1, seed=9)
    assert (record, record.seeded, record.twice(), record < data(2), data.many) == (data(1), 9, 2, True, 3)
    assert repr(record) == "Data(x=1, xs=[])"
    assert [field.name for field in dataclasses.fields(data)] == ["x", "xs"]
    assert dataclasses.fields(data)[0].default is dataclasses.MISSING
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen().x = 3
    assert (hash(frozen()), frozen.__slots__) == (hash(names["Frozen"]()), ("x",))
    assert [*color] == [color.RED, color.GREEN]
    assert (color(1), color([2]), color["ALSO"], color.ALSO.low()) == (
        color.RED,
        color.GREEN,
        color.RED,
        "red",
    )
    assert (perm.R | perm.W, perm(4), perm.RW in perm) == (perm.RW, perm.R, True)
    assert (~perm.R & perm.RW) is perm.W
    assert (point(1), point(1)._replace(y=2), point._make([3, 4])) == ((1, 7), (1, 2), (3, 4))
    assert (named(1).both(), repr(named(1)), named._field_defaults) == (
        (1, "b"),
        "Named(a=1, b='b')",
        {"b": "b"},
    )
    assert isinstance(types.SimpleNamespace(run=print), runs)
    assert not isinstance(3, runs)
    assert (kind(1), kind("")) == ("otherint", "other")
    assert typing.get_type_hints(data)["x"] is int


def test_what_only_some_pythons_have_by_name_goes_by_a_name_that_all_have(monkeypatch):
    paths, zone = Path("/a/b"), datetime.timezone.utc
    data = sent(monkeypatch, (paths, zone, int | str, enum.EnumMeta))

    assert pickle.loads(data) == (paths, zone, int | str, enum.EnumMeta)
    assert not any(word in data for word in (b"pathlib._local", b"UTC", b"EnumType", b"UnionType"))


def test_a_dataclass_keeps_what_it_says_of_its_fields_on_the_same_python(notebook, monkeypatch):
    cls = notebook(MADE)["Data"]
    data = pickler.dumps(cls, Pickler, lambda buffer: None)
    monkeypatch.setattr("nbtorchjob.runtime.objects.rebuilt._tagged", {})
    copy = pickle.loads(data)

    first = dataclasses.fields(copy)[0]
    assert (first.name, first.default) == ("x", dataclasses.MISSING)
    assert first.default is dataclasses.MISSING
