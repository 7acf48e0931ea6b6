"""Profiles: named defaults of a ``JobSpec``, from ``nbtorchjob.toml`` and the environment. The site's file.

    default = "pair"
    [profiles.pair]
    nnodes = "1:2"
    nproc-per-node = 2
    env = {OMP_NUM_THREADS = "1"}

The file is searched in the working directory, its parents up to the home directory, the user's config
directory and the site's (whose defaults, see below, apply beneath all others). A file that another user could
have written is ignored. If two files have a profile of the same name, the nearer file's is used, as a whole.
``NBTORCHJOB_NNODES`` and the like, one variable per key, override the profile, and a magic line's options
override both.

Saving a spec as a profile leaves everything else in the file as it is, even comments.

The site's file has an administrator's settings for all jobs that are sent from this machine.

    locked = ["namespace"]
    [defaults]
    namespace = "ml"
    active-deadline-seconds = 14400
    [limits]
    active-deadline-seconds = 86400

``defaults`` apply beneath every profile, and fill in what a spec in Python leaves open; those about pods
don't apply to jobs on this machine. A ``locked`` option keeps its value in ``defaults``, or its default;
``limits`` are the highest values of numbers. This guards against mistakes, not against intent: rules that
must hold in any case belong in the cluster's own quotas and admission policies.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from secrets import token_hex
from typing import Any

from nbtorchjob import errors
from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.machine.folders import working
from nbtorchjob.spec import Option, toml
from nbtorchjob.spec.config import Elastic, UnsaidNumber, UnsaidRange
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import KEYS, CellOptions
from nbtorchjob.spec.overlay import (
    CLUSTER,
    ELASTIC,
    POLICY,
    RETRY,
    WORKER,
    chosen_at,
    layered,
    overlay,
    value_at,
)
from nbtorchjob.spec.policies import UNLIMITED, Retry
from nbtorchjob.spec.toml import FILE, File, near

# The run policies that the local backend refuses: its jobs have no pods.
_OF_PODS = ("clean_pod_policy", "backoff_limit")


def admitted(spec: JobSpec, environ: Mapping[str, str] | None = None) -> JobSpec:
    """Return the spec as the site admits it, in an admission controller's two steps: fill in, then check.

    Every submission passes through here; idempotent. Raises ``SpecError`` for another value of a locked
    option, a value beyond a limit, and an invalid site's file.
    """
    environ = os.environ if environ is None else environ
    return Site.installed(environ).admitted(spec, environ)


class Site:
    """One site's settings; ``base`` is what profiles and options are laid over."""

    def __init__(self, file: File) -> None:
        self._path = file.path
        self._defaults = toml.values(file.defaults, f"{file.path} [defaults]")
        self.base = overlay(JobSpec(), self._defaults, self._default)
        self._locked = [toml.find_option(key, f"{file.path} locked") for key in file.locked]
        launch = self.base.launch
        if isinstance(launch, Elastic) and _NODES in self._defaults and _NODES not in self._locked:
            unsaid = (UnsaidRange if launch.elastic else UnsaidNumber)(launch.nnodes)
            self.base = replace(self.base, launch=replace(launch, nnodes=unsaid))
        self._limits = toml.values(file.limits, f"{file.path} [limits]")
        for option, most in self._limits.items():
            where = f"{file.path} [limits] {option.key}"
            if option not in _LIMITABLE:
                keys = ", ".join(o.key for o in _LIMITABLE)
                raise SpecError(f"{file.path} [limits]", option.key, f"one of {keys}")
            if type(most) not in (int, float):
                raise SpecError(where, most, "a number")
            if _amount(option, self.base) is None:
                needed = "combined with a value in [defaults]: without one, jobs are unlimited"
                raise SpecError(where, most, needed)

    @classmethod
    def installed(cls, environ: Mapping[str, str]) -> Site:
        """Return this machine's site; without a file, one that sets nothing."""
        return cls(next(iter(toml.sites(environ)), File(Path(FILE))))

    def admitted(self, spec: JobSpec, environ: Mapping[str, str]) -> JobSpec:
        """See the function :func:`admitted`."""
        if not spec.in_pods:
            # Remove the site's and the environment's settings for pods from a job without pods.
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
            spec = overlay(replace(spec, cluster=replace(spec.cluster, **cluster)), none, self._default)
        open_ = {
            # Without the variables that the spec names as secrets of its own
            option: {
                **{
                    name: text
                    for name, text in value.items()
                    if option != _ENV or name not in spec.secret_env
                },
                **value_at(option, spec),
            }
            if option.takes == "pairs"
            else value
            for option, value in self._defaults.items()
            # A launch sets all of its fields; the rest of a spec may leave them open, as None.
            if option.home not in (ELASTIC, WORKER) and _counts(option, spec)
            if option.repeated or value_at(option, spec) is None
        }
        filled = overlay(spec, open_, self._default)
        for option in self._locked:
            value, locked = _effective_value(option, filled), _effective_value(option, self.base)
            if value != locked and _counts(option, filled):
                shown, allowed = (_limit_text(option, setting) for setting in (value, locked))
                raise SpecError(option.key, shown, f"{allowed!r}: {self._path} locks it")
        for option, most in self._limits.items():
            amount = _amount(option, filled)
            if amount is not None and amount > most:
                requested = UNLIMITED if amount == math.inf else amount
                raise SpecError(option.key, requested, f"{most} or less: {self._path} limits it")
        return filled

    def _default(self, option: Option) -> str:
        return f"{self._path} [defaults] {option.key}"


