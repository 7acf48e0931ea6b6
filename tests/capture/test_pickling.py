import ast
import gc
import importlib
import io
import linecache
import os
import pickle
import sys
import threading
import traceback
import types
import weakref
from importlib.machinery import ModuleSpec
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from torch.utils.hooks import RemovableHandle

from nbtorchjob.capture import pickling
from nbtorchjob.runtime.objects import pickler


def notebook(text, filename="<notebook 1>", **values):
    namespace = {"__name__": "__main__", **values}
    exec(compile(text, filename, "exec", 0, True), namespace)
    return namespace


def back(pickled):
    return pickle.loads(pickled.data, buffers=pickled.buffers)


def test_big_arrays_and_tensors_travel_out_of_band_without_a_copy():
    array, tensor = np.arange(10_000), torch.ones(5_000)
    pickled = pickling.dump({"array": array, "tensor": tensor, "small": np.arange(3)})
    assert sorted(view.nbytes for view in pickled.buffers) == [20_000, 80_000]
    assert len(pickled.data) < 2_000
    array[0] = 7
    call = back(pickled)
    assert call["array"][0] == 7
    assert torch.equal(call["tensor"], tensor)
    assert call["small"].tolist() == [0, 1, 2]


def test_a_weak_reference_refers_to_what_travels_with_it():
    class Thing: ...

    def wrapper():
        return itself()

    thing = Thing()
    itself = weakref.ref(wrapper)
    call = back(
        pickling.dump(
            {
                "thing": thing,
                "to": weakref.ref(thing),
                "gone": weakref.ref(Thing()),
                "f": wrapper,
            }
        )
    )
    assert call["to"]() is call["thing"]
    assert call["gone"]() is None
    assert call["f"]() is call["f"]


# Like the class of Triton 3.6, with which `make gpu` runs kernels.
JIT = """
import threading

class JITFunction:
    def __init__(self, fn, version=None, repr=None):
        self.fn, self.version, self._repr, self.lock = fn, version, repr, threading.RLock()

    def repr(self):
        return self._repr
"""


def test_a_kernel_of_triton_is_made_of_its_function_again(monkeypatch, tmp_path):
    (tmp_path / "triton" / "runtime").mkdir(parents=True)
    (tmp_path / "triton" / "runtime" / "jit.py").write_text(JIT)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("triton", "triton.runtime", "triton.runtime.jit"):
        monkeypatch.setitem(sys.modules, name, None)  # so that monkeypatch undoes the import
        del sys.modules[name]
    type_ = importlib.import_module("triton.runtime.jit").JITFunction
    space = notebook("def double(x):\n    return x * factor\nfactor = 2\n", decode=None)

    kernel = back(pickling.dump({"kernel": type_(space["double"], 3, "text")}))["kernel"]

    assert (type(kernel), kernel.fn(4), kernel.version, kernel.repr()) == (type_, 8, 3, "text")


def test_a_models_parameters_stay_tied():
    model = torch.nn.ModuleList([torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)])
    model[1].weight = model[0].weight
    pickled = pickling.dump({"model": model})
    copy = back(pickled)["model"]
    assert copy[0].weight is copy[1].weight
    assert sum(view.nbytes for view in pickled.buffers) == 64 * 64 * 4


@pytest.mark.parametrize("make", [pickling.Pickler, pickler.Pickler])
def test_torch_counts_on_from_a_modules_hooks_wherever_they_come(make, monkeypatch):
    net = torch.nn.Linear(1, 1)
    number = net.register_forward_hook(print).id
    data = pickler.dumps([net], make, lambda buffer: None)
    monkeypatch.setattr(RemovableHandle, "next_id", 0)  # as in a new process
    [copy] = pickle.loads(data)

    assert copy.register_forward_hook(print).id == number + 1
    assert len(copy._forward_hooks) == 2


def test_modules_are_named_once_code_refers_to_them():
    space = notebook("def f():\n    import json\n    from os import path\n", decode=None)
    modules = pickling.dump({"f": space["f"], "cls": io.StringIO, "module": threading}).seen.modules
    assert {"json", "os", "_io", "threading"} <= modules


def test_definitions_that_the_notebook_still_has_are_listed_in_the_pickle():
    space = notebook("class A: ...\ndef f(): return g()\ndef g():\n    def inner(): ...\n    return inner")
    old = space["f"]
    exec("class B: ...\nb = B()\ndel B\ndef f(): return g()", space)
    call = back(pickling.dump({"a": space["A"](), "b": space["b"], "f": old, "i": space["g"]()}, space))
    assert {name: value.__name__ for name, value in call["names"]} == {"A": "A", "g": "g"}


def test_the_globals_that_functions_read_are_noted():
    space = notebook("def f(): return g()\ndef g(): return [x for y in z]", x=1, z=[2], unused=3)
    assert pickling.dump({"f": space["f"]}).seen.globals.keys() == {"g", "x", "z"}


def test_sources_of_notebook_cells_travel_with_their_functions(monkeypatch):
    text = "def f(): ...\nclass A:\n    def m(self): ..."
    entry = (len(text), None, text.splitlines(True), "<cell 7>")
    monkeypatch.setitem(linecache.cache, "<cell 7>", entry)
    space = notebook(text, "<cell 7>")
    assert pickling.dump({"f": space["f"]}).seen.sources == {"<cell 7>": text}
    assert pickling.dump({"a": space["A"]()}).seen.sources == {"<cell 7>": text}
    assert pickling.dump({"f": notebook(text)["f"]}).seen.sources == {}


