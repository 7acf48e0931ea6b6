"""``nbtorchjob.toml``: where such files are, who could have written them, and what they contain."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias

import platformdirs

from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine.folders import foreign, working
from nbtorchjob.spec import Option
from nbtorchjob.spec.options import KEYS
from nbtorchjob.spec.overlay import read
from nbtorchjob.text.hints import options_hint

FILE = "nbtorchjob.toml"
SITE = "NBTORCHJOB_SITE_CONFIG"

# The type of a key's value, and its name.
_Keys: TypeAlias = Mapping[str, tuple[type, str]]
_USERS: _Keys = {"default": (str, "a name"), "profiles": (dict, "a table of profiles")}
_SITES: _Keys = {
    **_USERS,
    "defaults": (dict, "a table of options"),
    "limits": (dict, "a table of options"),
    "locked": (list, "a list of options"),
}


class File(FrozenDataclass):
    """One file's contents. Only a site's may have ``defaults``, ``limits`` and ``locked`` (``Site``)."""

    path: Path
    default: str | None = None
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    locked: Sequence[Any] = ()


def environment(environ: Mapping[str, str]) -> dict[Option, Any]:
    """Return the settings of the environment's variables. Raises ``SpecError`` for unreadable values."""
    texts = [(option, environ.get(option.variable)) for option in KEYS.values()]
    return {option: read(option, text, option.variable) for option, text in texts if text}


def users(cwd: Path | None) -> list[File]:
    """Return the user's files: of ``cwd``, its parents, and the user's config directory, in that order.

    The parents end with the home directory, or before a folder whose owner differs from its subfolder's.
    A file is ignored unless only root and this user could have written it: see :func:`notes`.
    """
    return [user(path) for path in _files(cwd) if not _foreign(path)]


def user(path: Path, text: str | None = None) -> File:
    """Return a user's file, or what it would be with another ``text``; raises ``SpecError``."""
    return _read(path, _USERS, text)


def notes(cwd: Path | None) -> list[str]:
    """Return a line for each existing file that is ignored, with the reason."""
    own = platformdirs.user_config_path("nbtorchjob")
    return [
        f"{path} is ignored: {why}; remove write access for others (chmod go-w), or move it to {own}"
        for path in _files(cwd)
        if (why := _foreign(path))
    ]


def near(cwd: Path | None) -> Iterator[Path]:
    """Yield the paths where a file for ``cwd`` may lie, the nearest first."""
    start = (cwd or working()).absolute()
    home = _owned(Path(os.path.expanduser("~")))
    owner: int | None = None
    for folder in (start, *start.parents):
        status = _owned(folder)
        if status is not None and owner is not None and status.st_uid != owner:
            return
        owner = owner if status is None else status.st_uid
        yield folder / FILE
        if status is not None and home is not None and os.path.samestat(status, home):
            return


def _owned(folder: Path) -> os.stat_result | None:
    try:
        return folder.stat()
    except (OSError, ValueError):  # a web page may request any path
        return None


def _files(cwd: Path | None) -> Iterator[Path]:
    for path in (*near(cwd), platformdirs.user_config_path("nbtorchjob") / FILE):
        # os.path.isfile, because Path.is_file raises if a parent can't be read (before 3.14).
        if os.path.isfile(path):
            yield path


def _foreign(path: Path) -> str:
    """Return why another user could have written a file; empty if none could."""
    try:
        # Both a link and its file are checked, and the folders of both.
        for folder in dict.fromkeys((path.parent, Path(os.path.realpath(path)).parent)):
            if why := foreign(folder):
                return f"its folder {why}"
        why = foreign(path)
    except OSError as exc:
        why = f"can't be checked ({exc.strerror})"
    return why and f"it {why}"


def sites(environ: Mapping[str, str]) -> list[File]:
    """Return the file of this machine's administrator, if there is one: the first in the system's folders.

    A file that ``NBTORCHJOB_SITE_CONFIG`` names must exist: a typo must not lift its locks.
    """
    named = environ.get(SITE)
    # XDG_CONFIG_DIRS of a Linux desktop begins with the desktop's own folder.
    folders = platformdirs.site_config_dir("nbtorchjob", multipath=True).split(os.pathsep)
    paths = [Path(named)] if named else [Path(folder) / FILE for folder in folders]
    path = next((path for path in paths if os.path.isfile(path)), paths[0])
    exists = os.path.isfile(path)
    if exists and (why := _foreign(path)):
        raise SpecError(str(path), why, "a file that only root and you can write")
    return [_read(path, _SITES)] if named or exists else []


def parsed(text: str) -> Mapping[str, Any]:
    """Parse TOML text and return its table; raises ``ValueError``."""
    if sys.version_info >= (3, 11):  # imported late: most jobs read no such file, and it is slow to import
        import tomllib
    else:
        import tomli as tomllib

    return tomllib.loads(text)


def _read(path: Path, keys: _Keys, text: str | None = None) -> File:
    try:
        content = parsed(path.read_text("utf-8") if text is None else text)
    except (OSError, ValueError) as exc:
        raise SpecError(str(path), str(exc), "a readable TOML file") from None
    for key, value in content.items():
        if key not in keys and key in _SITES:
            raise SpecError(f"{path} {key}", value, "here: it belongs in the site's file", Shape.CONFLICT)
        if key not in keys:
            hint = "expected default or [profiles.NAME]"
            raise SpecError(str(path), key, hint, Shape.UNKNOWN_KEY)
        type_, allowed = keys[key]
        if not isinstance(value, type_):
            raise SpecError(f"{path} {key}", value, allowed)
    for name, profile in content.get("profiles", {}).items():
        if not isinstance(profile, dict):
            raise SpecError(f"{path} profiles.{name}", profile, "a table of options")
    return File(path, **content)


def values(table: Mapping[str, Any], where: str) -> dict[Option, Any]:
    """Return the options that a table sets; ``where`` is the table's name in a ``SpecError``."""
    options: dict[Option, Any] = {}
    for key, value in table.items():
        option = find_option(key, where)
        if option in options:
            raise SpecError(f"{where} {key}", value, f"given once: {option.key} is set as well")
        options[option] = value
    return options


def find_option(key: Any, where: str) -> Option:
    """Return the option of that name. Raises ``SpecError`` with similar names."""
    option = KEYS.get(str(key).replace("_", "-"))
    if option is None:
        import difflib  # late: only needed for an unknown key

        near = difflib.get_close_matches(str(key), KEYS, n=1, cutoff=0.65)
        allowed = f"did you mean {near[0]}?" if near else f"{options_hint()} lists them"
        raise SpecError(where, key, allowed, Shape.UNKNOWN_KEY)
    return option
