"""The cost of the log viewer with a million lines in a browser, compared with plain text in a `<pre>`.

Needs ``playwright``, a Chromium (``CHROMIUM_PATH``, or ``chromium`` on the path), and what `jlpm install`
puts into `labextension/node_modules`.
"""

import asyncio
import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from playwright.async_api import Browser, async_playwright
from tornado.web import Application, StaticFileHandler
from tornado.websocket import WebSocketHandler

from tests.benchmarks.chromium import built, launched, serving, used
from tests.benchmarks.measure import Row, show

ROUNDS = 3
LINES = 1_000_000
PART = 256 << 10
STYLE = """.plain, .jp-nbtorchjob-log-viewer { height: 100vh; width: 100vw; margin: 0 }
.plain { overflow: auto }"""
JOB = {
    "id": "local:bench", "name": "bench", "label": "cell", "backend": "local", "where": "this machine",
    "phase": "RUNNING", "status": "RUNNING", "terminal": False, "notebook": "", "cell": "", "created": 0,
    "ended": None, "elapsed": 1, "nodes": {"asked": [1, 1], "now": 1}, "nproc_per_node": 1, "attempts": 1,
    "restarts": {"used": 0, "limit": 0}, "budgets": {}, "pending": [], "failure": None, "progress": None,
    "metrics": [],
}  # fmt: skip


class Logs(WebSocketHandler):
    """A socket that sends a rank's log as the server extension does: as fast as the page takes it."""

    async def open(self) -> None:
        text = log(int(self.get_argument("lines")))
        await self.write_message(json.dumps({"job": JOB, "failed": None}))
        for offset in range(0, len(text), PART):
            await self.write_message(b"0.0.%d\n" % offset + text[offset : offset + PART], binary=True)
        await self.write_message(json.dumps({"end": True}))
        self.close(1000)


@cache
def log(lines: int) -> bytes:
    """Return a log of lines of about 100 bytes, every thousandth with a needle."""
    return b"".join(
        b"line %d step=%d loss=%.6f lr=3.0e-04 tokens/s=%d grad_norm=0.8412 memory=61.3GiB of 79.1GiB%s\n"
        % (number, number, 1 / (number + 1), 41000 + number % 977, b" needle" * (number % 1000 == 7))
        for number in range(lines)
    )


@dataclass(frozen=True)
class Taken:
    """One page's figures: seconds, and MB."""

    first: float
    all: float
    stuck: float
    frame: float
    late_frame: float
    find: float
    memory: float
    heap: float
    nodes: float


async def taken(browser: Browser, url: str, open_: str, scroller: str, find: str) -> Taken:
    """Open a page, read a million lines on it, scroll and search."""
    page = await browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(180_000)
    await page.goto(url)
    session = await page.context.new_cdp_session(page)
    opened = await page.evaluate(open_, LINES)
    memory, heap, nodes = await used(page, session)
    frames = sorted(await page.evaluate("scroller => bench.scroll(scroller)", scroller))
    search = await page.evaluate(find, LINES // 1000)
    await page.close()
    late = frames[int(0.95 * len(frames))]
    first, all_, stuck = (opened[name] / 1000 for name in ("first", "all", "stuck"))
    middle = median(frames) / 1000
    return Taken(first, all_, stuck, middle, late / 1000, search / 1000, memory, heap, nodes)


async def measure() -> dict[str, list[Taken]]:
    subjects = {
        "plain": ("n => bench.openPlain(n)", ".plain", "() => bench.findPlain('needle')"),
        "viewer": (
            "n => bench.openViewer(n)",
            ".jp-nbtorchjob-log-scroller",
            "n => bench.find('needle', n)",
        ),
    }
    all_: dict[str, list[Taken]] = {name: [] for name in subjects}
    log(LINES)
    with tempfile.TemporaryDirectory(prefix="nbtorchjob-bench-") as folder:
        pages = built("logs.ts", "logs.css", STYLE, Path(folder))
        app = Application([("/logs", Logs), ("/(.*)", StaticFileHandler, {"path": pages})])
        async with serving(app) as url, async_playwright() as driver:
            for _ in range(ROUNDS):
                for name, (open_, scroller, find) in subjects.items():
                    async with launched(driver) as browser:
                        all_[name].append(await taken(browser, url, open_, scroller, find))
    return all_


def report(runs: dict[str, list[Taken]]) -> None:
    def row(name: str, field: str, goal: float | None, unit: str = "s") -> Row:
        value, base = (median(getattr(run, field) for run in runs[who]) for who in ("viewer", "plain"))
        return Row(name, value, base, goal, unit)

    show(
        f"Log viewer: {LINES:,} lines in Chromium",
        "<pre>",
        [
            row("until the first line is seen", "first", 1),
            row("until all is there", "all", 1),
            row("longest frame meanwhile", "stuck", 0.5),
            row("a frame of scrolling", "frame", 1),
            row("a frame of scrolling, 95%", "late_frame", 1),
            row("search of all lines", "find", 2),
            row("memory", "memory", 1, "MB"),
            row("JavaScript heap", "heap", None, "MB"),
            row("DOM nodes", "nodes", None, ""),
        ],
    )


if __name__ == "__main__":
    report(asyncio.run(measure()))
