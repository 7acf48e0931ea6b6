"""A job's settings as a form holds them: entries from a spec, and a spec or errors from entries (pure).

The fields come from the one option table, so a new option has its field without a line here. A field that
isn't shown (a cluster's on this machine, torchrun's beside a master) keeps its entry and is ignored.

Also a spec as the Python that makes it, and which parts of it a magic's line can't express (pure).
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from nbtorchjob import submission
from nbtorchjob.errors import SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec import Option, options
from nbtorchjob.spec.config import Elastic, Launch, PyTorch, Unsaid, Worker
from nbtorchjob.spec.jobspec import PLACES, JobSpec
from nbtorchjob.spec.options import KEYS, magic_line, parse
from nbtorchjob.spec.overlay import (
    CLUSTER,
    ELASTIC,
    POLICY,
    RETRY,
    SPEC,
    WORKER,
    chosen_at,
    overlay,
    pair,
    read,
    value_at,
)

# What a field holds: a text, a tick, or the rows of a list. An empty one sets nothing.
Entry: TypeAlias = str | bool | tuple[str, ...]
Entries: TypeAlias = Mapping[str, Entry]  # by the option's key

# The only entry that isn't an option: which of the two launch configs it is.
LAUNCH = "launch"


class Section(FrozenDataclass):
    """Fields that belong together; with ``launches``, the choice of the launch config comes first."""

    title: str
    options: tuple[Option, ...]
    launches: bool = False


class Verdict(FrozenDataclass):
    """The result of entries: a spec, or errors by key; errors of no single field have the key ""."""

    spec: JobSpec | None
    errors: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


# The options that most jobs set, in this order.
COMMON = ("nnodes", "worker-replicas", "nproc-per-node", "gpu", "image", "backend", "name")
_OF_CLUSTER = {
    "Place in the cluster": (
        *("context", "namespace", "kind", "runtime", "queue", "workload-priority", "priority-class"),
        *("service-account", "network-policy"),
    ),
    "Container": ("run-as", "image-pull-secret"),
    "Resources of a node": (
        *("cpu", "memory", "shm", "gpu-resource", "full-requests", "device", "limit", "request"),
    ),
    "Hosts": ("node-selector", "toleration", "preemptible", "spot-selector", "spot-toleration"),
    "Storage": ("mount", "storage", "checkpoints", "data-cache"),
}


# Options that only labs have: a form starts no lab.
_OF_LABS = ("idle",)
ENTRY_KEYS = {key: o for key, o in options.KEYS.items() if key not in _OF_LABS}


def common() -> Section:
    """Return the options that most jobs set."""
    return Section("Job", tuple(ENTRY_KEYS[key] for key in COMMON))


def advanced() -> Iterator[Section]:
    """Yield all other options except the cell's, each in one section."""
    yield Section("Code and environment", _of(SPEC))
    yield Section("Launch", (*_of(ELASTIC), *_of(WORKER)), launches=True)
    rest = {o.key: o for o in _of(CLUSTER)}
    for title, keys in _OF_CLUSTER.items():
        yield Section(title, tuple(rest.pop(key) for key in keys))
    yield Section("More of the cluster", tuple(rest.values()))
    yield Section("Retries, budgets and policies", (*_of(RETRY), *_of(POLICY)))


def _of(home: tuple[str, ...]) -> tuple[Option, ...]:
    return tuple(o for key, o in ENTRY_KEYS.items() if o.home == home and key not in COMMON)


