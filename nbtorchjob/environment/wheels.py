"""Wheels that a job brings along: built here from a project, or given.

Also this kernel's uv, for nodes whose image has none: it is faster than pip, and some images have neither.
"""

from __future__ import annotations

import configparser
import csv
import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nbtorchjob.environment import interpreter
from nbtorchjob.errors import SpecError, SubmitError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine.activity import activity
from nbtorchjob.runtime.install.environment import command, normalised
from nbtorchjob.spec import toml
from nbtorchjob.text import words

MOST_BYTES = 256_000_000
_BUILD_S = 600.0
# The same project gives the same wheel: times in it are the first that a zip archive can have.
_EPOCH = {"SOURCE_DATE_EPOCH": "315532800"}
_WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_TOLD = ("METADATA", "entry_points.txt")  # the files in its metadata that a distribution needs
# The newest of each project, with its sources' digest: a build takes seconds, and a cell is run often.
_built: dict[Path, tuple[str, Wheel]] = {}
_GLIBC = re.compile(r"manylinux_(\d+)_(\d+)").match
_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_NAMED = re.compile(r"([^-]+)-([^-]+)(?:-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl").fullmatch


class Wheel(FrozenDataclass):
    """A wheel; ``name`` is its file name, which says what is in it."""

    name: str
    data: bytes

    @property
    def distribution(self) -> str:
        """The normalised name of what it installs."""
        return normalised(self.name.partition("-")[0])

    @property
    def version(self) -> str:
        """The version of what it installs."""
        return self.name.split("-")[1]

    @property
    def glibc(self) -> tuple[int, int] | None:
        """The oldest GNU C library that it runs with, if its name says so (PEP 600)."""
        platforms = self.name.removesuffix(".whl").rpartition("-")[2].split(".")
        newer = [(int(match[1]), int(match[2])) for match in map(_GLIBC, platforms) if match]
        older = [_LEGACY[name] for platform in platforms if (name := platform.partition("_")[0]) in _LEGACY]
        return min(newer + older, default=None)

    @property
    def digest(self) -> str:
        """A digest of what it installs, regardless of when it was made."""
        with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
            members = sorted((file.filename, file.CRC, file.external_attr) for file in archive.infolist())
        return hashlib.sha256(repr(members).encode()).hexdigest()

    @property
    def human(self) -> str:
        """The size in words."""
        return words.size(len(self.data))


def distribution(path: Path) -> str:
    """Return the normalised name of what a wheel or a project installs, as far as its files say it.

    A ``setup.py`` may compute it; then the folder's name is a guess: only a build is certain.
    """
    if path.suffix == ".whl":
        return normalised(path.name.partition("-")[0])
    pyproject: Mapping[str, Any] = {}
    with suppress(OSError, ValueError):
        pyproject = toml.parsed((path / "pyproject.toml").read_text(encoding="utf-8"))
    setup = configparser.RawConfigParser(strict=False)
    with suppress(UnicodeDecodeError, configparser.Error):
        setup.read(path / "setup.cfg", encoding="utf-8")
    declared = (
        _text(pyproject, "project", "name")
        or _text(pyproject, "tool", "poetry", "name")  # Poetry's own, before its version 2
        or setup.get("metadata", "name", fallback="")
    )
    return normalised(declared or path.resolve().name)


def _text(value: Any, *keys: str) -> str:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""


def wheel(path: Path) -> Wheel:
    """Return the wheel at ``path``, or of the project there; raises ``SpecError`` or ``SubmitError``."""
    if path.suffix == ".whl":
        return _read(path)
    project, sources = path.resolve(), _sources(path)
    built_of, built = _built.get(project, ("", None))
    if built is None or built_of != sources:
        built = _build(path)
        _built[project] = sources, built
    return built


