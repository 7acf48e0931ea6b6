"""What runs payloads, by name; each is imported when it is first asked for."""

from __future__ import annotations

import importlib
from functools import cache

from nbtorchjob.backends.base import Backend

MODULES = {
    "local": "nbtorchjob.backends.local.backend",
    "kubernetes": "nbtorchjob.backends.kubernetes.backend",
}


@cache
def backend(name: str) -> Backend:
    """Return the backend of that name (one of ``spec.BACKENDS``)."""
    found: Backend = importlib.import_module(MODULES[name]).create()
    return found
