"""The program that travels in every payload: the runtime's modules, and cloudpickle."""

from __future__ import annotations

import ast
import hashlib
import io
import re
import sys
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from heapq import nlargest
from pathlib import Path
from typing import TypeAlias

from nbtorchjob import runtime
from nbtorchjob.machine.folders import cached
from nbtorchjob.runtime.start import modules as together

_HERE = Path(runtime.__file__).parent
_TOGETHER = Path(together.__file__)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

_Documented: TypeAlias = "ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef"
# Where a piece of source begins and ends, as line and byte in it, and its replacement.
_Edit: TypeAlias = tuple[tuple[int, int], tuple[int, int], bytes]
_all_words = re.compile(rb"\w+").findall
_LOOKS_BACK = 32768  # bytes: deflate's window
_FIRST = 5  # modules that are tried as the first one

_SWAPS = (
    "api/frameworks.py",
    *(f"rank/{name}.py" for name in ("names", "optimizers", "settings", "swapped", "swapping")),
    "node/kept.py",
    "node/swaps.py",
)
# What a program for other machines has only if a job needs it: each pod and its Secret get 80 to 120 kB.
PARTS = {
    "environment": ("install/environment.py",),
    "packages": ("install/packages.py",),
    "stock": ("install/stock.py",),
    "mirror": ("api/mirror.py",),
    "nodes": tuple(f"rendezvous/{name}.py" for name in ("peers", "rendezvous", "ring", "signed")),
    "trainer status": ("api/trainerstatus.py",),
    "training": tuple(f"api/{name}.py" for name in ("dcp", "sampler", "training")),
    "ship": ("install/shipped.py",),
    "process": ("rank/carried.py",),
    "settings": ("rank/settings.py",),
    "swaps": _SWAPS,
    "lab": (*_SWAPS, "install/environment.py", "lab/"),
    "pool": (*_SWAPS, "install/environment.py", "install/shipped.py", "lab/", "pool/"),
    "values": (
        *(f"objects/{name}.py" for name in ("codenames", "generated", "pickler", "threads")),
        "cloudpickle/",
    ),
    "generated": ("objects/generated.py",),
    "threads": ("objects/threads.py",),
    "debugger": ("debug/",),
    "data": ("data/",),
}
# What comes with the question that needs it, and in no payload (``add_modules``); by the question's name.
LATE = {
    "files": ("ask/files.py",),
    "forward": ("ask/ports.py",),
    "profile": ("look/profiler.py", "look/profiling.py"),
}
# The names of the runtime's files in an archive, if they differ from those here; ``boot`` stands in for one.
_ROLES = {"start/main.py": "__main__.py", "api/rank_api.py": "nbtorchjob/__init__.py"}
_ABSENT = ("start/boot.py", "start/modules.py")
_ROOM = "nbtorchjob/runtime/"
_PACKAGE = f"{_ROOM}__init__.py"


@lru_cache(maxsize=16)
def archive(*, remote: bool, parts: frozenset[str] = frozenset(PARTS)) -> bytes:
    """Return a zip archive of the program, which a node compiles in 0.1 s unless it was forked with it.

    A ``remote`` one has only those ``parts`` of :data:`PARTS`, stripped by :func:`bare`, packed as
    tightly as deflate can: that takes a second, once. One that stays on this machine is packed in 20 ms.
    """
    if not remote:
        return _zip(whole(), 1)
    digest = hashlib.sha256(repr((sys.version_info, sorted(parts))).encode())
    for name, source in (*modules(), ("", Path(__file__).read_bytes()), ("", _TOGETHER.read_bytes())):
        digest.update(b"%s %d\n" % (name.encode(), len(source)) + source)
    return cached("programs", digest.hexdigest(), lambda: _zip(_small(parts), 9))


