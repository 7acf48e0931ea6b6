"""Values of options laid over a ``JobSpec``, wherever they come from: a line, a file, the environment."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.spec.config import Elastic, Launch, PyTorch, RunPolicy, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import Retry
from nbtorchjob.spec.validation import Option, digits

# Where a field's config lies in a JobSpec (``Option.home``).
SPEC: tuple[str, ...] = ()
ELASTIC = ("launch",)
WORKER = ("launch", "worker")
POLICY = ("launch", "run_policy")
RETRY = ("retry",)
CLUSTER = ("cluster",)

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def overlay(base: JobSpec, values: Mapping[Option, Any], where: Callable[[Option], str]) -> JobSpec:
    """Return ``base`` with these fields replaced; pairs and lists are added to those it has.

    ``where`` names an option in a ``SpecError`` as its source spells it.
    """
    workers = [o for o in values if o.home == WORKER]
    torchruns = [o for o in values if o.home == ELASTIC]
    if workers and torchruns:
        others = f"with {', '.join(map(where, torchruns))}"
        raise SpecError(where(workers[0]), values[workers[0]], others, Shape.CONFLICT)
    parts: dict[tuple[str, ...], dict[str, Any]] = defaultdict(dict)
    for o, value in values.items():
        parts[o.home][o.name] = _added(value_at(o, base), value) if o.repeated else value
    with named(values, where):
        launch, cluster = _launch(base.launch, parts), replace(base.cluster, **parts[CLUSTER])
        retry = replace(base.retry or Retry(), **parts[RETRY]) if parts[RETRY] else base.retry
        return replace(base, launch=launch, cluster=cluster, retry=retry, **parts[SPEC])


def _added(old: Any, new: Any) -> Any:
    if isinstance(old, Mapping):
        return {**old, **new} if isinstance(new, Mapping) else new
    # A job without budgets has no lists of theirs. Invalid values are left for the field to refuse.
    return (*(old or ()), *new) if isinstance(new, list | tuple) else new


def _launch(launch: Launch, parts: Mapping[tuple[str, ...], dict[str, Any]]) -> Launch:
    policy = launch.run_policy
    if parts[POLICY]:
        policy = replace(policy or RunPolicy(), **parts[POLICY])
    if parts[WORKER]:
        old = launch if isinstance(launch, PyTorch) else PyTorch(worker=Worker(replicas=0))
        launch = replace(old, worker=replace(old.worker, **parts[WORKER]))
    if parts[ELASTIC]:
        launch = replace(launch if isinstance(launch, Elastic) else Elastic(), **parts[ELASTIC])
    # A config with a deprecated field warns whenever it is made.
    return launch if policy is launch.run_policy else replace(launch, run_policy=policy)


def value_at(o: Option, spec: JobSpec) -> Any:
    """Return the value of the option's field; None where this kind of launch has no such field."""
    value: Any = spec
    for name in o.path:
        value = getattr(value, name, None)
    return value


def read(o: Option, text: str, where: str) -> Any:
    """Return the value that ``text`` stands for; if none, the text, which the field then refuses."""
    if o.takes == "int":
        number = digits(text)
        return text if number is None else number
    if o.takes == "number":
        with suppress(ValueError):
            return float(text)
    if o.takes == "switch" and text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    if o.takes == "pairs":
        return dict(pair(word, where) for word in split(text, where))
    if o.takes == "texts":
        return tuple(split(text, where))
    return text


def split(text: str, where: str) -> list[str]:
    """Return the words of ``text``, as a shell would; raises ``SpecError`` for an open quote."""
    try:
        return shlex.split(text)
    except ValueError as exc:
        raise SpecError(where, text, f"words with closed quotes ({exc})") from None


def pair(word: str, where: str) -> tuple[str, str]:
    """Return the two sides of ``NAME=VALUE``; raises ``SpecError`` where it isn't that."""
    name, equals, value = word.partition("=")
    if not (name and equals):
        raise SpecError(where, word, "NAME=VALUE")
    return name, value


@contextmanager
def named(values: Iterable[Option], where: Callable[[Option], str]) -> Iterator[None]:
    """Name the option rather than the field that a ``SpecError`` is about."""
    try:
        yield
    except SpecError as exc:
        options = [o for o in values if o.name == exc.field]
        raise exc.about(where(options[0])) if options else exc from None
