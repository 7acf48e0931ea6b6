"""Requirements: what a user wants installed, and what a job and this kernel have, as lines for pip.

A *requirement* is a line in pip's form (PEP 508). Users give them as words, in files, or in a block at the
top of a cell. Where packages come from is up to the nodes: no setting of an index, and no password, leaves
this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nbtorchjob.environment import interpreter
from nbtorchjob.environment.interpreter import reference
from nbtorchjob.errors import SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.install.environment import normalised
from nbtorchjob.runtime.install.packages import of_torch
from nbtorchjob.spec import toml
from nbtorchjob.state import JobState
from nbtorchjob.state.facts.events import EnvironmentTold
from nbtorchjob.text.words import LINE
from nbtorchjob.text.words import line as bounded

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from nbtorchjob.environment.wheels import Installer, Wheel

LIKE_HERE = "like-here"

_FORM = "a requirement such as einops>=0.8"
_OF_INDEXES = "nodes use the package indexes of their own settings (PIP_INDEX_URL, UV_INDEX_URL)"
_OPTIONS = {
    **dict.fromkeys(("-r", "--requirement", "-c", "--constraint"), "name each file with --requirements"),
    **dict.fromkeys(("-e", "--editable"), "use --package PATH, which is built here and sent"),
    **dict.fromkeys(
        (
            *("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-index"),
            *("--trusted-host", "--pre"),
        ),
        _OF_INDEXES,
    ),
    "--hash": "nodes check no hashes: use a file without them",
}
_OF_INDEXES_IN_TABLES = {"index", "index-url", "extra-index-url", "find-links", "no-index", "sources"}
_COMMENT = re.compile(r"(^|\s+)#.*$")
# As PEP 723 writes it.
_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s?)+)^# ///$")


class PackageRequest(FrozenDataclass):
    """What words request: requirements, folders and wheels of this machine, and what a call needs."""

    requirements: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    like_here: bool = False


def of_words(words: Iterable[str]) -> PackageRequest:
    """Return what the words of ``--package`` request; raises ``SpecError``."""
    rest = [*words]
    paths = [word for word in rest if _is_path(word)]
    plain = [word for word in rest if word not in paths and word != LIKE_HERE]
    return PackageRequest(
        tuple(_checked("package", word) for word in plain),
        tuple(_existing_path(word) for word in paths),
        LIKE_HERE in rest,
    )


def of_file(name: str) -> Iterator[str]:
    """Yield the requirements in a file; raises ``SpecError`` with the line that isn't one."""
    try:
        # Not Path.expanduser, here and below: it raises for a user who doesn't exist.
        text = Path(os.path.expanduser(name)).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it isn't UTF-8"
        raise SpecError("requirements", name, f"a file of requirements, a line each ({why})") from None
    for number, line in _lines(text):
        where = f"{name}, line {number}"
        option = next((word for word in re.split(r"[\s=]+", line) if word.startswith("-")), None)
        if option is not None:
            why = _OPTIONS.get(option, f"{_FORM}, without options")
            raise SpecError(where, option, f"left out: {why}" if option in _OPTIONS else why)
        if _is_path(line):
            raise SpecError(where, line, "left out: use --package PATH, which is built here and sent")
        yield _checked(where, line)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with content, joined if continued, each with the number where it begins."""
    begun, logical_line = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun if logical_line else number
        is_comment = line.lstrip().startswith("#")  # which no backslash continues, as in pip (26.3)
        if line.endswith("\\") and not is_comment:
            logical_line += line[:-1]
            continue
        line = f" {line}" if is_comment else line
        if content := _COMMENT.sub("", logical_line + line).strip():
            yield begun, content
        logical_line = ""
    if content := _COMMENT.sub("", logical_line).strip():
        yield begun, content


def of_script(text: str, where: str) -> tuple[str, ...]:
    """Return the requirements of a block ``# /// script`` (PEP 723); raises ``SpecError``."""
    blocks = [match for match in _BLOCK.finditer(text + "\n") if match["type"] == "script"]
    if not blocks:
        return ()
    if len(blocks) > 1:
        raise SpecError(where, "# /// script", "given once")
    content = blocks[0]["content"]
    lines = (line[2:] if line.startswith("# ") else line[1:] for line in content.splitlines())
    try:
        table = toml.parsed("\n".join(lines))
    except ValueError as exc:
        raise SpecError(where, "# /// script", f"TOML ({exc})") from None
    if (version := table.get("requires-python")) is not None:
        _check_python(version, where)
    tools = table.get("tool")
    uv = tools.get("uv") if isinstance(tools, Mapping) else None
    for key in sorted(_OF_INDEXES_IN_TABLES.intersection(uv if isinstance(uv, Mapping) else ())):
        raise SpecError(f"{where}, [tool.uv]", key, f"left out: {_OF_INDEXES}")
    dependencies = table.get("dependencies", [])
    if not isinstance(dependencies, list) or not all(isinstance(item, str) for item in dependencies):
        raise SpecError(f"{where}, dependencies", dependencies, "a list of texts")
    return tuple(_checked(f"{where}, dependencies", dependency) for dependency in dependencies)


