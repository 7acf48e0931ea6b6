"""Libraries that draw in a notebook's page: on a rank they have rank 0's cell draw it, else write text."""

from __future__ import annotations

import builtins
import functools
import importlib
import os
import sys
from typing import Any, Callable, Dict

from . import displays, onimport


def install() -> None:
    """Have libraries be changed when they are imported, and ``display`` be a builtin, as IPython has it."""
    onimport.change(_CHANGES)
    if not hasattr(builtins, "display"):
        builtins.display = _display  # type: ignore[attr-defined]


def _display(*objs: Any, **options: Any) -> Any:
    """Draw objects below the cell's card; other ranks than 0 write them as text."""
    try:
        display: Any = importlib.import_module("IPython.display").display
    except ImportError:  # an image needn't have it
        display = functools.partial(_draw, None)
    return display(*objs, **options)


@functools.lru_cache(maxsize=None)
def _say(text: str) -> None:
    sys.stderr.write("nbtorchjob: %s\n" % text)


def _bars_of_text(module: Any) -> None:
    # A widget that nobody draws stays at 0 %, or fails where there are no widgets.
    from tqdm import std  # type: ignore[import-untyped,import-not-found,unused-ignore]

    module.tqdm = module.tqdm_notebook = std.tqdm
    module.trange = module.tnrange = std.trange


def _figures_in_the_cell(module: Any) -> None:
    if not os.environ.get("MPLBACKEND"):
        module.switch_backend("agg")  # a window on this machine's screen would block the rank
    show = module.show

    @functools.wraps(show)
    def show_figures(*args: Any, **kwargs: Any) -> Any:
        if module.get_backend().lower() != "agg":
            return show(*args, **kwargs)
        figures = [module.figure(number) for number in module.get_fignums()]
        if displays.wanted():
            for figure in figures:
                displays.show_anew(figure)
        elif figures and not displays.others():
            _say("plt.show() has no page to draw more on: save the figure")
        return None  # they stay open, as in a script: it may save them afterwards

    module.show = show_figures


def _display_in_the_cell(module: Any) -> None:
    inner = module.display

    @functools.wraps(inner)
    def display(*objs: Any, **options: Any) -> Any:
        shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
        if shell is not None and shell.initialized():
            return inner(*objs, **options)
        return _draw(module.DisplayHandle, *objs, **options)

    module.display = display


def _draw(handle: Any, *objs: Any, display_id: Any = None, **options: Any) -> Any:
    for each in objs:
        rich = displays.wanted() and displays.show(each if options.get("raw") else displays.of(each))
        source = getattr(each, "data", None) if type(each).__module__ == "IPython.core.display" else None
        if options.get("raw"):
            source = str(each.get(displays.TEXT, "[%s]" % ", ".join(each)))
        print(source if isinstance(source, str) else each)  # noqa: T201
        drawn = hasattr(each, "_repr_html_") or hasattr(each, "savefig")
        if drawn and not rich and not displays.others():
            _say("display() has no page to draw more on, and writes text")
    if not display_id or handle is None:
        return None
    return handle(display_id if isinstance(display_id, str) else None)


_CHANGES: Dict[str, Callable[[Any], None]] = {
    "tqdm.notebook": _bars_of_text,
    "matplotlib.pyplot": _figures_in_the_cell,
    "IPython.core.display_functions": _display_in_the_cell,
}