def entries(spec: JobSpec) -> dict[str, Entry]:
    """Return the entries with which a form shows ``spec``."""
    plain, pooled = JobSpec(), spec.pool is not None
    # A number of nodes that is nbtorchjob's own default, or is left to the pool, is an empty entry.
    values = {
        key: chosen_at(o, spec, in_pool=pooled or value_at(o, spec) == value_at(o, plain))
        for key, o in ENTRY_KEYS.items()
    }
    return {
        LAUNCH: type(spec.launch).__name__,
        **{key: entry(o, values[key]) for key, o in ENTRY_KEYS.items()},
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


def shows(o: Option, entries: Entries) -> bool:
    """Whether the option can be set, given the other entries."""
    if o.home == CLUSTER:
        return PLACES[str(entries["backend"])].has_pods
    if o.home in (ELASTIC, WORKER):
        return entries[LAUNCH] == (Elastic if o.home == ELASTIC else PyTorch).__name__
    return True


def judge(
    entries: Entries, base: JobSpec, check: Callable[[JobSpec], Sequence[str]] = submission.cautions
) -> Verdict:
    """Return the spec that the entries make, or each field's error.

    Only the parts of ``base`` that no entry shows count: ``rdzv_configs``, a master's own image, the values
    of secrets, options for labs. ``check`` returns cautions, and raises ``SpecError`` for settings that the
    backend can't honour.
    """
    values: dict[Option, Any] = {}
    errors: dict[str, str] = {}
    for key, option in ENTRY_KEYS.items():
        if entries[key] and shows(option, entries):
            try:
                values[option] = _value(option, entries[key])
            except SpecError as exc:
                errors[key] = _message(exc)
    default, secrets = JobSpec(), values.get(ENTRY_KEYS["secret-env"], ())
    blank = replace(
        base,
        launch=_unexpressed(base, elastic=entries[LAUNCH] == Elastic.__name__),
        cluster=default.cluster,
        retry=default.retry,
        hidden={name: text for name, text in base.hidden.items() if name in secrets},
        **{o.name: value_at(o, default) for o in ENTRY_KEYS.values() if o.home == SPEC},
    )
    while True:
        try:
            spec = overlay(blank, values, lambda o: o.key)
            notes = tuple(check(spec))
        except SpecError as exc:
            # A backend names the field, ``overlay`` the key.
            candidates = (*values, *ENTRY_KEYS.values())
            wrong = next((o for o in candidates if exc.field in (o.key, o.name, *o.flags)), None)
            # Retry without the invalid value, to check the others as well.
            errors.setdefault(wrong.key if wrong else "", _message(exc, named=wrong is None))
            if wrong is None or values.pop(wrong, None) is None:
                return Verdict(None, errors)
        else:
            return Verdict(None, errors) if errors else Verdict(spec, {}, notes)


def _value(option: Option, entry: str | bool | Sequence[str]) -> Any:
    """Return an option's value from its entry; raises ``SpecError``."""
    if isinstance(entry, str):
        return read(option, entry.strip(), option.key)
    if isinstance(entry, bool):
        return entry
    rows = [row for row in entry if row]
    return dict(pair(row, option.key) for row in rows) if option.takes == "pairs" else tuple(rows)


def _unexpressed(base: JobSpec, *, elastic: bool) -> Launch:
    """Return the part of a launch config that no entry shows, all else at its default."""
    launch = base.launch
    shared = launch.increase_shared_mem
    if elastic:
        if isinstance(launch, Elastic) and base.pool is not None and isinstance(launch.nnodes, Unsaid):
            return Elastic(launch.nnodes, rdzv_configs=launch.rdzv_configs, increase_shared_mem=shared)
        configs = launch.rdzv_configs if isinstance(launch, Elastic) else Elastic().rdzv_configs
        return Elastic(rdzv_configs=configs, increase_shared_mem=shared)
    if isinstance(launch, Elastic):
        return PyTorch(worker=Worker(replicas=0), increase_shared_mem=shared)
    return PyTorch(launch.master, launch.worker, increase_shared_mem=shared)


def _message(error: SpecError, *, named: bool = False) -> str:
    return str(error) if named else error.problem


_WIDTH = 88


def unsaid(spec: JobSpec, base: JobSpec) -> str:
    """Explain why the line doesn't turn ``base`` into exactly ``spec``; "" if it does."""
    try:
        line_spec = parse(magic_line(spec, base=base), base)[0]
        line_spec = replace(line_spec, idle=spec.idle)  # for labs: the line of a job leaves it out
    except SpecError as exc:
        return f"The default profile conflicts with these settings: {exc}"
    in_pool = spec.pool is not None
    more = [
        key
        for key, o in KEYS.items()
        if chosen_at(o, line_spec, in_pool=in_pool) != chosen_at(o, spec, in_pool=in_pool)
    ]
    if line_spec == spec and not more:
        return ""
    if more:
        return f"The default profile also has {', '.join(more)}, which no option can remove."
    if secrets := [name for name, text in spec.hidden.items() if line_spec.hidden.get(name) != text]:
        return f"The line omits the values of secrets: this process must have {', '.join(secrets)} set."
    return "The line lacks launch settings that only Python can express: see the call."


def python(spec: JobSpec, fn: str = "fn") -> str:
    """Return the Python that submits ``fn`` under the same spec."""
    in_pool = spec.pool is not None
    imported = ", ".join(sorted({"submit", *_names(spec, in_pool)}))
    call = _called("submit", [fn, f"spec={_code(spec, in_pool)}"])
    return f"from nbtorchjob import {imported}\n\njob = {call}"


def _code(value: Any, in_pool: bool) -> str:
    """Return the expression whose value is ``value``: configs, enums, and what they hold."""
    if is_dataclass(value):
        changed = _changed(value, in_pool)
        arguments = [f"{f.name}={_code(getattr(value, f.name), in_pool)}" for f in changed]
        return _called(type(value).__name__, arguments)
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {item!r}' for name, item in value.items())}}}"
    return repr(list(value) if isinstance(value, tuple) else value)


def _called(name: str, arguments: list[str]) -> str:
    flat = f"{name}({', '.join(arguments)})"
    if len(flat) <= _WIDTH and "\n" not in flat:
        return flat
    lines = textwrap.indent("".join(f"{argument},\n" for argument in arguments), "    ")
    return f"{name}(\n{lines})"


def _changed(config: Any, in_pool: bool) -> list[Field[Any]]:
    """Return the fields that differ from their default; in a pool also a default number that was chosen."""
    changed = []
    for f in fields(config):
        value = getattr(config, f.name)
        default = f.default if f.default_factory is MISSING else f.default_factory()
        differs = value != default and not (in_pool and isinstance(value, Unsaid))
        if in_pool and not differs:
            chosen = isinstance(default, Unsaid) and not isinstance(value, Unsaid)
            differs = bool(_changed(value, in_pool)) if is_dataclass(value) else chosen
        if differs and f.name != "hidden":  # values of secrets
            changed.append(f)
    return changed


def _names(value: Any, in_pool: bool) -> Iterator[str]:
    if is_dataclass(value):
        yield type(value).__name__
        for f in _changed(value, in_pool):
            yield from _names(getattr(value, f.name), in_pool)
    elif isinstance(value, Enum):
        yield type(value).__name__
