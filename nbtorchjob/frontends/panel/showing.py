"""How things are shown: the panel's style, whether a widget is seen, and text that can be copied."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from importlib import resources
from typing import Any

import ipywidgets as widgets

# Selecting and copying also works on pages without TLS, where the clipboard's own API is missing.
_COPY = """const box = this.parentElement.querySelector('pre');
getSelection().selectAllChildren(box);
this.textContent = document.execCommand('copy') ? 'Copied' : 'Press Ctrl+C';
setTimeout(() => { this.textContent = 'Copy'; }, 1500);"""

# ipywidgets 8.1 doesn't name a slider's handles, so a screen reader can't announce them.
_NAMES = """const panel = this.closest('.nbtorchjob-panel');
const name = () => {
  for (const [end, text] of [['lower', 'fewest nodes'], ['upper', 'most nodes']])
    for (const handle of panel.querySelectorAll('.noUi-handle-' + end))
      handle.setAttribute('aria-label', text);
};
new MutationObserver(name).observe(panel, {childList: true, subtree: true});
name();"""


def style() -> Any:
    """Return a widget that brings the panel's style along."""
    css = resources.files("nbtorchjob.frontends.panel").joinpath("panel.css").read_text("utf-8")
    return widgets.HTML(f'<style onload="{escape(_NAMES)}">{css}</style>')


def show(widget: Any, *, shown: bool) -> None:
    """Show or hide a widget."""
    widget.layout.display = None if shown else "none"


class Copyable:
    """A literal text with a button that copies it; ``beside`` makes HTML of it to put next to the button."""

    def __init__(self, what: str, beside: Callable[[str], str] | None = None) -> None:
        self._beside = beside
        self._button = f'<button type="button" aria-label="Copy {escape(what)}" onclick="{escape(_COPY)}">'
        self.widget = widgets.HTML().add_class("nbtorchjob-text")
        self.text = ""

    def show(self, text: str, note: str = "") -> None:
        """Show ``text``, and a note about it."""
        self.text = text
        said = f"<div>{escape(note)}</div>" if note else ""
        more = self._beside(text) if self._beside else ""
        # What scrolls must be reachable by keyboard.
        self.widget.value = f'{self._button}Copy</button>{more}<pre tabindex="0">{escape(text)}</pre>{said}'
