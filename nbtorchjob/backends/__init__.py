"""The table of backends, which run payloads; a backend's module is imported on first use."""

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
    """Properties of a backend that don't need its module, whose ``create`` makes the backend.

    ``form`` shows what its jobs' addresses look like, and ``address`` is a regular expression for them.
    ``warmed_by`` is a module whose ``warm_up`` shortens the first job's start. ``suspends`` is whether its
    jobs can be suspended, ``tends`` whether they need a tender, and ``queues`` whether nbtorchjob decides
    whose turn it is. ``used`` returns whether this user may have jobs there. The properties that a spec
    depends on are in ``spec.jobspec.PLACES``.
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
    """Return the backend with that name (one of ``spec.BACKENDS``)."""
    created: Backend = importlib.import_module(ROWS[name].module).create()
    return created


def tended() -> Tends:
    """Return the backend whose jobs need a tender."""
    chosen = backend(next(name for name, row in ROWS.items() if row.tends))
    assert isinstance(chosen, Tends)
    return chosen


def warm_up(name: str) -> None:
    """Prepare a backend for its first job if that shortens the job's start."""
    if ROWS[name].warmed_by:
        importlib.import_module(ROWS[name].warmed_by).warm_up()


def backend_of(name: str, address: str) -> Backend:
    """Return the backend to use for a job's address: turns of labs have a separate one."""
    return _turns(name) if MARK in address else backend(name)


@cache
def _turns(name: str) -> TurnBackend:
    from nbtorchjob.backends.turns import TurnBackend  # late: most jobs are not labs

    return TurnBackend(backend(name))


def turns_of(lab: JobInfo) -> TurnBackend:
    """Return the backend for the turns of a lab."""
    return _turns(lab.backend)


def used() -> list[Backend]:
    """Return the backends to ask for jobs; those that this user hasn't used aren't imported."""
    return [backend(name) for name, row in ROWS.items() if row.used()]
