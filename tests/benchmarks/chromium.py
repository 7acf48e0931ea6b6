"""Pages with single parts of the JupyterLab extension in Chromium, and their cost to the browser."""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, CDPSession, Page, Playwright
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application

MB = 1_000_000
EXTENSION = Path(__file__).resolve().parents[2] / "labextension"
THEME = Path(sys.prefix) / "share/jupyter/lab/themes/@jupyterlab/theme-light-extension/index.css"
PAGE = """<!doctype html><title>bench</title><link rel=icon href="data:,"><link rel=stylesheet href=theme.css>
<link rel=stylesheet href=part.css><style>body {{ margin: 0 }} {style}</style>
<body data-jp-theme-light=true><script src=bundle.js></script>"""


def built(script: str, css: str, style: str, folder: Path) -> Path:
    """Put a page into ``folder``: a script of `labextension/bench`, a part's CSS, and additional CSS."""
    esbuild = EXTENSION / "node_modules/.bin/esbuild"
    options = ["--bundle", "--minify", "--jsx=automatic", "--loader:.svg=text", "--log-level=error"]
    options += ['--define:process.env.NODE_ENV="production"', "--alias:path=path-browserify"]
    page = str(EXTENSION / "bench" / script)
    command = [str(esbuild), page, *options, f"--outfile={folder / 'bundle.js'}"]
    subprocess.run(command, check=True, cwd=EXTENSION)
    shutil.copy(THEME, folder / "theme.css")
    styles = (EXTENSION / "style" / name for name in ("states.css", css))
    (folder / "part.css").write_text("".join(style.read_text() for style in styles))
    (folder / "index.html").write_text(PAGE.format(style=style))
    return folder


@asynccontextmanager
async def serving(app: Application) -> AsyncIterator[str]:
    """Serve pages on this machine; yield the address of the first one."""
    socket, port = bind_unused_port()
    server = HTTPServer(app)
    server.add_socket(socket)
    try:
        yield f"http://127.0.0.1:{port}/index.html"
    finally:
        server.stop()
        await server.close_all_connections()


@asynccontextmanager
async def launched(driver: Playwright) -> AsyncIterator[Browser]:
    """Start a Chromium (``CHROMIUM_PATH``, or ``chromium`` on the path), which has shown no page yet."""
    path = os.environ.get("CHROMIUM_PATH") or shutil.which("chromium")
    args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    browser = await driver.chromium.launch(executable_path=path, args=args)
    try:
        yield browser
    finally:
        await browser.close()


async def used(page: Page, session: CDPSession) -> tuple[float, float, float]:
    """Return the MB of the page's process, the MB of its heap, and the number of its DOM nodes."""
    await session.send("HeapProfiler.collectGarbage")
    heap = await session.send("Runtime.getHeapUsage")
    counters = await session.send("Memory.getDOMCounters")
    assert page.context.browser is not None
    whole = await page.context.browser.new_browser_cdp_session()
    processes = (await whole.send("SystemInfo.getProcessInfo"))["processInfo"]
    # Text isn't in the heap: strings that the browser decoded lie beside it.
    resident = max(_rss(process["id"]) for process in processes if process["type"] == "renderer")
    return resident, heap["usedSize"] / MB, counters["nodes"]


def _rss(pid: int) -> float:
    """Return the resident memory of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / MB for line in lines if line.startswith("VmRSS:"))