def _build(path: Path) -> Wheel:
    """Build the wheel of the project at ``path``; raises ``SubmitError``."""
    with tempfile.TemporaryDirectory(prefix="nbtorchjob-") as folder:
        if find_spec("pip") is not None:
            pip = (*command("pip"), "--no-input", "--disable-pip-version-check")
            builder = [*pip, "wheel", "--no-deps", "--wheel-dir", folder, "--", str(path)]
        elif uv := shutil.which("uv"):
            python = ("--python", sys.executable)
            builder = [uv, "build", "--wheel", *python, "--out-dir", folder, "--", str(path)]
        else:
            raise SubmitError(f"--package {path} can't be built: {sys.executable} has neither pip nor uv")
        try:
            with activity(f"building {path.resolve().name}"):
                done = subprocess.run(
                    builder,
                    env={**_EPOCH, **os.environ},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    timeout=_BUILD_S,
                )
        except subprocess.TimeoutExpired:
            raise SubmitError(f"--package {path}: it wasn't built within {_BUILD_S:g} s") from None
        if done.returncode:
            # The line of a builder's output that says most: the error of the build, or else the last one
            lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            errors = [line for line in lines if re.match(r"\w*(?:Error|Exception)\b.*:", line)]
            plain = [line for line in lines if line.lower().startswith("error: ")]
            why = (errors or plain or lines or ["no reason given"])[-1]
            raise SubmitError(f"--package {path} can't be built: {why}")
        wheels = sorted(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise SubmitError(f"--package {path}: building it made {len(wheels)} wheels")
        return _read(wheels[0])


def _sources(project: Path) -> str:
    """Return a digest that changes with a project's files, except those that its build writes beside them."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(project):
        outputs = {"__pycache__", *(("build", "dist") if folder == str(project) else ())}
        left = {path for path in folders if path in outputs or path.endswith(".egg-info")}
        folders[:] = () if "pyvenv.cfg" in files else sorted({*folders} - left)
        for name in sorted(files):
            with suppress(OSError):  # removed by an editor meanwhile, or a link to nowhere
                status = os.stat(os.path.join(folder, name))
                changes = status.st_ino, status.st_size, status.st_mtime_ns
                digest.update(repr((folder, name, *changes)).encode())
    return digest.hexdigest()


def installed(name: str) -> Wheel:
    """Return a wheel of the distribution of that name, as it is installed here; raises ``SubmitError``.

    Programs that came with it aren't included.
    """
    from packaging import tags  # late: few jobs ask

    info = interpreter.metadata(name)
    if info is None:
        raise SubmitError(f"--package like-here: the files of {name} are not recorded here")
    with suppress(OSError):
        text = (info / "WHEEL").read_text() if (info / "WHEEL").exists() else _WHEEL
        fits = {str(tag) for tag in tags.sys_tags()}
        tag = next(
            (candidate for candidate in re.findall(r"(?m)^Tag: (\S+)", text) if candidate in fits),
            "py3-none-any",
        )
        # The distribution's files, except those that its installer wrote
        with open(info / "RECORD", newline="", encoding="utf-8") as file:
            recorded = [(path, path.partition("/")[0]) for path, *_ in csv.reader(file)]
        members = [
            path for path, top in recorded if top not in ("..", "", info.name) and not path.endswith(".pyc")
        ]
        members += [f"{info.name}/{member}" for member in _TOLD if (info / member).exists()]
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in members:
                entry, source = zipfile.ZipInfo(path), info.parent / path
                mode = 0o755 if source.stat().st_mode & stat.S_IXUSR else 0o644
                entry.external_attr = (stat.S_IFREG | mode) << 16  # pip applies a mode only to a plain file
                archive.writestr(entry, source.read_bytes())
            archive.writestr(f"{info.name}/WHEEL", text)
            archive.writestr(f"{info.name}/RECORD", "")
        return Wheel(f"{info.name.removesuffix('.dist-info')}-{tag}.whl", out.getvalue())
    raise SubmitError(f"--package like-here: the installation of {name} is no longer complete")


def _read(path: Path) -> Wheel:
    if not _NAMED(path.name):
        raise SpecError("package", str(path), "a wheel's name: NAME-VERSION-PYTHON-ABI-PLATFORM.whl")
    if path.stat().st_size > MOST_BYTES:
        size = words.size(path.stat().st_size)
        raise SpecError("package", str(path), f"at most {words.size(MOST_BYTES)} (it is {size})")
    from packaging import tags  # late, as above
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    with suppress(InvalidWheelFilename):  # the installer reports that
        file_tags = parse_wheel_filename(path.name)[3]
        # Nodes run this Python, on Linux.
        fits = {(tag.interpreter, tag.abi) for tag in tags.sys_tags()}
        if not any(
            (file.interpreter, file.abi) in fits and ("linux" in file.platform or file.platform == "any")
            for file in file_tags
        ):
            target = f"Python {sys.version_info[0]}.{sys.version_info[1]} on Linux, as nodes have"
            wheels = ", ".join(map(str, file_tags))
            raise SpecError("package", str(path), f"a wheel for {target} (it is for {wheels})")
    read = Wheel(path.name, path.read_bytes())
    if not zipfile.is_zipfile(io.BytesIO(read.data)):
        raise SpecError("package", str(path), "a wheel (it is no zip archive)")
    return read


_ELF = b"\x7fELF"
_PIECE = 1 << 20


class Installer(FrozenDataclass):
    """A program that goes into a job's store; nodes with another ``machine`` can't run it."""

    source: Path
    size: int
    sha256: str
    machine: str
    path = "uv"


def installer() -> Installer | None:
    """Return the uv beside this interpreter, or else on ``PATH``; None if there is none for Linux."""
    beside = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
    if path := shutil.which("uv", path=beside):
        source = Path(path).resolve()
        status = source.stat()
        return _read_installer(source, status.st_size, status.st_mtime_ns)
    return None


@lru_cache(maxsize=1)
def _read_installer(source: Path, size: int, mtime: int) -> Installer | None:
    digest = hashlib.sha256()
    with open(source, "rb") as file:
        # What a version manager puts on PATH is a script that looks for the program.
        if file.read(len(_ELF)) != _ELF:
            return None
        file.seek(0)
        for piece in iter(lambda: file.read(_PIECE), b""):
            digest.update(piece)
    return Installer(source, size, digest.hexdigest(), os.uname().machine)
