"""What ranks lack of the notebook's folder: changes to its modules, and files that the code opens.

Ranks import a module's file again, so variables that were set in the module, and edits to the file, differ
there, and an object that the notebook shares with the module exists twice. A string in the code refers to a
file if it is the path of an existing one. A notebook's code mentions many files that it doesn't read, so only
strings that it passes to functions that open files count.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from logging import Logger
from pathlib import Path, PurePath
from types import FunctionType, ModuleType
from typing import Any

from nbtorchjob.capture import patches, report
from nbtorchjob.capture.model import Call
from nbtorchjob.capture.pickling import goes_by_reference
from nbtorchjob.runtime.facts.secret import masked
from nbtorchjob.runtime.objects import codenames, importable
from nbtorchjob.text import words

_OPENS = frozenset(
    (
        *("open", "Path", "PosixPath", "PurePath", "read", "safe_open", "copyfile", "copytree"),
        *("listdir", "scandir", "walk", "glob", "iglob"),
        *("from_pretrained", "from_file", "from_config", "genfromtxt", "fromfile", "memmap", "imread"),
        *("ImageFolder", "DatasetFolder", "File", "ParquetFile"),
    )
)
_BEGIN = ("read_", "load", "from_csv", "from_json", "from_parquet")  # prefixes of such names
_SAVES = ("save", "to_", "dump")  # prefixes of names of functions that write to a path
_WRITES = frozenset(("write_text", "write_bytes", "mkdir", "touch", "unlink", "rmdir", "chmod"))
_PATHS = ("Path", "PosixPath", "PurePath")
_LONGEST = 200  # characters of a path
_NAMED = 3
_MOST_BYTES = 1 << 20  # of local modules that are searched: 0.2 s


def beside(folder: Path, texts: Iterable[str], *, folders: bool = False) -> list[str]:
    """Return the ``texts`` that are the path of a file in ``folder``, or with ``folders`` of a folder."""
    paths = []
    for text in sorted({*texts}):
        if 0 < len(text) < _LONGEST and "\0" not in text and not os.path.isabs(text):
            path = folder / text
            if path.is_file() or (folders and text.strip("./") != "" and path.is_dir()):
                paths.append(text)
    return paths


def by_call(call: Call, folder: Path) -> list[str]:
    """Return the relative paths of the files and folders in ``folder`` that a call's code opens."""
    trees = [*_parsed(call.text)]
    for filename, source in call.sources.items():
        starts = {(code.co_name, code.co_firstlineno) for code in call.codes if code.co_filename == filename}
        if starts:
            trees += (node for tree in _parsed(source) for node in ast.walk(tree) if _begin(node) in starts)
    modules = [file.data for file in call.files if file.path.endswith(".py")]
    if sum(map(len, modules)) <= _MOST_BYTES:
        trees += (tree for data in modules for tree in _parsed(data))
    named = {os.path.normpath(path) for tree in trees for path in _Opened(tree, call.paths).texts()}
    return beside(folder, (path for path in named if not path.startswith("..")), folders=True)


def not_shipped(call: Call, folder: Path, ship: Iterable[str]) -> tuple[str, ...]:
    """Return a note of the files in ``folder`` that a call's code opens and that ``ship`` doesn't cover."""
    shipped_paths = [PurePath(path) for path in ship]

    def goes(path: PurePath) -> bool:
        return any(path.is_relative_to(other) or other.is_relative_to(path) for other in shipped_paths)

    left = [path for path in by_call(call, folder) if not goes(PurePath(path))]
    options = " ".join(f"--ship {shlex.quote(path)}" for path in left[:_NAMED])
    files_lie = f"{words.some(left, _NAMED)} {'lie' if len(left) > 1 else 'lies'}"
    return (f"{files_lie} beside the notebook, but not on ranks: {options}",) if left else ()


def _parsed(text: str | bytes) -> list[ast.AST]:
    try:
        return [ast.parse(text)]
    except (SyntaxError, ValueError):  # a cell with a magic, a template
        return []


