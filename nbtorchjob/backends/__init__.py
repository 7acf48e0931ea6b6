"""What runs payloads: a row each, whose module is imported when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from nbtorchjob.backends.base import Backend
from nbtorchjob.backends.kubernetes import namespaces

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_CONTEXT = r"[^\x00-\x1f\x7f]{1,256}"  # kubeconfigs allow anything, slashes and colons too


@dataclass(frozen=True)
class Row:
    """What is known of a backend without its module, whose ``create`` makes it.

    ``form`` says what its jobs' addresses look like, ``address`` is that as a regular expression. One that
    isn't ``here`` may take long to answer, and is asked less often. ``used`` tells whether this user may
    have jobs there.
    """

    module: str
    form: str
    address: str
    example: str
    here: bool = False
    used: Callable[[], bool] = lambda: True


# Their names are a choice of an option, too, which lies below: ``spec.jobspec.BACKENDS``.
ROWS = {
    "local": Row("nbtorchjob.backends.local.backend", "NAME", _LABEL, "train-2222", here=True),
    "kubernetes": Row(
        "nbtorchjob.backends.kubernetes.backend",
        "CONTEXT/NAMESPACE/NAME",
        f"(?:{_CONTEXT}/)?{_LABEL}/{_LABEL}",
        "ml/train-2222",
        used=lambda: bool(namespaces.looked_at()),
    ),
}
FORMS = " or ".join(f"{name}:{row.form}" for name, row in ROWS.items())  # of jobs' ids


@cache
def backend(name: str) -> Backend:
    """Return the backend of that name (one of ``spec.BACKENDS``)."""
    found: Backend = importlib.import_module(ROWS[name].module).create()
    return found


def used() -> list[Backend]:
    """Return the backends to ask for jobs; the module of one that this user hasn't used isn't imported."""
    return [backend(name) for name, row in ROWS.items() if row.used()]
