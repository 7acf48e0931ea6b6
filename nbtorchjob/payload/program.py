"""The program that travels in every payload: the runtime's modules, and cloudpickle."""

from __future__ import annotations

import ast
import hashlib
import io
import re
import sys
import tokenize
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from nbtorchjob import runtime
from nbtorchjob.machine import cache
from nbtorchjob.runtime import modules as together

_HERE = Path(runtime.__file__).parent
_TOGETHER = Path(together.__file__)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)


# Where something begins and ends, as line and byte in it, and what is to stand there.
_Edit: TypeAlias = tuple[tuple[int, int], tuple[int, int], bytes]
# From Python 3.12 on an f-string is many tokens, whose blanks are its own.
_LITERAL_BEGINS, _LITERAL_ENDS = ([getattr(tokenize, f"FSTRING_{which}", None)] for which in ("START", "END"))
# What would be one token without a blank in between: a word, a number, a text that ends elsewhere.
_one_word = re.compile(r"""[\w"'.]{2}""").match
_all_words = re.compile(rb"\w+").findall
_LOOKS_BACK = 32768  # bytes, of deflate

# What a program that travels has only where a job needs it: 80 kB go to each pod, and into each Secret.
PARTS = {
    "environment": ("environment.py",),
    "needs": ("needed.py",),
    "strict": ("needed.py", "versions.py"),
    "packages": ("needed.py", "packages.py"),
    "stock": ("fetched.py", "stock.py"),
    "mirror": ("mirror.py",),
    "trainer status": ("trainerstatus.py",),
    "ship": ("fetched.py", "shipped.py"),
    "runs": ("given.py",),
    "lab": ("keeper.py", "lab.py", "lead.py", "needed.py", "relay.py", "standing.py", "turns.py"),
    "debugger": ("bridge.py", "debugger.py", "patience.py"),
}
# What files of the runtime are in an archive, if it isn't what they are here; ``boot`` lies in front of one.
_ROLES = {"main.py": "__main__.py", "rank_api.py": "nbtorchjob/__init__.py"}
_ABSENT = ("boot.py", "modules.py")
_ROOM = "nbtorchjob/runtime/"
_PACKAGE = f"{_ROOM}__init__.py"


@lru_cache(maxsize=4)
def archive(*, far: bool, parts: frozenset[str] = frozenset(PARTS)) -> bytes:
    """Return a zip archive of the program, which a node compiles in 0.1 s unless it was forked with it.

    What goes ``far`` has only those ``parts`` of :data:`PARTS`, and is made as small as it gets: that takes a
    second, once. What stays on this machine is twice as big, and made in 20 ms.
    """
    if not far:
        return _zip(whole(), 1)
    known = hashlib.sha256(repr((sys.version_info, sorted(parts))).encode())
    for name, source in (*modules(), ("", Path(__file__).read_bytes()), ("", _TOGETHER.read_bytes())):
        known.update(b"%s %d\n" % (name.encode(), len(source)) + source)
    return cache.made("programs", known.hexdigest(), lambda: _zip(_small(parts), 9))