def _check_python(version: object, where: str) -> None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    python = ".".join(map(str, sys.version_info[:3]))
    try:
        if SpecifierSet(str(version)).contains(python, prereleases=True):
            return
    except InvalidSpecifier:
        raise SpecError(f"{where}, requires-python", version, "a version such as >=3.10") from None
    ranks = "ranks run the Python of this kernel"
    raise SpecError(f"{where}, requires-python", version, f"met by Python {python}: {ranks}")


def parsed(text: str) -> Requirement:
    """Parse a requirement that was checked."""
    from packaging.requirements import Requirement  # late: most jobs ask for none

    return Requirement(text)


def met(line: str, versions: Mapping[str, str]) -> bool:
    """Whether versions, by name, meet a checked requirement; one for other environments always is."""
    requirement = parsed(line)
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    version = versions.get(normalised(requirement.name))
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def _checked(where: str, text: str) -> str:
    """Return a requirement unchanged; raises ``SpecError`` if it is invalid, or reveals a secret."""
    if "${" in text:
        raise SpecError(where, text, f"{_FORM}, without variables: nodes have others")
    try:
        url = urlsplit(parsed(text).url or "")
    except ValueError as exc:  # an InvalidRequirement is one, too
        reason = str(exc).partition("\n")[0].rstrip(":.")
        raise SpecError(where, _bare(text), f"{_FORM} ({reason})") from None
    user, at, _ = url.netloc.rpartition("@")
    if at and not ("ssh" in url.scheme and ":" not in user):
        raise SpecError(where, _bare(text), "without a password: nodes have their own")
    if url.scheme == "file":
        raise SpecError(where, text, "a path alone (--package PATH): it is sent")
    return text


def _bare(text: str) -> str:
    """Return a text without anything that may be a password."""
    return re.sub(r"//[^/\s]*@", "//…@", text)


def _is_path(word: str) -> bool:
    if "://" in word or " @ " in word:
        return False
    return word.startswith((".", "~", os.sep)) or os.sep in word.partition(";")[0] or word.endswith(".whl")


def _existing_path(word: str) -> Path:
    path = Path(os.path.expanduser(word)).absolute()
    if path.is_dir() and any((path / name).is_file() for name in ("pyproject.toml", "setup.py")):
        return path
    if path.is_file() and path.suffix == ".whl":
        return path
    reason = (
        "it has no pyproject.toml" if path.is_dir() else "it is neither" if path.exists() else "no such file"
    )
    raise SpecError("package", word, f"a project's folder, or a wheel ({reason})")


class Installation(FrozenDataclass):
    """Requirements in pip's form, wheels that go along, and constraints on the versions of what they need.

    Distributions wanted ``exactly`` are installed in these versions, whatever they require of each other. The
    ``installer`` lies in the job's store for nodes that have none; what is installed doesn't depend on it.
    """

    requirements: tuple[str, ...] = ()
    wheels: tuple[Wheel, ...] = ()
    constraints: tuple[str, ...] = ()
    exactly: tuple[str, ...] = ()
    installer: Installer | None = None

    def __bool__(self) -> bool:
        return bool(self.requirements or self.wheels or self.exactly)

    @property
    def names(self) -> frozenset[str]:
        """The normalised names of the distributions that are wanted."""
        return names((*self.requirements, *self.exactly)) | {wheel.distribution for wheel in self.wheels}

    @property
    def digest(self) -> str:
        """A digest that tells it from others."""
        wheels = [(wheel.name, wheel.digest) for wheel in self.wheels]
        parts = self.requirements, self.constraints, self.exactly, wheels
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def header(self) -> dict[str, Any]:
        """The fields that ``runtime/install/packages`` reads in a payload."""
        return {
            "requirements": self.requirements,
            "wheels": {wheel.name: wheel.digest for wheel in self.wheels},
            "constraints": self.constraints,
            "exactly": self.exactly,
        }


