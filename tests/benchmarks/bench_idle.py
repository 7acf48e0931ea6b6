"""The requests of an open page while nothing happens, and the size of the scripts of ours that it loads.

Needs ``playwright`` and a Chromium (``CHROMIUM_PATH``, or ``chromium`` on the path); the extension must be
built.
"""

import gzip
import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.benchmarks.measure import Row, own_state, show
from tests.browser.conftest import BUILT, serving

MINUTES = 4
WIDGETS = Path(sys.prefix) / "share/jupyter/labextensions/@jupyter-widgets/jupyterlab-manager"


def asked(page: Page) -> tuple[float, float]:
    """Return the requests a minute of a page that nobody touches: ours, and JupyterLab's own."""
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.on("websocket", lambda socket: urls.append(socket.url))
    page.wait_for_timeout(MINUTES * 60_000)
    count = sum("/nbtorchjob/" in url for url in urls)
    return count / MINUTES, (len(urls) - count) / MINUTES


def idle(folder: Path) -> tuple[float, float]:
    """Open a notebook with the sidebar beside it; return the page's requests a minute, untouched."""
    path = os.environ.get("CHROMIUM_PATH") or shutil.which("chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=flags)
        with serving(folder, browser) as lab:
            notebook = lab.open("idle", ["1"])
            notebook.idle()
            notebook.sidebar.node.get_by_text("No torch jobs yet.").wait_for()
            return asked(notebook.page)


def sizes(static: Path) -> tuple[float, float]:
    """Return the kB of an extension's scripts, as they are on disk and as the server sends them."""
    scripts = [path.read_bytes() for path in static.glob("*.js")]
    return sum(map(len, scripts)) / 1000, sum(len(gzip.compress(script)) for script in scripts) / 1000


def main() -> None:
    with own_state() as folder:
        own_rate, other_rate = idle(folder)
    rows = [Row("requests a minute", own_rate, other_rate, 0.5, "")]
    show(f"Idle: a notebook and the sidebar, {MINUTES} minutes", "JupyterLab's own", rows)
    names = ("scripts", "scripts, compressed")
    triples = zip(names, sizes(BUILT / "static"), sizes(WIDGETS / "static"), strict=True)
    rows = [Row(name, value, base, 1, "kB") for name, value, base in triples]
    show("Size: what the page loads", "ipywidgets", rows)


if __name__ == "__main__":
    main()
