"""What a cell shows while its job is packed and sent, once that takes noticeable time."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from nbtorchjob import capture
from nbtorchjob.machine.transfers import newest
from nbtorchjob.text.words import DOT, duration, line, size
from nbtorchjob.ui.card import head
from nbtorchjob.ui.card.head import Tone
from nbtorchjob.ui.elements import SMALL, tag, text_line

if TYPE_CHECKING:
    from nbtorchjob.capture import Call

QUIET_S = 0.5
_SLOW_S = 2.0  # for a small payload, whose packing takes no time: a cluster may
_BIG = 1_000_000
_PERIOD_S, _SAID_S = 1.0, 10.0
_NOW, _DONE, _FAILED = "submitting", "submitted", "not submitted"
_TONES = {_NOW: Tone.RUNNING, _DONE: Tone.QUIET, _FAILED: Tone.FAILED}
_DOING = {_NOW: "packing and sending", _DONE: "packed and sent", _FAILED: "stopped packing and sending"}


class Output:
    """One output of a cell, updated in place; there is none before something is shown."""

    def __init__(self) -> None:
        self._handle: Any = None

    @property
    def drawn(self) -> bool:
        """Whether something was shown."""
        return self._handle is not None

    def show(self, bundle: dict[str, str]) -> None:
        """Show it in place of what was shown before."""
        from IPython.display import display  # not needed in a terminal

        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


@contextmanager
def drawn(call: Call, output: Output) -> Iterator[None]:
    """Have the time count in a cell's output meanwhile; the job's card takes it over."""
    began = time.monotonic()

    def draw(phase: str) -> None:
        took = time.monotonic() - began
        stored, ships = _stored() if phase == _NOW else "", capture.ships_line(call)
        what = f"storing {stored}" if stored else f"{_DOING[phase]} {size(_bytes(call))}"
        what += f"{DOT}{duration(took)}"
        body = tag("div", text_line(ships, SMALL), head.BODY, cls="nbt-body")
        html = head.card(_TONES[phase], head.html(_TONES[phase], phase, call.label, escape(what)), body)
        output.show({"text/html": html, "text/plain": f"torchjob {call.label} {phase}{DOT}{what}"})

    end = _FAILED
    try:
        with _meanwhile(call, lambda: draw(_NOW), _PERIOD_S):
            yield
        end = _DONE
    finally:
        if output.drawn:
            draw(end)


@contextmanager
def said(call: Call, say: Callable[[str], object]) -> Iterator[None]:
    """Say what is sent, where nothing that was shown can be changed: once, and now and then how far it is."""
    announced = False

    def tell() -> None:
        nonlocal announced
        if not announced:
            say(f"Packing and sending {size(_bytes(call))}: {capture.ships_line(call)}")
        if stored := _stored():
            say(f"Storing {stored}")
        announced = True

    with _meanwhile(call, tell, _SAID_S):
        yield


def _bytes(call: Call) -> int:
    shipped, data = (sum(item.size for item in items) for items in (call.shipped, call.data))
    return call.size + shipped + data


def _stored() -> str:
    """Return what is written to a store now, and how much of it is."""
    transfer = newest()
    return (
        f"{line(transfer.name, 60)}, {size(transfer.done)} of {size(transfer.total)}"
        if transfer is not None
        else ""
    )


@contextmanager
def _meanwhile(call: Call, draw: Callable[[], object], period: float) -> Iterator[None]:
    """Draw from a thread once that is worth it: packing and sending occupy this one."""
    done = threading.Event()

    def watch() -> None:
        wait = QUIET_S if _bytes(call) >= _BIG else _SLOW_S
        while not done.wait(wait):
            draw()
            wait = period

    # In this context, by which ipykernel tells whose output it is (7.0).
    thread = threading.Thread(target=contextvars.copy_context().run, args=(watch,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
