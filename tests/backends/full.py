"""The backends by their own types, and bases of fakes that implement only part of a protocol."""

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
    """A base of fakes that implement only ``ask`` of ``Talks``."""

    def talk(self, name, node, question, timeout=10.0):
        raise AssertionError("nobody is to talk with a node here")


class Logs:
    """A base of fakes that implement only ``log`` of ``Stores``."""

    def facts(self, name, turn=None):
        raise AssertionError("nobody is to read facts here")

    def chunks(self, name, ranks):
        raise AssertionError("nobody is to read times here")

    def artifacts(self, name, sent):
        raise AssertionError("nobody is to fetch artifacts here")
