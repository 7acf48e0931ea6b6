"""Whether a diagnosis still holds: of a job that runs, and of one that ended as a collective gave up."""

from __future__ import annotations

from nbtorchjob.state.blame import Failure
from nbtorchjob.state.diagnosis import Diagnosis, diagnose
from nbtorchjob.state.diagnosis.seen import ASKED
from nbtorchjob.state.events import Sampled
from nbtorchjob.state.job import JobState, Phase
from nbtorchjob.state.progress import still

_TOLD_S = 6.0  # a sample may take that long to be told of, and what tells of it is heard of the job, too
_TIMEOUT_S = 1800.0  # of a collective, where it isn't known: torch's own
_GAVE_UP = ("collective timed out", "a collective got data of another size")  # of what a signal ended
_LATE_S = 60.0  # after its time a collective is given up at last


def hang(state: JobState, now: float) -> Diagnosis | None:
    """Return why a running job hangs, if its nodes looked and nothing was heard of it since; else None.

    It doesn't while the ranks that the others wait for compile, or save or load a checkpoint.
    """
    newest = _samples(state)
    if not newest or state.phase is not Phase.RUNNING or state.reforming:
        return None
    # Whoever asks for stacks may find a job that only waits for a moment.
    if all(fact.why == ASKED for fact in newest) and still(state, now) is None:
        return None
    if state.wrote is not None and state.wrote > max(fact.time for fact in newest) + _TOLD_S:
        return None
    diagnosis = None if _reported(state, newest) else diagnose(state)
    if diagnosis is not None and diagnosis.busy:
        return None
    return diagnosis if diagnosis is not None and (diagnosis.ranks or not diagnosis.sure) else None


def missed(state: JobState, failure: Failure) -> Diagnosis | None:
    """Return who was missing in the collective that a job failed in; None where that isn't sure."""
    newest = _samples(state)
    text = failure.reason.line
    gave_up = failure.error.collective if failure.error else any(item in text for item in _GAVE_UP)
    if not newest or not gave_up or failure.round != state.round or _reported(state, newest):
        return None
    calls = (c for fact in newest for rank in fact.samples for group in rank.groups for c in group.calls)
    ends = [call.since + (call.timeout or _TIMEOUT_S) for call in calls if not call.done]
    if (
        failure.time > max([*ends, *(item.time for item in newest)], default=0.0) + _LATE_S
    ):  # it was another one
        return None
    diagnosis = diagnose(state, over=True)
    return diagnosis if diagnosis is not None and diagnosis.sure and diagnosis.ranks else None


def _samples(state: JobState) -> list[Sampled]:
    return [sample for sample in state.samples.values() if sample.round == state.round]


def _reported(state: JobState, samples: list[Sampled]) -> bool:
    """Whether a rank has reported since the job was looked at."""
    last = max(sample.time for sample in samples)
    return any(s.round == state.round and s.points[-1].time > last for s in state.series.values())
