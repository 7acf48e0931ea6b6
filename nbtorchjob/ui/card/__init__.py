"""A card's frame, its head and its note, which all cards share.

The head is a dot, the state, the name, a grey line of facts, the toolbar, and the progress bar as its edge.

A card's *tone* says at a glance what its state asks of a person: nothing while all goes well, amber if
somebody should act or take notice, red if it failed.
"""

from __future__ import annotations

import re
import time
from enum import Enum
from functools import lru_cache
from html import escape
from pathlib import Path

from nbtorchjob.state import JobState, Phase
from nbtorchjob.state.facts.events import STEPS
from nbtorchjob.state.text import attempts, facts
from nbtorchjob.state.text.lifetime import progress_line, stillness
from nbtorchjob.text.colours import RGB, shade
from nbtorchjob.text.words import line
from nbtorchjob.ui.elements import DIM, PHASES, STALLED, tag

_HEAD = "display:flex;flex-wrap:wrap;align-items:center;gap:4px 8px;padding:8px 12px"
_TOOLS = "display:flex;flex-wrap:wrap;gap:4px;margin-left:auto"
_BAR = "display:block;width:100%;height:4px"
_NOTE = "padding:8px 12px;overflow-wrap:anywhere"
_MAX_NAME = 80
BODY = "padding:0 12px 8px"
_CHANGES = re.compile(r"\d[\d.,]*(?: (?:s|min|h|d)\b)?|\(seen .*?\)|\s+")  # in a text, with time


class Tone(Enum):
    """What a state asks of a person; the value is the class that colours it in ``style.css``."""

    QUIET = "nbt-quiet"
    RUNNING = "nbt-run"
    ACT = "nbt-act"
    SUCCEEDED = "nbt-ok"
    FAILED = "nbt-bad"


_COLOURS: dict[Tone, RGB] = {
    Tone.QUIET: PHASES[Phase.SUBMITTED],
    Tone.RUNNING: PHASES[Phase.RUNNING],
    Tone.ACT: STALLED,
    Tone.SUCCEEDED: PHASES[Phase.SUCCEEDED],
    Tone.FAILED: PHASES[Phase.FAILED],
}
_OF_PHASE = {
    Phase.RUNNING: Tone.RUNNING,
    Phase.SUCCEEDED: Tone.SUCCEEDED,
    Phase.FAILED: Tone.FAILED,
}


def tone(state: JobState, now: float) -> Tone:
    """Return a job's tone."""
    if facts.status(state, now) in facts.ATTENTION:
        return Tone.ACT
    return of_phase(state.phase)


def of_phase(phase: Phase) -> Tone:
    """Return the tone of a job, or a group of jobs, of which only the phase is known."""
    return _OF_PHASE.get(phase, Tone.QUIET)


def needs(state: JobState, now: float) -> list[str]:
    """Return what somebody should know or do, the verdict on a hang first; nothing if all goes well."""
    if tone(state, now) is not Tone.ACT:
        return []
    verdict = facts.hanging(state, now)
    reasons = [reason for reason in attempts.pending(state, now) if reason != verdict]
    # If there is none, it has stalled, and nobody has looked into it.
    return [*([verdict] if verdict else []), *reasons] or [stillness(state, now) or progress_line(state, now)]


class Notes:
    """What somebody should know or do, where a line stays once it is written: each thing is said once."""

    def __init__(self) -> None:
        self._ranks: set[int] = set()
        self._said: set[str] = set()

    def new(self, state: JobState) -> str:
        """Return lines for ranks that stopped since, and for all else that wasn't said yet."""
        now = time.time()
        stopped = {stop.rank for stop in state.stopped}
        stops = facts.stops(state, now)
        lines = stops if stopped - self._ranks else []
        # A rank that somebody steps through stops at each line.
        steps = {rank for rank in self._ranks & state.goes_on.keys() if state.goes_on[rank].how == STEPS}
        self._ranks = stopped | steps
        # Of the next attempt, the line on the phase tells.
        reasons = [need for need in needs(state, now) if need not in (*stops, attempts.coming(state, now))]
        reasons += [wait.text for wait in state.waiting if wait.holder]
        reasons += facts.waiting(state) if any(wait.reason for wait in state.waiting) else []
        # The other ranks of a lab may wait for one that has failed.
        if state.info.of_lab and not state.info.in_pool and not state.phase.terminal:
            reasons += attempts.lines(state)
        for reason in reasons:
            said = _CHANGES.sub("", reason)
            if said not in self._said:
                self._said.add(said)
                lines = [*lines, f"{state.info.name}: {reason}"]
        return "".join(f"{text}\n" for text in lines)


def frame(tone: Tone, *parts: str) -> str:
    """Return a whole card, with the style that its parts share."""
    box = "border:1px solid rgba(128,128,128,0.4);border-radius:6px;max-width:1400px;overflow:hidden"
    style = tag("style", _style())
    return tag("div", "\n".join(filter(None, (style, *parts))), box, cls=f"nbtorchjob {tone.value}")


def head(
    tone: Tone,
    status: str,
    name: str,
    rest: str,
    *,
    tools: str = "",
    progress: tuple[float, float] | None = None,
) -> str:
    """Return the head; ``rest`` and ``tools`` are HTML, ``progress`` is how much is done, and the total."""
    dot = tag("span", "\u25cf", f"color:{shade(_COLOURS[tone])}", cls="nbt-dot")
    state = tag("b", escape(status.capitalize()), cls="nbt-state")
    words = [dot, state, tag("b", escape(line(name, _MAX_NAME)))]
    words += [tag("span", rest, DIM, cls="nbt-dim")] if rest else []
    words += [tag("span", tools, _TOOLS, cls="nbt-tools")]
    bar = ""
    if progress is not None:
        done, total = progress
        bar = f'<progress class="nbt-bar" max="{total:g}" value="{done:g}" style="{_BAR}"></progress>'
    return tag("div", " ".join(words), _HEAD, cls="nbt-head") + bar


def note(tone: Tone, verdict: str, *more: str) -> str:
    """Return the note of a state in which somebody should act: the verdict first, then quieter lines.

    All are HTML.
    """
    ground = f"background-color:{shade(_COLOURS[tone], 0.14)};border-left:3px solid {shade(_COLOURS[tone])}"
    lines = [tag("b", verdict), *(tag("div", words, DIM, cls="nbt-dim") for words in more if words)]
    return tag("div", "".join(lines), f"{_NOTE};{ground}", cls="nbt-note")


@lru_cache(maxsize=1)
def _style() -> str:
    """Return the style sheet without comments and superfluous blanks."""
    text = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    return " ".join(re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).split())
