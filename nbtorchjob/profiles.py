"""Profiles: named defaults of a ``JobSpec``, from ``nbtorchjob.toml`` and the environment.

    default = "pair"
    [profiles.pair]
    nnodes = "1:2"
    nproc-per-node = 2
    env = {OMP_NUM_THREADS = "1"}

The file is looked for in the working directory, its parents and the user's config directory. Where
two files have a profile of one name the nearer file's counts, as a whole. ``NBTORCHJOB_NNODES`` and
the like, a variable for each key, are laid over the profile, and a magic line's options over both.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from nbtorchjob.errors import SpecError
from nbtorchjob.fields import Option
from nbtorchjob.layers import lay, read
from nbtorchjob.options import KEYS
from nbtorchjob.spec import JobSpec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "nbtorchjob.toml"
_PREFIX = "NBTORCHJOB_"


def load(name: str, *, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> JobSpec:
    """Give the profile of that name, with the environment's values laid over it.

    ``cwd`` is where to start looking, ``environ`` what to take for the environment; both default to
    this process's. Raises ``SpecError`` for an unknown profile or key, a wrong value, a broken file.
    """
    return _load(name, _files(cwd), os.environ if environ is None else environ)


def default(*, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> JobSpec:
    """Give the profile that is used when none is named; without one, what the environment says.

    ``NBTORCHJOB_PROFILE`` names it, else ``default`` in the nearest file that has one.
    """
    environ = os.environ if environ is None else environ
    files = _files(cwd)
    named = (file.default for file in files if file.default is not None)
    name = environ.get(_PREFIX + "PROFILE") or next(named, None)
    return _over(JobSpec(), environ) if name is None else _load(name, files, environ)


def names(*, cwd: Path | None = None) -> tuple[str, ...]:
    """Give the names of all profiles that can be loaded, sorted."""
    return _names(_files(cwd))


@dataclass(frozen=True)
class _File:
    path: Path
    default: str | None
    profiles: Mapping[str, Mapping[str, Any]]


def _files(cwd: Path | None) -> list[_File]:
    start = (cwd or Path.cwd()).absolute()
    folders = [start, *start.parents, platformdirs.user_config_path("nbtorchjob")]
    # os.path's isfile, because Path's raises where a parent can't be read (before 3.14).
    return [_read(folder / FILE) for folder in folders if os.path.isfile(folder / FILE)]


def _read(path: Path) -> _File:
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as exc:
        raise SpecError(str(path), str(exc), "a TOML file that can be read") from None
    for key, value in content.items():
        kind = {"default": str, "profiles": dict}.get(key)
        if kind is None:
            raise SpecError(str(path), key, "default or [profiles.NAME]: other keys aren't known")
        if not isinstance(value, kind):
            raise SpecError(f"{path} {key}", value, "a name" if kind is str else "a table of profiles")
    profiles = content.get("profiles", {})
    for name, profile in profiles.items():
        if not isinstance(profile, dict):
            raise SpecError(f"{path} profiles.{name}", profile, "a table of options")
    return _File(path, content.get("default"), profiles)


def _names(files: list[_File]) -> tuple[str, ...]:
    return tuple(sorted({name for file in files for name in file.profiles}))


def _load(name: str, files: list[_File], environ: Mapping[str, str]) -> JobSpec:
    file = next((file for file in files if name in file.profiles), None)
    if file is None:
        raise _unknown(name, files)
    place = f"{file.path} [profiles.{name}]"
    spec = lay(JobSpec(), _values(file.profiles[name], place), lambda option: f"{place} {option.key}")
    return _over(spec, environ)


def _unknown(name: str, files: list[_File]) -> SpecError:
    known = _names(files)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
    have = f"such as {', '.join(near)}" if near else "and there are none"
    seen = ", ".join(str(file.path) for file in files) or f"no {FILE} here, above or in the user's config"
    return SpecError("profile", name, f"a profile that there is, {have} (looked at: {seen})")


def _values(profile: Mapping[str, Any], place: str) -> dict[Option, Any]:
    values: dict[Option, Any] = {}
    for key, value in profile.items():
        option = KEYS.get(key.replace("_", "-"))
        if option is None:
            near = difflib.get_close_matches(key, KEYS, n=3, cutoff=0.5) or list(KEYS)
            raise SpecError(place, key, f"an option's name, such as {', '.join(near)}")
        if option in values:
            raise SpecError(f"{place} {key}", value, f"given once: {option.key} is there as well")
        values[option] = value
    return values


def _over(spec: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    given = [(option, environ.get(_variable(option))) for option in KEYS.values()]
    values = {option: read(option, text, _variable(option)) for option, text in given if text}
    return lay(spec, values, _variable)


def _variable(option: Option) -> str:
    return _PREFIX + option.key.upper().replace("-", "_")