def _begin(node: ast.AST) -> tuple[str, int] | None:
    """Return the name and first line of a function's code; None for any other node."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name, min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return ("<lambda>", node.lineno) if isinstance(node, ast.Lambda) else None


class _Opened:
    """The strings in one piece of code that are passed to functions that open files."""

    def __init__(self, tree: ast.AST, values: Mapping[str, object]) -> None:
        self._tree = tree
        self._values = dict(values)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._values[node.targets[0].id] = node.value

    def texts(self) -> Iterator[str]:
        parts = self._targets()  # and parts of paths, which follow their whole
        for node in ast.walk(self._tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value not in parts
            ):
                # A captured path whose attribute is used: ``folder.iterdir()``
                value = self._values.get(node.value.id)
                if isinstance(value, PurePath):
                    yield str(value)
            if isinstance(node, ast.BinOp) and (node in parts or self._text(node)):
                parts.add(node.left)
            if isinstance(node, ast.BinOp) and node not in parts and (text := self._text(node)):
                yield text
            if isinstance(node, ast.Call) and node not in parts:
                name = _called(node)
                if (name in _OPENS and not _writes(node)) or name.startswith(_BEGIN):
                    values = [*node.args, *(word.value for word in node.keywords)]
                    yield from (text for argument in values for text in self._named(argument))

    def _targets(self) -> set[ast.AST]:
        """Return the expressions whose value is a path that code only writes to."""
        targets: set[ast.AST] = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute) and node.attr in _WRITES:
                targets.add(node.value)
            elif isinstance(node, ast.Call) and (_writes(node) or _called(node).startswith(_SAVES)):
                paths = [*node.args, getattr(node.func, "value", node)]
                targets.update(
                    p for p in paths if isinstance(p, ast.BinOp | ast.Name) or _called(p) in _PATHS
                )
            elif isinstance(node, ast.BinOp) and node in targets:
                targets.add(node.left)
        names = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name)]
        read = {node.id for node in names if isinstance(node.ctx, ast.Load) and node not in targets}
        saved = {node.id for node in names if node in targets} - read
        assigned = [node for node in ast.walk(self._tree) if isinstance(node, ast.Assign)]
        targets.update(a.value for a in assigned if getattr(a.targets[0], "id", "") in saved)
        return targets

    def _named(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.List | ast.Tuple | ast.Dict):
            for value in node.values if isinstance(node, ast.Dict) else node.elts:
                yield from self._named(value)
        elif text := self._text(node):
            yield text

    def _text(self, node: object, depth: int = 8) -> str:
        """Return the path that an expression evaluates to, if that can be told; else ""."""
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


def _writes(call: ast.Call) -> bool:
    """Whether a call opens a file to write to it."""
    keywords = [word.value for word in call.keywords if word.arg == "mode"]
    modes = [str(n.value) for n in (*call.args[:2], *keywords) if isinstance(n, ast.Constant)]
    return _called(call) == "open" and any(re.fullmatch(r"[wxa][bt+]*", mode) for mode in modes)


def _called(node: ast.AST) -> str:
    function = getattr(node, "func", None)
    return str(getattr(function, "id", getattr(function, "attr", "")))


def differences(paths: Mapping[str, Path]) -> list[str]:
    """Describe what was set in local modules or edited in their files, and which data isn't taken along.

    ``paths`` are the files that are taken along, by their paths on ranks.
    """
    files = {str(path): name for name, path in paths.items() if path.suffix == ".py"}
    if not files:  # most cells have none, and a kernel has thousands of modules to search
        return []
    notes = []
    for file, name in files.items():
        if "/" in name:  # a package brings its data along
            continue
        try:
            code = compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
        except (OSError, ValueError, SyntaxError):
            continue
        if any(instruction.argval == "__file__" for instruction in codenames.instructions(code)):
            named = [text for text in beside(Path(file).parent, codenames.texts(code)) if text != name]
            advice = "beside it, which isn't taken along: make them a package"
            notes += [f"{name} names {text} {advice}" for text in named]
    for module, path in _loaded(files):
        notes += _module(module, path, files[str(path)])
    return notes


def copies(paths: Mapping[str, Path], captured: Mapping[str, Any], texts: Iterable[str]) -> list[str]:
    """Describe the objects that the notebook shares with a local module: ranks have two copies of each.

    Only objects that change count: those that ``texts``, the notebook's code, changes and the module's code
    reads, and those that the module's code changes. Only module code that the notebook's code reaches, by the
    names of functions, is considered.
    """
    files = {str(path) for path in paths.values() if path.suffix == ".py"}
    shared = [
        (name, module, key)
        for module, _ in _loaded(files)
        for key, attribute in [*importable.attributes(module).items()]
        for name, value in captured.items()
        if value is attribute and not issubclass(type(value), _NO_COPIES) and not goes_by_reference(value)
    ]
    if not shared:
        return []
    trees = [tree for text in texts for tree in _parsed(text)]
    names = {name for tree in trees for name in _names(tree)}
    names.update(
        value.__name__ if issubclass(type(value), FunctionType | type) else type(value).__name__
        for value in captured.values()
    )
    nodes = _reached([tree for file in sorted(files) for tree in _parsed(Path(file).read_bytes())], names)
    changed = {name for tree in trees for name in _changed(tree)}
    notes: dict[str, str] = {}  # one for each name: a package may re-export its module's object
    for name, module, key in shared:
        readers = [node for node in nodes if key in _names(node)]
        if (readers and name in changed) or any(key in _changed(node) for node in readers):
            place = f"{module.__name__}.{key}"
            notes.setdefault(
                name, f"{name} is {place} here, and a copy of it on ranks: use {place} in the cell"
            )
    return [*notes.values()]


# Types of objects that go by name, or can't be changed.
_NO_COPIES = (
    *(FunctionType, type, ModuleType, Logger),
    *(bool, int, float, complex, str, bytes, tuple, frozenset, range, type(None)),
)


def _reached(trees: Iterable[ast.AST], names: Iterable[str]) -> list[ast.AST]:
    """Return the definitions of ``names``, and of the names in these definitions, recursively."""
    parts: dict[str, list[ast.AST]] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.decorator_list.clear()  # they run when the module is imported, here and on ranks
            parts.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            methods = [stmt for stmt in node.body if isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef)]
            parts.setdefault(node.name, []).extend((*node.bases, *methods))
    reached = []
    waiting = [*names]
    while waiting:
        nodes = parts.pop(waiting.pop(), [])
        reached += nodes
        waiting += (name for node in nodes for name in _names(node))
    return reached


def _names(node: ast.AST) -> set[str]:
    """Return the names and attributes in some code, without its parameters."""
    nodes = [*ast.walk(node)]
    names = {part.id for part in nodes if isinstance(part, ast.Name)}
    attributes = {part.attr for part in nodes if isinstance(part, ast.Attribute)}
    return (names | attributes) - {part.arg for part in nodes if isinstance(part, ast.arg)}


def _changed(node: ast.AST) -> Iterator[str]:
    """Yield the names of objects that some code changes in place: ``a`` and ``b`` in ``a.b[0] = 1``."""
    for part in ast.walk(node):
        match part:
            case (
                ast.Subscript(value=target, ctx=ast.Store() | ast.Del())
                | ast.Attribute(value=target, ctx=ast.Store() | ast.Del())
                | ast.AugAssign(target=ast.Name() as target)
            ):
                pass
            case ast.Call(func=ast.Attribute(value=target, attr=method)) if method in _CHANGE:
                pass
            case _:
                continue
        while isinstance(target, ast.Attribute | ast.Subscript):
            if isinstance(target, ast.Attribute):
                yield target.attr
            target = target.value
        if isinstance(target, ast.Name):
            yield target.id


def _loaded(files: Container[str]) -> Iterator[tuple[ModuleType, Path]]:
    """Yield the modules that were imported from ``files``, each with its file."""
    for module in list(sys.modules.values()):
        source = importable.attributes(module).get("__file__")
        if isinstance(module, ModuleType) and isinstance(source, str) and source in files:
            yield module, Path(source)


def _module(module: ModuleType, path: Path, name: str) -> Iterator[str]:
    try:
        text = path.read_text()
        tree, compiled = ast.parse(text), compile(text, str(path), "exec", dont_inherit=True)
    except (OSError, ValueError, SyntaxError):  # the file has been broken since; ranks will report that
        return
    # Custom importers (pytest, run-time type checkers) compile the same text to different code.
    if type(module.__loader__) is SourceFileLoader and patches.edited(module, compiled):
        yield f"{name} was edited after it was imported here: ranks run the edited file"
        return
    anew, bound = f"on ranks: they import {name} anew", _bound(tree)
    for owner, space, body in _spaces(module, tree):
        literals = _literals(body)
        defined = ast.FunctionDef | ast.AsyncFunctionDef
        undecorated = {stmt.name: not stmt.decorator_list for stmt in body if isinstance(stmt, defined)}
        for key, attribute in [*space.items()]:
            if key in literals and bound.count(key) == 1:
                value = literals[key]
                if type(attribute) is type(value) and attribute == value:
                    continue
                if report.is_secret(key, attribute) or report.is_secret(key, value):
                    yield f"{owner}.{key} was set here, but not {anew}"
                else:
                    own_text, rank_text = masked(words.short(attribute)), masked(words.short(value))
                    yield f"{owner}.{key} is {own_text} here, and {rank_text} {anew}"
                continue
            function = attribute.__func__ if type(attribute) in (staticmethod, classmethod) else attribute
            code = function.__code__ if type(function) is FunctionType else None
            moved = code is not None and (code.co_name, code.co_filename) != (key, str(path))
            if patches.made_in(function) == "__main__":
                yield f"{owner}.{key} was set in the notebook, but not {anew}"
            elif moved and undecorated.get(key):
                yield f"{owner}.{key} was replaced here, but not {anew}"
            elif (attribute is None or type(attribute) in _PLAIN) and not (
                key.startswith("__") or key in bound or "*" in bound
            ):
                yield f"{owner}.{key} was set here, but doesn't exist {anew}"


_Body = list[ast.stmt]
_PLAIN = (bool, int, float, complex, str, bytes, tuple, list, dict, set)


def _spaces(module: ModuleType, tree: ast.Module) -> Iterator[tuple[str, Mapping[str, Any], _Body]]:
    """Yield the name, the attributes and the statements of a module, and of each class that it defines."""
    yield module.__name__, importable.attributes(module), tree.body
    for stmt in tree.body:
        cls = importable.attributes(module).get(stmt.name) if isinstance(stmt, ast.ClassDef) else None
        # Attributes set by NamedTuple, a decorator or a base's __init_subclass__ aren't in the text.
        if isinstance(stmt, ast.ClassDef) and type(cls) is type and not stmt.decorator_list:
            private = re.compile(rf"^_{re.escape(stmt.name.lstrip('_'))}(?=__)")  # as ``__name`` is stored
            inherited = {name for base in cls.__mro__[1:] for name in vars(base)} - {*_bound(stmt)}
            # A method of a base replaces its registry by a copy (PyYAML's ``add_constructor``).
            space = {
                private.sub("", name): value
                for name, value in vars(cls).items()
                if name not in inherited or type(value) not in (dict, list, set)
            }
            if not (issubclass(cls, tuple) or hasattr(cls.__init_subclass__, "__func__")):
                yield f"{module.__name__}.{stmt.name}", space, stmt.body


def _bound(tree: ast.AST) -> list[str]:
    """Return the names that a text sets, once for each time; ``*`` if it may set any name."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Name) and node.id in ("globals", "vars", "setattr", "exec", "locals"):
            names.append("*")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names += [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            names.append(getattr(node.value, "id", getattr(node.value, "attr", "")))  # an entry of a registry
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _CHANGE:
                names.append(getattr(node.func.value, "id", getattr(node.func.value, "attr", "")))
        elif isinstance(getattr(node, "name", None), str) and not isinstance(node, ast.alias):
            names.append(getattr(node, "name", ""))  # a definition, an exception, a pattern
    return names


_CHANGE = ("append", "extend", "insert", "add", "update", "setdefault", "pop", "remove", "clear", "sort")


def _literals(body: Iterable[ast.stmt]) -> dict[str, Any]:
    """Return the plain values that statements assign, by name."""
    literals: dict[str, Any] = {}
    for stmt in body:
        match stmt:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                pass
            case _:
                continue
        with suppress(ValueError, TypeError):
            match value:
                case ast.Call(func=ast.Name(id="dict"), args=[], keywords=items) if all(w.arg for w in items):
                    literals[name] = {str(word.arg): ast.literal_eval(word.value) for word in items}
                case _:
                    literals[name] = ast.literal_eval(value)
    return literals
