"""Emulated clusters for the tests that ask for one."""

import pytest

from tests.backends.kubernetes import evidence
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.resources import CRDS, SHARED
from tests.backends.kubernetes.stage import Stage


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add the state of a failed test's stage to its report: for a rare failure, nobody sees more."""
    report = yield
    if report.when == "call" and report.failed and isinstance(stage := item.funcargs.get("stage"), Stage):
        report.sections.append(("the stage", evidence.of(stage)))
    return report


@pytest.fixture(scope="session")
def crds():
    """Return the folder of the operators' CRDs."""
    if not CRDS.is_dir():
        pytest.skip("shared/crds lies beside the checkout only where the operators were recorded")
    return CRDS


@pytest.fixture(scope="session")
def recordings():
    """Return the folder of recorded histories."""
    folder = SHARED / "recordings"
    if not folder.is_dir():
        pytest.skip("shared/recordings lies beside the checkout only where the operators were recorded")
    return folder


@pytest.fixture(scope="module")
def cluster(crds):
    """Yield a cluster that all tests of a file share."""
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def stage(cluster, tmp_path, monkeypatch):
    """Yield a stage: a namespace of that cluster, with pods that act a script."""
    stage = Stage(cluster, tmp_path, monkeypatch)
    yield stage
    stage.close()


@pytest.fixture
def emulator(crds):
    """Yield a cluster of the test's own, with all kinds."""
    with Emulator() as cluster:
        yield cluster
