"""The backends with all that they can do, and the rest of a capability for fakes of a part of it."""

from nbtorchjob import backends
from nbtorchjob.backends.kubernetes.backend import KubernetesBackend
from nbtorchjob.backends.local.backend import LocalBackend


def local_backend() -> LocalBackend:
    backend = backends.backend("local")
    assert isinstance(backend, LocalBackend)
    return backend


def cluster_backend() -> KubernetesBackend:
    backend = backends.backend("kubernetes")
    assert isinstance(backend, KubernetesBackend)
    return backend


class Questions:
    """Has what ``Talks`` has beside ``ask``."""

    def talk(self, name, node, question, timeout=10.0):
        raise AssertionError("nobody is to talk with a node here")


class Logs:
    """Has what ``Stores`` has beside ``log``."""

    def facts(self, name, turn=None):
        raise AssertionError("nobody is to read facts here")

    def chunks(self, name, ranks):
        raise AssertionError("nobody is to read times here")

    def artifacts(self, name, sent):
        raise AssertionError("nobody is to fetch artifacts here")