NOTHING = Installation()


def names(lines: Iterable[str]) -> frozenset[str]:
    """Return the normalised names in requirements."""
    return frozenset(normalised(parsed(line).name) for line in lines)


# What pip accepts as a name (PEP 508) and a version (PEP 440): a node may belong to somebody else.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_VERSION = re.compile(
    r"(?:\d+!)?\d+(?:\.\d+)*(?:[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview)[-_.]?\d*)?(?:(?:-\d+)|"
    r"(?:[-_.]?(?:post|rev|r)[-_.]?\d*))?(?:[-_.]?dev[-_.]?\d*)?",
    re.IGNORECASE,
)


def lock_requirements(fact: EnvironmentTold) -> list[str]:
    """Return a line for each distribution, by name; what can't be installed from elsewhere is a comment."""
    versions = {**fact.distributions, **fact.installed}
    lines = []
    for name, version in sorted(versions.items()):
        public, plus, build = version.partition("+")
        pinned = f"{name}=={version}"
        if _NAME.fullmatch(name) is None or _VERSION.fullmatch(public) is None:
            lines.append(_comment(f"{pinned}: not a version that pip accepts"))
        elif name in fact.origins:
            where, why = reference(fact.origins[name])
            lines.append(f"{name} @ {where}" if where else _comment(f"{pinned}: {why}"))
        elif plus:
            # The version is found in an index without such builds, and also in one with only such builds.
            lines.append(_comment(f"{pinned}, a build (+{build}) that may have an index of its own"))
            lines.append(f"{name}=={public}")
        else:
            lines.append(pinned)
    return lines


def lock_text(state: JobState, fact: EnvironmentTold, facts: Sequence[str]) -> str:
    """Return a job's requirements below comments on where they are from; ``facts`` are further comments."""
    submitted = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(state.info.created))
    head = (
        f"What {state.info.id} could import; it was submitted on {submitted}.",
        f"Python {fact.python} on {fact.platform}",
        *facts,
    )
    return "\n".join([*map(_comment, head), *lock_requirements(fact)])


def _comment(text: str) -> str:
    return f"# {bounded(text, LINE)}"


# The payload brings its own.
_OURS = ("nbtorchjob", "cloudpickle")


def pins(names: Iterable[str]) -> tuple[str, ...]:
    """Return requirements of each distribution's version here, except torch's, which the image has."""
    versions = interpreter.environment().distributions
    travels = (name for name in dict.fromkeys(names) if name not in _OURS and not of_torch(name))
    # An index has a version without a build's own suffix, such as ``+cpu``.
    return tuple(f"{name}=={versions[name].partition('+')[0]}" for name in travels if versions.get(name))


def closure(names: Iterable[str]) -> list[str]:
    """Return these distributions and all that they need here, directly or not; sorted.

    torch and what it needs are left out: the image has its own.
    """
    reached: set[str] = set()
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name not in reached and not of_torch(name):
            reached.add(name)
            waiting += required(name)
    return sorted(reached)


def required(name: str) -> Iterator[str]:
    """Yield the distributions that one needs here, without its extras."""
    return (normalised(requirement.name) for requirement in _requirements(name))


def at_odds(names: Iterable[str]) -> bool:
    """Whether one of these distributions requires another version of something than is here.

    An installer would refuse them, though they work here. torch doesn't count: the image has its own.
    """
    versions = interpreter.environment().distributions
    requirements = (requirement for name in names for requirement in _requirements(name))
    specifiers = ((requirement.specifier, normalised(requirement.name)) for requirement in requirements)
    return any(
        name in versions and not of_torch(name) and not specifier.contains(versions[name], prereleases=True)
        for specifier, name in specifiers
    )


def _requirements(name: str) -> Iterator[Requirement]:
    from packaging.requirements import InvalidRequirement, Requirement  # late: few jobs ask

    with suppress(metadata.PackageNotFoundError):
        for text in metadata.distribution(name).requires or ():
            with suppress(InvalidRequirement):
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                    yield needed
