"""The kinds of job that a cluster may serve, best first: those that can do more come earlier."""

from collections.abc import Mapping

from nbtorchjob.backends.kubernetes.kinds import indexedjob, pytorchjob, trainjob, volcano
from nbtorchjob.backends.kubernetes.kinds.base import Kind

__all__ = ["KINDS"]

KINDS: Mapping[str, Kind] = {
    kind.name: kind for kind in (pytorchjob.KIND, trainjob.KIND, volcano.KIND, indexedjob.KIND)
}
