"""What a cell shows before its job's own card.

That is a question if the cell was edited while its job still runs, and what takes noticeable time before the
job exists: building its packages, reading its files, packing and sending.
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
from nbtorchjob.machine.activity import newest
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


class Sending:
    """A call that is prepared and sent, and the output that shows this, which the job's card takes over."""

    def __init__(self, call: Call, output: Output) -> None:
        self.call = call
        self.output = output
        self.is_prepared = False

    def prepared(self, call: Call) -> None:
        """Take over the call as it is sent, with the files and packages that go along."""
        self.call, self.is_prepared = call, True

    @property
    def size(self) -> int:
        """The bytes that are sent, with wheels, files and data."""
        call = self.call
        shipped, data = (sum(item.size for item in items) for items in (call.shipped, call.data))
        return call.size + shipped + data + sum(len(wheel.data) for wheel in call.packages.wheels)


@contextmanager
def drawn(sending: Sending) -> Iterator[None]:
    """Count the time in a cell's output meanwhile; the job's card then takes the output over."""
    began, output = time.monotonic(), sending.output

    def draw(phase: str) -> None:
        call, doing = sending.call, _doing() if phase == _NOW else ""
        details = doing or f"{_DOING[phase]} {size(sending.size)}"
        details += f"{DOT}{duration(time.monotonic() - began)}"
        body = tag("div", text_line(capture.ships_line(call), SMALL), card.BODY, cls="nbt-body")
        html = card.frame(_TONES[phase], card.head(_TONES[phase], phase, call.label, escape(details)), body)
        output.show({"text/html": html, "text/plain": f"torchjob {call.label} {phase}{DOT}{details}"})

    end = _FAILED
    try:
        with _meanwhile(sending, lambda: draw(_NOW), _PERIOD_S):
            yield
        end = _DONE
    finally:
        if output.drawn:
            draw(end)


@contextmanager
def announce(sending: Sending, say: Callable[[str], object]) -> Iterator[None]:
    """Say what is sent, where an output can't be updated: once, and its progress now and then."""
    announced = False

    def tell() -> None:
        nonlocal announced
        doing = _doing()
        if not announced and (sending.is_prepared or not doing):
            say(f"Packing and sending {size(sending.size)}: {capture.ships_line(sending.call)}")
            announced = True
        if doing:
            say(doing[0].upper() + doing[1:])

    with _meanwhile(sending, tell, _SAID_S):
        yield


def _doing() -> str:
    """Return what takes time now, such as a build or a write to a store, and how much of it is done."""
    activity = newest()
    if activity is None:
        return ""
    done = f", {size(activity.done)} of {size(activity.total)}" if activity.total else ""
    return line(activity.text, 80) + done


@contextmanager
def _meanwhile(sending: Sending, draw: Callable[[], object], period: float) -> Iterator[None]:
    """Draw from another thread once that is worth it: packing and sending occupy this one."""
    done, slow = threading.Event(), time.monotonic() + _SLOW_S

    def watch() -> None:
        wait = QUIET_S
        while not done.wait(wait):
            if sending.size >= _BIG or newest() is not None or time.monotonic() >= slow:
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
        job_code = code.of(state)
        changed = job_code.definitions_in(text, name, edited=True)
        job_code.refuse(changed, name)
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
