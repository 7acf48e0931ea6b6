"""A cell means the same on the ranks as in the notebook: the tests run each in both, and compare.

``corpus.py`` describes the format of the cells.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from nbtorchjob import submission
from nbtorchjob.capture import from_cell
from nbtorchjob.errors import ResultError
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from tests.capture.corpus import corpus, define, difference
from tests.capture.portrait import portrait
from tests.capture.ranks import plainly

CORPUS = [case for case in corpus() if sys.version_info >= case.since]


@pytest.mark.parametrize("example", CORPUS, ids=[case.title for case in CORPUS])
def test_a_cell_means_the_same(example, ranks, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", type(sys)("__main__"))
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
    for name in ("deterministic", "benchmark"):  # cells set these in this process, too
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    modules = set(sys.modules)
    try:
        assert difference(example, ranks) == ""
    finally:
        for name in set(sys.modules) - modules:
            if not getattr(sys.modules[name], "__file__", "") or str(Path.cwd()) in str(
                sys.modules[name].__file__
            ):
                del sys.modules[name]


@pytest.mark.torch
def test_some_of_them_as_jobs_of_two_ranks(monkeypatch):
    spec = JobSpec(Elastic(nproc_per_node=2), all_ranks=True)
    elsewhere = ("modules", "imported")  # they import files that they write beside the notebook
    for example in [case for case in CORPUS if not (case.outcome or case.title.startswith(elsewhere))][::18]:
        monkeypatch.setitem(sys.modules, "__main__", type(sys)("__main__"))
        namespace = vars(sys.modules["__main__"])
        define(example.before, namespace)
        job = submission.submit(from_cell(example.cell, namespace), spec)
        before = dict(namespace)
        failed = job.exception()
        values = [None] if failed else job.results()
        reference, printed, error = plainly(example.cell, namespace)
        assert [portrait(value, before) for value in values] == [portrait(reference, before)] * len(values), (
            example
        )
        assert job.logs(0) == job.logs(1) == printed or failed
        assert error in str(failed or "")


@pytest.mark.torch
def test_a_wrapped_module_comes_home_and_what_cant_be_rebuilt_stays_with_its_bytes(folder, monkeypatch):
    (folder / "only_there.py").write_text("class Thing:\n    n = 3")
    namespace = {"__name__": "__main__", "folder": str(folder)}
    cell = """
import sys, torch, torch.distributed as dist
sys.path.append(folder)
import importlib
thing = importlib.import_module("only_" + "there").Thing()
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
net(torch.ones(1, 2)).sum().backward()
net, thing
"""
    job = submission.submit(from_cell(cell, namespace), JobSpec(Elastic(nproc_per_node=2)))
    with pytest.raises(ResultError, match=r"needs only_there here: install it"):
        job.result()
    assert b"only_there" in job.raw()
    monkeypatch.syspath_prepend(folder)
    with pytest.warns(UserWarning, match="Linear arrived without its DistributedDataParallel"):
        net, thing = job.result()
    assert (type(net).__name__, thing.n) == ("Linear", 3)
