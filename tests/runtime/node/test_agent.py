"""A signal that comes while torch starts processes is deferred, wherever it comes."""

import os
import signal
import sys

import pytest
import torch.distributed.elastic.multiprocessing as elastic

from nbtorchjob.runtime.node.agent import until_started

# pickle imports a function's module, and replaces an exception raised there with its own error.
OF_IT = "def of_it(*_):\n    pass\nof_it.__module__ = 'kills_once'\n"
KILLS_ONCE = (
    "import os, signal, kept\nif os.getpid() == %d:\n    os.kill(%d, signal.SIGTERM)\nof_it = kept.of_it\n"
)


@pytest.fixture
def rank(folder, monkeypatch):
    """Yield a function that sends SIGTERM to the process that pickles it; restore the handlers afterwards."""
    (folder / "kept.py").write_text(OF_IT)
    (folder / "kills_once.py").write_text(KILLS_ONCE % (os.getpid(), os.getpid()))
    monkeypatch.syspath_prepend(str(folder))
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    from kept import of_it  # type: ignore[import-not-found]

    yield of_it
    for name in ("kept", "kills_once"):
        sys.modules.pop(name, None)
    for number, handler in before.items():
        signal.signal(number, handler)


def start(folder, rank, *args):
    logs = elastic.DefaultLogsSpecs(log_dir=str(folder))
    return elastic.start_processes("ranks", rank, {0: args}, {0: {}}, logs, start_method="spawn")


def test_torch_alone_loses_it(folder, rank):
    with pytest.raises(Exception, match="Can't pickle"):
        start(folder, rank)


def test_it_comes_once_they_are_started(folder, rank):
    with until_started() as signals:
        ranks = start(folder, rank)

    assert signals == [signal.SIGTERM]
    assert not ranks.wait().failures
    with pytest.raises(elastic.SignalException):
        signal.raise_signal(signal.SIGTERM)


def test_it_comes_first_where_they_cannot_be_started(folder, rank):
    with pytest.raises(elastic.SignalException), until_started():
        start(folder, rank, lambda: "can't be pickled")
