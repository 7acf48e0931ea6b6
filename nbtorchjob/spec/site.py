"""An administrator's settings for all jobs that are sent from this machine: the site's file.

    locked = ["namespace"]
    [defaults]
    namespace = "ml"
    active-deadline-seconds = 14400
    [limits]
    active-deadline-seconds = 86400

``defaults`` lie beneath every profile, and fill in what a spec in Python leaves open; for this machine's own
jobs those about pods don't count. A ``locked`` option stays at its value there, or at its default;
``limits`` are the highest values of numbers. This guards against mistakes, not against intent: what must
hold in any case is for the cluster's own quotas and admission policies.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from nbtorchjob.errors import SpecError
from nbtorchjob.spec import toml
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import KEYS
from nbtorchjob.spec.overlay import CLUSTER, ELASTIC, POLICY, WORKER, overlay, value_at
from nbtorchjob.spec.policies import UNLIMITED, Retry
from nbtorchjob.spec.toml import FILE, File
from nbtorchjob.spec.validation import Option

# The run policies that the local backend refuses: its jobs have no pods.
_OF_PODS = ("clean_pod_policy", "backoff_limit")


def admitted(spec: JobSpec, environ: Mapping[str, str] | None = None) -> JobSpec:
    """Return the spec as the site admits it, in an admission controller's two steps: fill in, then check.

    Every submission comes through here, and repeating it changes nothing. Raises ``SpecError`` for what is
    locked or beyond a limit, and for an invalid site's file.
    """
    environ = os.environ if environ is None else environ
    return Site.installed(environ).admitted(spec, environ)


class Site:
    """One site's settings; ``base`` is what profiles and options are laid over."""

    def __init__(self, file: File) -> None:
        self._path = file.path
        self._defaults = toml.values(file.defaults, f"{file.path} [defaults]")
        self.base = overlay(JobSpec(), self._defaults, self._default)
        self._locked = [toml.known(key, f"{file.path} locked") for key in file.locked]
        self._limits = toml.values(file.limits, f"{file.path} [limits]")
        for option, most in self._limits.items():
            where = f"{file.path} [limits] {option.key}"
            bounded = option.takes in ("int", "number") or option.name == "preemptions"
            if not bounded or type(most) not in (int, float):
                raise SpecError(where, most, "a number, for a numeric option")
            if _asked(option, self.base) is None:
                needed = "combined with a value in [defaults]: without one, jobs are unlimited"
                raise SpecError(where, most, needed)

    @classmethod
    def installed(cls, environ: Mapping[str, str]) -> Site:
        """Return this machine's; without a file, one that sets nothing."""
        return cls(next(iter(toml.sites(environ)), File(Path(FILE))))

    def admitted(self, spec: JobSpec, environ: Mapping[str, str]) -> JobSpec:
        """See the function of that name."""
        filled = self._filled(spec if spec.in_pods else self._podless(spec, environ))
        for option in self._locked:
            value, locked = _asked(option, filled), _asked(option, self.base)
            if value != locked and _counts(option, filled):
                raise SpecError(option.key, _plain(value), f"{_plain(locked)!r}: {self._path} locks it")
        for option, most in self._limits.items():
            value = _asked(option, filled)
            if value is not None and (math.inf if value == UNLIMITED else float(value)) > most:
                raise SpecError(option.key, value, f"{most} or less: {self._path} limits it")
        return filled

    def _filled(self, spec: JobSpec) -> JobSpec:
        open_ = {
            option: {**value, **value_at(option, spec)} if option.takes == "pairs" else value
            for option, value in self._defaults.items()
            # A launch sets all of its fields; the rest of a spec may leave them open, as None.
            if option.home not in (ELASTIC, WORKER) and _counts(option, spec)
            if option.repeated or value_at(option, spec) is None
        }
        return overlay(spec, open_, self._default)

    def _podless(self, spec: JobSpec, environ: Mapping[str, str]) -> JobSpec:
        """Remove the site's and the environment's settings for pods from a job that has none."""
        sources = [self.base]
        with suppress(SpecError):  # invalid ones are reported where the environment's values are used
            ambient_values = {
                o: value for o, value in toml.environment(environ).items() if not _counts(o, spec)
            }
            sources += [
                overlay(JobSpec(), ambient_values, self._default),
                overlay(self.base, ambient_values, self._default),
            ]
        plain = JobSpec()
        ambient = [
            option
            for option in KEYS.values()
            if not _counts(option, spec) and value_at(option, spec) != value_at(option, plain)
            if any(value_at(option, spec) == value_at(option, source) for source in sources)
        ]
        cluster = {o.name: value_at(o, plain) for o in ambient if o.home == CLUSTER}
        none = {option: None for option in ambient if option.home == POLICY}
        return overlay(replace(spec, cluster=replace(spec.cluster, **cluster)), none, self._default)

    def _default(self, option: Option) -> str:
        return f"{self._path} [defaults] {option.key}"


def _counts(option: Option, spec: JobSpec) -> bool:
    of_pods = option.home == CLUSTER or (option.home == POLICY and option.name in _OF_PODS)
    return spec.in_pods or not of_pods


def _asked(option: Option, spec: JobSpec) -> Any:
    """Return the option's value; without budgets, its default."""
    return value_at(option, spec if spec.retry else replace(spec, retry=Retry()))


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value
