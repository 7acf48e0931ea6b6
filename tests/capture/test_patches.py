"""Patches: functions and methods of Python, or of installed packages, that the notebook replaced."""

import builtins
import contextlib
import fractions
import functools
import gc
import sys
import sysconfig
import textwrap
import types
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.capture import from_cell, patches


@pytest.fixture
def notebook():
    """Return a namespace with the notebook's own functions, as its cells define them."""
    space = {"__name__": "__main__"}
    exec(
        "import functools, fractions, textwrap\n"
        "def mine(*args): return 'mine'\n"
        "class Mine:\n    def __call__(self, text): return text\n    def method(self, text): return text\n"
        "called, method = Mine(), Mine().method\n"
        "named = functools.wraps(textwrap.dedent)(lambda text: text)\n"
        "filled = functools.partial(textwrap.indent, prefix='> ')",
        space,
    )
    return space


@pytest.mark.parametrize(
    ("owner", "attribute", "name", "says"),
    [
        (fractions.Fraction, "limit_denominator", "mine", "fractions.Fraction.limit_denominator"),
        (textwrap, "dedent", "named", "textwrap.dedent"),
        (textwrap, "indent", "filled", "textwrap.indent"),
        (textwrap, "dedent", "called", "textwrap.dedent"),
        (textwrap, "shorten", "method", "textwrap.shorten"),
        (builtins, "print", "mine", "builtins.print"),
    ],
)
def test_a_capture_names_each_patch(owner, attribute, name, says, notebook, monkeypatch):
    cell = "fractions.Fraction(1, 3), textwrap.dedent(' a'), print(1)"
    assert from_cell(cell, notebook).notes == ()
    home = says.partition(".")[0]
    note = f"{says} was set in the notebook: ranks have {home}'s own"
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, notebook[name])
        assert from_cell(cell, notebook).notes == (note,)
    assert from_cell(cell, notebook).notes == ()


def test_a_builtin_that_travels_is_no_difference(notebook, monkeypatch):
    monkeypatch.setattr(builtins, "mine", notebook["mine"], raising=False)
    assert from_cell("mine()", notebook).notes == ()


SOURCE = """
import functools
count, nothing = 1, None
def f(): pass
def g(): pass
class A:
    size = 1
    def method(self): pass
    @property
    def x(self): pass
    static = staticmethod(lambda: 1)
    of_class = classmethod(lambda cls: 1)
    class Inner:
        pass
class B:
    def method(self): pass
"""


def installed(name):
    """Return a module with a file in site-packages."""
    module = types.ModuleType(name)
    module.__file__ = f"{sysconfig.get_paths()['purelib']}/{name.replace('.', '/')}.py"
    exec(SOURCE, vars(module))
    return module


@contextlib.contextmanager
def imported_package():
    """Yield the two modules of an installed package, imported for the duration of the block."""
    modules = installed("patched_a"), installed("patched_a.b")
    sys.modules.update({module.__name__: module for module in modules})
    try:
        yield modules
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "patched_a"]:
            del sys.modules[name]


@pytest.fixture
def package():
    with imported_package() as modules:
        yield modules


def found():
    """Return the names that a capture reports as patched at the moment."""
    return [note.partition(" was set")[0] for note in patches.patched({"patched_a.b"}, {})]


