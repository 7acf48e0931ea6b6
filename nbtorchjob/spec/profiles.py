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
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.spec import toml
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.overlay import overlay
from nbtorchjob.spec.site import Site
from nbtorchjob.spec.toml import FILE, File

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
    return _over(Site.found(environ).base, environ) if name is None else _load(name, cwd, environ)


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
    spec = overlay(Site.found(environ).base, values, lambda option: f"{where} {option.key}")
    return _over(spec, environ)


def _unknown(name: str, files: list[File], refused: list[str]) -> SpecError:
    known = _names(files)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    have = f"did you mean {near[0]}?" if near else f"there are {', '.join(known) or 'none'}"
    seen = ", ".join(str(file.path) for file in files) or f"no {FILE} here, above or in the user's config"
    looked = "; ".join([f"looked at: {seen}", *refused])
    return SpecError("profile", name, f"{have} ({looked})", Shape.UNKNOWN)


def _over(spec: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    return overlay(spec, toml.environment(environ), lambda option: option.variable)
