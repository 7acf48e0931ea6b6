"""What this interpreter has: its distributions, and which of them a module belongs to.

Also where distributions are from that no index has, as recorded by their installer (PEP 610).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.install import environment as runtime

_LISTS = ("RECORD", "installed-files.txt")  # of a wheel, and of an older archive that pip installed

# The folders on ``sys.path``, each with its time of change.
Folders: TypeAlias = tuple[tuple[str, int], ...]


class Environment(FrozenDataclass):
    """What a process can import: its Python, its platform (``x86_64 glibc 2.36``), versions by name.

    ``modules`` are the names of modules that aren't named like a distribution.
    """

    python: str
    platform: str
    distributions: Mapping[str, str]
    modules: tuple[str, ...] = ()

    @property
    def minor(self) -> str:
        """The version of Python that its bytecode is for: ``3.11``."""
        return self.python.rpartition(".")[0]

    @property
    def machine(self) -> str:
        """What binaries are for: ``x86_64``."""
        return self.platform.partition(" ")[0]

    @property
    def glibc(self) -> tuple[int, int] | None:
        """The version of the GNU C library; None if it has another one, or that is unknown."""
        match = re.search(r" glibc (\d+)\.(\d+)", self.platform)
        return (int(match[1]), int(match[2])) if match else None

    def may_have(self, module: str) -> bool:
        """Whether something there has the name of a module, or of the package that it is in."""
        top = module.partition(".")[0]
        return top in self.modules or runtime.normalised(top) in self.distributions


class Distribution(FrozenDataclass):
    """An installed package; ``project`` is the folder that an editable one was installed from.

    One that isn't editable but ``unindexed`` is in no index: it came from a file, a repository or a URL.
    """

    name: str
    version: str
    project: str = ""
    unindexed: bool = False


class Need(FrozenDataclass):
    """A module that a call imports, and the distribution that has it here.

    ``surely``: unpickling imports it, or the top of the cell or of a local module, outside any ``try``.
    Without it the call fails; any other import may be guarded, or never happen. ``project`` is the folder
    that an editable distribution was installed from; one that is ``unindexed`` is in no index.
    """

    module: str
    distribution: str
    version: str
    surely: bool
    project: str = ""
    unindexed: bool = False

    @property
    def mend(self) -> str:
        """The option that brings it to a node."""
        if self.unindexed:
            return "--package like-here"
        public = self.version.partition("+")[0]  # no index has "+cpu" and the like
        return f"--package {self.project or f'{self.distribution}=={public}'}"


def environment() -> Environment:
    """Return what this interpreter has; a folder on ``sys.path`` is read again only if it has changed."""
    return _environment(folders())


@lru_cache(maxsize=1)
def _environment(folders: Folders) -> Environment:
    # Each folder by itself: the notebook's folder changes whenever something is saved there.
    changed = dict(folders)

    def listed(entry: str) -> tuple[dict[str, str], set[str]]:
        folder = os.path.abspath(entry)
        return _listed(folder, changed.get(folder))

    description = runtime.description(listed)
    return Environment(
        description["python"],
        description["platform"],
        description["distributions"],
        tuple(description["modules"]),
    )


@lru_cache(maxsize=1024)
def _listed(folder: str, changed: int | None) -> tuple[dict[str, str], set[str]]:
    return runtime.listed(folder)


def folders() -> Folders:
    """Return the folders on ``sys.path`` that exist, each with its time of change."""
    stamped = []
    for entry in sys.path:
        folder = os.path.abspath(entry)
        with suppress(OSError):
            stamped.append((folder, os.stat(folder).st_mtime_ns))
    return tuple(stamped)


def distribution(module: str) -> tuple[str, Distribution] | None:
    """Return the shortest part of a module's name that tells its distribution, and the distribution.

    That is ``transformers`` for ``transformers.models``, but ``google.cloud.storage`` for a module in a
    namespace. None for a module of no distribution: Python's own, a file of the user's, or a missing one.
    """
    if module.partition(".")[0] in sys.stdlib_module_names:
        return None
    module_and_origin = runtime.find(module)
    if module_and_origin is None or not os.path.isabs(module_and_origin[1]):
        return None
    (name, origin), path_folders = module_and_origin, folders()
    for folder, changed in path_folders:
        if origin.startswith(folder + os.sep) and (owner := _listing(folder, changed, name, origin)):
            return name, owner
    for folder, changed in path_folders:
        for project, editable in _projects(folder, changed):
            if Path(os.path.realpath(origin)).is_relative_to(project):
                return (name, editable) if editable else None
    return None


def metadata(name: str) -> Path | None:
    """Return the metadata folder of the distribution of that normalised name; None if there is none."""
    infos = (info for folder in folders() for info in _infos(*folder))
    return next((Path(info) for info in infos if info.endswith(".dist-info") and _name(info) == name), None)


def project(name: str) -> str:
    """Return the folder that a distribution is installed in place from; "" for any other."""
    info = metadata(name)
    return _project(str(info)) if info is not None else ""


@lru_cache(maxsize=4096)
def _listing(folder: str, changed: int, module: str, origin: str) -> Distribution | None:
    """Return the distribution that lists a file in ``folder``, or one of the module's name without a list."""
    path = os.path.relpath(origin, folder).encode()
    own = runtime.normalised(module)
    bare = None
    # Most have their module's name.
    for info in sorted(_infos(folder, changed), key=lambda info: _name(info) != own):
        text = _list(info)
        if b"\n%s," % path in text or b"/%s\n" % path in text:
            return _described(info)
        if not text and _name(info) == own and not _project(info):  # as Debian's
            bare = _described(info)
    return bare


