"""What images are known to have, as reported by their nodes, and how that compares with a call's needs.

It is kept in the user's folder, by the image's digest.

A reference (``team/train:latest``) leads to the digest that it last had, in a kubeconfig's context; by now it
may be another image's. What a job mounts, or sets for Python, may be imported, too: each combination with an
image is kept apart.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbtorchjob.environment.interpreter import Environment, Need
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine.folders import own, record, state_dir
from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.install import environment
from nbtorchjob.runtime.install.environment import compatible
from nbtorchjob.spec import built
from nbtorchjob.state.facts.events import EnvironmentTold
from nbtorchjob.text import words

if TYPE_CHECKING:
    from nbtorchjob.environment.wheels import Wheel

_FORGET_S = 90 * 24 * 3600.0
# The characters of names and versions (PEP 508, PEP 440), and of a platform.
_plain = re.compile(r"[\w.+! -]{1,128}", re.ASCII).fullmatch


class JobImage(NamedTuple):
    """An image as a job requests it; ``beside`` is what else in the job may change what is imported."""

    context: str
    image: str
    beside: str = ""


class Contents(FrozenDataclass):
    """What the image with a reference and a digest has; ``time`` is when a node reported it."""

    image: str
    digest: str
    time: float
    environment: Environment


def learn(request: JobImage, digest: str, fact: EnvironmentTold) -> None:
    """Record what a node of that image reported, by the image's digest."""
    contents = Contents(request.image, digest or request.image, fact.time, of(fact))
    with suppress(OSError, NBTorchJobError):  # a full disk: the next job reports it again
        # Forget images that no job has run for a long time.
        for path in _folder().iterdir():
            if time.time() - path.stat().st_mtime > _FORGET_S:
                path.unlink(missing_ok=True)  # another kernel may do so, too
        _write(_contents(contents.digest, request), asdict(contents))
        _write(_reference(request), {"digest": contents.digest})


def contents_of(request: JobImage) -> Contents | None:
    """Return the known contents of the image that a reference last led to; None if there are none."""
    with suppress(OSError, NBTorchJobError, ValueError, TypeError, KeyError):
        digest = str(json.loads(record(_reference(request)))["digest"])
        return replace(built(Contents, json.loads(record(_contents(digest, request)))), image=request.image)
    return None


def of(fact: EnvironmentTold, *, installed: bool = False) -> Environment:
    """Return what a node's image has, and on request what was ``installed`` for its job.

    Names and versions that can't be valid are left out, as the rest is shown in terminals.
    """
    distributions = {**fact.distributions, **fact.installed} if installed else fact.distributions
    versions = {name: version for name, version in distributions.items() if _plain(name) and _plain(version)}
    modules = tuple(filter(_plain, fact.modules))
    python, platform = (text if _plain(text) else "" for text in (fact.python, fact.platform))
    return Environment(python, platform, versions, modules)


def _contents(digest: str, request: JobImage) -> Path:
    return _folder() / f"{_hashed(digest, request.beside)}.json"


def _reference(request: JobImage) -> Path:
    return _folder() / f"{_hashed(*request)}.ref"


def _hashed(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:24]


def _folder() -> Path:
    return own(state_dir() / "images")


def _write(path: Path, data: dict[str, Any]) -> None:
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(data))
    partial.replace(path)


SAME, COMPATIBLE, DIFFERS, LACKS, PINNED, UNKNOWN = "same", "compatible", "differs", "lacks", "pinned", "?"
HEAD = ("module", "distribution", "here", "there", "verdict")
OLDEST_PYTHON = (3, 8)  # of a node: as in ``runtime/start/main.py``
_OTHERS = "another's"  # a distribution of another name has the module

_named = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*").match


class Row(FrozenDataclass):
    """A need, the version of its distribution in the image, and the verdict."""

    need: Need
    image_version: str
    verdict: str


