"""What runs payloads: a row each, whose module is imported when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from nbtorchjob.backends.base import Backend, Tends
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

    ``form`` says what its jobs' addresses look like, and ``address`` is a regular expression for them.
    ``warmed_by`` is a module whose ``warm_up`` shortens the first job's start. ``suspends`` and ``tends`` are
    whether its jobs can be suspended, and whether something has to look after them; ``queues`` is whether we
    decide whose turn it is. ``used`` tells whether this user may have jobs there. What a spec depends on is
    in ``spec.jobspec.PLACES``.
    """

    module: str
    form: str
    address: str
    example: str
    warmed_by: str = ""
    suspends: bool = False
    tends: bool = False
    queues: bool = False
    used: Callable[[], bool] = lambda: True


ROWS = {
    "local": Row(
        "nbtorchjob.backends.local.backend",
        "NAME",
        f"{_LABEL}{_TURN}",
        "train-2222",
        warmed_by="nbtorchjob.backends.local.launch.pool",
        queues=True,
    ),
    "kubernetes": Row(
        "nbtorchjob.backends.kubernetes.backend",
        "CONTEXT/NAMESPACE/NAME",
        f"(?:{_CONTEXT}/)?{_LABEL}/{_LABEL}{_TURN}",
        "ml/train-2222",
        suspends=True,
        tends=True,
        used=lambda: bool(namespaces.looked_at()),
    ),
}
FORMS = " or ".join(f"{name}:{row.form}" for name, row in ROWS.items())  # of jobs' ids


@cache
def backend(name: str) -> Backend:
    """Return the backend of that name (one of ``spec.BACKENDS``)."""
    created: Backend = importlib.import_module(ROWS[name].module).create()
    return created


def tended() -> Tends:
    """Return the backend whose jobs need something that looks after them."""
    chosen = backend(next(name for name, row in ROWS.items() if row.tends))
    assert isinstance(chosen, Tends)
    return chosen


def warm_up(name: str) -> None:
    """Prepare that backend for its first job, where that shortens its start."""
    if ROWS[name].warmed_by:
        importlib.import_module(ROWS[name].warmed_by).warm_up()


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
