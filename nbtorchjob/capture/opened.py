"""Which files that lie beside the notebook, or a module, its code names.

A file is named by a text in the code that is the path of one that is there. A notebook's code names much
that it doesn't read, so of its texts those count that it passes to what opens files.
"""

from __future__ import annotations

import ast
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from nbtorchjob.capture.model import Call

_OPENS = frozenset(
    (
        *("open", "Path", "PosixPath", "PurePath", "read", "safe_open", "copyfile", "copytree"),
        *("listdir", "scandir", "walk", "glob", "iglob"),
        *("from_pretrained", "from_file", "from_config", "genfromtxt", "fromfile", "memmap", "imread"),
        *("ImageFolder", "DatasetFolder", "File", "ParquetFile"),
    )
)
_BEGIN = ("read_", "load", "from_csv", "from_json", "from_parquet")  # of names
_WRITES = frozenset(("write_text", "write_bytes", "mkdir", "touch", "unlink", "rmdir", "chmod"))
_PATHS = ("Path", "PosixPath", "PurePath")
_LONGEST = 200  # characters of a path
_NAMED = 3
_MOST_BYTES = 1 << 20  # of local modules that are looked through: 0.2 s


def beside(folder: Path, texts: Iterable[str], *, folders: bool = False) -> list[str]:
    """Return those of ``texts`` that are the path of a file in ``folder``, or of a folder if asked."""
    return [text for text in sorted({*texts}) if _is_there(folder, text, folders)]


def _is_there(folder: Path, text: str, folders: bool) -> bool:
    if not 0 < len(text) < _LONGEST or "\0" in text or os.path.isabs(text):
        return False
    path = folder / text
    return path.is_file() or (folders and text.strip("./") != "" and path.is_dir())


def by_call(call: Call, folder: Path) -> list[str]:
    """Return the relative paths of what there is in ``folder`` that a call's code opens."""
    trees = [*_parsed(call.text)]
    for filename, source in call.sources.items():
        mine = {(code.co_name, code.co_firstlineno) for code in call.codes if code.co_filename == filename}
        if mine:
            trees += (node for tree in _parsed(source) for node in ast.walk(tree) if _begin(node) in mine)
    modules = [file.data for file in call.files if file.path.endswith(".py")]
    if sum(map(len, modules)) <= _MOST_BYTES:
        trees += (tree for data in modules for tree in _parsed(data))
    named = {os.path.normpath(path) for tree in trees for path in _Opened(tree, call.paths).texts()}
    return beside(folder, (path for path in named if not path.startswith("..")), folders=True)


def not_shipped(call: Call, folder: Path, ship: Iterable[str]) -> tuple[str, ...]:
    """Return a note of what in ``folder`` a call's code opens that isn't, or lies in, one of ``ship``."""
    there = [PurePath(path) for path in ship]

    def goes(path: PurePath) -> bool:
        return any(path.is_relative_to(other) or other.is_relative_to(path) for other in there)

    left = [path for path in by_call(call, folder) if not goes(PurePath(path))]
    if not left:
        return ()
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    asked = " ".join(f"--ship {shlex.quote(path)}" for path in left[:_NAMED])
    lie = "lie" if len(left) > 1 else "lies"
    return (f"{', '.join(left[:_NAMED])}{more} {lie} beside the notebook, and not on ranks: {asked}",)


def _parsed(text: str | bytes) -> list[ast.AST]:
    try:
        return [ast.parse(text)]
    except (SyntaxError, ValueError):  # a cell with a magic, a template
        return []


def _begin(node: ast.AST) -> tuple[str, int] | None:
    """Return the name and first line that the code of a function has."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name, min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return ("<lambda>", node.lineno) if isinstance(node, ast.Lambda) else None


class _Opened:
    """The texts in one piece of code that are passed to what opens files."""

    def __init__(self, tree: ast.AST, values: Mapping[str, object]) -> None:
        self._tree = tree
        self._values = dict(values)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._values[node.targets[0].id] = node.value

    def texts(self) -> Iterator[str]:
        said: set[ast.AST] = set()  # what a path is made of, or is written to; a part comes behind its whole
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute) and node.attr in _WRITES:
                said.add(node.value)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                # A captured path that is asked for something: ``folder.iterdir()``
                value = self._values.get(node.value.id)
                if isinstance(value, PurePath):
                    yield str(value)
            if isinstance(node, ast.BinOp) and (node in said or self._text(node)):
                said.add(node.left)
            if isinstance(node, ast.BinOp) and node not in said and (text := self._text(node)):
                yield text
            if isinstance(node, ast.Call) and node not in said and self._opens(node):
                values = [*node.args, *(word.value for word in node.keywords)]
                yield from (text for argument in values for text in self._named(argument))

    def _opens(self, node: ast.Call) -> bool:
        name = _called(node)
        if name == "open" and len(node.args) > 1:
            mode = node.args[1]
            return not (isinstance(mode, ast.Constant) and str(mode.value)[:1] in ("w", "x", "a"))
        return name in _OPENS or name.startswith(_BEGIN)

    def _named(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.List | ast.Tuple):
            for element in node.elts:
                yield from self._named(element)
        elif isinstance(node, ast.Dict):
            for value in node.values:
                yield from self._named(value)
        elif text := self._text(node):
            yield text

    def _text(self, node: object, depth: int = 8) -> str:
        """Return the path that an expression is, as far as it can be told; else nothing."""
        if depth == 0:
            return ""
        if isinstance(node, str | PurePath):
            return str(node)
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else ""
        if isinstance(node, ast.Name):
            return self._text(self._values.get(node.id), depth - 1)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return self._joined([node.left, node.right], depth)
        if isinstance(node, ast.Call) and _called(node) in (*_PATHS, "join") and node.args:
            return self._joined(node.args, depth)
        return ""

    def _joined(self, parts: Sequence[ast.AST], depth: int) -> str:
        texts = [self._text(part, depth - 1) for part in parts]
        return os.path.join(*texts) if all(texts) else ""


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""
