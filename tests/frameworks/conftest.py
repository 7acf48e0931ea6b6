"""The fixtures of the emulator's pods: their image has the frameworks that are installed here."""

import pytest

from nbtorchjob.backends.local.launch import pool
from tests.backends.kubernetes.conftest import cluster, crds, stage  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def optimizers_imported(state_dir):
    """Import in the pool, once, what each training rank would import: a second of processor time."""
    pool.import_all()