@lru_cache(maxsize=1024)
def _projects(folder: str, changed: int) -> list[tuple[str, Distribution | None]]:
    projects = ((_project(info), info) for info in _infos(folder, changed))
    return [(project, _described(info)) for project, info in projects if project]


def _list(info: str) -> bytes:
    for name in _LISTS:
        with suppress(OSError):
            return b"\n" + Path(info, name).read_bytes()
    return b""


@lru_cache(maxsize=1024)
def _infos(folder: str, changed: int) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith("-info")]
    except OSError:  # an archive
        return []


def _name(info: str) -> str:
    return runtime.normalised(os.path.basename(info).partition("-")[0])


def _origin(info: str) -> str:
    """Return what an installer recorded about a distribution's origin (PEP 610).

    "" if it was installed by its name, also by conda: its packages contain the record of their own build,
    mostly a path on the machine that built them (conda/conda#11580), and name conda as their installer.
    """
    with suppress(OSError):
        text = Path(info, "direct_url.json").read_text(encoding="utf-8", errors="replace")
        with suppress(OSError):
            if Path(info, "INSTALLER").read_bytes().strip() == b"conda":
                return ""
        return text
    return ""


def _project(info: str) -> str:
    """Return the folder that an editable distribution was installed from (PEP 610), else ""."""
    with suppress(ValueError, KeyError, TypeError):
        direct_url = json.loads(_origin(info))
        return (
            os.path.realpath(unquote(urlsplit(direct_url["url"]).path))
            if direct_url["dir_info"]["editable"]
            else ""
        )
    # A project that setuptools itself installed has its metadata beside its modules, without a version.
    own = info.endswith(".egg-info") and "-" not in os.path.basename(info).removesuffix(".egg-info")
    return os.path.realpath(os.path.dirname(info)) if own else ""


def _described(info: str) -> Distribution | None:
    parsed = runtime.parsed(info)
    project = _project(info)
    return Distribution(*parsed, project, not project and bool(_origin(info))) if parsed else None


_MOST_BYTES = 4096  # of an installer's record
_HASH = re.compile(r"[a-z0-9]{1,16}=[0-9a-f]{8,128}")
_PLAIN = re.compile(r"[!-~]{1,1000}")  # of a URL: what a requirement can hold


def origins() -> dict[str, str]:
    """Return the recorded origins of this interpreter's distributions that weren't installed by name."""
    by_name: dict[str, str] = {}
    for folder, changed in folders():
        by_name = _urls(folder, changed) | by_name  # the first of two with the same name is imported
    return by_name


@lru_cache(maxsize=1024)
def _urls(folder: str, changed: int) -> dict[str, str]:
    urls: dict[str, str] = {}
    with suppress(OSError):
        for name in os.listdir(folder):
            info = os.path.join(folder, name)
            name_and_version = runtime.parsed(info) if name.endswith(".dist-info") else None
            if name_and_version and 0 < len(text := _origin(info)) <= _MOST_BYTES:
                urls.setdefault(name_and_version[0], text)
    return urls


def reference(origin: str) -> tuple[str, str]:
    """Return what installs a distribution from its origin (PEP 508), or else a description of the origin.

    ``origin`` is an installer's record, maybe from somebody else's machine. A file on a machine's disk isn't
    available elsewhere, so for one there is only a description.
    """
    try:
        direct_url = json.loads(origin)
        url, folder = _without_secrets(direct_url["url"]), direct_url.get("dir_info")
        if url.startswith("file:"):
            path = unquote(urlsplit(url).path)
            how = "editable, from" if folder and folder.get("editable") else "installed from"
            return "", f"{how} {path}"
        below = f"subdirectory={direct_url['subdirectory']}" if direct_url.get("subdirectory") else ""
        if "vcs_info" in direct_url:
            vcs = direct_url["vcs_info"]
            whole = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" + (f"#{below}" if below else "")
        else:
            archive = direct_url.get("archive_info") or {}
            text = archive.get("hash") or next(
                (f"{k}={v}" for k, v in (archive.get("hashes") or {}).items()), ""
            )
            parts = [below, text if _HASH.fullmatch(text) else ""]
            whole = url + ("#" + "&".join(filter(None, parts)) if any(parts) else "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "", "installed from an unknown source"
    if _PLAIN.fullmatch(whole) is None:
        return "", "installed from an unknown source"
    return whole, ""


def _without_secrets(url: str) -> str:
    """Return a URL without a password, and without a user unless SSH needs one."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    keeps = at and parts.scheme == "ssh" and ":" not in user
    return url if not at or keeps else urlunsplit(parts._replace(netloc=host))