_ENV, _NODES = KEYS["env"], KEYS["nnodes"]


def _counts(option: Option, spec: JobSpec) -> bool:
    of_pods = option.home == CLUSTER or (option.home == POLICY and option.name in _OF_PODS)
    return spec.in_pods or not of_pods


def _effective_value(option: Option, spec: JobSpec) -> Any:
    """Return the option's value: of ``env`` with its secrets, of a budget that is left open its default."""
    if option == _ENV:
        return {**{name: text for name, text in spec.hidden.items() if name in spec.secret_env}, **spec.env}
    return getattr(spec.retry or Retry(), option.name) if option.home == RETRY else value_at(option, spec)


# The options that a limit may name: all whose value is a number or a time, in any spelling.
_LIMITABLE = tuple(
    o
    for o in KEYS.values()
    if o.takes in ("int", "number") or o.key in ("nnodes", "start-within", "preemptions", "idle")
)


def _amount(option: Option, spec: JobSpec) -> float | None:
    """Return the amount that a spec requests of a limited option; None if it leaves that open."""
    if option.key == "nnodes":
        return spec.launch.max_nodes
    # Options that don't apply: without budgets a job is tried once, and only labs outlive their calls.
    if (option.home == RETRY and spec.retry is None) or (option.key == "idle" and not spec.lab):
        return 0
    value: Any = value_at(option, spec)
    return math.inf if value == UNLIMITED or (option.key == "idle" and value == 0) else value


def _limit_text(option: Option, value: Any) -> Any:
    if option == _ENV:
        return {name: "…" if name in JobSpec(env=value).hidden else text for name, text in value.items()}
    return value.value if isinstance(value, Enum) else value


_PROFILE = "NBTORCHJOB_PROFILE"


