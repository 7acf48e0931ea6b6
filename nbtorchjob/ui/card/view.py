"""A job in its cell: drawn at most four times a second, with a script while the job goes on."""

from __future__ import annotations

import base64
import codecs
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from nbtorchjob import api
from nbtorchjob.backends.base import TenderStatus
from nbtorchjob.errors import JobFailedError
from nbtorchjob.job import Job
from nbtorchjob.machine.folders import state_dir
from nbtorchjob.machine.interrupts import Interrupted
from nbtorchjob.runtime.api import displays
from nbtorchjob.state import JobInfo, JobState, Phase
from nbtorchjob.state.facts.logs import LogTail
from nbtorchjob.state.info import MARK
from nbtorchjob.text import Filter, safe, shown, shows
from nbtorchjob.text.hints import hint
from nbtorchjob.ui import card
from nbtorchjob.ui.card import describe, render, sending, tails
from nbtorchjob.ui.card.sending import Output
from nbtorchjob.ui.elements import asset, meant
from nbtorchjob.ui.record import Offers

_KERNEL = "kernel-"  # Jupyter Server's name for a connection file (jupyter_client 8, MultiKernelManager)


def script(info: JobInfo, offers: Offers) -> str:
    """Return a ``<script>`` that adds buttons to its own output, where a server handles them."""
    buttons = [
        {"verb": verb, "label": o.label, "asks": bool(o.warning), "done": o.done}
        for verb, o in offers.items()
        if o.done
    ]
    attributes = {"job": meant(info), "name": info.name, "kernel": _kernel(), "buttons": buttons}
    # A name that contains </script> would end the script.
    arguments = json.dumps(attributes).replace("<", "\\u003c")
    return (
        f"<script>({asset(__file__, 'live.js')})(document.currentScript.parentElement, {arguments})</script>"
    )


@lru_cache(maxsize=1)
def _kernel() -> str:
    """Return Jupyter Server's id of this kernel; empty if no such server started it, as in VS Code."""
    try:
        from ipykernel.connect import get_connection_file  # not needed in a terminal

        file = Path(get_connection_file()).stem
    except (ImportError, RuntimeError):
        return ""
    return file.removeprefix(_KERNEL) if file.startswith(_KERNEL) else ""


E = TypeVar("E", bound=BaseException)

NO_VALUE = render.NO_VALUE
PERIOD_S = 0.25
QUIET_S = sending.QUIET_S  # a job that ends within this draws nothing
CANCEL_WITHIN_S = 5.0
_MOST_STACKS = 12  # lines of the ranks' stacks, for a cell that doesn't end
# The first bytes of images of the kinds that run nothing in a page.
_IMAGES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8"}


class Detached(Interrupted):
    """The cell stopped waiting; the job goes on."""


class View(Protocol):
    """Draws states of one job; ``tells`` says whether the closed view shows why a job failed."""

    tells: bool

    def draw(self, state: JobState) -> None:
        """Show ``state``."""

    def close(self, state: JobState, value: str = "", *, deleted: bool = False) -> None:
        """Show the final state; ``value`` is the value that arrived, in one line.

        A job that is ``deleted`` is deleted now, as a rehearsal is: the view must not refer to it.
        """


