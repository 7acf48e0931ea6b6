"""What a job asks of a cluster: settings, and the small languages that some of them are written in."""

from nbtorchjob.spec.cluster.settings import KINDS, Cluster, given

__all__ = ["KINDS", "Cluster", "given"]
