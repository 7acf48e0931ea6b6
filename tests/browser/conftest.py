"""A JupyterLab of the tests' own, and Chromium to look at it.

Needs ``playwright`` and the path of a Chromium in ``CHROMIUM_PATH``; without them these tests skip.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

TOKEN = "browser"
_QUIET = '{"fetchNews": "false", "checkForUpdates": false}'
_NEWS = "settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
_KERNEL_IDLE = """() => {
  const kernel = jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel;
  return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""


class Notebook:
    """A notebook open in a tab of Chromium."""

    def __init__(self, page, path):
        self.page, self.path = page, path
        page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.content?.widgets?.length")

    def command(self, name):
        """Start a command of JupyterLab's."""
        self.page.evaluate("name => { jupyterapp.commands.execute(name); }", name)

    def run(self, index):
        """Run a cell, once the kernel can take it: before that the cell is dropped without a word."""
        self.idle()
        select = "index => { jupyterapp.shell.currentWidget.content.activeCellIndex = index; }"
        self.page.evaluate(select, index)
        self.page.evaluate("() => { jupyterapp.commands.execute('notebook:run-cell'); }")

    def idle(self):
        """Wait until nothing runs."""
        self.page.wait_for_function(_KERNEL_IDLE)

    def output(self, index):
        """Give a cell's output area."""
        cell = f".jp-Notebook .jp-Cell[data-windowed-list-index='{index}']"
        return self.page.locator(f"{cell} .jp-Cell-outputArea")

    def saved(self):
        """Save, and give what stands in the file."""
        self.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
        return nbformat.read(self.path, 4)


class Lab:
    """A running JupyterLab and a browser."""

    def __init__(self, url, root, browser):
        self.url, self.root, self.browser = url, root, browser

    def open(self, name, cells):
        """Write a notebook of these code cells and open it."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        return self.open_as(name, notebook)

    def open_as(self, name, notebook):
        """Write this notebook under another name and open it."""
        path = self.root / f"{name}.ipynb"
        nbformat.write(notebook, path)
        page = self.browser.new_page(viewport={"width": 1100, "height": 1400})
        page.set_default_timeout(30_000)
        page.goto(f"{self.url}/lab/workspaces/{name}/tree/{path.name}?token={TOKEN}")
        return Notebook(page, path)


@pytest.fixture(scope="session")
def chromium():
    """Start Chromium."""
    path = os.environ.get("CHROMIUM_PATH")
    if not path:
        pytest.skip("CHROMIUM_PATH doesn't name a Chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab(chromium, tmp_path_factory):
    """Start JupyterLab with nobody's settings, and with our server extension."""
    folder = tmp_path_factory.mktemp("lab")
    root = folder / "notebooks"
    root.mkdir()
    news = folder / _NEWS
    news.parent.mkdir(parents=True)
    news.write_text(_QUIET)
    own = {f"JUPYTER_{what}_DIR": str(folder / what) for what in ("CONFIG", "DATA", "RUNTIME")}
    own |= {f"JUPYTERLAB_{what.upper()}_DIR": str(folder / what) for what in ("settings", "workspaces")}
    own["IPYTHONDIR"] = str(folder / "ipython")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--ip=127.0.0.1"]
    command += [f"--port={port}", "--port-retries=0", f"--IdentityProvider.token={TOKEN}"]
    command += ["--expose-app-in-browser", f"--ServerApp.root_dir={root}"]
    command += ["--ServerApp.jpserver_extensions={'nbtorchjob': True}"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, env={**os.environ, **own}, stdout=log, stderr=log) as server,
    ):
        _wait_for(f"http://127.0.0.1:{port}/api/status?token={TOKEN}", folder / "log")
        yield Lab(f"http://127.0.0.1:{port}", root, chromium)
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
