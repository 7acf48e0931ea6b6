"""Sends what rank 0 displays to the cell that waits for the job: figures, images, HTML.

Each display is a fact with a *bundle*, as in Jupyter's messages: data by MIME type, images in base64.

Libraries that draw in a notebook's page draw in that cell on rank 0, or write text.
"""

from __future__ import annotations

import base64
import builtins
import functools
import importlib
import io
import json
import os
import sys
import weakref
from contextlib import suppress
from typing import Any, Dict

from nbtorchjob.runtime.api.report import tell
from nbtorchjob.runtime.facts import EVENTS, onimport

MOST = 20  # displays of a rank in a round
LONGEST = 1 << 19  # bytes of one display as JSON, where each character beyond ASCII takes six or twelve
TEXT = "text/plain"

_CHANGES = onimport.Changes()
_shown = 0
_speaker = 0  # the rank whose displays are shown
_figures: "weakref.WeakKeyDictionary[Any, bytes]" = weakref.WeakKeyDictionary()  # as they were last shown


def begin(speaker: int) -> None:
    """Restart the count: a rank that stays begins another turn, which shows the displays of ``speaker``."""
    global _shown, _speaker
    _shown, _speaker = 0, speaker


def others() -> bool:
    """Whether this rank's displays aren't shown: it isn't rank 0, or the first rank that runs a turn."""
    return os.environ.get("RANK", "0") != str(_speaker)


def may_show() -> bool:
    """Whether the cell shows another display."""
    return bool(os.environ.get(EVENTS)) and not others() and _shown < MOST


def show(bundle: Dict[str, Any]) -> bool:
    """Have the cell show a bundle, without data that isn't text; return whether it shows more than text."""
    global _shown
    data: Dict[str, str] = {}
    for mime, value in bundle.items():
        text = base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else value
        data[str(mime)] = text if isinstance(text, str) else ""
    sizes = {mime: len(json.dumps(text)) for mime, text in data.items()}
    while sum(sizes.values()) > LONGEST:
        largest = max(sizes, key=lambda mime: sizes[mime])
        del sizes[largest], data[largest]
    if not may_show() or not set(data) - {TEXT}:
        return False
    _shown = tell("Displayed", _speaker, data=data) + 1
    return True


def show_anew(figure: Any) -> None:
    """Have the cell show a matplotlib figure, unless it looks as it did when it was last shown."""
    bundle = _of_figure(figure)
    if _figures.get(figure) != bundle["image/png"] and show(bundle):
        _figures[figure] = bundle["image/png"]


def _of_figure(figure: Any) -> Dict[str, Any]:
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return {"image/png": file.getvalue(), TEXT: repr(figure)}


def of(value: Any) -> Dict[str, Any]:
    """Return any value's bundle as IPython would make it; a figure's, as a notebook would."""
    if hasattr(value, "savefig"):
        with suppress(Exception):  # it isn't matplotlib's, or can't be drawn
            return _of_figure(value)
    try:
        formatters: Any = importlib.import_module("IPython.core.formatters")
    except ImportError:  # an image needn't have it
        # The bundle that an object's own methods make, by IPython's names for them.
        bundle: Dict[str, Any] = {TEXT: repr(value)}
        for mime, name in _METHODS:
            with suppress(Exception):  # whatever it raises, or it has none
                data = getattr(value, name)()
                bundle.update({mime: data} if data is not None else {})
        return bundle
    return dict(formatters.DisplayFormatter().format(value)[0])


_METHODS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
)


def install() -> None:
    """Patch libraries when they are imported, and make ``display`` a builtin, as in IPython."""
    onimport.change(_CHANGES)
    if not hasattr(builtins, "display"):
        builtins.display = _display  # type: ignore[attr-defined]


def _display(*objs: Any, **options: Any) -> Any:
    """Draw objects below the cell's card; ranks other than 0 write them as text."""
    try:
        display: Any = importlib.import_module("IPython.display").display
    except ImportError:  # an image needn't have it
        display = functools.partial(_draw, None)
    return display(*objs, **options)


@functools.lru_cache(maxsize=None)
def _say(text: str) -> None:
    print("nbtorchjob: %s" % text, file=sys.__stderr__)


@_CHANGES.of("tqdm.notebook")
def _bars_of_text(module: Any) -> None:
    # A widget that isn't drawn stays at 0 %, or fails if there are no widgets.
    from tqdm import std  # type: ignore[import-untyped,import-not-found,unused-ignore]

    module.tqdm = module.tqdm_notebook = std.tqdm
    module.trange = module.tnrange = std.trange


@_CHANGES.of("matplotlib.pyplot")
def _figures_in_the_cell(module: Any) -> None:
    if not os.environ.get("MPLBACKEND"):
        module.switch_backend("agg")  # a window on this machine's screen would block the rank
    show = module.show

    @functools.wraps(show)
    def show_figures(*args: Any, **kwargs: Any) -> Any:
        if module.get_backend().lower() != "agg":
            return show(*args, **kwargs)
        figures = [module.figure(number) for number in module.get_fignums()]
        if may_show():
            for figure in figures:
                show_anew(figure)
        elif figures and not others():
            _say("plt.show() can't draw this in the notebook: save the figure")
        return None  # they stay open, as in a script, which may save them afterwards

    module.show = show_figures


def end_of_cell() -> None:
    """Show the figures that a cell has left open, and close them, as matplotlib does in a notebook."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None and pyplot.get_fignums() and pyplot.get_backend().lower() == "agg":
        try:
            pyplot.show()
        except Exception as exc:  # the cell itself has succeeded
            _say("a figure can't be drawn: %s" % exc)
        pyplot.close("all")


@_CHANGES.of("IPython.core.display_functions", "IPython.core.display")  # the latter before IPython 7.23
def _display_in_the_cell(module: Any) -> None:
    inner = vars(module).get("display")
    if inner is None or inner.__module__ != module.__name__:  # it is the other module's
        return

    @functools.wraps(inner)
    def display(*objs: Any, **options: Any) -> Any:
        shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
        if shell is not None and shell.initialized():
            return inner(*objs, **options)
        return _draw(module.DisplayHandle, *objs, **options)

    module.display = display


def _draw(handle: Any, *objs: Any, display_id: Any = None, **options: Any) -> Any:
    for obj in objs:
        rich = may_show() and show(obj if options.get("raw") else of(obj))
        source = getattr(obj, "data", None) if type(obj).__module__ == "IPython.core.display" else None
        if options.get("raw"):
            source = str(obj.get(TEXT, "[%s]" % ", ".join(obj)))
        print(source if isinstance(source, str) else obj)  # noqa: T201
        drawn = hasattr(obj, "_repr_html_") or hasattr(obj, "savefig")
        if drawn and not rich and not others():
            _say("display() can't draw this in the notebook, and writes text")
    if not display_id or handle is None:
        return None
    return handle(display_id if isinstance(display_id, str) else None)
