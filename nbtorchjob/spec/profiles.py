"""Profiles: named defaults of a ``JobSpec``, from ``nbtorchjob.toml`` and the environment.

    default = "pair"
    [profiles.pair]
    nnodes = "1:2"
    nproc-per-node = 2
    env = {OMP_NUM_THREADS = "1"}

The file is searched in the working directory, its parents up to the home directory, the user's config
directory and the site's (``site.py``, whose defaults lie beneath all). A file that somebody else could
have written isn't obeyed. Where two files have a profile of the same name, the nearer file's counts, as a
whole. ``NBTORCHJOB_NNODES`` and the like, a variable for each key, are laid over the profile, and a magic
line's options over both.

A spec is saved as a profile so that everything else in the file stays, even comments.
"""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Mapping, MutableMapping
from enum import Enum
from pathlib import Path
from typing import Any

from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.machine import extras
from nbtorchjob.machine.folders import working
from nbtorchjob.spec import toml
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import KEYS, CellOptions
from nbtorchjob.spec.overlay import overlay, value_at
from nbtorchjob.spec.site import Site
from nbtorchjob.spec.toml import FILE, File, near

_PROFILE = "NBTORCHJOB_PROFILE"


def load(name: str, *, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> JobSpec:
    """Return the profile of that name, with the environment's values laid over it.

    ``cwd`` is where the search starts, ``environ`` replaces the environment; both default to this
    process's. Raises ``SpecError`` for an unknown profile or key, an invalid value, a broken file.
    """
    environ = os.environ if environ is None else environ
    return _load(name, cwd, environ)


def default(*, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> JobSpec:
    """Return the profile that is used when none is named; without one, the environment's settings.

    ``NBTORCHJOB_PROFILE`` names it, else ``default`` in the nearest file that has one.
    """
    environ = os.environ if environ is None else environ
    name = _default_name(_files(cwd, environ), environ)
    return _over(Site.installed(environ).base, environ) if name is None else _load(name, cwd, environ)


def default_name(*, cwd: Path | None = None) -> str | None:
    """Return the name of the profile that is used when none is named; None where there is none."""
    return _default_name(_files(cwd, os.environ), os.environ)


def names(*, cwd: Path | None = None) -> tuple[str, ...]:
    """Return the names of all profiles that can be loaded, sorted."""
    return _names(_files(cwd, os.environ))


def notes(*, cwd: Path | None = None) -> list[str]:
    """Return which files aren't obeyed, and why, a line each."""
    return toml.notes(cwd)


def _files(cwd: Path | None, environ: Mapping[str, str]) -> list[File]:
    return [*toml.users(cwd), *toml.sites(environ)]


def _default_name(files: list[File], environ: Mapping[str, str]) -> str | None:
    named = (file.default for file in files if file.default is not None)
    return environ.get(_PROFILE) or next(named, None)


def _names(files: list[File]) -> tuple[str, ...]:
    return tuple(sorted({name for file in files for name in file.profiles}))


def _load(name: str, cwd: Path | None, environ: Mapping[str, str]) -> JobSpec:
    files = _files(cwd, environ)
    file = next((file for file in files if name in file.profiles), None)
    if file is None:
        raise _unknown(name, files, notes(cwd=cwd))
    where = f"{file.path} [profiles.{name}]"
    values = toml.values(file.profiles[name], where)
    spec = overlay(Site.installed(environ).base, values, lambda option: f"{where} {option.key}")
    return _over(spec, environ)


def _unknown(name: str, files: list[File], refused: list[str]) -> SpecError:
    known = _names(files)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    have = f"did you mean {near[0]}?" if near else f"available: {', '.join(known) or 'none'}"
    seen = ", ".join(str(file.path) for file in files) or f"no {FILE} here, above or in the user's config"
    looked = "; ".join([f"searched: {seen}", *refused])
    return SpecError("profile", name, f"{have} ({looked})", Shape.UNKNOWN)


def _over(spec: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    return overlay(spec, toml.environment(environ), lambda option: option.variable)


def save(name: str, spec: JobSpec, *, cwd: Path | None = None) -> Path:
    """Write ``spec`` as the profile ``name``, and return the file.

    It is the nearest in the working directory (``cwd``) and its parents, else a new one in it. Raises
    ``SpecError`` for an invalid name, for what no profile can hold and for a file that isn't TOML.
    """
    CellOptions(profile=name)
    blank = JobSpec()
    entries = {
        key: _plain(value_at(o, spec)) for key, o in KEYS.items() if value_at(o, spec) != value_at(o, blank)
    }
    values = {key: value for key, value in entries.items() if value is not None}
    if overlay(JobSpec(), {KEYS[key]: value for key, value in values.items()}, lambda o: o.key) != spec:
        allowed = "a launch config that options can express"
        raise SpecError("profile", type(spec.launch).__name__, allowed)
    folder = (cwd or working()).absolute()
    # os.path's isfile, because Path's raises where a parent can't be read (before 3.14).
    path = next((path for path in near(folder) if os.path.isfile(path)), folder / FILE)
    _write(path, _with(path, name, values))
    return path


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return value if value is None or isinstance(value, str | bool | int | float) else dict(value)


def _with(path: Path, name: str, values: dict[str, Any]) -> str:
    """Return the file's text with the profile in it."""
    with extras.needed("jupyter", "a profile that is saved"):
        import tomlkit
        from tomlkit.exceptions import TOMLKitError
    try:  # an entry that should be a table but isn't has no such methods
        document = tomlkit.parse(path.read_text("utf-8") if path.exists() else "")
        profiles = document.setdefault("profiles", tomlkit.table(is_super_table=True))
        _update(profiles.setdefault(name, tomlkit.table()), values)
    except (OSError, ValueError, AttributeError, TypeError, TOMLKitError) as exc:
        raise SpecError(str(path), str(exc), "a TOML file of profiles that can be read") from None
    return tomlkit.dumps(document)


def _update(table: MutableMapping[str, Any], values: dict[str, Any]) -> None:
    """Change only what differs: a rewritten entry loses its formatting."""
    import tomlkit

    spellings = {key.replace("_", "-"): key for key in table}
    for key in spellings.keys() - values.keys():
        del table[spellings[key]]
    for key, value in values.items():
        spelled = spellings.get(key, key)
        if spelled not in table or table[spelled] != value:
            table[spelled] = value
            if isinstance(value, dict):
                table[spelled] = tomlkit.inline_table()
                table[spelled].update(value)


def _write(path: Path, text: str) -> None:
    # Through a link to the file itself; in whole or not at all.
    path = path.resolve()
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text, "utf-8")
        if path.exists():
            shutil.copymode(path, new)
        new.replace(path)
    except OSError as exc:
        raise SpecError(str(path), exc.strerror or str(exc), "a file that can be written") from None
