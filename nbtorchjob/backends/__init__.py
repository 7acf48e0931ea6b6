"""What runs payloads: a row each, whose module is imported when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from nbtorchjob.backends.base import Backend
from nbtorchjob.backends.kubernetes import namespaces
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.state.info import MARK

if TYPE_CHECKING:
    from nbtorchjob.backends.turns import TurnBackend
    from nbtorchjob.state import JobInfo

# A job, or one turn of a lab.
_TURN = r"(?:#[a-z0-9]{1,40})?"
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_CONTEXT = r"[^\x00-\x1f\x7f]{1,256}"  # kubeconfigs allow anything, slashes and colons too


class Row(FrozenDataclass):
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
    "local": Row("nbtorchjob.backends.local.backend", "NAME", f"{_LABEL}{_TURN}", "train-2222", here=True),
    "kubernetes": Row(
        "nbtorchjob.backends.kubernetes.backend",
        "CONTEXT/NAMESPACE/NAME",
        f"(?:{_CONTEXT}/)?{_LABEL}/{_LABEL}{_TURN}",
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


def backend_of(name: str, address: str) -> Backend:
    """Return the backend that knows a job's address there: the turns of labs have one of their own."""
    return _turns(name) if MARK in address else backend(name)


@cache
def _turns(name: str) -> TurnBackend:
    from nbtorchjob.backends.turns import TurnBackend  # late: most jobs are no labs

    return TurnBackend(backend(name))


def turns_of(lab: JobInfo) -> TurnBackend:
    """Return the backend of the turns of such a lab."""
    return _turns(lab.backend)


def used() -> list[Backend]:
    """Return the backends to ask for jobs; the module of one that this user hasn't used isn't imported."""
    return [backend(name) for name, row in ROWS.items() if row.used()]
