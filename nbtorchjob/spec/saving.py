"""Writing a spec into ``nbtorchjob.toml`` as a profile; everything else there stays, even comments."""

from __future__ import annotations

import os
import shutil
from collections.abc import MutableMapping
from enum import Enum
from pathlib import Path
from typing import Any

from nbtorchjob.errors import SpecError
from nbtorchjob.machine import extras
from nbtorchjob.machine.folders import working
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import KEYS, CellOptions
from nbtorchjob.spec.overlay import overlay, value_at
from nbtorchjob.spec.toml import FILE, near


def save(name: str, spec: JobSpec, *, cwd: Path | None = None) -> Path:
    """Write ``spec`` as the profile ``name``, and return the file.

    It is the nearest in the working directory (``cwd``) and its parents, else a new one in it. Raises
    ``SpecError`` for an invalid name, for what no profile can hold and for a file that isn't TOML.
    """
    CellOptions(profile=name)
    values = _values(spec)
    if overlay(JobSpec(), {KEYS[key]: value for key, value in values.items()}, lambda o: o.key) != spec:
        allowed = "one that options can express: a profile holds nothing else of a launch config"
        raise SpecError("profile", type(spec.launch).__name__, allowed)
    folder = (cwd or working()).absolute()
    # os.path's isfile, because Path's raises where a parent can't be read (before 3.14).
    path = next((path for path in near(folder) if os.path.isfile(path)), folder / FILE)
    _write(path, _with(path, name, values))
    return path


def _values(spec: JobSpec) -> dict[str, Any]:
    """Return the entries of a profile for ``spec``, by key."""
    blank = JobSpec()
    found = {
        key: _plain(value_at(o, spec)) for key, o in KEYS.items() if value_at(o, spec) != value_at(o, blank)
    }
    return {key: value for key, value in found.items() if value is not None}


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
    spellings = {key.replace("_", "-"): key for key in table}
    for key in spellings.keys() - values.keys():
        del table[spellings[key]]
    for key, value in values.items():
        spelled = spellings.get(key, key)
        if spelled not in table or table[spelled] != value:
            table[spelled] = _item(value)


def _item(value: Any) -> Any:
    import tomlkit

    if not isinstance(value, dict):
        return value
    inline = tomlkit.inline_table()
    inline.update(value)
    return inline


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
