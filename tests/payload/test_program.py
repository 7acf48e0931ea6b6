"""The program that travels to a cluster is the program that runs here, in less room."""

import ast
import io
import json
import subprocess
import sys
import threading
import zipfile

import pytest
import torch

from nbtorchjob import capture, report
from nbtorchjob.backends.kubernetes.payload.package import pack
from nbtorchjob.payload import program
from nbtorchjob.spec.jobspec import JobSpec

MODULES = dict(program.modules())


@pytest.mark.parametrize("name", MODULES)
def test_without_its_words_a_module_is_the_same_code_on_the_same_lines(name):
    whole, small = MODULES[name], program.bare(MODULES[name])

    assert wordless(small) == wordless(whole)
    assert len(small) <= len(whole)
    assert (b"Copyright" in small) == (b"Copyright" in whole)


def wordless(source):
    """Return the syntax with lines, without docstrings, and with annotations only of classes' fields."""
    tree = ast.parse(source)
    fields = {stmt for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for stmt in node.body}
    tree = Unannotated(fields).visit(tree)
    for node in ast.walk(tree):
        if isinstance(node, program.DOCUMENTED) and ast.get_docstring(node) is not None:
            del node.body[0]
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
    for node in ast.walk(tree):
        for place in (
            "col_offset",
            "end_lineno",
            "end_col_offset",
        ):  # a node that ended with a docstring ends earlier
            if hasattr(node, place):
                setattr(node, place, None)
    return ast.dump(tree, include_attributes=True)


class Unannotated(ast.NodeTransformer):
    def __init__(self, but):
        self.but = but

    def visit_AnnAssign(self, node):
        if node in self.but or node.value is None or node.annotation.end_lineno > node.lineno:
            return node
        return ast.copy_location(ast.Assign([node.target], node.value, None), node)


@pytest.mark.parametrize(
    ("source", "left"),
    [
        (
            b'def f():\n    """Say\n    more."""\n    return "# no"  # yes\n',
            b'def f():\n\n\n return "# no"\n',
        ),
        (b'class A:\n    """Only this."""\n', b'class A:\n ""\n'),
        (
            b"def f(a: int = 1, *b: str, **c: Dict[\n    str, X\n]) -> X:\n    x: X = {\n        a\n    }\n",
            b"def f(a = 1, *b, **c\n\n):\n x = {\na\n}\n",
        ),
        (
            b'if x:\n    if y:\n        z = """\n      a\n  """ + (\n            1)\n',
            b'if x:\n if y:\n  z = """\n      a\n  """ + (\n1)\n',
        ),
        (
            b"x: Dict[\n    str, X\n] = {}\nclass A:\n    y: int = 1\n    def f(a):\n        a.z: int = 2\n",
            b"x: Dict[\nstr, X\n] = {}\nclass A:\n y: int = 1\n def f(a):\n  a.z = 2\n",
        ),
        (b"y: int\n", b"y: int\n"),
        ('x = "\u00e9"  # \u00e9\n'.encode(), 'x = "\u00e9"\n'.encode()),
        (b'"""Of a module."""; y = 1\n', b'""; y = 1\n'),
        (b"# Copyright 2012\n# why\nx = 1\n", b"# Copyright 2012\n\nx = 1\n"),
    ],
)
def test_what_is_left_out(source, left):
    assert program.bare(source) == left


def test_a_trivial_cell_takes_less_than_86_kb_to_a_cluster():
    # In a process of its own: otherwise settings that other tests change here would travel as well.
    ran = subprocess.run([sys.executable, "-c", PACK], capture_output=True, text=True, check=True)

    assert int(ran.stdout) < 86_000


PACK = """
from nbtorchjob import capture
from nbtorchjob.backends.kubernetes.payload.package import pack
from nbtorchjob.spec.jobspec import JobSpec
print(len(pack(capture.from_cell("1", {}), JobSpec(backend="kubernetes")).data))
"""


@pytest.mark.parametrize(
    ("cell", "travels"),
    [
        ("1", False),
        ("import os, torch", False),
        ("from nbtorchjob import report", True),
        ("import transformers", True),
        ("report(loss=1)", True),
        ("import runpy\nmade = runpy.run_path('train.py')", True),  # its imports are unknown
        ("with open('train.py') as file: exec(file.read())", True),
        ("import importlib\nmade = importlib.import_module(name)", True),
        ("made = __import__(name)", True),
        ("made = by_function('1')", True),
    ],
)
def test_what_posts_reports_travels_with_code_that_may_report(cell, travels):
    notebook = {"__name__": "__main__", "report": report, "name": "lightning"}
    exec("def by_function(text): exec(text)", notebook)
    calls = (capture.from_cell(text, notebook) for text in ("1", cell))
    trivial, packed = (len(pack(call, JobSpec(backend="kubernetes")).data) for call in calls)

    assert (packed > trivial + 800) == travels


