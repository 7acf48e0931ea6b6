"""A control for each kind of option, with its help and its error; a control holds an entry.

Also the panel's presentation: its style, sections that fold, and text that can be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from typing import Any, Protocol

import ipywidgets as widgets

from nbtorchjob.backends.base import Choice
from nbtorchjob.errors import SpecError
from nbtorchjob.frontends.panel.form import LAUNCH, Entry
from nbtorchjob.spec import Option
from nbtorchjob.spec.config import Elastic

_FEW_NODES = 16  # the slider's end, until a larger number is entered
_LAUNCHES = {
    "Elastic: torchrun's nodes": "Elastic",
    "PyTorch: a master and workers": "PyTorch",
}


class Control(Protocol):
    """An input, or a few that belong together."""

    widget: Any

    @property
    def entry(self) -> Entry:
        """The current entry."""

    def put(self, entry: Entry) -> None:
        """Replace the entry."""

    def watch(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever its value changes."""

    def offer(self, choices: Sequence[Choice]) -> None:
        """Show the choices; any other valid value can still be typed."""


def control(o: Option) -> Control:
    """Return the control of an option."""
    if o.key == "nnodes":
        return Nodes(o)
    if o.takes == "switch":
        return Single(widgets.Checkbox(description=o.key, indent=False))
    if o.repeated:
        return Rows(o)
    if o.choices:
        return Pick(o)
    return Single(widgets.Combobox(description=o.key, placeholder=o.default or o.metavar))


def launches() -> Control:
    """Return the choice between the two launch configs."""
    return Single(widgets.ToggleButtons(options=_LAUNCHES, description=LAUNCH))


class Single:
    """An input whose value is the entry."""

    def __init__(self, widget: Any) -> None:
        self.widget = widget

    @property
    def entry(self) -> Entry:
        """The input's value."""
        value: Entry = self.widget.value
        return value

    def put(self, entry: Entry) -> None:
        """Set the input's value."""
        self.widget.value = entry

    def watch(self, changed: Callable[[], None]) -> None:
        """Report every key press."""
        self.widget.observe(lambda _: changed(), "value")

    def offer(self, choices: Sequence[Choice]) -> None:
        """Offer the choices below the text."""
        if isinstance(self.widget, widgets.Combobox):
            self.widget.options = [choice.value for choice in choices]


class Pick(Single):
    """One of a fixed list of values; a cluster reports which of them it has."""

    def __init__(self, o: Option) -> None:
        super().__init__(widgets.Dropdown(description=o.key))
        self._values = o.choices
        self._default = o.default
        self._none = [] if o.default else [("not set", "")]
        self._relabelling = False
        self.offer(())

    def put(self, entry: Entry) -> None:
        """Select ``entry``; an empty one means the default."""
        self.widget.value = entry or self._default

    def watch(self, changed: Callable[[], None]) -> None:
        """Report a new choice."""
        self.widget.observe(lambda _: None if self._relabelling else changed(), "value")

    def offer(self, choices: Sequence[Choice]) -> None:
        """Append the choices' notes to the labels of the values."""
        notes = {choice.value: f" ({choice.note})" for choice in choices}
        chosen = self.widget.value
        # Setting new labels selects the first value for a moment.
        self._relabelling = True
        self.widget.options = [
            *self._none,
            *((choice + notes.get(choice, ""), choice) for choice in self._values),
        ]
        self.put(chosen or "")
        self._relabelling = False


class Nodes(Single):
    """The fewest and most nodes: a slider for common numbers, a text for any number."""

    def __init__(self, o: Option) -> None:
        text = widgets.Text(description=o.key, placeholder=o.default)
        super().__init__(text)
        self._text = text
        self._slider = widgets.IntRangeSlider(
            value=(1, 1), min=1, max=_FEW_NODES, readout=False, description="fewest and most nodes"
        )

        def slide(change: Any) -> None:
            if change["new"] != self._range():
                fewest, most = change["new"]
                text.value = str(fewest) if fewest == most else f"{fewest}:{most}"

        def follow(_: Any) -> None:
            if (range_ := self._range()) is not None:
                self._slider.max = max(self._slider.max, range_[1])
                self._slider.value = range_

        self._slider.observe(slide, "value")
        text.observe(follow, "value")
        self.widget = widgets.VBox([text, self._slider]).add_class("nbtorchjob-nodes")

    @property
    def entry(self) -> Entry:
        """The text's value."""
        return str(self._text.value)

    def put(self, entry: Entry) -> None:
        """Set the text; the slider follows."""
        self._text.value = entry

    def watch(self, changed: Callable[[], None]) -> None:
        """Report changes, typed or by the slider."""
        self._text.observe(lambda _: changed(), "value")

    def offer(self, choices: Sequence[Choice]) -> None:
        """Do nothing: no source lists numbers of nodes."""

    def _range(self) -> tuple[int, int] | None:
        try:
            launch = Elastic(self._text.value or 1)
        except SpecError:
            return None
        return launch.min_nodes, launch.max_nodes


