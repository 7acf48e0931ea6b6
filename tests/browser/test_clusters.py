"""Jobs of a cluster in the sidebar, of a server whose kubeconfig leads to one."""

import pytest

from nbtorchjob.machine import folders
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.images import TORCH
from tests.backends.kubernetes.conftest import crds  # noqa: F401
from tests.browser.conftest import serving

CELL = """%%torchjob --backend kubernetes --namespace ml --image {image} --kind indexedjob --name remote
import time
from pathlib import Path
while not Path({gate!r}).exists():
    time.sleep(0.05)
6 * 7"""


@pytest.fixture(scope="module")
def lab(chromium, tmp_path_factory, crds):  # noqa: F811
    """Start a JupyterLab beside a cluster."""
    folder = tmp_path_factory.mktemp("cluster-lab")
    with Emulator() as cluster:
        cluster.namespace("ml")
        own = {"KUBECONFIG": str(cluster.kubeconfig), folders.STATE: str(folder / "state")}
        with serving(folder, chromium, **own) as lab:
            yield lab


def test_a_job_of_a_cluster_is_shown_live_and_its_manifest_is_copied(notebook, gate):
    page = notebook.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    cell = notebook.run_new(CELL.format(image=TORCH, gate=str(gate)))
    sidebar = notebook.sidebar
    row = sidebar.job("remote", "Running")
    assert "indexedjob in ml" in row.inner_text()

    sidebar.choose("remote", "Copy Manifest")
    page.get_by_text("The manifest of remote is copied.").wait_for()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert "kind: Job" in copied
    assert "kind: Secret" not in copied

    sidebar.choose("remote", "Suspend")
    sidebar.job("remote", "Suspended")
    sidebar.choose("remote", "Resume")
    sidebar.job("remote", "Running")
    gate.touch()

    sidebar.job("remote", "Succeeded")
    notebook.output(cell).get_by_text("42", exact=True).wait_for()