@pytest.mark.parametrize(
    ("cell", "travels"),
    [
        ("1", False),
        ("x = [1]", False),
        ("import torch\nprint(torch.ones(2))", False),
        ("'text'", False),
        (str(1 << 64), True),
        ("[1]", True),
        ("def f(): return 1", True),
        ("import cloudpickle", True),
        ("from os.path import *\nprint()", True),
        ("print = list\nprint()", True),
        ("globals()['print'] = object\nprint()", True),
        ("import builtins\nbuiltins.print = object\nprint()", True),
        ("own(1)", True),
        ("import transformers", True),  # its optimizers' steps are points at which to swap code
    ],
)
def test_what_pickles_a_value_travels_with_code_that_may_return_one(cell, travels):
    calls = (capture.from_cell(text, {"own": list}) for text in ("1", cell))
    trivial, packed = (len(pack(call, JobSpec(backend="kubernetes")).data) for call in calls)

    assert (packed > trivial + 10_000) == travels


def test_what_makes_a_lock_travels_with_code_that_has_one():
    calls = (capture.from_cell("print(len(names))", {"names": names}) for names in ([1], [threading.Lock()]))
    without, packed = (len(pack(call, JobSpec(backend="kubernetes")).data) for call in calls)

    assert packed > without + 800


def test_what_writes_methods_of_classes_travels_with_code_that_has_one():
    plain, own = [1], type("Own", (), {"__module__": "__main__"})
    calls = (capture.from_cell("print(len(names))", {"names": names}) for names in (plain, [own]))
    without, packed = (len(pack(call, JobSpec(backend="kubernetes")).data) for call in calls)

    assert packed > without + 2_000


def test_torch_settings_travel_with_what_lays_them_where_any_has_changed():
    spec = JobSpec(backend="kubernetes", carry_settings=True)
    plain = pack(capture.from_cell("1", {}), spec).data
    torch.set_float32_matmul_precision("high")
    try:
        changed = pack(capture.from_cell("1", {}), spec).data
    finally:
        torch.set_float32_matmul_precision("highest")

    assert len(changed) > len(plain) + 500


def test_its_modules_are_found_as_python_finds_them_in_an_archive(tmp_path):
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w") as packed:
        for name, source in program.modules():
            packed.writestr(name, source)
    ways = {
        "plain": plain.getvalue(),
        "here": program.archive(remote=False),
        "far": program.archive(remote=True),
    }
    outputs = {}
    for way, data in ways.items():
        path = tmp_path / f"{way}.pyz"
        path.write_bytes(data)
        brought = json.dumps({k: v for q in program.LATE for k, v in program.late(q).items()})
        ran = subprocess.run(
            [sys.executable, "-c", LOOK, path, brought], capture_output=True, text=True, check=True
        )
        outputs[way] = ran.stdout.replace(f"{path}/", "")
    assert outputs["here"] == outputs["far"] == outputs["plain"]
    for name in MODULES:
        assert name == "__main__.py" or f"{name} " in outputs["plain"]
    assert "return {member.filename" in outputs["plain"]
    assert "self._zip = zipfile" in outputs["plain"]


# Another cloudpickle and this nbtorchjob are on the path, too.
LOOK = f"""
import sys
import threading
import zipfile
sys.path.insert(0, sys.argv[1])
import nbtorchjob.runtime.store.payload
from nbtorchjob.runtime.ask import questions
import json
questions.add_modules(json.loads(sys.argv[2]))
from importlib.util import find_spec
import inspect, traceback
for name in {sorted(MODULES)}:
    if name != "__main__.py":
        found = find_spec(name[:-3].replace("/", ".").replace(".__init__", ""))
        print(found.origin, found.parent)
print(inspect.getsource(nbtorchjob.runtime.store.payload.Payload.checksums).splitlines()[-1].strip())
try:
    nbtorchjob.runtime.store.payload.Payload("/no such file")
except nbtorchjob.runtime.store.payload.PayloadError:
    traceback.print_exc(file=sys.stdout)
"""


def test_each_part_brings_what_its_modules_import():
    # Every job of a cluster has this part, and so has every job that asks for packages.
    everywhere = part_of("environment")
    part_paths = {name for part in program.PARTS for name in part_of(part)}

    for part in program.PARTS:
        for name in part_of(part):
            body = ast.parse(MODULES[name]).body
            froms = [node for node in body if isinstance(node, ast.ImportFrom) and node.module]
            homes = [
                (str(node.module).replace(".", "/"), alias.name) for node in froms for alias in node.names
            ]
            imported = {path for home, own in homes for path in (f"{home}.py", f"{home}/{own}.py")}
            assert imported & part_paths <= {*part_of(part), *everywhere}, (part, name)


def part_of(part):
    return {
        name
        for name in MODULES
        if name.startswith(tuple(f"nbtorchjob/runtime/{p}" for p in program.PARTS[part]))
    }
