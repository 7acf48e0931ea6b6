"""A state folder and a backend of a test's own, for jobs with folders that the test writes itself."""

import pytest

from nbtorchjob.backends.local.backend import LocalBackend
from nbtorchjob.machine import folders
from tests.backends.local.acted import Acted


@pytest.fixture
def act(tmp_path, monkeypatch):
    """Return the class that makes a job, in a state folder of the test's own."""
    monkeypatch.setenv(folders.STATE, str(tmp_path / "state"))
    return Acted


@pytest.fixture
def here():
    """Return a backend that has seen nothing yet."""
    return LocalBackend()