class Comparison(FrozenDataclass):
    """What a call needs, compared with what an image has; ``target`` is None while that is unknown."""

    rows: tuple[Row, ...]
    kernel: Environment
    target: Environment | None
    pinned: frozenset[str] = frozenset()
    image: str = "the image"  # which one, if there are several

    @property
    def line(self) -> str:
        """The differences, in words that follow "the image"; "" if there are none.

        Another version of torch isn't among them: the node reports that.
        """
        lacks = [f"{row.need.distribution} {row.need.version}" for row in self._of(LACKS)]
        # The Python and the machine, where they differ
        if self.target is None:
            platform = []
        else:
            rows = [("Python", self.kernel.minor, self.target.minor)]
            rows += [("", self.kernel.machine, self.target.machine)]
            platform = [
                f"{name} {image_value} (here {kernel_value})".strip()
                for name, kernel_value, image_value in rows
                if image_value not in ("", kernel_value)
            ]
        has = platform + [
            f"{row.need.distribution} {row.image_version} (here {row.need.version})"
            for row in self._of(DIFFERS)
            if row.need.distribution != "torch"
        ]
        parts = [
            f"{verb} {environment.in_words(names)}"
            for verb, names in (("lacks", lacks), ("has", has))
            if names
        ]
        return " and ".join(parts)

    def refusal(
        self,
        image: str,
        *,
        strict: bool,
        add: str = "add",
        uncompilable: Callable[[str], str] = lambda python: "",
    ) -> str:
        """Return why the call can't run there, and how to fix that; "" if it may.

        ``add`` is what to do with the options that fix it. ``uncompilable`` says why another Python can't
        compile the call's code.
        """
        if self.target is None:
            return ""
        minor = self.target.minor
        if minor and tuple(map(int, minor.split("."))) < OLDEST_PYTHON:
            needs = "{}.{} or later".format(*OLDEST_PYTHON)
            return f"{image} has Python {self.target.python}: use one with Python {needs}"
        if minor not in ("", self.kernel.minor) and (why := uncompilable(minor)):
            has = f"{image} has Python {self.target.python} and this kernel {self.kernel.python}"
            return f"{has}, and {why}: use an image with Python {self.kernel.minor}"
        # How a node would refuse its torch before it does anything; "" if the torch will do
        if self.target is None or "torch" in self.pinned:
            torch = ""
        elif not self.target.may_have("torch"):
            torch = "has no torch; use one with torch {}.{} or later".format(*torch_versions.OLDEST)
        else:
            torch = torch_versions.too_old(self.target.distributions.get("torch", ""))
        if torch:
            return f"{image} {torch}"
        # A module in a shared namespace may be there in a distribution of another name.
        lacking = [
            row.need
            for row in self._of(LACKS)
            if strict
            or (row.need.surely and self.target is not None and not self.target.may_have(row.need.module))
        ]
        if lacking:
            return environment.refusal(image, [{**asdict(need), "mend": need.mend} for need in lacking], add)
        if strict and (line := self.line):
            mend = environment.mend([row.need.mend for row in self._of(DIFFERS)])
            return f"{image} {line}, and --strict is given: {add} {mend}, or use an image that has the same"
        return ""

    @property
    def absent(self) -> list[str]:
        """The modules that aren't there."""
        return [row.need.module for row in self._of(LACKS)]

    def without(self, modules: Collection[str]) -> Comparison:
        """Return it without the needs for some modules."""
        return replace(self, rows=tuple(row for row in self.rows if row.need.module not in modules))

    @property
    def cuda(self) -> str:
        """Say that torch there uses no GPU, or another CUDA than here, if the builds' names tell; else ""."""
        both = [side.distributions.get("torch", "") for side in (self.kernel, self.target or self.kernel)]
        kernel_build, image_build = (version.partition("+")[2] for version in both)
        if image_build == "cpu" and self.target is not None:
            return f"has torch {both[1]}, which uses no GPU"
        if {kernel_build[:2], image_build[:2]} == {"cu"} and kernel_build != image_build:
            return f"has torch {both[1]} (here {both[0]}): code built for one CUDA doesn't run with another"
        return ""

    def _of(self, verdict: str) -> list[Row]:
        return [row for row in self.rows if row.verdict == verdict]

    @property
    def summary(self) -> str:
        """The comparison in one line."""
        if self.target is None:
            return f"the packages of {self.image} aren't known"
        return f"{self.image} {self.line or 'has all of it'}"

    def lines(self) -> list[str]:
        """Return the table as lines of text."""
        return words.columns(self.table())

    def table(self) -> list[tuple[str, ...]]:
        """Return the rows as texts below their head; nothing if nothing is needed."""
        rows = [
            (row.need.module, row.need.distribution, row.need.version, row.image_version, row.verdict)
            for row in self.rows
        ]
        return [HEAD, *rows] if rows else []


def compared(
    needs: Iterable[Need], kernel: Environment, target: Environment | None, packages: Sequence[str] = ()
) -> Comparison:
    """Compare what is needed with what ``target`` has; ``packages`` will be installed, whatever is there."""
    pinned = frozenset(map(needed_name, packages))
    return Comparison(tuple(_row(need, target, pinned) for need in needs), kernel, target, pinned)


def too_new(wheels: Iterable[Wheel], target: Environment) -> str:
    """Say which of the wheels that go along needs a newer C library than is there; "" if none does."""
    for wheel in wheels:
        if target.glibc is not None and wheel.glibc is not None and wheel.glibc > target.glibc:
            has, needs = (".".join(map(str, version)) for version in (target.glibc, wheel.glibc))
            release = f"{wheel.distribution} {wheel.version}"
            return f"has glibc {has}, but {release}, sent with the job, needs {needs}: use a newer image"
    return ""


def unmet(lines: Iterable[str], target: Environment) -> list[str]:
    """Return the requirements, each checked before, that an environment doesn't meet."""
    from nbtorchjob.environment import requirements  # late: hardly any cell asks for any

    return [line for line in lines if not requirements.met(line, target.distributions)]


def needed_name(requirement: str) -> str:
    """Return the name of the distribution that a requirement asks for; "" if it names none."""
    match = _named(requirement)
    return environment.normalised(match.group()) if match else ""


def _row(need: Need, target: Environment | None, pinned: Collection[str]) -> Row:
    if target is None:
        return Row(need, UNKNOWN, PINNED if need.distribution in pinned else UNKNOWN)
    version = target.distributions.get(need.distribution)
    if need.distribution in pinned:
        return Row(need, version or "", PINNED)
    if version is None:
        # A namespace's name is shared: its presence says nothing about its contents.
        other = "." not in need.module and target.may_have(need.module)
        return Row(need, _OTHERS, DIFFERS) if other else Row(need, "", LACKS)
    if version == need.version:
        return Row(need, version, SAME)
    return Row(need, version, COMPATIBLE if compatible(version, need.version) else DIFFERS)
