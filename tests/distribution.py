"""The order of tests: each worker begins with tests that wait for processes, and with as many as the others.

xdist's worksteal gives workers equally many tests, in their order, and an idle worker steals half of the
longest queue (3.8). In the order of folders one worker has most of the pods, and the others steal parts of
its files until late, and start one more emulator or kernel for each; at last a long test may run alone.
With quick tests at the end of each worker's part, the others steal those.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import pytest

from nbtorchjob.backends.local.launch import pool_client

# Roughly, in seconds of one worker: a test's marks show which processes it starts.
SECONDS = {"kernel": 5.0, "torch": 1.5, "pods": 1.0}


@pytest.hookimpl(trylast=True)  # once the marks are set
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1 and not config.getoption("shuffle", None):
        items[:] = spread([list(tests) for _, tests in groupby(items, key=lambda item: item.path)], workers)


def spread(files: Iterable[Sequence[pytest.Item]], workers: int) -> list[pytest.Item]:
    """Return all tests, ordered so that equal parts, one per worker, begin with equal loads of long ones."""
    files = sorted(files, key=seconds, reverse=True)
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    for tests in files:
        if seconds(tests):
            least = loads.index(min(loads))
            shares[least] += tests
            loads[least] += seconds(tests)
    quick = [test for tests in files if not seconds(tests) for test in tests]
    left = len(quick) + sum(map(len, shares))
    for number, share in enumerate(shares):
        room = left // (workers - number) - len(share)
        share += quick[: max(room, 0)]
        del quick[: max(room, 0)]
        left -= len(share)
    return [test for share in shares for test in share] + quick


def seconds(tests: Iterable[pytest.Item]) -> float:
    return sum(
        max((SECONDS.get(mark.name, 0.0) for mark in test.iter_markers()), default=0.0) for test in tests
    )


@pytest.fixture(autouse=True)
def marked_if_it_starts_ranks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Refuse ranks to a test without a mark: `make check` would run it, and a worker would reach it late."""

    def refuse(*_: object) -> None:
        raise AssertionError("this test starts ranks: mark it with pytest.mark.torch")

    with pytest.MonkeyPatch.context() as patch:  # the test's ``monkeypatch`` would be undone too late
        if not seconds([request.node]):
            patch.setattr(pool_client, "start", refuse)
        yield
