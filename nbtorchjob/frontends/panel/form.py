"""A job's settings as a form holds them: entries from a spec, and a spec or errors from entries (pure).

The fields are those of the one option table, so a new option has its field without a line here. A field
that isn't shown (a cluster's on this machine, torchrun's beside a master) keeps its entry and doesn't
count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any, TypeAlias

from nbtorchjob import submission
from nbtorchjob.errors import SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec import options
from nbtorchjob.spec.config import Elastic, Launch, PyTorch, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.overlay import (
    CLUSTER,
    ELASTIC,
    POLICY,
    RETRY,
    SPEC,
    WORKER,
    overlay,
    pair,
    read,
    value_at,
)
from nbtorchjob.spec.validation import Option

# What a field holds: a text, a tick, or the rows of a list. An empty one sets nothing.
Entry: TypeAlias = str | bool | tuple[str, ...]
Entries: TypeAlias = Mapping[str, Entry]  # by the option's key

# The only entry that isn't an option: which of the two launch configs it is.
LAUNCH = "launch"
LAUNCHES = (Elastic.__name__, PyTorch.__name__)


class Section(FrozenDataclass):
    """Fields that belong together; ``opened`` is whether they are shown from the start."""

    title: str
    options: tuple[Option, ...]
    opened: bool = False


class Verdict(FrozenDataclass):
    """What entries amount to: a spec, or errors by key; those of no one field have the key ""."""

    spec: JobSpec | None
    errors: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


_OF_CLUSTER = {
    "Place in the cluster": (
        *("context", "namespace", "kind", "runtime", "queue", "workload-priority", "priority-class"),
        *("service-account", "network-policy"),
    ),
    "Container": ("image", "run-as", "image-pull-secret"),
    "Resources of a node": (
        *("cpu", "memory", "gpu", "shm", "gpu-resource", "full-requests", "device", "limit", "request"),
    ),
    "Hosts": ("node-selector", "toleration", "preemptible", "spot-selector", "spot-toleration"),
    "Storage": ("mount", "storage", "checkpoints"),
}


# What a lab has beside a job: a form starts none.
_OF_LABS = ("idle",)
KEYS = {key: o for key, o in options.KEYS.items() if key not in _OF_LABS}


def sections() -> Iterator[Section]:
    """Yield every option except the cell's, each in one section."""
    yield Section("Job", _of(SPEC), opened=True)
    yield Section("Nodes and ranks", (*_of(ELASTIC), *_of(WORKER)), opened=True)
    rest = {o.key: o for o in _of(CLUSTER)}
    for title, keys in _OF_CLUSTER.items():
        yield Section(title, tuple(rest.pop(key) for key in keys))
    yield Section("More of the cluster", tuple(rest.values()))
    yield Section("Retries, budgets and policies", (*_of(RETRY), *_of(POLICY)))


def _of(home: tuple[str, ...]) -> tuple[Option, ...]:
    return tuple(o for o in KEYS.values() if o.home == home)


def entries(spec: JobSpec) -> dict[str, Entry]:
    """Return what a form shows of ``spec``."""
    return {
        LAUNCH: type(spec.launch).__name__,
        **{key: entry(o, value_at(o, spec)) for key, o in KEYS.items()},
    }


def entry(o: Option, value: Any) -> Entry:
    """Return an option's value as its field shows it."""
    if o.takes == "switch":
        return bool(value)
    if o.takes == "pairs":
        return tuple(f"{name}={text}" for name, text in (value or {}).items())
    if o.takes == "texts":
        return tuple(value or ())
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # 5, however it was written
    return "" if value is None else str(value.value if isinstance(value, Enum) else value)


def shows(o: Option, held: Entries) -> bool:
    """Whether the option can be set beside the other entries."""
    if o.home == CLUSTER:
        return held["backend"] == "kubernetes"
    if o.home in (ELASTIC, WORKER):
        return held[LAUNCH] == (Elastic if o.home == ELASTIC else PyTorch).__name__
    return True


def judge(
    held: Entries, base: JobSpec, check: Callable[[JobSpec], Sequence[str]] = submission.cautions
) -> Verdict:
    """Return the spec that the entries make, or each field's error.

    Of ``base`` only what no option can express counts (``rdzv_configs``, a master's own image). ``check``
    returns cautions, and raises ``SpecError`` for what the backend can't honour.
    """
    given, errors = _given(held)
    blank = JobSpec(_blank(base.launch, str(held[LAUNCH])))
    while True:
        try:
            spec = overlay(blank, given, lambda o: o.key)
            notes = tuple(check(spec))
        except SpecError as exc:
            # A backend names the field, ``overlay`` the key.
            known = (*given, *KEYS.values())
            wrong = next((o for o in known if exc.field in (o.key, o.name, *o.flags)), None)
            # Without the invalid one, the others are checked as well.
            errors.setdefault(wrong.key if wrong else "", _told(exc, named=wrong is None))
            if wrong is None or given.pop(wrong, None) is None:
                return Verdict(None, errors)
        else:
            return Verdict(None, errors) if errors else Verdict(spec, {}, notes)


def _given(held: Entries) -> tuple[dict[Option, Any], dict[str, str]]:
    given: dict[Option, Any] = {}
    errors: dict[str, str] = {}
    for key, o in KEYS.items():
        if held[key] and shows(o, held):
            try:
                given[o] = _value(o, held[key])
            except SpecError as exc:
                errors[key] = _told(exc)
    return given, errors


def _value(o: Option, held: Entry) -> Any:
    if isinstance(held, str):
        return read(o, held.strip(), o.key)
    if isinstance(held, bool):
        return held
    rows = [row for row in held if row]
    return dict(pair(row, o.key) for row in rows) if o.takes == "pairs" else tuple(rows)


def _blank(launch: Launch, kind: str) -> Launch:
    """Return the part of a launch config that no option can express, all else at its default."""
    if kind == Elastic.__name__:
        return Elastic(rdzv_configs=launch.rdzv_configs) if isinstance(launch, Elastic) else Elastic()
    if isinstance(launch, Elastic):
        return PyTorch(worker=Worker(replicas=0))
    return PyTorch(launch.master, launch.worker)


def _told(error: SpecError, *, named: bool = False) -> str:
    return str(error) if named else error.problem
