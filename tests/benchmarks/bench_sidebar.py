"""The cost of the sidebar with thousands of jobs in a browser, compared with a plain list of them.

Needs ``playwright``, a Chromium (``CHROMIUM_PATH``, or ``chromium`` on the path), and what `jlpm install`
puts into `labextension/node_modules`.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from playwright.async_api import Browser, async_playwright
from tornado.web import Application, StaticFileHandler

from tests.benchmarks.chromium import built, launched, serving, used
from tests.benchmarks.measure import Row, show

ROUNDS = 3
JOBS = 5_000
FOUND = (JOBS + 2) // 3  # every third is called bert
STYLE = """.plain, .jp-nbtorchjob-sidebar { height: 800px; width: 280px; margin: 0 }
.plain { overflow: auto }"""


@dataclass(frozen=True)
class Subject:
    """The JavaScript that acts on a list, and the selector of the element that scrolls."""

    open_: str
    scroller: str
    change: str
    find: str


SUBJECTS = {
    "plain": Subject(
        f"bench.openPlain({JOBS})", ".plain", f"bench.changePlain({JOBS})", f"bench.findPlain('bert', {JOBS})"
    ),
    "sidebar": Subject(
        f"bench.openSidebar({JOBS})",
        "[role=treegrid]",
        f"bench.change({JOBS})",
        f"bench.find('bert', {FOUND})",
    ),
}


@dataclass(frozen=True)
class Taken:
    """One page's figures: seconds, and MB."""

    first: float
    frame: float
    late_frame: float
    change: float
    find: float
    memory: float
    heap: float
    nodes: float


async def taken(browser: Browser, url: str, subject: Subject) -> Taken:
    """Open a page with a list, scroll it, change a job and search."""
    page = await browser.new_page(viewport={"width": 800, "height": 900})
    await page.goto(url)
    session = await page.context.new_cdp_session(page)
    opened = await page.evaluate(subject.open_)
    memory, heap, nodes = await used(page, session)
    frames = sorted(await page.evaluate("scroller => bench.scroll(scroller)", subject.scroller))
    changed, search = [await page.evaluate(script) for script in (subject.change, subject.find)]
    await page.close()
    milliseconds = (opened, median(frames), frames[int(0.95 * len(frames))], changed, search)
    first, frame, late, change, find = (value / 1000 for value in milliseconds)
    return Taken(first, frame, late, change, find, memory, heap, nodes)


async def measure() -> dict[str, list[Taken]]:
    all_: dict[str, list[Taken]] = {name: [] for name in SUBJECTS}
    with tempfile.TemporaryDirectory(prefix="nbtorchjob-bench-") as folder:
        pages = built("sidebar.tsx", "sidebar.css", STYLE, Path(folder))
        app = Application([("/(.*)", StaticFileHandler, {"path": pages})])
        async with serving(app) as url, async_playwright() as driver:
            for _ in range(ROUNDS):
                for name, subject in SUBJECTS.items():
                    async with launched(driver) as browser:
                        all_[name].append(await taken(browser, url, subject))
    return all_


def report(runs: dict[str, list[Taken]]) -> None:
    def row(name: str, field: str, goal: float | None, unit: str = "s") -> Row:
        value, base = (median(getattr(run, field) for run in runs[who]) for who in ("sidebar", "plain"))
        return Row(name, value, base, goal, unit)

    show(
        f"Sidebar: {JOBS:,} jobs in Chromium",
        "<ul>",
        [
            row("until the first jobs are seen", "first", 1),
            row("a frame of scrolling", "frame", 1.2),
            row("a frame of scrolling, 95%", "late_frame", 2),  # screens have 60 a second: one was missed
            row("longest frame while a job changes", "change", 0.5),
            row("search", "find", 1),
            row("memory", "memory", 1.5, "MB"),
            row("JavaScript heap", "heap", None, "MB"),
            row("DOM nodes", "nodes", None, ""),
        ],
    )


if __name__ == "__main__":
    report(asyncio.run(measure()))