def _zip(members: Iterable[tuple[str, bytes]], level: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as packed:
        for name, data in members:
            packed.writestr(name, data)
    return out.getvalue()


def whole() -> Iterator[tuple[str, bytes]]:
    """Yield the members of what stays on this machine."""
    found = dict(modules())
    found[_PACKAGE] = _TOGETHER.read_bytes()
    yield from _together(found, sorted)


def modules() -> Iterator[tuple[str, bytes]]:
    """Yield the name of each module's file in the archive, and its source."""
    import cloudpickle  # late, as it is slow to import: most commands pack nothing

    for path in sorted(_HERE.glob("*.py")):
        if path.name not in _ABSENT:
            yield _ROLES.get(path.name, _ROOM + path.name), path.read_bytes()
    for path in sorted(Path(cloudpickle.__file__).parent.glob("*.py")):
        yield f"cloudpickle/{path.name}", path.read_bytes()


def _small(parts: frozenset[str]) -> Iterator[tuple[str, bytes]]:
    taken = {file for part in parts for file in PARTS[part]}
    absent = {_ROOM + file for files in PARTS.values() for file in files if file not in taken}
    found = {name: bare(source) for name, source in modules() if name not in absent}
    found[_PACKAGE] = bare(_TOGETHER.read_bytes())
    yield from _together(found, _alike)


def _together(
    found: dict[str, bytes], order: Callable[[dict[str, bytes]], Iterable[str]]
) -> Iterator[tuple[str, bytes]]:
    for name in (*_ROLES.values(), _PACKAGE):  # what Python itself finds, and what then finds the rest
        yield name, found.pop(name)
    each = (word for name in order(found) for word in (name.encode(), found[name]))
    yield together.MODULES, together.SEPARATOR.join(each)


def _alike(found: dict[str, bytes]) -> Iterator[str]:
    """Yield the names so that most of what each module says was just said, where deflate looks: 3% less."""
    words = {name: _all_words(source) for name, source in found.items()}
    before = b""

    def share(name: str) -> tuple[float, int]:
        known = sum(len(word) for word in words[name] if word in seen)
        return known / len(found[name]), len(found[name])  # a big one first

    while words:
        seen = {*_all_words(before)}
        name = max(words, key=share)
        before = (before + found[name])[-_LOOKS_BACK:]
        del words[name]
        yield name


def bare(source: bytes) -> bytes:
    """Return a module without what only readers need, with each line in its place: tracebacks name lines.

    That is comments, docstrings, annotations but those of a class's fields, the types imported for them,
    and most blanks.
    """
    left = _edited(source, _words(source))
    left = _edited(left, _types(left))
    return _edited(left, _blanks(left))


def _edited(source: bytes, edits: Iterable[_Edit]) -> bytes:
    lines = source.splitlines(keepends=True)
    for (first, begin), (last, end), new in sorted(edits, reverse=True):
        rest = lines[first - 1][:begin] + new + b"\n" * (last - first) + lines[last - 1][end:]
        lines[first - 1 : last] = rest.splitlines(keepends=True)
    return b"".join(line.rstrip() + b"\n" for line in lines)


def _words(source: bytes) -> Iterator[_Edit]:
    """Yield what is for readers."""
    lines, tree = source.splitlines(), ast.parse(source)
    fields = {id(part) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for part in node.body}
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)) and not _license(text):
            said, *rest = node.body
            alone = not rest or rest[0].lineno == said.end_lineno  # it holds a place then
            yield (said.lineno, said.col_offset), _end(said), b'""' if alone else b""
        if isinstance(node, ast.arg) and node.annotation:
            yield (node.lineno, node.col_offset + len(node.arg.encode())), _end(node.annotation), b""
        # One of several lines holds a statement's lines together, by its brackets: it stays.
        if (
            isinstance(node, ast.AnnAssign)
            and node.value
            and id(node) not in fields
            and _in_a_line(node.annotation)
        ):
            yield _end(node.target), _end(node.annotation), b""
        if isinstance(node, FUNCTIONS) and node.returns and _in_a_line(node.returns):
            line = node.returns.lineno
            arrow = lines[line - 1].rindex(b"->", 0, node.returns.col_offset)
            yield (line, arrow), _end(node.returns), b""
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT and not _license(token.string):
            (line, at), (_, end) = _places(token)
            yield (line, at), (line, end), b""


def _types(source: bytes) -> Iterator[_Edit]:
    """Yield the imports of types that only annotations named, which are gone."""
    times = Counter(_all_words(source))
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module == "typing":
            names = ", ".join(each.name for each in node.names if times[each.name.encode()] > 1)
            yield (node.lineno, 0), _end(node), f"from typing import {names}".encode() if names else b""


def _blanks(source: bytes) -> Iterator[_Edit]:
    """Yield the blanks before each token: of an indentation one a level is left, and one between words."""
    depth, literals, before, end = 0, 0, "", (0, 0)
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        depth += (token.type == tokenize.INDENT) - (token.type == tokenize.DEDENT)
        if not token.string.strip() or token.type == tokenize.ENCODING:
            before = "" if token.type == tokenize.NEWLINE else before
            continue
        (line, at), last = _places(token)
        if line > end[0] and not literals:
            yield (line, 0), (line, at), b"" if before else b" " * depth
        elif at > end[1] and not literals:
            yield end, (line, at), b" " if _one_word(before[-1] + token.string[0]) else b""
        literals += (token.type in _LITERAL_BEGINS) - (token.type in _LITERAL_ENDS)
        before, end = token.string, last


def _places(token: tokenize.TokenInfo) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return where a token begins and ends, as line and byte in it."""
    (first, begin), (last, end) = token.start, token.end
    lines = token.line.splitlines(keepends=True)
    return (first, len(lines[0][:begin].encode())), (last, len(lines[last - first][:end].encode()))


def _in_a_line(node: ast.expr) -> bool:
    return node.lineno == node.end_lineno


def _end(node: ast.stmt | ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _license(text: str) -> bool:
    return "Copyright" in text  # cloudpickle's, which asks to be kept
