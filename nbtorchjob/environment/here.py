"""What this interpreter has: its distributions, and which of them a module is of."""

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
from urllib.parse import unquote, urlsplit

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime import environment as runtime
from nbtorchjob.runtime import needed

_LISTS = ("RECORD", "installed-files.txt")  # of a wheel, and of what pip made of an older archive
_ORIGIN = "direct_url.json"  # of what wasn't taken by its name (PEP 610)

# The folders on ``sys.path``, each with when it was changed.
_Folders: TypeAlias = tuple[tuple[str, int], ...]


class Environment(FrozenDataclass):
    """What a process can import: its Python, its platform (``x86_64 glibc 2.36``), versions by name.

    ``modules`` are the names of modules that no distribution has for its own.
    """

    python: str
    platform: str
    distributions: Mapping[str, str]
    modules: tuple[str, ...] = ()

    @property
    def minor(self) -> str:
        """The version of Python that bytecode is of: ``3.11``."""
        return self.python.rpartition(".")[0]

    @property
    def machine(self) -> str:
        """What binaries are for: ``x86_64``."""
        return self.platform.partition(" ")[0]

    @property
    def glibc(self) -> tuple[int, int] | None:
        """The version of the GNU C library; None where there is another, or it isn't known."""
        found = re.search(r" glibc (\d+)\.(\d+)", self.platform)
        return (int(found[1]), int(found[2])) if found else None

    def may_have(self, module: str) -> bool:
        """Whether something there has the name of a module, or of the package that it is in."""
        top = module.partition(".")[0]
        return top in self.modules or runtime.normalised(top) in self.distributions


class Distribution(FrozenDataclass):
    """An installed package; ``project`` is the folder that an editable one was installed from.

    Another one that is ``apart`` is of no index: it came from a file, a repository or a URL.
    """

    name: str
    version: str
    project: str = ""
    apart: bool = False


class Need(FrozenDataclass):
    """A module that a call imports, and the distribution that has it here.

    ``surely``: unpickling imports it, or the top of the cell or of a local module, outside any ``try``.
    Without it the call fails; any other import may be guarded, or never come. ``project`` is the folder that
    an editable distribution was installed from; one that is ``apart`` no index has.
    """

    module: str
    distribution: str
    version: str
    surely: bool
    project: str = ""
    apart: bool = False

    @property
    def mend(self) -> str:
        """The option that brings it to a node."""
        if self.apart:
            return "--package like-here"
        public = self.version.partition("+")[0]  # "+cpu" and the like is no index's
        return f"--package {self.project or f'{self.distribution}=={public}'}"


def environment() -> Environment:
    """Return what this interpreter has; it is listed anew only where a folder on ``sys.path`` has changed."""
    return _environment(_folders())


@lru_cache(maxsize=1)
def _environment(folders: _Folders) -> Environment:
    told = runtime.told()
    return Environment(told["python"], told["platform"], told["distributions"], tuple(told["modules"]))


def _folders() -> _Folders:
    found = []
    for entry in sys.path:
        folder = os.path.abspath(entry)
        with suppress(OSError):
            found.append((folder, os.stat(folder).st_mtime_ns))
    return tuple(found)


def distribution(module: str) -> tuple[str, Distribution] | None:
    """Return which distribution has a module, and the shortest of the module's names that says so.

    That is ``transformers`` of ``transformers.models``, but ``google.cloud.storage`` of what lies in a
    namespace. None for what belongs to none: Python's own, a file of the user's, what isn't here.
    """
    if module.partition(".")[0] in sys.stdlib_module_names:
        return None
    found = needed.find(module)
    if found is None or not os.path.isabs(found[1]):
        return None
    owner = _owner(*found, _folders())
    return (found[0], owner) if owner else None


def metadata(name: str) -> Path | None:
    """Return where the metadata lie of the distribution of that normalised name; None where there is none."""
    infos = (info for folder, _ in _folders() for info in _infos(folder))
    return next((Path(info) for info in infos if info.endswith(".dist-info") and _name(info) == name), None)


@lru_cache(maxsize=1024)
def _owner(module: str, origin: str, folders: _Folders) -> Distribution | None:
    for folder, _ in folders:
        if origin.startswith(folder + os.sep) and (found := _listing(folder, module, origin)):
            return _described(found)
    for folder, _ in folders:
        for info in _infos(folder):
            if (project := _project(info)) and Path(os.path.realpath(origin)).is_relative_to(project):
                return _described(info)
    return None


def _listing(folder: str, module: str, origin: str) -> str:
    """Return the metadata in ``folder`` that list a file, or that have its module's name and list none."""
    path = os.path.relpath(origin, folder).encode()
    own = runtime.normalised(module)
    bare = ""
    for info in sorted(_infos(folder), key=lambda info: _name(info) != own):  # most have their module's name
        text = _list(info)
        if b"\n%s," % path in text or b"/%s\n" % path in text:
            return info
        if not text and _name(info) == own and not _project(info):  # as Debian's
            bare = info
    return bare


def _list(info: str) -> bytes:
    for name in _LISTS:
        with suppress(OSError):
            return b"\n" + Path(info, name).read_bytes()
    return b""


def _infos(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith("-info")]
    except OSError:  # an archive
        return []


def _name(info: str) -> str:
    return runtime.normalised(os.path.basename(info).partition("-")[0])


def _project(info: str) -> str:
    """Return the folder that an editable distribution was installed from (PEP 610), else ""."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads(Path(info, _ORIGIN).read_bytes())
        return os.path.realpath(unquote(urlsplit(told["url"]).path)) if told["dir_info"]["editable"] else ""
    # A project that setuptools itself installed has its metadata beside its modules, without a version.
    own = info.endswith(".egg-info") and "-" not in os.path.basename(info).removesuffix(".egg-info")
    return os.path.realpath(os.path.dirname(info)) if own else ""


def _described(info: str) -> Distribution | None:
    found = runtime.parsed(info)
    project = _project(info)
    return Distribution(*found, project, not project and Path(info, _ORIGIN).exists()) if found else None
