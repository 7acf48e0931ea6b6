"""The emulator's pods, too: its image has the frameworks that are installed here."""

import pytest

from nbtorchjob.backends.local.launch import pool
from tests.backends.kubernetes.conftest import cluster, crds, stage  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def optimizers_imported(state_dir):
    """Have the pool import at once what each rank that trains would: a second of processor time."""
    pool.import_all()
