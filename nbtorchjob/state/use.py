"""What a node uses, thinned as reports are: a day and a minute take the same room."""

from __future__ import annotations

from dataclasses import field

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.state import events as ev
from nbtorchjob.state.series import Point, Series

_POINTS = 128
# A GPU with less in its memory is another job's, or nobody's.
_GPU_BYTES = 256_000_000


class Use(FrozenDataclass):
    """The newest that a node told of its use, and its course: see :func:`point`."""

    newest: ev.Used
    series: Series = field(default_factory=lambda: Series(most=_POINTS))

    def add(self, event: ev.Used) -> Use:
        """Take in one more."""
        newest = max(self.newest, event, key=lambda each: (each.round, each.seq, each.time, repr(each)))
        return Use(newest, self.series.add(event.round, point(event)))


def point(event: ev.Used) -> Point:
    """Return what is kept of each time; CPU seconds and the GPUs' only grow."""
    gpus = [each for each in event.gpus if each.memory >= _GPU_BYTES]
    told = {
        "memory": event.memory,
        "limit": event.limit,
        "shm": event.shm,
        "cores": event.cores,
        "cpu": sum(each.cpu for each in event.uses),
        "running": sum(each.running for each in event.uses),
        "busy": sum(each.busy for each in gpus),
        "watched": sum(each.watched for each in gpus),
    }
    return Point(event.seq, event.time, told)
