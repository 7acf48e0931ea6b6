"""``--shuffle SEED``: files in random order, and the tests of each in random order.

Whole files, as their tests share clusters and kernels. Workers must agree on the order, so a seed is needed.
"""

import random
from itertools import groupby

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("flakes")
    group.addoption("--shuffle", metavar="SEED", help="run files, and the tests of each, in random order")


@pytest.hookimpl(tryfirst=True)  # pytest then still groups tests that share a fixture's parameter
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if seed := config.option.shuffle:
        rng = random.Random(seed)
        files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
        rng.shuffle(files)
        for tests in files:
            rng.shuffle(tests)
        items[:] = [test for tests in files for test in tests]
