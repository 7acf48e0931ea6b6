"""The kinds of job that a cluster may serve, best first: each module here defines one, as its ``KIND``."""

from collections.abc import Mapping
from importlib import import_module

from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.spec.cluster import KINDS as NAMES

__all__ = ["KINDS"]

KINDS: Mapping[str, Kind] = {name: import_module(f"{__name__}.{name}").KIND for name in NAMES}
