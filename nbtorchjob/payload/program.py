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

# CPython loads a .pyc whose flags say "unchecked hash" without a check (PEP 552).
_UNCHECKED_HASH = 0b01
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@lru_cache(maxsize=2)
def archive(*, compiled: bool) -> bytes:
    """Return a zip archive of the program: ``compiled``, to start at once, or else small, to travel.

    The small one is a fifth of the size, and a node compiles it in 0.1 s: bytecode is longer than its source,
    and compresses worse.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, source in modules():
            packed.writestr(name, source if compiled else bare(source))
            if compiled:
                packed.writestr(name + "c", _bytecode(name, source))
    return out.getvalue()


def modules() -> Iterator[tuple[str, bytes]]:
    """Yield each module's name in the archive, and its source."""
    import cloudpickle  # late, as it is slow to import: most commands pack nothing

    ours = Path(runtime.__file__).parent
    for path in sorted(ours.glob("*.py")):
        yield f"nbtorchjob/runtime/{path.name}", path.read_bytes()
    yield "nbtorchjob/__init__.py", (ours / "rank_api.py").read_bytes()
    yield "__main__.py", (ours / "main.py").read_bytes()
    for path in sorted(Path(cloudpickle.__file__).parent.glob("*.py")):
        yield f"cloudpickle/{path.name}", path.read_bytes()


def _bytecode(name: str, source: bytes) -> bytes:
    # zipimport keeps no cache: compiling cloudpickle alone would cost each node 30 ms. A node with
    # another Python finds another magic number here and uses the source.
    code = compile(source, name, "exec", dont_inherit=True)
    head = importlib.util.MAGIC_NUMBER + struct.pack("<I", _UNCHECKED_HASH)
    return head + importlib.util.source_hash(source) + marshal.dumps(code)


def bare(source: bytes) -> bytes:
    """Return a module without comments and docstrings, with each line in its place: tracebacks name lines."""
    lines = source.splitlines(keepends=True)
    for (first, begin), (last, end), new in sorted(_words(source), reverse=True):
        rest = lines[first - 1][:begin] + new + b"\n" * (last - first) + lines[last - 1][end:]
        lines[first - 1 : last] = rest.splitlines(keepends=True)
    return b"".join(line.rstrip() + b"\n" for line in lines)


def _words(source: bytes) -> Iterator[tuple[tuple[int, int], tuple[int, int], bytes]]:
    """Yield where text for readers begins and ends, as line and byte in it, and its replacement."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)) and not _license(text):
            said = node.body[0]
            assert said.end_lineno is not None
            assert said.end_col_offset is not None
            yield (said.lineno, said.col_offset), (said.end_lineno, said.end_col_offset), b'""'
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT and not _license(token.string):
            line, column = token.start
            at = len(token.line[:column].encode())
            yield (line, at), (line, at + len(token.string.encode())), b""


def _license(text: str) -> bool:
    return "Copyright" in text  # cloudpickle's, which asks to be kept