class Card:
    """For notebooks: one output, updated in place, that ends as static HTML and text.

    Each drawing replaces the whole output. While the job goes on it has a script (``live.js``), which
    restores what the reader unfolded, adds buttons, and goes on drawing once the kernel no longer does.

    ``output`` is the one in which the job's submission was shown; a card without one was requested by name,
    and is drawn even if the job has ended.
    """

    tells = True

    def __init__(
        self,
        offers: Offers,
        output: Output | None = None,
        trusted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._offers = offers
        self._output = output or Output()
        self._asked_for = output is None
        self._trusted = trusted  # whether nobody but this user chose what the job displays
        self._displayed = (-1, -1)  # round and number of the last display

    def draw(self, state: JobState) -> None:
        """Show ``state``, and below it what rank 0 has displayed since."""
        self._output.show(following(state, self._offers, live=True))
        self._display(state)

    def _display(self, state: JobState) -> None:
        new = [display for display in state.displays if (display.round, display.seq) > self._displayed]
        trusted = not new or self._trusted()
        for display in new:
            bundle = dict(display.data) if trusted else inert(display.data)
            if bundle:
                Output().show(bundle)
            self._displayed = display.round, display.seq

    def close(self, state: JobState, value: str = "", *, deleted: bool = False) -> None:
        """Show the end; if a cell's job ended before it was drawn, print its output, as for any cell."""
        if self._output.drawn or self._asked_for or state.failure is not None:
            self._output.show(following(state, {} if deleted else self._offers, value))
        elif printed := render.printed(state, deleted=deleted):
            say(printed, end="")
        self._display(state)


def inert(bundle: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a stranger's bundle that runs nothing in a page, a terminal or nbconvert.

    Jupyter trusts whatever a cell shows once its user has run it, so only text and images are left. An image
    has to be one: nbconvert 7 fails if it isn't base64, and copies it into Markdown unchanged.
    """
    kept = {mime: text for mime, text in bundle.items() if mime in _IMAGES and _is_image(mime, text)}
    text = bundle.get(displays.TEXT)
    return kept if text is None else {**kept, displays.TEXT: safe(text)}


def _is_image(mime: str, text: str) -> bool:
    try:
        return base64.b64decode("".join(text.split()), validate=True).startswith(_IMAGES[mime])
    except ValueError:  # not base64, or not ASCII
        return False


class Terminal:
    """For a terminal: rank 0's log as it comes, and one line at the end."""

    tells = False

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        self._out = write
        self._filter = Filter()  # of the log
        self._shown = (0, 0)  # round, offset
        # A look at the log may end inside a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._phase: Phase | None = None
        self._notes = card.Notes()
        self._fresh_line = True

    def draw(self, state: JobState) -> None:
        """Write new output."""
        if state.phase is not self._phase and not state.phase.terminal:
            self._phase = state.phase
            self._write(render.last_line(state, time.time()) + "\n")
        if text := self._notes.new(state):
            self._write(text)
        for piece in state.logs.get(state.info.speaker, LogTail()).pieces:
            if (piece.round, piece.end) > self._shown:
                position = self._shown[1] if piece.round == self._shown[0] else 0
                if piece.offset > position or piece.round != self._shown[0]:
                    self._log(self._decoder.decode(b"", final=True))
                if piece.offset > position:  # the rank wrote more than a tail holds
                    self._write("\n[…]\n")
                self._log(self._decoder.decode(piece.data[max(0, position - piece.offset) :]))
                self._fresh_line = piece.data.endswith(b"\n")
                self._shown = (piece.round, piece.end)

    def _log(self, text: str) -> None:
        self._put(self._filter.take(text) if self._terminal else text)

    def _write(self, text: str) -> None:
        self._put(self._filter.end() + safe(text) if self._terminal else text)

    def _put(self, text: str) -> None:
        # To the current sys.stdout, as %%capture replaces it.
        print(text, end="", flush=True) if self._out is None else self._out(text)  # noqa: T201

    @property
    def _terminal(self) -> bool:
        return self._out is None and shows(sys.stdout)

    def close(self, state: JobState, value: str = "", *, deleted: bool = False) -> None:
        """Write the rest of the log, and how the job ended."""
        self.draw(state)
        rest = tails.others(state.logs, state.info.name, deleted=deleted)
        if self._phase is not None:
            rest = [*rest, render.last_line(state, time.time())]
        # A progress bar leaves the line open.
        text = ("" if self._fresh_line else "\n") + "".join(f"{row}\n" for row in rest)
        if text:
            self._write(text)


def held_up(state: JobState) -> str:
    """Say which job of this machine a job waits for, if it does: ``waits for train: running for 5 min``."""
    return next((waiting.text for waiting in state.waiting if waiting.holder), "")


class Silent:
    """For ``--quiet``: only what somebody has to act on, or would otherwise wait for in vain."""

    tells = False

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        self._write = write
        self._notes = card.Notes()

    def draw(self, state: JobState) -> None:
        """Say what is new to its user."""
        if text := self._notes.new(state):
            (self._write or say)(text.rstrip("\n"))

    def close(self, state: JobState, value: str = "", *, deleted: bool = False) -> None:
        """Show nothing."""


def mimebundle(
    state: JobState,
    offers: Offers,
    value: str = "",
    *,
    live: bool = False,
) -> dict[str, str]:
    """Return a job's state as HTML and as text, for IPython; arguments as in ``render.html``."""
    now = time.time()
    html = render.html(state, now, value=value, live=live, offers=offers)
    return {"text/html": html, "text/plain": safe(render.text(state, now, value=value, live=live))}


def following(
    state: JobState,
    offers: Offers,
    value: str = "",
    *,
    live: bool = False,
) -> dict[str, str]:
    """Return the same with a script by which the page goes on drawing an unfinished job."""
    bundle = mimebundle(state, offers, value, live=live)
    more = "" if state.phase.terminal else script(state.info, offers)
    return {**bundle, "text/html": bundle["text/html"] + more}


def short(exc: E, view: View) -> E:
    """Return the error, to be drawn in one line if ``view`` has shown the rest."""
    if isinstance(exc, JobFailedError):
        exc.drawn = view.tells
    return exc


def description(state: JobState, enforced: Mapping[str, str], tended: TenderStatus | None) -> dict[str, str]:
    """Return all that is known of a job as HTML and as text; the arguments are those of ``describe.text``."""
    arguments = state, time.time(), enforced, state_dir(), tended
    return {"text/html": describe.html(*arguments), "text/plain": safe(describe.text(*arguments))}


def say(text: str, end: str = "\n") -> None:
    """Print a line: the answer to a key press belongs right below the cell."""
    print(shown(text, sys.stdout), end=end)  # noqa: T201


def watch(
    job: Job[Any],
    view: View,
    *,
    quiet_s: float = QUIET_S,
    say: Callable[[str], object] = say,
    clock: Callable[[], float] = time.time,
    asks: Callable[[str], bool | None] = lambda question: None,
) -> None:
    """Draw the job until it has ended, however it ends; the caller calls ``view.close``.

    The first interrupt stops waiting (``Detached``), a second within five seconds cancels the job; ``say``
    reports that. On a lab, the first one interrupts the cell, which is still waited for; a second within five
    seconds ``asks`` whether to end the lab.
    """
    if MARK in job.name and not job.info.in_pool:
        _on_a_lab(job, lambda: _watched(job, view, quiet_s, clock), say, asks)
        return
    with _Interrupts(job, view, say):
        _watched(job, view, quiet_s, clock)


def _watched(job: Job[Any], view: View, quiet_s: float, clock: Callable[[], float]) -> None:
    ended = job.wait(quiet_s)
    drawn: JobState | None = None
    while not ended:
        if job.state is not drawn or clock() % 1.0 < PERIOD_S:  # the card's clock ticks
            drawn = job.state
            view.draw(drawn)
        ended = job.wait(PERIOD_S)


def _on_a_lab(
    job: Job[Any],
    watched: Callable[[], None],
    say: Callable[[str], object],
    asks: Callable[[str], bool | None],
) -> None:
    """Wait for a cell on a lab; an interrupt goes to its ranks' code, and waiting goes on until that ends."""
    while True:
        try:
            watched()
            return
        except KeyboardInterrupt:
            if job.state.stopped:  # an interrupt would end what somebody wants to look at
                debugs = hint("debug", job.name)
                raise Detached(
                    f"Stopped waiting for {job.name}: {debugs} shows where it is stopped."
                ) from None
            if _interrupted(job, say, asks):
                return


def _interrupted(job: Job[Any], say: Callable[[str], object], asks: Callable[[str], bool | None]) -> bool:
    """Interrupt a cell on all its ranks; return whether it is over."""
    lab = job.info.id.rpartition(MARK)[0]
    name = job.info.of_lab
    try:
        again = f"Interrupt again within {CANCEL_WITHIN_S:.0f} s to end the lab."
        say(f"Interrupting {job.name} on its ranks, which stay. {again}")
        job.cancel()
        if job.wait(CANCEL_WITHIN_S):
            return True
        where = str(job.stacks(timeout=CANCEL_WITHIN_S)).splitlines()[:_MOST_STACKS]
        say("\n".join([f"{job.name} isn't over after {CANCEL_WITHIN_S:.0f} s:", *where]))
        return False
    except KeyboardInterrupt:
        sure = asks(f"End the lab {name} and discard all that its ranks hold?")
        if sure:
            api.lab(lab).job.cancel()
            job.wait()
            return True
        if sure is None:
            raise Detached(
                f"Stopped waiting for {job.name}: {hint('attach', job.name)} follows it, "
                f"{hint('cancel', name)} ends the lab."
            ) from None
        return False


class _Interrupts(AbstractContextManager[None]):
    """Turns interrupts while waiting into detaching and cancelling."""

    def __init__(self, job: Job[Any], view: View, say: Callable[[str], object]) -> None:
        self._job = job
        self._view = view
        self._say = say

    def __exit__(
        self,
        type_: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if type_ is not KeyboardInterrupt:
            return False
        name = self._job.name
        try:
            again = f"Interrupt again within {CANCEL_WITHIN_S:.0f} s to cancel it."
            self._say(f"Stopped waiting; {name} keeps running. {again}")
            if self._job.wait(CANCEL_WITHIN_S):
                return True  # it ended meanwhile, so there is a value to return after all
        except KeyboardInterrupt:
            self._job.cancel()
            self._job.wait()
            self._view.close(self._job.state)
            failed = self._job.exception() or Detached(f"{name} had ended already")
            raise short(failed, self._view) from None
        self._view.draw(self._job.state)
        self._view.close(self._job.state)
        raise Detached(f"Detached from {name}: {hint('attach', name)}") from None
