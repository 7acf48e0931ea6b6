"""Where a job stands in its queue, in words."""

from __future__ import annotations

from nbtorchjob.state import JobState
from nbtorchjob.state import failure as causes
from nbtorchjob.state.events import Standing
from nbtorchjob.text.words import clean, clip, size

_MAX_TEXT = 300
_MAX_READ = 4_000
_BYTES = ("memory", "ephemeral-storage")


def waits(state: JobState) -> list[str]:
    """Say where the job is queued, for what, and what to do about it; empty for one that isn't."""
    queued = state.queued
    if queued is None and state.queue is not None and state.queue.held and state.suspended:
        queued = state.queue if state.queue.reason else None
    if queued is None or state.working:
        return []
    why = causes.of_queue(queued.reason, clean(queued.text[:_MAX_READ]))
    place = state.standing if not queued.admitted and not queued.held else None
    needs = " and ".join(
        f"{_amount(name, each)} {_unit(name)}{_used(name, place)}" for name, each in queued.needs.items()
    )
    ahead = f": {_nth(place.place)} of {place.of}" if place is not None and place.place else ""
    said = [
        f"queued in {clean(queued.queue)}{ahead}" if not queued.held else "suspended",
        f"needs {needs}" if needs and not queued.held else "",
        why.line,
    ]
    told = "; ".join(part.rstrip(".") for part in said if part)
    return [clip(f"the job: {told}. {why.hint}".rstrip(), _MAX_TEXT)]


def held(state: JobState) -> str:
    """Say what keeps a job that was ended or suspended from being started by its queue; "" for nothing.

    A suspension alone wouldn't: its queue takes it back.
    """
    queue = state.queue
    if queue is None or not (state.cancelled is not None or state.suspended):
        return ""
    if state.removed is not None:
        return "it was deleted from the cluster; its record and logs are on this machine"
    if queue.held and queue.reason:
        return "its Workload is deactivated, so its queue doesn't start it again"
    if state.verdict is not None and state.verdict.reason == causes.DEADLINE_EXCEEDED:
        return "it was given a deadline that has passed, so its queue can't start it again"
    if queue.held and not queue.admitted:  # its label may have been changed just as it was admitted
        return f"its label names {clean(queue.queue)}, a queue that nobody has, so it isn't admitted"
    return ""


def _used(resource: str, standing: Standing | None) -> str:
    """Say how much of a resource is used where the job is queued, as far as that is known."""
    if standing is None or resource not in standing.used:
        return ""
    used, quota = (_amount(resource, each.get(resource, "")) for each in (standing.used, standing.quota))
    return f", {used} of {quota} used" if quota else f", {used} used by jobs of its queue"


def _nth(number: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"} if number % 100 not in (11, 12, 13) else {}
    return f"{number}{ends.get(number % 10, 'th')}"


def _amount(resource: str, text: str) -> str:
    return size(int(text)) if resource in _BYTES and text.isdecimal() else clean(text)


def _unit(resource: str) -> str:
    return "GPUs" if resource.endswith("/gpu") else clean(resource)
