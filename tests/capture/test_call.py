import asyncio
import builtins
import functools
import linecache
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbtorchjob
from nbtorchjob import capture
from nbtorchjob.capture import from_cell, from_expression, from_function
from nbtorchjob.errors import CaptureError
from nbtorchjob.runtime.api import rank_api
from nbtorchjob.runtime.rank import call as runtime
from tests.programs import program


@pytest.fixture(autouse=True)
def main(monkeypatch):
    """Restore the tests' own ``__main__`` and arguments: a rank gets others."""
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", sys.argv)


def notebook(*cells, **values):
    namespace = {"__name__": "__main__", **values}
    for text in cells:
        exec(compile(text, "<notebook>", "exec", 0, True), namespace)
    return namespace


def run(call):
    return runtime.run(pickle.loads(call.pickle, buffers=call.buffers))


def value(text, *cells, **values):
    return run(from_cell(text, notebook(*cells, **values)))


def taken(text, *cells, **values):
    return [ship.name for ship in from_cell(text, notebook(*cells, **values)).ships]


CELLS = [
    ("several functions", "def a(): return b()\ndef b(): return x\na()", "x = 1", 1),
    ("a class", "class A:\n    def m(self): return x\nA().m()", "x = 1", 1),
    (
        "inheritance",
        "class B(A):\n    def m(self): return super().m() + 1\nB().m()",
        "class A:\n    def m(self): return 1",
        2,
    ),
    ("a decorator", "@twice\ndef f(): return 2\nf()", "def twice(f): return lambda: 2 * f()", 4),
    ("a comprehension", "[x for x in range(x)], x", "x = 2", ([0, 1], 2)),
    ("nested functions", "def f():\n    def g(): return x\n    return g\nf()()", "x = 1", 1),
    ("a lambda's default", "(lambda a=x: a)()", "x = 1", 1),
    ("global", "def f():\n    global x\n    x += 1\nf()\nx", "x = 1", 2),
    ("an f-string", 'f"{x:>{width}}"', "x, width = 1, 3", "  1"),
    ("a walrus", "[y := x, y + 1]", "x = 1", [1, 2]),
    ("a guarded name", "try:\n    x\nexcept NameError:\n    x = 5\nx", "y = 1", 5),
    ("a guarded name that is there", "try:\n    x\nexcept NameError:\n    x = 5\nx", "x = 1", 1),
    ("a star import", "from math import *\nsqrt(x)", "x = 4", 2.0),
    ("await", "import asyncio\nawait asyncio.sleep(0, x)", "x = 1", 1),
    (
        "async for",
        "r = []\nasync for i in up(): r.append(i)\nr",
        "async def up():\n    yield 1\n    yield 2",
        [1, 2],
    ),
    (
        "a dataclass",
        "from dataclasses import dataclass, field, asdict\n@dataclass\nclass A:\n    x: int = x\n"
        "    y: 'list[int]' = field(default_factory=list)\nasdict(A())",
        "x = 3",
        {"x": 3, "y": []},
    ),
    ("a builtin's name", "max(1, 2)", "def max(*a): return 'mine'", "mine"),
    ("main", "if __name__ == '__main__': x = 5\nx", "x = 1", 5),
    ("annotations", "def f(a: T) -> T: return a\nf(T(3))", "T = int", 3),
    ("match", "match p:\n    case [a, *_] if a > low: r = a\nr", "p, low = [3, 4], 1", 3),
    (
        "mutual recursion",
        "even(7)",
        "def even(n): return not n or odd(n - 1)\ndef odd(n): return n > 0 and even(n - 1)",
        False,
    ),
    ("augmented assignment", "x += 1\nx", "x = 1", 2),
    ("deletion", "del x\n'x' in globals()", "x = 1", False),
    ("a submodule", "concurrent.futures.Future.__name__", "import concurrent.futures", "Future"),
    ("its assignment seen by a function", "x = 5\nf()", "x = 1\ndef f(): return x", 5),
    ("a function's assignment", "f()\nx", "x = 1\ndef f():\n    global x\n    x = 9", 9),
    ("a name only its functions give", "f()\nz", "def f():\n    global z\n    z = 9\nz = 1", 9),
    ("a generator expression", "sum(x * k for x in xs)", "xs, k = [1, 2], 3", 9),
    ("a class attribute of its own name", "class A:\n    x = x\nA.x", "x = 1", 1),
    ("no value", "y = x", "x = 1", None),
    ("a value behind a semicolon", "x;", "x = 1", 1),
]


@pytest.mark.parametrize(("text", "before", "expected"), [c[1:] for c in CELLS], ids=[c[0] for c in CELLS])
def test_a_cell_runs_as_in_the_notebook(text, before, expected):
    namespace = notebook(before)
    before_it = dict(namespace)
    assert run(from_cell(text, namespace)) == expected
    assert namespace == before_it


