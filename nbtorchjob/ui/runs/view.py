"""A group's runs in their cell: drawn at most twice a second, however many there are."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nbtorchjob.errors import JobFailedError
from nbtorchjob.machine.interrupts import Interrupted
from nbtorchjob.runs import Runs
from nbtorchjob.state import JobState, Phase
from nbtorchjob.state.text import facts
from nbtorchjob.text import safe
from nbtorchjob.text.hints import hint
from nbtorchjob.ui import runs as render
from nbtorchjob.ui.card import Notes
from nbtorchjob.ui.card.sending import Output
from nbtorchjob.ui.card.view import held_up
from nbtorchjob.ui.elements import asset

PERIOD_S = 0.5
CANCEL_WITHIN_S = 5.0


class RunsView(Protocol):
    """Draws the states of a group's runs."""

    def draw(self, runs: Runs[Any], states: Sequence[JobState]) -> None:
        """Show them."""

    def close(self, runs: Runs[Any], states: Sequence[JobState]) -> None:
        """Show how they ended, or that nobody waits for them any more."""


class Card:
    """For notebooks: one output, updated in place, that ends as static HTML and text."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def draw(self, runs: Runs[Any], states: Sequence[JobState]) -> None:
        """Update the output."""
        self._output.show(mimebundle(runs.name, states, live=True))

    def close(self, runs: Runs[Any], states: Sequence[JobState]) -> None:
        """Update it for the last time."""
        self._output.show(mimebundle(runs.name, states))


class Silent:
    """For ``--quiet``: only what somebody has to act on, or would otherwise wait for in vain."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._notes: dict[int, Notes] = {}  # by the number of the run
        self._waits = False

    def draw(self, runs: Runs[Any], states: Sequence[JobState]) -> None:
        """Say once what the group waits for on this machine, and which ranks of its runs are stopped."""
        queued = all(state.phase in (Phase.SUBMITTED, Phase.PENDING) for state in states)
        if queued and not self._waits and (first := held_up(states[0])):  # the others wait for that one
            self._waits = True
            self._write(safe(f"{runs.name} {first}"))
        for state in states:
            if state.stopped or state.info.number in self._notes:
                notes = self._notes.setdefault(state.info.number, Notes())
                if text := notes.new(state):
                    self._write(text.rstrip("\n"))

    def close(self, runs: Runs[Any], states: Sequence[JobState]) -> None:
        """Show nothing."""


class Terminal(Silent):
    """For a terminal: a line for each run that ends, and the table at the end."""

    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__(write)
        self._ended_runs: set[int] = set()

    def draw(self, runs: Runs[Any], states: Sequence[JobState]) -> None:
        """Write a line for each run that has ended since."""
        super().draw(runs, states)
        now = time.time()
        for state in states:
            if state.phase.terminal and state.info.number not in self._ended_runs:
                self._ended_runs.add(state.info.number)
                status = f"{len(self._ended_runs)}/{len(states)} {facts.last_line(state, now)}"
                self._write(safe(f"torchjob {status}  {state.info.label}"))

    def close(self, runs: Runs[Any], states: Sequence[JobState]) -> None:
        """Write the table."""
        self.draw(runs, states)
        self._write(safe(render.text(runs.name, states, time.time())))


def mimebundle(name: str, states: Sequence[JobState], *, live: bool = False) -> dict[str, str]:
    """Return a group as HTML and as text, for IPython."""
    now = time.time()
    # It lets a reader sort the table; without scripts the table stays as it is.
    script = f"<script>({asset(__file__, 'sorting.js')})(document.currentScript.parentElement)</script>"
    html = render.html(name, states, now, live=live)
    return {"text/html": html + script, "text/plain": safe(render.text(name, states, now))}


def watch(runs: Runs[Any], view: RunsView, *, say: Callable[[str], object]) -> None:
    """Draw the runs until all have ended.

    The first interrupt stops waiting, and all go on; a second within five seconds cancels them.
    """
    try:
        drawn, states = 0.0, []
        with warnings.catch_warnings(record=True) as notes:  # else Python would show our line of code, too
            warnings.simplefilter("always", UserWarning)
            for states in runs.looks():
                while notes:
                    say(f"Note: {notes.pop(0).message}")
                now = time.monotonic()
                if now - drawn >= PERIOD_S:
                    view.draw(runs, states)
                    # A card of a thousand runs takes long to draw: the kernel has other things to do, too.
                    drawn = time.monotonic() + 4 * (time.monotonic() - now)
        view.close(runs, states)
    except KeyboardInterrupt:
        try:
            again = f"Interrupt again within {CANCEL_WITHIN_S:.0f} s to cancel them."
            say(f"Stopped waiting; the runs of {runs.name} go on. {again}{runs.unattended}")
            ended = runs.wait(CANCEL_WITHIN_S)
        except KeyboardInterrupt:
            runs.cancel()
            runs.wait()
            view.close(runs, runs.states())
            raise JobFailedError(f"{runs.name} cancelled") from None
        view.close(runs, runs.states())
        if not ended:
            raise Interrupted(
                f"Detached from {runs.name}: {hint('attach', runs.name)}.{runs.unattended}"
            ) from None
