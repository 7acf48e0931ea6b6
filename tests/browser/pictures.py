"""Pictures of a job's card in each state, and of the sidebar, as a real JupyterLab draws scripted jobs.

``make pictures`` writes them to ``docs/pictures/``; ``test_pictures.py`` compares some of them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image, ImageChops

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
WIDTHS = (480, 800, 1400)
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
_CHANGE = "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})"
_COLOURS = 96  # of a card: enough for text and lines, and a third of the size
_PLACE = """output => {
    const { x, y, width, height } = output.querySelector('.nbtorchjob').getBoundingClientRect();
    return { x, y, width, height };
}"""
_DRAWN = ".nbt-state:not(:text-is('Submitted'))"
_SLACK = 24  # px by which heights may differ: a line may wrap elsewhere
_FAINT, _MOST = 56, 0.04  # how much a pixel may differ, and what share may differ more: times go on


class Camera:
    """A camera for cards in one notebook; ``shown`` has the expression that shows each state."""

    def __init__(self, lab, shown: dict[str, str], folder: Path) -> None:
        self._folder = folder
        cells = ["%load_ext nbtorchjob\nimport nbtorchjob", *shown.values()]
        self._states = list(shown)
        self._notebook = lab.open("pictures", cells)
        self._page = self._notebook.page
        self._notebook.run(0)
        self._notebook.command("application:toggle-left-area")
        self._notebook.command("notebook:run-all-cells")
        for index in range(1, len(cells)):
            # Until it has read the facts of its job, a card shows "Submitted".
            self._notebook.output(index).locator(_DRAWN).first.wait_for(state="attached")
        self._notebook.idle()

    def _card(self, index: int):
        return self._notebook.output(index).locator(".nbtorchjob").first

    def _place(self, index: int):
        """Return the place of a card, found and measured in one step: it may be redrawn in between."""
        return self._notebook.output(index).evaluate(_PLACE)

    def take(self, widths: Sequence[int] = WIDTHS) -> Iterator[Path]:
        """Take a picture of each card in each theme at these widths."""
        for theme, name in THEMES.items():
            self._page.evaluate(_CHANGE, name)
            self._page.wait_for_timeout(2000)
            for width in widths:
                self._fit(width)
                for index, state in enumerate(self._states, 1):
                    yield self._shoot(index, f"{state}-{theme}-{width}.png")

    def overview(self) -> Path:
        """Take a picture of the whole page, in the light theme, with the sidebar and a running card."""
        self._page.evaluate(_CHANGE, THEMES["light"])
        self._page.set_viewport_size({"width": 1280, "height": 860})
        self._notebook.sidebar.search("")
        self._page.wait_for_timeout(2000)
        self._show(self._states.index("running") + 1)
        self._page.wait_for_timeout(500)
        path = self._folder / "overview.png"
        self._page.screenshot(path=path)
        return path  # in all its colours, for the README

    def _show(self, index: int) -> None:
        """Bring a card into view; the notebook draws only those that are."""
        self._page.evaluate("at => jupyterapp.shell.currentWidget.content.scrollToItem(at, 'start')", index)
        self._card(index).wait_for()
        self._notebook.output(index).scroll_into_view_if_needed()

    def close(self) -> None:
        """Set the light theme, which other tests expect, and close the page."""
        self._page.evaluate(_CHANGE, THEMES["light"])
        self._page.close()

    def _shoot(self, index: int, name: str) -> Path:
        path = self._folder / name
        self._show(index)
        self._page.wait_for_timeout(150)
        # A live card is redrawn each second, so the picture is of its place on the page.
        self._page.screenshot(path=path, clip=self._place(index))
        return _smaller(path)

    def _fit(self, width: int) -> None:
        """Make the page as wide as a card of this width needs."""
        self._show(1)
        for _ in range(4):
            wide = self._place(1)["width"]
            size = self._page.viewport_size
            if abs(wide - width) < 1:
                return
            self._page.set_viewport_size(
                {"width": round(size["width"] + width - wide), "height": size["height"]}
            )
            self._page.wait_for_timeout(400)


def _smaller(path: Path) -> Path:
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    return path


def differs(one: Path, other: Path) -> str:
    """Return how two pictures differ by more than times that go on; "" if they don't."""
    with Image.open(one) as first, Image.open(other) as second:
        a, b = first.convert("L"), second.convert("L")
    if a.width != b.width or abs(a.height - b.height) > _SLACK:
        return f"{a.size} and {b.size}"
    box = 0, 0, a.width, min(a.height, b.height)
    levels = ImageChops.difference(a.crop(box), b.crop(box)).histogram()
    share = sum(levels[_FAINT:]) / (box[2] * box[3])
    return f"{share:.1%} of the pixels differ" if share > _MOST else ""


def main() -> None:
    """Write all pictures."""
    from playwright.sync_api import sync_playwright

    from tests.browser import scripted
    from tests.browser.conftest import FLAGS, serving

    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        os.environ["XDG_STATE_HOME"] = str(Path(folder) / "state")
        browser = driver.chromium.launch(executable_path=os.environ["CHROMIUM_PATH"], args=FLAGS)
        with serving(Path(folder), browser) as lab:
            camera = Camera(lab, scripted.write(str(lab.root / "pictures.ipynb")), PICTURES)
            for path in (*camera.take(), camera.overview()):
                print(f"{path.name}: {path.stat().st_size:,} bytes")
        browser.close()


if __name__ == "__main__":
    main()
