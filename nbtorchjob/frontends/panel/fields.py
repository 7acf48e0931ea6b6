"""A control with its help and its error, and sections that fold.

How things are shown: the panel's style, whether a widget is seen, and text that can be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from typing import Any

import ipywidgets as widgets

from nbtorchjob.frontends.panel.controls import Control
from nbtorchjob.spec.validation import Option

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


class Field:
    """A control, what it is for, and what is wrong with what it holds."""

    def __init__(self, control: Control, help: str) -> None:
        self.control = control
        self._help = f'<div class="nbtorchjob-help">{escape(help)}</div>'
        self._told = widgets.HTML()
        self.box = widgets.VBox([control.widget, self._told]).add_class("nbtorchjob-field")
        self.judge("")

    def judge(self, error: str) -> None:
        """Show an error; "" removes it."""
        wrong = f'<div class="nbtorchjob-error">\u26a0 {escape(error)}</div>' if error else ""
        self._told.value = wrong + self._help
        (self.box.add_class if error else self.box.remove_class)("nbtorchjob-wrong")


class Fold:
    """A title that shows and hides what is below it: a button, so that keys reach it, too.

    ``build`` makes the body when it is first shown: the half a thousand widgets of a form with all its
    sections take half a second to make.
    """

    def __init__(self, title: str, build: Callable[[], Sequence[Any]], *, opened: bool = False) -> None:
        self._title = title
        self._note = ""
        self._build = build
        self.opened = False
        self.button = widgets.Button().add_class("nbtorchjob-fold")
        self.button.on_click(lambda _: self.open(opened=not self.opened))
        self.body = widgets.Box().add_class("nbtorchjob-body")
        self.box = widgets.VBox([self.button, self.body]).add_class("nbtorchjob-section")
        self.open(opened=opened)

    def open(self, *, opened: bool) -> None:
        """Show or hide the body."""
        self.opened = opened
        if opened and not self.body.children:
            self.body.children = self._build()
        show(self.body, shown=opened)
        self.note(self._note)

    def note(self, text: str) -> None:
        """Show a text after the title."""
        self._note = text
        mark = "\u25be" if self.opened else "\u25b8"
        self.button.description = f"{mark} {self._title}" + (f" \u00b7 {text}" if text else "")
        self.button.tooltip = f"{'Hide' if self.opened else 'Show'}: {self._title}"


def help_text(o: Option) -> str:
    """Return an option's help with its unit and default."""
    notes = [o.unit, f"default {o.default}" if o.default else ""]
    said = "; ".join(filter(None, notes))
    return o.help + (f" ({said})" if said else "")
