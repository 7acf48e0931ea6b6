"""What a cell shows before its job's own card.

That is a question if the cell was edited while its job still runs, and the progress of packing and sending
once that takes noticeable time.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from nbtorchjob import capture
from nbtorchjob.errors import NBTorchJobError, SwapError
from nbtorchjob.machine.transfers import newest
from nbtorchjob.state import JobState, Phase
from nbtorchjob.text.hints import hint, run_hint
from nbtorchjob.text.words import DOT, LINE, duration, line, size
from nbtorchjob.ui import card
from nbtorchjob.ui.card import Tone
from nbtorchjob.ui.elements import SMALL, action, meant, prose, tag, text_line

if TYPE_CHECKING:
    from nbtorchjob.capture import Call

QUIET_S = 0.5
_SLOW_S = 2.0  # for a small payload: packing takes no time, but a cluster may
_BIG = 1_000_000
_PERIOD_S, _SAID_S = 1.0, 10.0
_NOW, _DONE, _FAILED = "submitting", "submitted", "not submitted"
_TONES = {_NOW: Tone.RUNNING, _DONE: Tone.QUIET, _FAILED: Tone.FAILED}
_DOING = {_NOW: "packing and sending", _DONE: "packed and sent", _FAILED: "stopped packing and sending"}


class Output:
    """One output of a cell, updated in place; created when something is first shown."""

    def __init__(self) -> None:
        self._handle: Any = None

    @property
    def drawn(self) -> bool:
        """Whether something was shown."""
        return self._handle is not None

    def show(self, bundle: dict[str, str]) -> None:
        """Show a bundle in place of what was shown before."""
        from IPython.display import display  # not needed in a terminal

        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


@contextmanager
def drawn(call: Call, output: Output) -> Iterator[None]:
    """Count the time in a cell's output meanwhile; the job's card then takes the output over."""
    began = time.monotonic()

    def draw(phase: str) -> None:
        took = time.monotonic() - began
        stored, ships = _stored() if phase == _NOW else "", capture.ships_line(call)
        what = f"storing {stored}" if stored else f"{_DOING[phase]} {size(_bytes(call))}"
        what += f"{DOT}{duration(took)}"
        body = tag("div", text_line(ships, SMALL), card.BODY, cls="nbt-body")
        html = card.frame(_TONES[phase], card.head(_TONES[phase], phase, call.label, escape(what)), body)
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
    """Say what is sent, where an output can't be updated: once, and its progress now and then."""
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
    """Return what is being written to a store, and how much of it has been."""
    transfer = newest()
    return (
        f"{line(transfer.name, 60)}, {size(transfer.done)} of {size(transfer.total)}"
        if transfer is not None
        else ""
    )


@contextmanager
def _meanwhile(call: Call, draw: Callable[[], object], period: float) -> Iterator[None]:
    """Draw from another thread once that is worth it: packing and sending occupy this one."""
    done = threading.Event()

    def watch() -> None:
        wait = QUIET_S if _bytes(call) >= _BIG else _SLOW_S
        while not done.wait(wait):
            draw()
            wait = period

    # In this context, by which ipykernel (7.0) finds the cell that the output belongs to.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(watch,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


_ROW = "display:flex;flex-wrap:wrap;gap:4px;margin:6px 0 0"


def choice(state: JobState, text: str, again: str) -> str:
    """Return a card that asks what to do with an edited cell: swap its code in, attach, or another job.

    It is for the cell ``text`` and the job that runs its former text; ``again`` are the options that run the
    cell beside that job, "" if it already runs beside it. Where nothing handles its buttons, the card says in
    words what they do.
    """
    from nbtorchjob.swapping import code  # late, as it is slow to import

    name, job = state.name, meant(state.info)
    buttons, more = [], []
    try:
        if state.phase is not Phase.RUNNING:
            raise SwapError(f"{name} is {state.phase.word}")
        known = code.of(state)
        changed = known.definitions_in(text, name, edited=True)
        known.refuse(changed, name)
    except (NBTorchJobError, SyntaxError) as exc:
        more.append(f"The job can't take the cell's changes while it runs: {exc}")
    else:
        names = line(", ".join(code.JobCode([("", changed)], {}).definitions), 200)
        more.append(f"Swap: all its ranks go on with the cell's {names}, by {hint('swap', name)}")
        buttons.append(action("Swap", "nbtorchjob:swap", {**job, "edited": "true"}))
    more.append(f"Attach: follow it as it is, by {hint('attach', name)}")
    buttons.append(action("Attach", "nbtorchjob:attach", job))
    if again:
        more.append(f"New job: run the cell beside it, by {run_hint(again)}")
        buttons.append(action("New job", "nbtorchjob:run-cell", {"options": again}))
    verdict = escape(line(f"{name} still runs this cell's earlier code", LINE))
    words = (prose(line(part, LINE)) for part in more)
    return card.frame(
        card.Tone.ACT, card.note(card.Tone.ACT, verdict, *words, tag("div", "".join(buttons), _ROW))
    )