def load(
    name: str,
    *,
    base: JobSpec | None = None,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> JobSpec:
    """Return the profile of that name, with the environment's values laid over it.

    The profile is laid over the site's defaults, or over ``base``. ``cwd`` is where the search starts,
    ``environ`` replaces the environment; both default to this process's. Raises ``SpecError`` for an unknown
    profile or key, an invalid value, or a broken file.
    """
    environ = os.environ if environ is None else environ
    return _load(name, cwd, environ, base)


def default(*, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> JobSpec:
    """Return the profile that is used when none is named; without one, the environment's settings.

    ``NBTORCHJOB_PROFILE`` names it, else ``default`` in the nearest file that has one.
    """
    environ = os.environ if environ is None else environ
    name = _default_name(_files(cwd, environ), environ)
    return _over(Site.installed(environ).base, environ) if name is None else _load(name, cwd, environ)


def default_name(*, cwd: Path | None = None) -> str | None:
    """Return the name of the profile that is used when none is named, or None."""
    return _default_name(_files(cwd, os.environ), os.environ)


def names(*, cwd: Path | None = None) -> tuple[str, ...]:
    """Return the names of all profiles that can be loaded, sorted."""
    return _names(_files(cwd, os.environ))


def notes(*, cwd: Path | None = None) -> list[str]:
    """Return a line for each file that is ignored, with the reason."""
    return toml.notes(cwd)


def _files(cwd: Path | None, environ: Mapping[str, str]) -> list[File]:
    return [*toml.users(cwd), *toml.sites(environ)]


def _default_name(files: list[File], environ: Mapping[str, str]) -> str | None:
    named = (file.default for file in files if file.default is not None)
    return environ.get(_PROFILE) or next(named, None)


def _names(files: list[File]) -> tuple[str, ...]:
    return tuple(sorted({name for file in files for name in file.profiles}))


def _load(name: str, cwd: Path | None, environ: Mapping[str, str], base: JobSpec | None = None) -> JobSpec:
    files = _files(cwd, environ)
    file = next((file for file in files if name in file.profiles), None)
    if file is None:
        refused = notes(cwd=cwd)
        names = _names(files)
        import difflib  # late: only needed for an unknown profile

        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        have = f"did you mean {near[0]}?" if near else f"available: {', '.join(names) or 'none'}"
        text = ", ".join(str(file.path) for file in files) or f"no {FILE} here, above or in the user's config"
        looked = "; ".join([f"searched: {text}", *refused])
        raise SpecError("profile", name, f"{have} ({looked})", Shape.UNKNOWN)
    where = f"{file.path} [profiles.{name}]"
    values = toml.values(file.profiles[name], where)
    base = Site.installed(environ).base if base is None else base
    spec = layered(base, values, lambda option: f"{where} {option.key}")
    return _over(spec, environ)


def _over(spec: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    return layered(spec, toml.environment(environ), lambda option: option.variable)


def save(name: str, spec: JobSpec, *, cwd: Path | None = None) -> Path:
    """Write ``spec`` as the profile ``name``, and return the file's path.

    The file is the nearest in the working directory (``cwd``) and its parents, else a new one in ``cwd``.
    Raises ``SpecError`` for an invalid name, for settings that no profile can hold and for a file that can't
    be changed.
    """
    CellOptions(profile=name)
    folder = (cwd or working()).absolute()
    # os.path.isfile, because Path.is_file raises if a parent can't be read (before 3.14).
    path = next((path for path in near(folder) if os.path.isfile(path)), folder / FILE)
    old = toml.user(path) if os.path.isfile(path) else File(path)
    entries = _entries(spec, old.profiles.get(name, {}))
    with errors.needs_extra("jupyter", "a profile that is saved"):
        import tomlkit
        from tomlkit.exceptions import TOMLKitError
    try:  # an entry that should be a table but isn't has no such methods
        document = tomlkit.parse(path.read_text("utf-8") if os.path.isfile(path) else "")
        profiles = document.setdefault("profiles", tomlkit.table(is_super_table=True))
        _update(profiles.setdefault(name, tomlkit.table()), entries)
        text = tomlkit.dumps(document)
        new = toml.user(path, text)
    except (OSError, ValueError, AttributeError, TypeError, TOMLKitError) as exc:
        raise SpecError(str(path), str(exc), "a TOML file of profiles that can be read") from None
    # tomlkit inserts a new table before the last dotted keys, which then belong to that table.
    if new != replace(old, profiles={**old.profiles, name: entries}):
        allowed = "a file in which each profile is a table of its own, [profiles.NAME]"
        raise SpecError(str(path), "dotted keys", allowed)
    _write(path, text)
    return path


def _entries(spec: JobSpec, old: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile's entries; ``old`` entries that mean the same stay as they are.

    Raises ``SpecError`` for settings that no profile can hold, and for a secret's value that isn't in the
    profile already.
    """
    bases = (JobSpec(), Site.installed(os.environ).base)  # a profile is laid over the site's defaults
    values = {
        option: _plain(value)
        for option in KEYS.values()
        if (value := chosen_at(option, spec)) is not None and (value or not option.repeated)
        if any(value != chosen_at(option, base) for base in bases)
    }
    env = old.get("env")
    for name, text in spec.hidden.items():
        if not isinstance(env, Mapping) or env.get(name) != text:
            allowed = (
                "left out: the value of a secret isn't saved; set it in this process and list it under "
                "secret-env, or write it into the file yourself"
            )
            raise SpecError("env", name, allowed)
    if spec.hidden:
        values[KEYS["env"]] = {**spec.env, **spec.hidden}
    if spec.hidden.keys() >= {*spec.secret_env}:
        values.pop(KEYS["secret-env"], None)  # env has them
    spellings = {option: key for key in old if (option := KEYS.get(key.replace("_", "-")))}
    for option, key in spellings.items():
        with suppress(SpecError):
            if _makes({**values, option: old[key]}, spec):
                values[option] = old[key]
    if not _makes(values, spec):
        raise SpecError("profile", type(spec.launch).__name__, "a launch config that options can express")
    return {spellings.get(option, option.key): value for option, value in values.items()}


def _makes(values: Mapping[Option, Any], spec: JobSpec) -> bool:
    """Whether a profile with these values yields ``spec``, also for a job in a pool."""
    nodes = value_at(_NODES, spec)  # a site's default isn't written: it lies beneath the profile
    base = JobSpec(Elastic(nodes)) if isinstance(nodes, UnsaidNumber | UnsaidRange) else JobSpec()
    profile_spec = overlay(base, values, lambda option: option.key)
    return profile_spec == spec and chosen_at(_NODES, profile_spec) == chosen_at(_NODES, spec)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return value if value is None or isinstance(value, str | bool | int | float) else dict(value)


def _update(table: MutableMapping[str, Any], entries: Mapping[str, Any]) -> None:
    """Change only what differs: a rewritten entry loses its formatting."""
    import tomlkit

    for key in table.keys() - entries.keys():
        del table[key]
    for key, value in entries.items():
        if key not in table or table[key] != value:
            table[key] = value
            if isinstance(value, dict):
                table[key] = tomlkit.inline_table()
                table[key].update(value)


def _write(path: Path, text: str) -> None:
    # Atomically, and through a link to the file itself.
    path = path.resolve()
    new = path.with_name(f".{path.name}.{os.getpid()}.{token_hex(4)}")
    try:
        exists = path.exists()
        # Never readable by more users than the file, which may have secrets.
        mode = path.stat().st_mode & 0o777 if exists else 0o666
        try:
            with open(
                os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8"
            ) as file:
                file.write(text)
            if exists:
                shutil.copymode(path, new)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
    except OSError as exc:
        raise SpecError(str(path), exc.strerror or str(exc), "a file that can be written") from None