def test_each_name_of_the_package_is_found_when_it_is_first_asked_for():
    assert all(getattr(capture, name) is not None for name in capture.__all__)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
def test_generic_functions_work():
    assert value("def f[T](a: T) -> T: return g(a)\nf(x)", x=1, g=abs) == 1


def test_only_what_is_read_travels():
    names = taken("y = x + f(1)\nz = y\nz", "def f(a): return a * k", x=1, y=2, z=3, k=4, w=5)
    assert set(names) == {"f", "k", "x"}


def test_what_the_cell_sets_first_stays_home():
    thread = threading.Thread()
    assert value("thread = 1\nthread", thread=thread) == 1


def test_functions_and_objects_keep_their_identity():
    before = "class A: ...\na = A()\nb = [a]\ndef f(): return a"
    assert value("b[0] is a and f() is a and type(a) is A", before)


def test_an_earlier_future_import_holds():
    before = "from __future__ import annotations"
    assert value("def f(a: missing): ...\nf.__annotations__", before) == {"a": "missing"}


def test_a_name_that_is_nowhere_is_refused():
    with pytest.raises(CaptureError) as caught:
        from_cell("x = 1\nprint(lrr)", notebook(lr=0.1))
    assert str(caught.value) == (
        "name 'lrr' (line 3) is neither defined in the notebook nor in the cell: did you mean 'lr'?"
    )
    with pytest.raises(CaptureError, match="nor in the cell: set it in one of them"):
        from_cell("zzzzzzzz", notebook())


def test_a_name_that_ranks_have_is_offered_with_its_import():
    for name in (*rank_api.__all__, "display"):
        home = "IPython.display" if name == "display" else "nbtorchjob"
        with pytest.raises(CaptureError, match=rf"isn't imported: add `from {home} import {name}`$"):
            from_cell(f"{name}(1)", notebook())
    assert value("def report(**words): return words\nreport(loss=1)") == {"loss": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import builtins\nbuiltins.level = 3\nlevel + 1", 4),
        ("import os\nos.path.dirname(__file__) if '__file__' in globals() else '.'", "."),
        ("    x = 1\n    if x:\n        x = 2\n    x", 2),
        ("  def f():\n      return 1", 1),
    ],
)
def test_what_a_notebook_runs_is_no_error_and_needs_no_note(text, expected, monkeypatch):
    monkeypatch.setattr(builtins, "level", None, raising=False)  # the cell sets it in this process, too
    call = from_cell(text, notebook())
    assert (run(call), call.notes) == (expected, ())


def ipython():
    history = ["", "x = 1"]
    return notebook(
        "class Shell:\n    def get_ipython(self): ...",
        "get_ipython = Shell().get_ipython",
        "get_ipython.__func__.__module__ = 'IPython.core.interactiveshell'",
        In=history,
        _ih=history,
        Out={},
        _oh={},
        _=3,
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("get_ipython().run_line_magic('time', 'x')", "get_ipython"),
        ("In[-1]", "In"),
        ("Out", "Out"),
        ("_oh[1]", "_oh"),
        ("name = input('?')", "input"),
        ("import getpass\nkey = getpass.getpass()", "getpass"),
        ("from getpass import getpass as ask\nkey = ask('?')", "getpass"),
        ("exit()", "exit"),
    ],
)
def test_what_only_a_notebook_has_is_refused_by_name(text, name):
    with pytest.raises(CaptureError, match=rf"'{name}' \(line \d\) works in the notebook only: "):
        from_cell(text, ipython())


def test_names_of_the_users_own_are_no_notebook_names():
    assert value("display(In)", "def display(x): return x", In=5) == 5
    assert run(from_cell("_ + 1", ipython())) == 4
    text = "try:\n    get_ipython()\n    n = 1\nexcept NameError:\n    n = 2\nn"
    assert run(from_cell(text, ipython())) == 2


def test_a_real_shells_namespace_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    try:
        shell.run_cell("import json\ndef read(path):\n    with open(path) as f: return json.load(f)")
        (tmp_path / "a.json").write_text("[1]")
        call = from_cell("with open('a.json') as f: x = f.read()\nread('a.json'), x", shell.user_ns)
        assert run(call) == ([1], "[1]")
        assert any("def read" in text for text in call.sources.values())
        with pytest.raises(CaptureError, match="'get_ipython'"):
            from_cell("get_ipython()", shell.user_ns)
        shell.run_cell("def magic(): get_ipython()")
        with pytest.raises(CaptureError, match="magic → get_ipython"):
            from_cell("magic()", shell.user_ns)
    finally:
        assert shell.history_manager is not None
        shell.history_manager.end_session()


