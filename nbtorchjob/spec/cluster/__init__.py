"""What a job requests of a cluster: settings, and the small grammars that some of them have."""

from nbtorchjob.spec.cluster.settings import KINDS, Cluster, given

__all__ = ["KINDS", "Cluster", "given"]
