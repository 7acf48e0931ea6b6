"""The data of a captured call, apart from how it is made: what travels, and what describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath
from types import CodeType, MappingProxyType
from typing import Any

from nbtorchjob.capture.modules import NO_IMPORTS, Imports, LocalFile, Need, needs
from nbtorchjob.environment.requirements import NOTHING as INSTALLS_NOTHING
from nbtorchjob.environment.requirements import Installation
from nbtorchjob.environment.wheels import Installer
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.objects.sources import Codes, SourceError, check
from nbtorchjob.text import words

NO_ITEMS: Mapping[str, str] = MappingProxyType({})


class Ship(FrozenDataclass):
    """One name that travels; ``size`` in bytes; ``value`` is the repr of a short plain value.

    ``digest`` is the digest of data (``identity``); empty for code, and for secrets.
    """

    name: str
    type: str
    size: int
    value: str = ""
    digest: str = ""

    @property
    def human(self) -> str:
        """The size in human-readable units."""
        return words.size(self.size)


class ShippedFile(FrozenDataclass):
    """A file that travels; ``path`` is relative to the notebook's folder, with slashes.

    ``data`` is its content if that goes into the payload. ``sha256`` is the content's digest, in hex; "" for
    a big file that stays on this machine, whose ``mtime`` tells its state.
    """

    path: str
    source: Path
    size: int
    executable: bool
    mtime: int  # nanoseconds
    sha256: str
    data: bytes | None


class DataFolder(FrozenDataclass):
    """A folder of data as a store holds it: its files and their list, by digest."""

    name: str
    files: tuple[ShippedFile, ...]
    listed: ShippedFile

    @property
    def size(self) -> int:
        """The total size of its files, in bytes."""
        return sum(file.size for file in self.files)


@dataclass
class Shipped:
    """The files found for a request: ``ships`` has an entry for each name, ``notes`` say what is left out."""

    files: tuple[ShippedFile, ...] = ()
    ships: tuple[Ship, ...] = ()
    notes: tuple[str, ...] = ()


class Call(FrozenDataclass):
    """What a rank runs, ready to travel; ``runtime.rank.call.run`` takes the content of ``pickle``.

    ``buffers`` are the pickle's out-of-band buffers (PEP 574): views of the captured objects' memory.
    ``sources`` holds the text of the notebook cells whose code travels, by file name; ``notes`` say what will
    be different on ranks. ``sets`` are the names that a cell sets there, ``gives`` is whether it has a value,
    ``plain`` whether that value is sure to be plain data, ``stops`` whether its code may stop in a debugger.
    ``began`` is when the capture began, in seconds since the epoch. ``text`` is the text of a cell, "" for a
    function, ``arguments`` are a cell's, as on its line, and ``by`` describes its owner to other people who
    wait for it. ``imports`` is what it imports, apart from the local modules, and ``packages`` what its nodes
    install. ``codes`` are the code objects of the notebook's functions in it, ``paths`` its variables that
    may be paths, ``shipped`` the files that go along because the spec names them, ``data`` the folders of
    data that go to the job's store.
    ``parameters`` are the names whose values differ between the runs of a group. ``code`` is all code in the
    pickle; with ``sourced`` its sources go along, as a node may have another Python. ``of_a_process`` has the
    objects that were created for the notebook's process: names with their types'.
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
    arguments: str = ""
    by: str = ""
    promoted: str = ""  # the lab whose cells it runs once more
    stops: bool = False
    imports: Imports = NO_IMPORTS
    packages: Installation = INSTALLS_NOTHING
    codes: tuple[CodeType, ...] = ()
    paths: Mapping[str, str | PurePath] = field(default_factory=lambda: NO_ITEMS)
    shipped: tuple[ShippedFile, ...] = ()
    data: tuple[DataFolder, ...] = ()
    parameters: frozenset[str] = frozenset()
    code: Codes = field(default_factory=Codes)
    sourced: bool = True
    of_a_process: Mapping[str, str] = field(default_factory=lambda: NO_ITEMS)
    lays: bool = False  # settings of this process or of ``logging`` go along

    @cached_property
    def table(self) -> Mapping[str, Any]:
        """Where the source of its code is, for another Python; computed on first use, as ``needs`` is."""
        return self.code.table(*([(self.filename, self.text)] if self.text else []))

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """The distributions that it needs, by module; computed on first use, as it takes milliseconds."""
        return needs(self.imports, self.files)

    def uncompilable(self, python: str) -> str:
        """Say why Python ``python`` ("3.12") can't compile its code, as far as can be told here; else ""."""
        try:
            check(dict(self.table), python)
        except SourceError as exc:
            return str(exc)
        return ""

    @property
    def size(self) -> int:
        """The bytes of the pickle and its buffers."""
        return len(self.pickle) + sum(view.nbytes for view in self.buffers)

    def notes_on(self, ranks: int) -> tuple[str, ...]:
        """Return the notes for a job of this many ranks."""
        alone = (
            f"{name} ({type_name}) was created for one process, so each of {ranks} ranks works as if it were "
            "the only one: create it in the code that the ranks run"
            for name, type_name in self.of_a_process.items()
        )
        return (*self.notes, *(alone if ranks > 1 else ()))

    @property
    def stored(self) -> tuple[ShippedFile | Installer, ...]:
        """The files that go into a job's store: big files, and the installer of the packages."""
        own = self.packages.installer
        files = {file.sha256: file for folder in self.data for file in (*folder.files, folder.listed)}
        big = (file for file in self.shipped if file.data is None)
        return (*big, *files.values(), *([own] if own else []))

    def with_files(self, shipped: Shipped) -> Call:
        """Return the call with the files that were requested."""
        return replace(
            self,
            shipped=shipped.files,
            ships=(*self.ships, *shipped.ships),
            notes=tuple(dict.fromkeys((*self.notes, *shipped.notes))),
        )


class Part(FrozenDataclass):
    """One of several cells that run in order: on ``ranks``, or on all ranks if that is empty.

    ``args`` and ``argv`` are its arguments, as :func:`~nbtorchjob.capture.from_cell` takes them.
    """

    text: str
    filename: str
    ranks: tuple[int, ...] = ()
    args: Mapping[str, str] = field(default_factory=lambda: NO_ITEMS)
    argv: tuple[str, ...] = ()
