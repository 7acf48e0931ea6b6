"""A cluster for each test that asks for one."""

import pytest

from tests.kubernetes.cluster import Emulator
from tests.kubernetes.cluster.resources import CRDS, SHARED


@pytest.fixture(scope="session")
def crds():
    """Give the folder of the operators' CRDs."""
    if not CRDS.is_dir():
        pytest.skip("shared/crds lies beside the checkout only where the operators were recorded")
    return CRDS


@pytest.fixture(scope="session")
def recordings():
    """Give the folder of recorded histories."""
    folder = SHARED / "recordings"
    if not folder.is_dir():
        pytest.skip("shared/recordings lies beside the checkout only where the operators were recorded")
    return folder


@pytest.fixture
def emulator(crds):
    """Give a cluster with all four kinds."""
    with Emulator() as cluster:
        yield cluster
