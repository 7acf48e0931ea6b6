"""Pods with another Python in their image than the kernel's: real interpreters."""

import linecache
import os
import sys
import types

import pytest

from nbtorchjob import api, submission
from nbtorchjob.capture import from_cell
from nbtorchjob.spec.config import Elastic
from nbtorchjob.state.failure import Cause
from tests.capture.pythons import interpreters, version
from tests.patience import LIMIT

_OTHERS = interpreters()
# Another Python that has torch.
_WITH_TORCH = os.environ.get("NBTORCHJOB_OTHER_PYTHON", "")
needs_torch = pytest.mark.skipif(
    not _WITH_TORCH, reason="NBTORCHJOB_OTHER_PYTHON names no other Python that has torch"
)

NOTEBOOK = """
import dataclasses
@dataclasses.dataclass
class Data:
    xs: list
    def total(self): return sum(self.xs)
def adder(n):
    return lambda x: x + n
plus = adder(3)
def total(n):
    import sys
    return sys.version_info[:2], Data([plus(n), 5])
"""
CELL = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
summed = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(summed)
class Mine:
    def __init__(self, data): self.data = data
    def doubled(self): return 2 * self.data.total()
sys.version_info[:2], summed, Data([plus(1), 5]), Mine(Data([1])), adder(10)
"""


@pytest.fixture
def notebook(monkeypatch):
    """Return the variables of a notebook after its first cell has run."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    linecache.cache["<cell 1>"] = (len(NOTEBOOK), None, NOTEBOOK.splitlines(keepends=True), "<cell 1>")
    exec(compile(NOTEBOOK, "<cell 1>", "exec"), vars(main))
    return vars(main)


def on(stage, python, nnodes=2):
    """Return the spec of a job with pods that run this interpreter."""
    return stage.spec(Elastic(nnodes), pod_patch=stage.patch([python, "/etc/nbtorchjob/job.pyz"]))


@pytest.mark.skipif(not _OTHERS, reason="there is no interpreter of another minor version")
def test_a_node_names_what_its_python_cant_compile(stage):
    (major, minor), python = [*_OTHERS.items()][-1]
    names = {"__name__": "__main__"}
    exec("def made():\n    return 1", names)

    job = submission.submit(from_cell("made()", names), on(stage, python))

    message = str(job.exception(LIMIT))
    assert job.state.failure is not None
    assert job.state.failure.reason.cause is Cause.CONFIG
    assert f"this node Python {major}.{minor}, and made (line 1 of <string>) has no source" in message
    assert "use an image or environment with Python {}.{}".format(*sys.version_info) in message


@needs_torch
def test_ranks_of_another_python_run_the_notebooks_functions_and_their_values_come_home(stage, notebook):
    job = submission.submit(from_cell(CELL, notebook), on(stage, _WITH_TORCH))

    python, summed, data, instance, plus = job.result(LIMIT)

    assert python == version(_WITH_TORCH)
    assert summed.tolist() == [3.0]
    assert (type(data), data.total()) == (notebook["Data"], 9)
    assert (instance.doubled(), plus(1)) == (2, 11)


@needs_torch
@pytest.mark.filterwarnings(r"ignore:.* has .*\(here :UserWarning")
def test_a_lab_of_another_python_runs_cell_after_cell(stage, notebook):
    lab = api.keep(on(stage, _WITH_TORCH))
    first = "import sys\ndata = Data([plus(1), 5])\nsys.version_info[:2], data"

    python, data = lab.run_cell(first, {"Data": notebook["Data"], "plus": notebook["plus"]}).result(LIMIT)

    assert python == version(_WITH_TORCH)
    assert (type(data), data.total()) == (notebook["Data"], 9)
    assert lab.run_cell("data.total() + adder(1)(0)", {"adder": notebook["adder"]}).result(LIMIT) == 10
    lab.end()
    assert lab.job.exception(LIMIT) is None


@needs_torch
def test_runs_of_another_python_share_a_function_of_the_notebook(stage, notebook):
    runs = api.map(notebook["total"], [{"n": 1}, {"n": 2}], spec=on(stage, _WITH_TORCH, 1))

    results = [job.result(LIMIT) for job in runs]

    assert [python for python, _ in results] == [version(_WITH_TORCH)] * 2
    assert [data.total() for _, data in results] == [9, 10]
