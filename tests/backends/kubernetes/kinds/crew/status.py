"""A Crew as facts."""

from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import Object
from nbtorchjob.state.facts import events as ev


def facts(obj: Object) -> list[ev.Event]:
    """Return the facts that a Crew's conditions state."""
    return reading.job_facts(obj, "Landed", "Sunk")


def node(pod: Object) -> int | None:
    """Return the node of a pod: its berth."""
    return reading.index((reading.meta(pod).get("labels") or {}).get("crews.example.org/berth"))
