"""Which distributions a call needs where it runs, and which of them it is sure to import there."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType
from typing import Any

from nbtorchjob.capture import cells
from nbtorchjob.capture.modules import LocalFile, local_files
from nbtorchjob.environment import here
from nbtorchjob.environment.here import Need as Need
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine.folders import working
from nbtorchjob.runtime.objects import importable

# The payload brings its own.
_OURS = {"nbtorchjob", "cloudpickle"}
_SHELL = ("IPython", "ipykernel")  # what every notebook has of them


class Imports(FrozenDataclass):
    """The full names of the modules that something imports, surely or perhaps.

    ``texts`` are of cells that run, ``code`` is of a function that is called: what these surely import is
    found once somebody asks.
    """

    surely: frozenset[str] = frozenset()
    perhaps: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    code: CodeType | None = None

    @property
    def all(self) -> frozenset[str]:
        """All of them."""
        return self.surely | self.perhaps


NO_IMPORTS = Imports()


def needs(imports: Imports, files: Iterable[LocalFile]) -> tuple[Need, ...]:
    """Return what ``imports`` need from elsewhere than ``files``, which travel and import more; by module."""
    local = {file.path: file.data for file in files}
    texts = (*imports.texts, *_source(imports.code))
    said = [imports, *(_of(ast.parse(text), runs=True) for text in texts)]
    surely = _reached([name for imported in said for name in imported.surely], local, surely=True)
    every = _reached([name for imported in said for name in imported.all], local, surely=False)
    by_module: dict[str, Need] = {}
    for module in every:
        if module.partition(".")[0] in _OURS:
            continue  # to look them up would take an editable installation 0.1 s
        known = here.distribution(module)
        if known is not None and known[1].name not in _OURS:
            name, owner = known
            sure = module in surely or (name in by_module and by_module[name].surely)
            by_module[name] = Need(name, owner.name, owner.version, sure, owner.project, owner.apart)
    return tuple(by_module[name] for name in sorted(by_module))


def of_notebook(namespace: Mapping[str, Any], root: Path | None = None) -> tuple[Need, ...]:
    """Return what the values of a notebook's variables are of: its code may need all of that."""
    homes = {_home(value) for name, value in [*namespace.items()] if not name.startswith("_")}
    modules = frozenset(home for home in homes if home.partition(".")[0] not in _SHELL)
    files: tuple[LocalFile, ...] = ()
    with suppress(NBTorchJobError, OSError):  # what is too big is refused once it is to be sent
        files = local_files(modules, root or working())
    return needs(Imports(perhaps=modules), files)


def _home(value: Any) -> str:
    if isinstance(value, ModuleType):
        return importable.name_of(value)
    home = getattr(value, "__module__", None) or type(value).__module__
    return home if isinstance(home, str) else ""


def _reached(modules: Iterable[str], local: Mapping[str, bytes], *, surely: bool) -> set[str]:
    """Return what is imported: ``modules`` without those that are ``local``, and what these import."""
    tops = {path.partition("/")[0].partition(".")[0] for path in local}
    reached: set[str] = set()
    waiting = [*modules]
    seen = set(waiting)
    while waiting:
        module = waiting.pop()
        if module.partition(".")[0] not in tops:
            reached.add(module)
            continue
        for path in _files(module):
            if path in local:
                imports = _of_file(path, local[path])
                new = (imports.surely if surely else imports.all) - seen
                waiting += new
                seen |= new
    return reached


def _source(code: CodeType | None) -> Iterator[str]:
    with suppress(OSError, SyntaxError, TypeError, IndexError):  # none is kept, or it doesn't stand alone
        text = textwrap.dedent(inspect.getsource(code)) if code is not None else ""
        if isinstance(ast.parse(text).body[0], cells.Function):  # no lambda, whose line may do more
            yield text


def _files(module: str) -> Iterator[str]:
    """Yield where the source of a module, and of the packages that it is in, may be."""
    parts = module.split(".")
    for many in range(1, len(parts) + 1):
        path = "/".join(parts[:many])
        yield f"{path}/__init__.py"
        yield f"{path}.py"


def _of_file(path: str, data: bytes) -> Imports:
    try:
        return _of(ast.parse(data), PurePosixPath(path).parts[:-1])
    except (SyntaxError, ValueError):  # a template; importing it would fail anyway
        return NO_IMPORTS


def _of(tree: ast.Module, package: Sequence[str] = (), *, runs: bool = False) -> Imports:
    """Return what a module imports, or with ``runs`` a cell, of which a function may be called."""
    entry = cells.entry(tree) if runs else None
    sure = [*_surely(tree.body), *(_surely(entry.body) if entry is not None else ())]
    every = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    surely, perhaps = (frozenset(_names(nodes, package)) for nodes in (sure, every))
    return Imports(surely, perhaps)


def _surely(body: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that every way through ``body`` passes, if nothing is raised before."""
    for stmt in body:
        if isinstance(stmt, ast.Import | ast.ImportFrom):
            yield stmt
        elif isinstance(stmt, ast.ClassDef):
            yield from _surely(stmt.body)
        elif not isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            map(_leaves, ast.walk(stmt))
        ):
            return


def _leaves(node: ast.AST) -> bool:
    named = getattr(node, "id", getattr(node, "attr", ""))
    return isinstance(node, ast.Return) or named in ("SystemExit", "exit", "_exit")


def _names(nodes: Iterable[ast.Import | ast.ImportFrom], package: Sequence[str]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            continue
        above = package[: len(package) + 1 - node.level] if node.level else ()
        base = ".".join((*above, *filter(None, [node.module])))
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)  # which may be modules
