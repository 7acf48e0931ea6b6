"""A call on its way, from a cell or a command: rehearsed, submitted, waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from nbtorchjob import api, capture
from nbtorchjob.config import Elastic
from nbtorchjob.errors import LineError, NBTorchJobError
from nbtorchjob.job import Job
from nbtorchjob.spec import JobSpec
from nbtorchjob.state import Origin
from nbtorchjob.text import values, words
from nbtorchjob.ui import view

_SAY_SIZE = 200_000_000  # bytes: a second's work

_told: set[str] = set()

Say: TypeAlias = Callable[[str], object]


def submit(call: capture.Call, spec: JobSpec, origin: Origin, say: Say) -> Job:
    """Submit the call, and say what there is to be said before."""
    for caution in api.cautions(spec):
        say(f"Note: {caution}")
    for note in call.notes:
        if note not in _told:  # a cell is run again and again
            _told.add(note)
            say(f"Note: {note}")
    if call.size >= _SAY_SIZE:  # writing it takes a while in which nothing is to be seen
        say(f"Taking {words.size(call.size)} along: {capture.ships_line(call)}")
    return api.submit_call(call, spec, origin)


def rehearse(call: capture.Call, origin: Origin, shown: Callable[[Job], view.View], say: Say) -> None:
    """Run the call on two ranks of this machine first; what fails here fails before it queues there.

    Raises ``JobFailedError``; ``shown`` draws the job.
    """
    job = api.submit_call(call, JobSpec(Elastic(nproc_per_node=2)), origin)
    drawn = shown(job)
    view.watch(job, drawn, say=say)
    drawn.close(job.state)
    failed = job.exception()
    if failed is not None:
        raise failed
    job.delete()


def wait(job: Job, drawn: view.View, say: Say) -> Any:
    """Draw the job until it has ended, and give its value; raises as ``Job.result`` and ``view.watch`` do."""
    view.watch(job, drawn, say=say)
    try:
        found = value(job)
    except NBTorchJobError:
        drawn.close(job.state)
        raise
    drawn.close(job.state, "" if found is None else values.short(found))
    return found


def trusted(job: Job, given: dict[str, Any]) -> Job:
    """Give the job, its values trusted where the line's options say so; takes that one from them."""
    job.trust = given.pop("trust", False) or job.trust
    return job


def value(job: Job) -> Any:
    """Give the value of a job, or its ranks' values where all came home; raises as ``Job.result`` does."""
    return job.results() if job.state.info.all_ranks else job.result()


def rank_of(job: Job, rank: int) -> int:
    """Give the rank whose log is asked for; raises ``LineError`` where the job can have none such."""
    info = job.info
    most = info.nodes[1] * info.nproc_per_node
    # What others made says nothing of its ranks.
    if info.spec and rank not in range(most):
        there = f"its ranks are 0 to {most - 1}" if most > 1 else "it has rank 0 only"
        raise LineError(f"{job.name} has no rank {rank}: {there}")
    return rank


def ended_value(job: Job) -> Any:
    """Give the value of a job that has ended; raises ``LineError`` for one that hasn't."""
    phase = job.state.phase
    if not phase.terminal:
        raise LineError(f"{job.name} is {phase.value}: wait for it with %torchjob attach {job.name}")
    return value(job)