class Rows:
    """A list: a text for each of its rows, and a button to add one."""

    def __init__(self, o: Option) -> None:
        self._option = o
        self._changed: Callable[[], None] = lambda: None
        self._rows = widgets.VBox()
        self._more = widgets.Button(description="Add", tooltip=f"Add to {o.key}: {o.help}")
        self._more.on_click(lambda _: self._add())
        self._below = widgets.HBox([self._more])
        title = widgets.HTML(escape(o.key)).add_class("nbtorchjob-title")
        self.widget = widgets.VBox([title, self._rows, self._below]).add_class("nbtorchjob-rows")

    @property
    def entry(self) -> Entry:
        """The rows' texts, without empty ones."""
        return tuple(row.children[0].value for row in self._rows.children if row.children[0].value)

    def put(self, entry: Entry) -> None:
        """Make a row for each text."""
        assert isinstance(entry, tuple)
        self._set([self._row(text) for text in entry])

    def watch(self, changed: Callable[[], None]) -> None:
        """Report changes in any row, and rows added or removed."""
        self._changed = changed

    def offer(self, choices: Sequence[Choice]) -> None:
        """Offer the choices for adding to the rows."""

        def choose(change: Any) -> None:
            if change["new"]:
                self._add(change["new"])
                change["owner"].value = ""

        labels = [
            (" \u00b7 ".join(filter(None, (choice.value, choice.note))), choice.value) for choice in choices
        ]
        listed = widgets.Dropdown(
            options=[("Add from the cluster\u2026", ""), *labels],
            description=f"choices for {self._option.key}",
        )
        listed.observe(choose, "value")
        self._below.children = [self._more, listed] if labels else [self._more]

    def _add(self, text: str = "") -> None:
        self._set([*self._rows.children, self._row(text)])

    def _set(self, rows: Sequence[Any]) -> None:
        self._rows.children = rows
        self._changed()

    def _row(self, text: str) -> Any:
        name = self._option.key
        line = widgets.Text(value=text, description=name, placeholder=self._option.metavar)
        line.observe(lambda _: self._changed(), "value")
        button = widgets.Button(description="Remove", tooltip=f"Remove this {name}")
        row = widgets.HBox([line, button])
        button.on_click(lambda _: self._set([other for other in self._rows.children if other is not row]))
        return row


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
    """Return a widget that adds the panel's style to the page."""
    css = resources.files("nbtorchjob.frontends.panel").joinpath("panel.css").read_text("utf-8")
    return widgets.HTML(f'<style onload="{escape(_NAMES)}">{css}</style>')


def show(widget: Any, *, shown: bool) -> None:
    """Show or hide a widget."""
    widget.layout.display = None if shown else "none"


class Copyable:
    """A literal text with a button that copies it; ``beside`` makes HTML of it to put next to the button."""

    def __init__(self, name: str, beside: Callable[[str], str] | None = None) -> None:
        self._beside = beside
        self._button = f'<button type="button" aria-label="Copy {escape(name)}" onclick="{escape(_COPY)}">'
        self.widget = widgets.HTML().add_class("nbtorchjob-text")
        self.text = ""

    def show(self, text: str, note: str = "") -> None:
        """Show ``text``, and a note about it."""
        self.text = text
        footer = f"<div>{escape(note)}</div>" if note else ""
        more = self._beside(text) if self._beside else ""
        # Scrollable content must be reachable by keyboard.
        self.widget.value = f'{self._button}Copy</button>{more}<pre tabindex="0">{escape(text)}</pre>{footer}'


class Field:
    """A control with its help, and the error in its entry."""

    def __init__(self, control: Control, help: str) -> None:
        self.control = control
        self._help = f'<div class="nbtorchjob-help">{escape(help)}</div>'
        self._message = widgets.HTML()
        self.box = widgets.VBox([control.widget, self._message]).add_class("nbtorchjob-field")
        self.judge("")

    def judge(self, error: str) -> None:
        """Show an error; "" removes it."""
        wrong = f'<div class="nbtorchjob-error">\u26a0 {escape(error)}</div>' if error else ""
        self._message.value = wrong + self._help
        (self.box.add_class if error else self.box.remove_class)("nbtorchjob-wrong")


class Fold:
    """A title that shows and hides the part below it: a button, so that it is reachable by keyboard.

    ``build`` makes the body when it is first shown: making all 500 widgets of a form with all its sections
    takes half a second.
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
    details = "; ".join(filter(None, notes))
    return o.help + (f" ({details})" if details else "")
