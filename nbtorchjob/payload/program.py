"""The program that travels in every payload: the runtime's modules, and cloudpickle."""

from __future__ import annotations

import ast
import importlib.util
import io
import marshal
import struct
import tokenize
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from nbtorchjob import runtime
from nbtorchjob.runtime import modules as together

# CPython loads a .pyc whose flags say "unchecked hash" without a check (PEP 552).
_UNCHECKED_HASH = 0b01
_HERE = Path(runtime.__file__).parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)


# What files of the runtime are in an archive, if it isn't what they are here; ``boot`` lies in front of one.
_ROLES = {"main.py": "__main__.py", "rank_api.py": "nbtorchjob/__init__.py"}
_ABSENT = ("boot.py", "modules.py")
_PACKAGE = "nbtorchjob/runtime/__init__.py"


@lru_cache(maxsize=2)
def archive(*, compiled: bool) -> bytes:
    """Return a zip archive of the program: ``compiled``, to start at once, or else small, to travel.

    The small one is a seventh of the size, and a node compiles it in 0.1 s: bytecode is longer than its
    source, and compresses worse.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, data in _compiled() if compiled else _small():
            packed.writestr(name, data)
    return out.getvalue()


def modules() -> Iterator[tuple[str, bytes]]:
    """Yield each module's name in the archive, and its source."""
    import cloudpickle  # late, as it is slow to import: most commands pack nothing

    for path in sorted(_HERE.glob("*.py")):
        if path.name not in _ABSENT:
            yield _ROLES.get(path.name, f"nbtorchjob/runtime/{path.name}"), path.read_bytes()
    for path in sorted(Path(cloudpickle.__file__).parent.glob("*.py")):
        yield f"cloudpickle/{path.name}", path.read_bytes()


def _compiled() -> Iterator[tuple[str, bytes]]:
    for name, source in modules():
        yield name, source
        yield name + "c", _bytecode(name, source)


def _small() -> Iterator[tuple[str, bytes]]:
    found = {name: bare(source) for name, source in modules()}
    found[_PACKAGE] = bare(Path(together.__file__).read_bytes())
    for name in (*_ROLES.values(), _PACKAGE):  # what Python itself finds, and what then finds the rest
        yield name, found.pop(name)
    parts = (part for name, source in found.items() for part in (name.encode(), source))
    yield together.MODULES, together.SEPARATOR.join(parts)


def _bytecode(name: str, source: bytes) -> bytes:
    # zipimport keeps no cache: compiling cloudpickle alone would cost each node 30 ms. A node with
    # another Python finds another magic number here and uses the source.
    code = compile(source, name, "exec", dont_inherit=True)
    head = importlib.util.MAGIC_NUMBER + struct.pack("<I", _UNCHECKED_HASH)
    return head + importlib.util.source_hash(source) + marshal.dumps(code)


def bare(source: bytes) -> bytes:
    """Return a module without what only readers need, with each line in its place: tracebacks name lines.

    That is comments, docstrings, and annotations but those of a class's fields.
    """
    lines = source.splitlines(keepends=True)
    for (first, begin), (last, end), new in sorted(_words(source), reverse=True):
        rest = lines[first - 1][:begin] + new + b"\n" * (last - first) + lines[last - 1][end:]
        lines[first - 1 : last] = rest.splitlines(keepends=True)
    return b"".join(line.rstrip() + b"\n" for line in lines)


def _words(source: bytes) -> Iterator[tuple[tuple[int, int], tuple[int, int], bytes]]:
    """Yield where something for readers begins and ends, as line and byte in it, and its replacement."""
    lines, tree = source.splitlines(), ast.parse(source)
    fields = {id(part) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for part in node.body}
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)) and not _license(text):
            said = node.body[0]
            yield (said.lineno, said.col_offset), _end(said), b'""'
        if isinstance(node, ast.arg) and node.annotation:
            yield (node.lineno, node.col_offset + len(node.arg.encode())), _end(node.annotation), b""
        if isinstance(node, ast.AnnAssign) and node.value and id(node) not in fields:
            yield _end(node.target), _end(node.annotation), b""
        if isinstance(node, FUNCTIONS) and node.returns:
            line = node.returns.lineno
            arrow = lines[line - 1].rindex(b"->", 0, node.returns.col_offset)
            yield (line, arrow), _end(node.returns), b""
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT and not _license(token.string):
            line, column = token.start
            at = len(token.line[:column].encode())
            yield (line, at), (line, at + len(token.string.encode())), b""


def _end(node: ast.stmt | ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _license(text: str) -> bool:
    return "Copyright" in text  # cloudpickle's, which asks to be kept
