"""Fixtures of the capture tests: the process that forks the ranks."""

import pytest

from tests.capture.ranks import Ranks


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """Yield a bare process that has imported torch, and runs each call in a fork of its own."""
    process = Ranks(tmp_path_factory.mktemp("ranks"))
    yield process
    process.close()