def _zip(members: Iterable[tuple[str, bytes]], level: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as packed:
        for name, data in members:
            packed.writestr(name, data)
    return out.getvalue()


def whole() -> Iterator[tuple[str, bytes]]:
    """Yield the members of an archive that stays on this machine."""
    members = dict(modules())
    members[_PACKAGE] = _TOGETHER.read_bytes()
    yield from _together(members, sorted)


def modules() -> Iterator[tuple[str, bytes]]:
    """Yield the name of each module's file in the archive, and its source."""
    import cloudpickle  # late, as it is slow to import: most commands pack nothing

    for path in sorted(_HERE.rglob("*.py")):
        if (name := path.relative_to(_HERE).as_posix()) not in _ABSENT:
            yield _ROLES.get(name, _ROOM + name), path.read_bytes()
    for path in sorted(Path(cloudpickle.__file__).parent.glob("*.py")):
        yield f"cloudpickle/{path.name}", path.read_bytes()


def _small(parts: frozenset[str]) -> Iterator[tuple[str, bytes]]:
    part_prefixes = tuple(name for part in parts for name in map(_name, PARTS[part]))
    absent = tuple(_name(path) for paths in (*PARTS.values(), *LATE.values()) for path in paths)
    members = {
        name: bare(source)
        for name, source in modules()
        if not name.startswith(absent) or name.startswith(part_prefixes)
    }
    members[_PACKAGE] = bare(_TOGETHER.read_bytes())
    yield from _together(members, _alike)


def _name(path: str) -> str:
    return path if path == "cloudpickle/" else _ROOM + path


@lru_cache(maxsize=16)
def late(question: str) -> dict[str, str]:
    """Return the modules that a question brings along: their texts by their names in an archive."""
    return {_name(path): bare((_HERE / path).read_bytes()).decode() for path in LATE.get(question, ())}


def _together(
    members: dict[str, bytes], order: Callable[[dict[str, bytes]], Iterable[str]]
) -> Iterator[tuple[str, bytes]]:
    for name in (*_ROLES.values(), _PACKAGE):  # what Python itself finds, and what then finds the rest
        yield name, members.pop(name)
    words = (word for name in order(members) for word in (name.encode(), members[name]))
    yield together.MODULES, together.SEPARATOR.join(words)


def _alike(members: dict[str, bytes]) -> Iterable[str]:
    """Return the names in an order in which modules repeat words within deflate's window: it saves 3%.

    Which of the biggest modules comes first makes a difference of some hundred bytes.
    """
    spoken = {name: Counter(_all_words(source)) for name, source in members.items()}

    def following(first: str) -> list[str]:
        names, left = [first], [name for name in members if name != first]
        while left:
            seen: set[bytes] = set()
            room = _LOOKS_BACK
            for name in reversed(names):
                seen |= spoken[name].keys()
                room -= len(members[name])
                if room < 0:
                    break

            def share(name: str, seen: set[bytes] = seen) -> tuple[float, int]:
                words = spoken[name]
                overlap = sum(len(word) * words[word] for word in words.keys() & seen)
                return overlap / len(members[name]), len(members[name])

            names.append(max(left, key=share))
            left.remove(names[-1])
        return names

    def size(names: list[str]) -> int:
        return len(zlib.compress(b"".join(members[name] for name in names), 9))

    biggest = nlargest(_FIRST, members, key=lambda name: len(members[name]))
    return min(map(following, biggest), key=size)


@lru_cache(maxsize=256)  # more than there are modules: most are the same with all parts
def bare(source: bytes) -> bytes:
    """Return a module without docstrings, comments, most annotations and most of its indentation.

    Each line stays in its place: tracebacks show the lines as they were written. The annotations in a class
    stay, as they may define its fields, and so do those that are all that a line says.
    """
    tokens = list(tokenize.tokenize(io.BytesIO(source).readline))
    arrows = [
        (token.start[0], len(token.line[: token.start[1]].rstrip().encode()))
        for token in tokens
        if token.string == "->"
    ]
    edits: list[_Edit] = []
    for token in tokens:
        if token.type == tokenize.COMMENT and not _is_license(token.string):
            line, column = token.start[0], len(token.line[: token.start[1]].encode())
            edits.append(((line, column), (line, column + len(token.string.encode())), b""))
    tree = ast.parse(source)
    fields = {stmt for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for stmt in node.body}
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            edits += _docstring(node)
        if isinstance(node, ast.AnnAssign) and node.value is not None and node not in fields:
            in_a_line = node.annotation.end_lineno == node.target.lineno  # else "=" would begin a line
            edits += _removed(_end(node.target), node.annotation) if in_a_line else ()
        if isinstance(node, ast.arg) and node.annotation is not None:
            edits += _removed((node.lineno, node.col_offset + len(node.arg.encode())), node.annotation)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            place = node.returns.lineno, node.returns.col_offset
            edits += _removed(max(arrow for arrow in arrows if arrow < place), node.returns)
    lines = source.splitlines(keepends=True)
    for (first, start), (last, stop), instead in sorted(edits, reverse=True):
        rest = lines[first - 1][:start] + instead + b"\n" * (last - first) + lines[last - 1][stop:]
        lines[first - 1 : last] = rest.splitlines(keepends=True)
    # How deep each line of code has to be indented; lines within strings are not among them
    depths: dict[int, int] = {}
    within: set[int] = set()
    level = brackets = 0
    for token in tokens:
        level += (token.type == tokenize.INDENT) - (token.type == tokenize.DEDENT)
        within.update(range(token.start[0] + 1, token.end[0] + 1))  # only a string's token has several lines
        if token.string.strip():
            depths.setdefault(token.start[0], 0 if brackets else level)
        if token.type == tokenize.OP:
            brackets += (token.string in "([{") - (token.string in ")]}")
    for number in depths.keys() - within:
        lines[number - 1] = b" " * depths[number] + lines[number - 1].lstrip()
    return b"".join(line.rstrip() + b"\n" for line in lines)


def _docstring(node: _Documented) -> Iterator[_Edit]:
    if (text := ast.get_docstring(node)) and not _is_license(text):
        docstring, *others = node.body
        # An otherwise empty body, and a line that continues after the docstring, need something in its place.
        alone = not others or others[0].lineno == docstring.end_lineno
        yield from _removed((docstring.lineno, docstring.col_offset), docstring, b'""' if alone else b"")


def _removed(start: tuple[int, int], node: ast.stmt | ast.expr, instead: bytes = b"") -> Iterator[_Edit]:
    yield start, _end(node), instead


def _end(node: ast.stmt | ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _is_license(text: str) -> bool:
    return "Copyright" in text  # cloudpickle's license asks to be kept
