"""Why a job failed, as lines: what the exception in the cell says, and the plain-text card."""

from __future__ import annotations

from nbtorchjob.state import JobState
from nbtorchjob.state.text import attempts, facts, labs
from nbtorchjob.state.text.tracebacks import frames_text, summarised
from nbtorchjob.text.words import LINE, clip, fit

MOST_BYTES = 5_000  # of a traceback; a longer one loses its middle


def lines(state: JobState) -> list[str]:
    """Return who failed first and how, its traceback, the cause, and what failed beside it."""
    failure, out = state.failure, []
    if failure is not None:
        out = [facts.heading(failure, state)]
        if failure.error is not None and not summarised(failure.error):
            frames = frames_text(failure.error, state.info.sources.get).split("\n")
            out += fit([clip(each, LINE) for each in frames], MOST_BYTES)
        out += [f"  {line}" for line in facts.output(state)]
        out += [facts.cause(failure, state), attempts.exhausted(state), labs.lost(state)]
    label = "Also: " if failure else "So far: "
    return [*filter(None, out), *(label + each for each in facts.beside(state))]
