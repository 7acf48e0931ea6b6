"""A store in which nodes meet."""

import pytest

from tests.runtime.rendezvous import gang


@pytest.fixture
def store():
    """Return a store that this process serves."""
    return gang.serve()
