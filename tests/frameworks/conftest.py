"""The emulator's pods, too: its image has the frameworks that are installed here."""

from tests.backends.kubernetes.conftest import cluster, crds, stage  # noqa: F401