def test_a_cell_of_definitions_calls_its_last_function():
    text = "import math\ndef half(x): return x / 2\ndef train(lr, epochs=2): return half(lr), epochs"
    call = from_cell(text, notebook(epochs=7), args={"lr": "0.1"})
    assert run(call) == (0.05, 2), "a default is the function's own word"
    assert call.label == "train(lr=0.1)"
    assert value("async def f(a, /): return a", a=1) == 1


def test_arguments_for_a_cell_that_is_no_function_are_refused():
    with pytest.raises(CaptureError, match="--arg lr: this cell isn't a function"):
        from_cell("lr", notebook(lr=1), args={"lr": "0.1"})


def test_what_cannot_travel_is_named():
    with pytest.raises(CaptureError, match=r"can't take 'box' along: box\['a'\] is a thread"):
        from_cell("box", notebook(box={"a": threading.Thread()}))
    with (
        pytest.raises(CaptureError, match="can't take 'file' along: it is an open file"),
        open(__file__) as file,
    ):
        from_function(print, (1,), {"file": file})


def test_code_without_a_file_is_no_cell(monkeypatch):
    # Python 3.13 caches the code of `python -c` as <string>, the filename that dataclasses' code has, too.
    monkeypatch.setitem(linecache.cache, "<string>", (1, None, ["import sys\n"], "<string>"))
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def f(): return 1", "<string>", "exec"), scope)

    assert from_function(scope["f"], (), {}).sources == {}


def test_a_call_knows_its_cell():
    call = from_cell("x", notebook(x=np.zeros(1000)), filename="<cell 3>")
    assert (call.filename, call.label) == ("<cell 3>", "cell")
    assert call.sources == {"<cell 3>": "\nx"}
    assert sum(view.nbytes for view in call.buffers) == 8_000
    assert capture.ships_line(call) == "ships x (ndarray 1000 float64, 8.1 kB)"


def test_local_modules_come_along(tmp_path, monkeypatch):
    for name in ("by_import", "by_value", "by_function", "unused"):
        (tmp_path / f"cap_{name}.py").write_text("X = 1")
    monkeypatch.syspath_prepend(tmp_path)
    before = "import cap_by_value, cap_unused\ndef f():\n    import cap_by_function"
    text = "def g():\n    import cap_by_import\ncap_by_value.X, f()"
    call = from_cell(text, notebook(before), root=tmp_path)
    assert [file.path for file in call.files] == [
        "cap_by_function.py",
        "cap_by_import.py",
        "cap_by_value.py",
    ]


class Trainer:
    def fit(self, n):
        return n + 1


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "expected", "label"),
    [
        (divmod, (7, 2), {}, (3, 1), "divmod(7, 2)"),
        (Trainer().fit, (1,), {}, 2, "Trainer.fit(1)"),
        (functools.partial(int, base=2), ("11",), {}, 3, "int('11')"),
        (dict, (), {"lr": 0.1, "x": [1]}, {"lr": 0.1, "x": [1]}, "dict(lr=0.1, x=list)"),
        (lambda a: a, ({},), {}, {}, "<lambda>(dict)"),
    ],
)
def test_anything_callable_can_be_called(fn, args, kwargs, expected, label):
    call = from_function(fn, args, kwargs)
    assert (run(call), call.label) == (expected, label)


def sign_in(user, token=None, *keys, **more):
    return user


@pytest.mark.parametrize(
    ("args", "kwargs", "label"),
    [
        (("ann",), {"token": "zzz"}, "sign_in('ann', token=str)"),
        (("ann", "zzz", b"zzz"), {}, "sign_in('ann', str, bytes)"),
        (("ann", None), {"num_tokens": 512}, "sign_in('ann', None, num_tokens=512)"),
        (("pg://me:zzz@host",), {}, "sign_in(str)"),
    ],
)
def test_an_argument_that_is_called_a_secret_is_told_by_its_type(args, kwargs, label):
    call = from_function(sign_in, args, kwargs)

    assert call.label == label
    assert "zzz" not in str(call.ships)
    assert {ship.name for ship in call.ships if ship.digest and ship.type in ("str", "bytes")} <= {"args[0]"}


def test_nor_does_a_label_tell_one_that_a_line_spells_out():
    space = notebook("def f(user, token): return user", mine="zzz")

    assert from_expression("f('ann', 'zzz')", space).label == "f('ann', str)"
    assert from_expression("f('ann', token='zzz')", space).label == "f('ann', token=str)"
    assert from_expression("f('ann', token=mine)", space).label == "f('ann', token=mine)"
    cell = "def g(user, token): return user"
    assert from_cell(cell, space, args={"user": "ann", "token": "zzz"}).label == "g(user=ann, token=str)"


def test_a_coroutine_function_is_awaited():
    async def slow(n):
        await asyncio.sleep(0)
        return n

    assert run(from_function(slow, (1,))) == 1


