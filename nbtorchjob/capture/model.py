"""What a captured call is, apart from how it is made: plain data that travels, or that describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath
from types import CodeType, MappingProxyType
from typing import Any

from nbtorchjob.capture.modules import NO_IMPORTS, Imports, LocalFile, Need, needs
from nbtorchjob.environment.requirements import NOTHING as INSTALLS_NOTHING
from nbtorchjob.environment.requirements import Wanted
from nbtorchjob.environment.wheels import Installer
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.objects.sources import Codes, SourceError, check
from nbtorchjob.text import words

NO_ITEMS: Mapping[str, str] = MappingProxyType({})


class Ship(FrozenDataclass):
    """One name that travels; ``size`` in bytes; ``value`` is the repr of a short plain value.

    ``digest`` is that of data (``identity``); empty of code, and of what is secret by its name.
    """

    name: str
    type: str
    size: int
    value: str = ""
    digest: str = ""

    @property
    def human(self) -> str:
        """The size in the words of people."""
        return words.size(self.size)


class ShippedFile(FrozenDataclass):
    """A file that travels; ``path`` is relative to the notebook's folder, with slashes.

    ``data`` is what it holds where that is to lie in the payload. ``sha256`` is the digest of that, in hex;
    "" of a big file that stays on this machine, of which ``mtime`` tells in what state it was.
    """

    path: str
    source: Path
    size: int
    executable: bool
    mtime: int  # nanoseconds
    sha256: str
    data: bytes | None


class DataFolder(FrozenDataclass):
    """A folder of data, as it lies in a store: its files, and the list of them, by their digests."""

    name: str
    files: tuple[ShippedFile, ...]
    listed: ShippedFile

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.size for file in self.files)


@dataclass
class Shipped:
    """What was asked for, as it was found: an entry of ``ships`` for each name, ``notes`` of what stays."""

    files: tuple[ShippedFile, ...] = ()
    ships: tuple[Ship, ...] = ()
    notes: tuple[str, ...] = ()


class Call(FrozenDataclass):
    """What a rank runs, ready to travel; ``runtime.call.run`` takes what ``pickle`` holds.

    ``buffers`` are views of the captured objects' memory, belonging to ``pickle`` (PEP 574). ``sources``
    holds the text of the notebook cells whose code travels, by file name; ``notes`` say what will be
    different on ranks, ``sets`` are the names that a cell sets there, ``gives`` is whether it has a value,
    ``plain`` whether what it has is sure to be plain data, ``stops`` whether its code may stop in a debugger.
    ``began`` is when it began to be captured, in seconds since the epoch. ``text`` is a cell's, "" of a
    function, and ``by`` says whose it is, in words, to others who wait for it. ``imports`` is what it
    imports, apart from the local modules, and ``wanted`` what its nodes install (``packages``). ``codes`` are
    those of the notebook's functions in it, ``paths`` its variables that may be paths, and ``shipped`` the
    files that go along because the spec names them, ``data`` the folders of data that go to the job's store.
    ``given`` are the names whose values each run of a group has of its own. ``code`` is all code in the
    pickle; it is ``sourced`` where its sources go along, as a node may have another Python.
    """

    label: str
    pickle: bytes
    buffers: tuple[memoryview, ...]
    ships: tuple[Ship, ...]
    files: tuple[LocalFile, ...]
    sources: Mapping[str, str]
    filename: str
    notes: tuple[str, ...] = ()
    sets: frozenset[str] = frozenset()
    gives: bool = True
    plain: bool = False
    began: float = 0.0
    text: str = ""
    by: str = ""
    promoted: str = ""  # the lab whose cells it runs once more
    stops: bool = False
    imports: Imports = NO_IMPORTS
    wanted: Wanted = INSTALLS_NOTHING
    codes: tuple[CodeType, ...] = ()
    paths: Mapping[str, str | PurePath] = field(default_factory=lambda: NO_ITEMS)
    shipped: tuple[ShippedFile, ...] = ()
    data: tuple[DataFolder, ...] = ()
    given: frozenset[str] = frozenset()
    code: Codes = field(default_factory=Codes)
    sourced: bool = True
    lays: bool = False  # settings of this process or of ``logging`` go along

    @cached_property
    def table(self) -> Mapping[str, Any]:
        """Where the source of its code is, for another Python; made once somebody asks, as ``needs`` is."""
        return self.code.table(*([(self.filename, self.text)] if self.text else []))

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """What it needs of distributions, by module; found once somebody asks: that takes milliseconds."""
        return needs(self.imports, self.files)

    def uncompilable(self, python: str) -> str:
        """Say why a ``python`` ("3.12") can't compile its code, as far as that is known here; else ""."""
        try:
            check(dict(self.table), python)
        except SourceError as exc:
            return str(exc)
        return ""

    @property
    def size(self) -> int:
        """The bytes of the pickle and its buffers."""
        return len(self.pickle) + sum(view.nbytes for view in self.buffers)

    @property
    def stored(self) -> tuple[ShippedFile | Installer, ...]:
        """What of it goes into a job's store: big files, and what installs the packages."""
        own = self.wanted.installer
        files = {file.sha256: file for folder in self.data for file in (*folder.files, folder.listed)}
        big = (file for file in self.shipped if file.data is None)
        return (*big, *files.values(), *([own] if own else []))

    def with_files(self, shipped: Shipped) -> Call:
        """Return it with files that were asked for."""
        return replace(
            self,
            shipped=shipped.files,
            ships=(*self.ships, *shipped.ships),
            notes=tuple(dict.fromkeys((*self.notes, *shipped.notes))),
        )


class Part(FrozenDataclass):
    """One of several cells that are run in order: on these ranks, or on all where there are none."""

    text: str
    filename: str
    ranks: tuple[int, ...] = ()
