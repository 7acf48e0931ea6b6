"""A cell means on the ranks what it means in the notebook: each is run both ways, and compared.

The cells lie in ``cells/``: ``#%% what it shows``, what the notebook ran before, ``#>``, the cell. One
that can't mean the same says so: ``| refused: why`` before anything starts, ``| note: what differs``,
``| said: what might``. A title ends in (3.12) where Python before that can't.
"""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from nbtorchjob import submission
from nbtorchjob.capture import from_cell
from nbtorchjob.errors import CaptureError, ResultError
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from tests.capture.portrait import portrait
from tests.capture.ranks import Ranks, plainly


class Example(NamedTuple):
    """A cell of the corpus; ``words`` is the pattern of what is said of it."""

    title: str
    before: str
    cell: str
    outcome: str  # "", "refused", "note", "said" or "lost"
    words: str

    @property
    def since(self) -> tuple[int, ...]:
        """The version of Python that can run it."""
        found = re.search(r"\(3\.(\d+)\)$", self.title)
        return (3, int(found[1]) if found else 10)


def corpus() -> list[Example]:
    """Read the cells, in the order of their files."""
    found = []
    for path in sorted(Path(__file__).with_name("cells").glob("*.txt")):
        for text in path.read_text().split("#%% ")[1:]:
            head, _, body = text.partition("\n")
            title, _, said = head.partition(" | ")
            outcome, _, words = said.partition(": ")
            before, arrow, cell = body.rpartition("#>\n")
            assert arrow, f"{path.name}: {title} has no cell"
            found.append(Example(f"{path.stem}: {title}", before, cell.strip("\n"), outcome, words))
    return found


CORPUS = [each for each in corpus() if sys.version_info >= each.since]


_numbers = itertools.count()


@pytest.mark.parametrize("example", CORPUS, ids=[each.title for each in CORPUS])
def test_a_cell_means_the_same(example, ranks, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", type(sys)("__main__"))
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
    modules = set(sys.modules)
    try:
        compare(example, ranks)
    finally:
        for name in set(sys.modules) - modules:
            if not getattr(sys.modules[name], "__file__", "") or str(Path.cwd()) in str(
                sys.modules[name].__file__
            ):
                del sys.modules[name]


@pytest.mark.torch
def test_some_of_them_as_jobs_of_two_ranks(monkeypatch):
    spec = JobSpec(Elastic(nproc_per_node=2), all_ranks=True)
    elsewhere = ("modules", "imported")  # of files that they write beside the notebook
    for example in [each for each in CORPUS if not (each.outcome or each.title.startswith(elsewhere))][::18]:
        monkeypatch.setitem(sys.modules, "__main__", type(sys)("__main__"))
        namespace = vars(sys.modules["__main__"])
        exec(compile(example.before, f"<before {next(_numbers)}>", "exec", 0, True), namespace)
        job = submission.submit(from_cell(example.cell, namespace), spec)
        before = dict(namespace)
        failed = job.exception()
        values = [None] if failed else job.results()
        found, printed, error = plainly(example.cell, namespace)
        assert [portrait(value, before) for value in values] == [portrait(found, before)] * len(values), (
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


def compare(example: Example, ranks: Ranks) -> None:
    namespace = vars(sys.modules["__main__"])
    exec(compile(example.before, f"<before {next(_numbers)}>", "exec", 0, True), namespace)
    if example.outcome == "refused":
        with pytest.raises(CaptureError, match=example.words):
            from_cell(example.cell, namespace)
        return
    call = from_cell(example.cell, namespace)
    before = dict(namespace)
    if example.outcome == "lost":
        with pytest.raises(ResultError, match=example.words):
            ranks.run(call)
        return
    value, printed, error = ranks.run(call)
    job = (portrait(value, before), printed, error)
    value, printed, error = plainly(example.cell, namespace)
    plain = (portrait(value, before), printed, error)
    assert any(re.search(example.words, note) for note in call.notes) if example.words else not call.notes
    assert (job != plain) if example.outcome == "note" else (job == plain)