WRAPPED = {
    "mine": lambda space: space["mine"],
    "Mine": lambda space: space["Mine"],
    "static": lambda space: staticmethod(space["mine"]),
    "of the class": lambda space: classmethod(space["mine"]),
    "property": lambda space: property(space["mine"]),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize(
    "path",
    [
        *("f", "count", "nothing", "new", "A", "b.f", "b.B.method", "b.B.new"),
        *("A.method", "A.x", "A.size", "A.static", "A.of_class", "A.Inner", "A.new"),
    ],
)
def test_a_patch_is_found_after_a_look_without(path, wrapped, package, notebook):
    assert found() == []
    *way, attribute = path.split(".")
    owner = package[0]
    for step in way:
        owner = package[1] if step == "b" else getattr(owner, step)
    before = vars(owner).get(attribute)
    setattr(owner, attribute, WRAPPED[wrapped](notebook))
    assert found() == [f"patched_a.{path}"]
    assert found() == [f"patched_a.{path}"]  # also when asked again
    setattr(owner, attribute, before)
    assert found() == []


def test_a_partial_of_what_stood_there_is_a_patch_of_a_package_s_own_variables(package):
    top, inner = package
    other = functools.partial(top.g)
    top.f = other
    inner.f = functools.partial(inner.f)
    assert found() == []
    top.f, top.g = top.g, other
    assert found() == ["patched_a.g"]


def test_a_module_that_is_imported_later_is_looked_through(package, notebook):
    assert found() == []
    late = sys.modules["patched_a.late"] = installed("patched_a.late")
    assert found() == []
    late.A.method = notebook["mine"]
    assert found() == ["patched_a.late.A.method"]


def test_a_module_that_is_imported_anew_is_looked_through(package, notebook):
    assert found() == []
    anew = sys.modules["patched_a.b"] = installed("patched_a.b")
    anew.f = notebook["mine"]
    assert found() == ["patched_a.b.f"]


def test_a_class_that_gets_there_later_is_looked_through(package, notebook):
    assert found() == []
    package[1].C = type("C", (), {"__module__": "patched_a.b", "method": notebook["mine"]})
    assert found() == ["patched_a.b.C.method"]


def test_whose_a_class_or_a_function_says_that_it_is_counts_at_any_time(package):
    space: dict[str, Any] = {}
    exec("def made(): pass", space)
    top = package[0]
    top.f, top.Foreign = space["made"], type("Foreign", (), {"__module__": "elsewhere"})
    assert found() == []
    space["__name__"] = "__main__"
    assert found() == ["patched_a.f"]
    space["__name__"] = "elsewhere"
    assert found() == []
    top.Foreign.__module__ = "__main__"
    assert found() == ["patched_a.Foreign"]


def test_a_class_that_becomes_a_module_s_own_is_looked_through(package, notebook):
    top = package[0]
    top.Foreign = type("Foreign", (), {"__module__": "elsewhere", "method": notebook["mine"]})
    assert found() == []
    top.Foreign.__module__ = "patched_a"
    assert found() == ["patched_a.Foreign.method"]


def test_a_patch_that_has_the_address_of_what_it_replaces_is_found(package):
    top = package[0]
    for _ in range(50):
        exec("def f(): pass", vars(top))
        assert found() == []
        del top.f
        exec("def f(): pass", {"__name__": "__main__"}, vars(top))
        assert found() == ["patched_a.f"]


def test_what_a_package_lets_go_of_is_not_kept(package):
    class Model:
        pass

    top = package[0]
    top.model = Model()
    reference = weakref.ref(top.model)
    assert found() == []
    top.model = None
    gc.collect()
    assert reference() is None


def test_a_second_look_calls_as_much_as_has_changed(package, notebook):
    exec("\n".join(f"class C{i}:\n    def method(self): pass" for i in range(1000)), vars(package[1]))
    first, second = calls(found), calls(found)
    package[0].f = notebook["mine"]
    found()
    assert second < first / 10 > calls(found)


def calls(function):
    """Return how many Python functions run in a call."""
    events = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        function()
    finally:
        sys.setprofile(None)
    return events.count("call")


def value(kind):
    """Return a value to set, defined by the notebook or by the package."""
    space: dict[str, Any] = {"__name__": "__main__" if kind.startswith("my ") else "patched_a"}
    exec("def f(): pass\nclass C: pass", space)
    function, class_ = space["f"], space["C"]
    return {
        "function": function,
        "class": class_,
        "static": staticmethod(function),
        "property": property(function),
        "number": 3,
        "none": None,
    }[kind.removeprefix("my ")]


KINDS = ["function", "class", "static", "property"]
OWNERS = ["patched_a", "patched_a.A", "patched_a.B", "patched_a.b", "patched_a.b.A"]
NAMES = ["f", "g", "count", "new"]
CHANGES = st.tuples(
    st.sampled_from(OWNERS),
    st.sampled_from(NAMES),
    st.sampled_from([*KINDS, *(f"my {kind}" for kind in KINDS), "number", "none", "gone"]),
)


@given(st.lists(st.lists(CHANGES, max_size=3), max_size=6))
def test_whatever_changes_between_captures_each_names_what_is_there(captures):
    with imported_package() as (top, inner):
        owners = dict(zip(OWNERS, (top, top.A, top.B, inner, inner.A), strict=True))
        names: set[str] = set()
        for changes in captures:
            for owner, name, kind in changes:
                if kind == "gone":
                    if name in vars(owners[owner]):
                        delattr(owners[owner], name)
                else:
                    setattr(owners[owner], name, value(kind))
                names -= {f"{owner}.{name}"}
                names |= {f"{owner}.{name}"} if kind.startswith("my ") else set()
            assert sorted(found()) == sorted(names)


def test_a_package_that_is_gone_is_not_kept(notebook):
    with imported_package() as modules:
        reference = weakref.ref(modules[0].f)
        assert found() == []
    del modules
    from_cell("1", notebook)
    gc.collect()
    assert reference() is None
