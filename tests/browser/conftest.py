"""A JupyterLab of the tests' own, and Chromium to look at it.

Needs ``playwright`` and the path of a Chromium in ``CHROMIUM_PATH``; without them these tests skip.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest

from tests.browser.sidebar import Sidebar

TOKEN = "browser"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
BUILT = Path(__file__).parents[2] / "nbtorchjob" / "labextension"
_QUIET = '{"fetchNews": "false", "checkForUpdates": false}'
_NEWS = "settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
LOAD = "%load_ext nbtorchjob"
_ADD = """source => {
  const {model} = jupyterapp.shell.currentWidget.content;
  model.sharedModel.addCell({cell_type: "code", source});
  return model.cells.length - 1;
}"""
_KERNEL_IDLE = """() => {
  const kernel = jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel;
  return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""


class Notebook:
    """A notebook open in a tab of Chromium."""

    def __init__(self, page, path):
        self.page, self.path = page, path
        # Until it is ready it has an empty cell, which the file's cells then replace.
        page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context?.isReady")

    @property
    def sidebar(self):
        """Show the sidebar; return it."""
        return Sidebar(self.page)

    def source(self, index):
        """Return the source of a cell."""
        source = "index => jupyterapp.shell.currentWidget.content.model.cells.get(index).sharedModel.source"
        return self.page.evaluate(source, index)

    def command(self, name):
        """Start a command of JupyterLab's."""
        self.page.evaluate("name => { jupyterapp.commands.execute(name); }", name)

    def run(self, index, command="notebook:run-cell"):
        """Run a cell once the kernel is idle: JupyterLab silently drops a cell that comes earlier."""
        self.idle()
        self.select(index)
        self.command(command)

    def run_new(self, source):
        """Run this source in a cell at the end, with the magics loaded; return the cell's index."""
        self.page.get_by_role("tab", name=self.path.name).click()
        index = self.page.evaluate(_ADD, source)
        self.run(index, "nbtorchjob:run-cell")
        return index

    def select(self, index):
        """Make a cell the active one."""
        select = "index => { jupyterapp.shell.currentWidget.content.activeCellIndex = index; }"
        self.page.evaluate(select, index)

    def idle(self):
        """Wait until the kernel is idle."""
        self.page.wait_for_function(_KERNEL_IDLE)

    def output(self, index):
        """Return a cell's output area."""
        cell = f".jp-Notebook .jp-Cell[data-windowed-list-index='{index}']"
        return self.page.locator(f"{cell} .jp-Cell-outputArea")

    def saved(self):
        """Save the notebook; return it as the file has it."""
        self.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
        return nbformat.read(self.path, 4)


class Lab:
    """A running JupyterLab and a browser."""

    def __init__(self, url, root, browser):
        self.url, self.root, self.browser = url, root, browser

    def open(self, name, cells):
        """Write a notebook of these code cells and open it."""
        return self._open(self.write(name, cells), name)

    def open_as(self, name, notebook):
        """Write this notebook under another name and open it."""
        path = self.root / f"{name}.ipynb"
        nbformat.write(notebook, path)
        return self._open(path, name)

    def write(self, name, cells):
        """Write a notebook of these code cells; return its path."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        path = self.root / f"{name}.ipynb"
        nbformat.write(notebook, path)
        return path

    def page(self):
        """Open an empty page."""
        page = self.browser.new_page(viewport={"width": 1100, "height": 1400})
        page.set_default_timeout(60_000)  # machines that tests share are slow at times
        return page

    def _open(self, path, name):
        page = self.page()
        page.goto(f"{self.url}/lab/workspaces/{name}/tree/{path.name}?token={TOKEN}")
        return Notebook(page, path)


@pytest.fixture(scope="session")
def chromium():
    """Start Chromium."""
    path = os.environ.get("CHROMIUM_PATH")
    if not path:
        pytest.skip("CHROMIUM_PATH doesn't name a Chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab(chromium, tmp_path_factory):
    """Start a JupyterLab that all tests share."""
    with serving(tmp_path_factory.mktemp("lab"), chromium) as lab:
        yield lab


@pytest.fixture(scope="module")
def notebook(lab, request):
    """Yield a notebook in which the tests of a file add their cells."""
    notebook = lab.open(request.module.__name__.rpartition(".")[2], ["1"])
    yield notebook
    notebook.page.close()


@pytest.fixture
def gate(folder):
    """Yield the path of a file for which jobs wait; create it at the end."""
    path = folder / "gate"
    yield path
    path.touch()


@contextmanager
def serving(folder, browser, **env):
    """Run JupyterLab without a user's settings, with our server extension and our built lab extension."""
    if not (BUILT / "static").is_dir():
        pytest.fail(f"{BUILT} isn't built: run `jlpm install && jlpm build:prod` in labextension")
    root = folder / "notebooks"
    root.mkdir()
    news = folder / _NEWS
    news.parent.mkdir(parents=True)
    news.write_text(_QUIET)
    (folder / "pages").mkdir()
    (folder / "pages" / "nbtorchjob").symlink_to(BUILT)
    own = {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    own |= {f"JUPYTERLAB_{kind.upper()}_DIR": str(folder / kind) for kind in ("settings", "workspaces")}
    own |= {"IPYTHONDIR": str(folder / "ipython"), "KUBECONFIG": str(folder / "no-cluster")}
    own |= {"NBTORCHJOB_RANKS_AT_ONCE": "0"}  # jobs of different tests mustn't wait for each other
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--ip=127.0.0.1"]
    command += [f"--port={port}", "--port-retries=0", f"--IdentityProvider.token={TOKEN}"]
    command += ["--expose-app-in-browser", "--JupyterNotebookApp.expose_app_in_browser=True"]
    command += [f"--ServerApp.root_dir={root}", "--ServerApp.jpserver_extensions={'nbtorchjob': True}"]
    # Before all other folders: an installed package may have an older extension.
    command += [f"--LabServerApp.extra_labextensions_path={folder / 'pages'}"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, env={**os.environ, **own, **env}, stdout=log, stderr=log) as server,
    ):
        _wait_for(f"http://127.0.0.1:{port}/api/status?token={TOKEN}", folder / "log")
        yield Lab(f"http://127.0.0.1:{port}", root, browser)
        server.terminate()


def _wait_for(url: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url).close()
            return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"JupyterLab didn't start:\n{log.read_text()}")
