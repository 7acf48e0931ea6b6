"""What rank 0 displays goes to the cell that waits for the job: figures, images, HTML.

Each is a fact that holds it as Jupyter's messages do, as a *bundle*: by MIME type, images in base64.
"""

from __future__ import annotations

import base64
import importlib
import io
import os
import weakref
from contextlib import suppress
from typing import Any, Dict

from .emit import EVENTS, emit
from .report import ROUND

MOST = 20  # of a rank in a round
LONGEST = 1 << 19  # characters of one
TEXT = "text/plain"

_shown = 0
_speaker = 0  # the rank whose displays are seen
_figures: "weakref.WeakKeyDictionary[Any, bytes]" = weakref.WeakKeyDictionary()  # as they were last shown


def begin(speaker: int) -> None:
    """Count anew: a rank that stays begins another turn, of which that rank's displays are seen."""
    global _shown, _speaker
    _shown, _speaker = 0, speaker


def others() -> bool:
    """Whether this is a rank whose displays nobody sees: any but rank 0, or the first that runs a turn."""
    return os.environ.get("RANK", "0") != str(_speaker)


def wanted() -> bool:
    """Whether the cell shows one more."""
    return bool(os.environ.get(EVENTS)) and not others() and _shown < MOST


def show(bundle: Dict[str, Any]) -> bool:
    """Have the cell show it, as far as it is text; return whether it will, and as more than text."""
    global _shown
    data = {str(mime): _text(value) for mime, value in bundle.items()}
    while data and sum(map(len, data.values())) > LONGEST:
        data.pop(max(data, key=lambda mime: len(data[mime])))
    if not wanted() or not set(data) - {TEXT}:
        return False
    emit("Displayed", rank=_speaker, round=int(os.environ[ROUND]), seq=_shown, data=data)
    _shown += 1
    return True


def show_anew(figure: Any) -> None:
    """Have the cell show a matplotlib figure, unless that is what it showed of it last."""
    bundle = _of_figure(figure)
    if _figures.get(figure) != bundle["image/png"] and show(bundle):
        _figures[figure] = bundle["image/png"]


def _of_figure(figure: Any) -> Dict[str, Any]:
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return {"image/png": file.getvalue(), TEXT: repr(figure)}


def of(value: Any) -> Dict[str, Any]:
    """Return any value's bundle, as IPython would make it, and that of a figure as its page would."""
    if hasattr(value, "savefig"):
        with suppress(Exception):  # it isn't matplotlib's, or can't be drawn
            return _of_figure(value)
    try:
        formatters: Any = importlib.import_module("IPython.core.formatters")
    except ImportError:  # an image needn't have it
        return _by_methods(value)
    return dict(formatters.DisplayFormatter().format(value)[0])


def _by_methods(value: Any) -> Dict[str, Any]:
    """Return the bundle that an object's own methods make, by IPython's names for them."""
    found: Dict[str, Any] = {TEXT: repr(value)}
    for mime, name in _METHODS:
        with suppress(Exception):  # whatever it raises, or it has none
            data = getattr(value, name)()
            found.update({mime: data} if data is not None else {})
    return found


_METHODS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
)


def _text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    return value if isinstance(value, str) else ""