def test_standard_streams_become_those_of_the_rank(monkeypatch):
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())  # the kernel's
    call = pickling.dump({"out": stream, "err": sys.stderr})
    monkeypatch.setattr(sys, "stdout", other := io.StringIO())  # the rank's
    assert back(call)["out"] is other
    assert back(call)["err"] is sys.stderr


def test_the_environment_is_that_of_the_rank(monkeypatch):
    monkeypatch.setenv("API_TOKEN", "s3cret")
    pickled = pickling.dump({"environment": [os.environ, os.environb]})

    assert b"s3cret" not in pickled.data
    assert back(pickled)["environment"] == [os.environ, os.environb]


def test_matplotlibs_parameters_are_those_of_the_rank():
    matplotlib = pytest.importorskip("matplotlib")
    assert back(pickling.dump({"rc": matplotlib.rcParams}))["rc"] is matplotlib.rcParams


def test_an_open_file_is_refused_even_for_reading(tmp_path):
    path = tmp_path / "data"
    path.write_text("text")
    with path.open() as file, pytest.raises(pickle.PicklingError, match="an open file"):
        pickling.dump({"file": file})


def test_ipythons_open_becomes_pythons():
    from IPython.core import interactiveshell as shell

    if not hasattr(shell, "_modified_open"):
        pytest.skip("IPython before 8.7 leaves open as it is")

    assert back(pickling.dump({"open": shell._modified_open}))["open"] is open


def test_a_class_is_pickled_the_same_whether_or_not_an_instance_was_before():
    space = notebook("class A:\n    def other(self): return A()\na = A()")
    first, second = (pickling.dump({"A": space["A"], "a": space["a"]}) for _ in range(2))
    assert first.data == second.data


def test_what_goes_by_a_name_of_the_notebook_is_what_has_it_there(monkeypatch):
    space = notebook("class A:\n    def __reduce__(self): return 'ONE'\nONE = A()\nONE.n = 1")
    monkeypatch.setitem(sys.modules, "__main__", types.SimpleNamespace(**space))
    pickled = pickling.dump({"one": space["ONE"]})
    space["ONE"].n = 2
    assert back(pickled)["one"] is space["ONE"]
    assert space["ONE"].n == 2


def test_what_was_pickled_is_let_go_at_once():
    class Thing:
        def go(self): ...

    thing = Thing()
    kept = weakref.ref(thing)
    gc.disable()
    try:
        pickling.dump({"thing": thing, "go": thing.go})
        del thing
        assert kept() is None
    finally:
        gc.enable()


def test_a_module_that_is_registered_for_it_goes_by_value(monkeypatch):
    module = types.ModuleType("not_there")
    module.__spec__ = ModuleSpec("not_there", None)
    text = "import typing, functools\nT = typing.TypeVar('T')\n@functools.lru_cache\ndef f(x): return x, T"
    exec(text, vars(module))
    monkeypatch.setitem(sys.modules, "not_there", module)
    cloudpickle.register_pickle_by_value(module)
    try:
        pickled = pickling.dump({"f": module.f, "module": module})
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    monkeypatch.delitem(sys.modules, "not_there")
    call = back(pickled)
    assert call["f"](3)[1] is call["module"].T is module.T


def code_in(code):
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from code_in(inner)


def test_code_keeps_its_file_lines_and_columns_whatever_cloudpickle_makes_of_code(monkeypatch):
    def refuse(code):
        raise AssertionError

    monkeypatch.setitem(cloudpickle.Pickler.dispatch_table, types.CodeType, refuse)
    text = """

def f(x):
    def inner():
        try:
            return [1 / each for each in (x,
                                          0)]
        finally:
            x + 1
    return inner

class A:
    async def m(self): return lambda: super().m
"""
    space = notebook(text, "<cell 7>")
    call = back(pickling.dump({"f": space["f"], "A": space["A"]}))
    for sent, arrived in [(space["f"], call["f"]), (space["A"].m, call["A"].m)]:
        for original, other in zip(code_in(sent.__code__), code_in(arrived.__code__), strict=True):
            assert other == original  # names, constants, instructions, exception table
            assert other.co_filename == "<cell 7>"
            assert other.co_firstlineno == original.co_firstlineno
            assert [*other.co_lines()] == [*original.co_lines()]
            if sys.version_info >= (3, 11):
                assert other.co_qualname == original.co_qualname
                assert [*other.co_positions()] == [*original.co_positions()]
    with pytest.raises(ZeroDivisionError) as failed:
        call["f"](2)()
    assert ("<cell 7>", 6) in [(entry.filename, entry.lineno) for entry in traceback.extract_tb(failed.tb)]


def test_cloudpickle_is_used_by_public_names():
    used = [
        node.attr
        for node in ast.walk(ast.parse(Path(pickler.__file__).read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("cloudpickle.")
    ]
    assert used
    assert [name for name in used if name.startswith("_")] == []


@pytest.mark.parametrize(
    "type_",
    [types.FunctionType, types.ModuleType, types.CodeType, type(None), type(...), type({}.keys()), int],
)
def test_a_type_of_pythons_own_is_itself(type_):
    assert back(pickling.dump({"type": type_}))["type"] is type_


def test_submodules_come_that_code_reaches_as_attributes():
    space = notebook("def f(): return xml.etree.ElementTree", xml=__import__("xml.etree.ElementTree"))
    assert "xml.etree.ElementTree" in pickling.dump({"f": space["f"]}).seen.surely