def test_a_functions_call_names_what_it_takes_along():
    space = notebook("def f(a): return a + k", k=1)
    call = from_function(space["f"], (np.arange(3),))
    assert {ship.name for ship in call.ships} == {"f", "args[0]", "k"}
    assert call.filename == "<notebook>"


def test_what_cannot_be_called_is_refused():
    with pytest.raises(CaptureError, match="3 can't be called"):
        from_function(3, (), {})  # type: ignore[arg-type]


def test_an_expression_is_evaluated_here_and_called_there():
    space = notebook("def f(*a, **k): return a, k", x=1, more=[2, 3], opts={"lr": 0.1})
    before = dict(space)
    call = from_expression(" f(x, *more, (y := 4), n=x, **opts) ", space)
    assert run(call) == ((1, 2, 3, 4), {"n": 1, "lr": 0.1})
    assert call.label == "f(x, *more, (y := 4), n=x, **opts)"
    assert space == before
    assert len(from_expression(f"f('{'x' * 99}')", space).label) == 60


@pytest.mark.parametrize("text", ["", "f", "f()()[0]", "x = f()", "f(); g()", "1 + f()", "f("])
def test_anything_but_one_call_is_no_expression(text):
    with pytest.raises(CaptureError, match="call"):
        from_expression(text, notebook("def f(): ..."))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nope(1)", "nope(1): NameError: name 'nope' is not defined"),
        ("f(1 / 0)", "f(1 / 0): ZeroDivisionError: division by zero"),
        ("f(*[x.size for x in (1,)])", "'int' object has no attribute 'size'"),
    ],
)
def test_an_expression_without_a_value_is_refused_in_a_line(text, reason):
    with pytest.raises(CaptureError, match=re.escape(reason)):
        from_expression(text, notebook("def f(x): ..."))


def test_what_a_function_of_an_expression_raises_goes_on():
    with pytest.raises(KeyError, match="absent"):
        from_expression("f(broken())", notebook("def f(x): ...\ndef broken(): {}['absent']"))


def test_a_call_runs_in_a_bare_process():
    before = (
        "import numpy as np\nfrom dataclasses import dataclass\n@dataclass\nclass Step:\n"
        "    n: int\n    def go(self): return weigh(self.n)\ndef weigh(n): return n * scale\n"
        "scale, steps, X = 2, [Step(1), Step(2)], np.ones(10_000)"
    )
    text = (
        "import pickle\nscale = 10\nagain = pickle.loads(pickle.dumps(steps))\n"
        "sum(s.go() for s in again) + X.sum()"
    )
    call = from_cell(text, notebook(before))
    import cloudpickle

    paths = [Path(nbtorchjob.__file__).parents[1], Path(cloudpickle.__file__).parents[1]]
    done = subprocess.run(
        program("rank", *paths, python=("-I",)),
        input=pickle.dumps((call.pickle, [bytes(view) for view in call.buffers])),
        capture_output=True,
        check=False,
    )
    assert (done.stdout.decode().strip(), done.stderr.decode()) == ("10030.0", "")


@pytest.mark.parametrize(
    "cell",
    [
        "x = 1\nbreakpoint()",
        "import pdb\npdb.set_trace()",
        "from pdb import set_trace\nset_trace()",
        "def f():\n    return [breakpoint() for _ in 'ab']",
        "stops()",
        "import torch.distributed as dist\ndist.breakpoint()",
        "import torch.distributed\ndef f():\n    torch.distributed.breakpoint(rank=1)",
    ],
)
def test_code_that_may_stop_in_a_debugger_is_known(cell):
    space = notebook()
    exec("def stops():\n    breakpoint()", space)

    assert capture.from_cell(cell, space).stops
    assert not capture.from_cell("x = 1", space).stops


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("def f():\n    breakpoint()\n", True),
        ("def f():\n    breakpoint ()\n", True),
        ("from pdb import set_trace as st\ndef f():\n    st()\n", True),
        ("# breakpoint() was here\nbreakpoints = [1, 2]\n", False),
    ],
)
def test_a_module_that_may_stop_in_a_debugger_is_known(tmp_path, monkeypatch, text, stops):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stopping_module.py").write_text(text)

    assert capture.from_cell("import stopping_module", {}, root=tmp_path).stops is stops


def test_several_cells_of_which_one_may_stop_are_known():
    def parts(*texts):
        return [capture.Part(text, f"<cell {number}>") for number, text in enumerate(texts)]

    assert capture.from_cells(parts("x = 1", "breakpoint()", "x"), {}, "cells").stops
    assert not capture.from_cells(parts("breakpoint = print", "breakpoint()"), {}, "cells").stops


def test_a_breakpoint_of_the_notebooks_own_is_taken_along():
    space = notebook()
    exec("def breakpoint():\n    return 1\ndef f():\n    return breakpoint()", space)

    assert not capture.from_cell("f() + breakpoint()", space).stops
