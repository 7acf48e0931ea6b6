"""Pods whose image has another Python than the kernel: real interpreters."""

import linecache
import os
import sys
import types

import pytest

from nbtorchjob import submission
from nbtorchjob.capture import from_cell
from nbtorchjob.spec.config import Elastic
from nbtorchjob.state.failure import Cause
from tests.capture.pythons import interpreters, version
from tests.patience import LIMIT

_OTHERS = interpreters()
# Another Python that has torch.
_WITH_TORCH = os.environ.get("NBTORCHJOB_OTHER_PYTHON", "")

NOTEBOOK = """
import dataclasses
@dataclasses.dataclass
class Data:
    xs: list
    def total(self): return sum(self.xs)
def adder(n):
    return lambda x: x + n
plus = adder(3)
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


def sent(stage, cell, namespace, python):
    """Send a cell to pods that run that interpreter."""
    patch = stage.patch([python, "/etc/nbtorchjob/job.pyz"])
    return submission.submit(from_cell(cell, namespace), stage.spec(Elastic(2), pod_patch=patch))


@pytest.mark.skipif(not _OTHERS, reason="there is no interpreter of another minor version")
def test_a_node_names_what_its_python_cant_compile(stage):
    (major, minor), python = [*_OTHERS.items()][-1]
    names = {"__name__": "__main__"}
    exec("def made():\n    return 1", names)

    job = sent(stage, "made()", names, python)

    said = str(job.exception(LIMIT))
    assert job.state.failure.reason.cause is Cause.CONFIG
    assert f"this node Python {major}.{minor}, and made (line 1 of <string>) has no source" in said
    assert "use an image or environment with Python {}.{}".format(*sys.version_info) in said


@pytest.mark.skipif(not _WITH_TORCH, reason="NBTORCHJOB_OTHER_PYTHON names no other Python that has torch")
def test_ranks_of_another_python_run_the_notebooks_functions_and_their_values_come_home(stage, monkeypatch):
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    linecache.cache["<cell 1>"] = (len(NOTEBOOK), None, NOTEBOOK.splitlines(keepends=True), "<cell 1>")
    exec(compile(NOTEBOOK, "<cell 1>", "exec"), vars(main))

    python, summed, data, mine, plus = sent(stage, CELL, vars(main), _WITH_TORCH).result(LIMIT)

    assert python == version(_WITH_TORCH)
    assert summed.tolist() == [3.0]
    assert (type(data), data.total()) == (main.Data, 9)
    assert (mine.doubled(), plus(1)) == (2, 11)
