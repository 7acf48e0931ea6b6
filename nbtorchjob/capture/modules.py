"""The modules that a call needs: the notebook's own, as files, and the distributions that have the others.

A module is local if its file lies below the notebook's folder and belongs to no environment there, or below
a folder that the user has put on ``sys.path``: by hand, by PYTHONPATH.

Each distribution is marked if the call is sure to import it where it runs.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import site
import stat
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType
from typing import Any

from nbtorchjob.capture import cells
from nbtorchjob.capture.cells import BY_TEXT, imported, module_in
from nbtorchjob.environment import interpreter
from nbtorchjob.environment.interpreter import Need as Need
from nbtorchjob.errors import CaptureError, NBTorchJobError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine.folders import working
from nbtorchjob.runtime.objects import importable
from nbtorchjob.text import words

LIMIT = 32_000_000
# The payload brings its own.
_OURS = ("__main__", "nbtorchjob", "cloudpickle")
_INSTALLED = {"site-packages", "dist-packages", "node_modules"}
_SKIPPED_FOLDERS = {"__pycache__", "checkpoints", *_INSTALLED}
_SKIPPED_FILES = (".pyc", ".ipynb")
_LOCK = ".#"  # begins the names of Emacs's lock files
# Hidden files that tools and people leave in a folder; all others are a package's data.
_LITTER = (".DS_Store", ".coverage", ".env", ".gitattributes", ".gitignore", ".gitkeep", ".netrc")


class LocalFile(FrozenDataclass):
    """A file that travels; ``path`` is relative to a folder that ranks have on ``sys.path``, with slashes.

    Ranks on this machine find a file from ``elsewhere`` than the notebook's folder in its original place,
    with all that lies beside it: they have the notebook's ``sys.path``.
    """

    path: str
    data: bytes
    elsewhere: bool = False
    executable: bool = False

    @property
    def human(self) -> str:
        """The size in human-readable units."""
        return words.size(len(self.data))


def local_files(names: Iterable[str], root: Path) -> tuple[LocalFile, ...]:
    """Return the files of the local modules among ``names``; raises as :func:`local_paths` does."""
    return read(local_paths(names, root)[0], root)


def read(paths: Mapping[str, Path], root: Path) -> tuple[LocalFile, ...]:
    """Return the files at ``paths``, in a notebook's folder or elsewhere. Raises ``CaptureError``."""
    folders = (root.absolute(), root.resolve())
    files = []
    for name, path in sorted(paths.items()):
        try:
            data, mode = path.read_bytes(), path.stat().st_mode
        except FileNotFoundError:  # an editor's temporary file, removed meanwhile
            continue
        except OSError as exc:
            raise CaptureError(f"{name} can't be read ({exc.strerror})") from exc
        elsewhere = not any(map(path.is_relative_to, folders))
        files.append(LocalFile(name, data, elsewhere, bool(mode & stat.S_IXUSR)))
    return tuple(files)


def local_paths(names: Iterable[str], root: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the paths of the local modules among ``names``, and of those that they import, and notes.

    A package brings its whole folder. Raises ``CaptureError`` above 32 MB. The biggest modules from elsewhere
    on ``sys.path`` are left out until the rest fits, each with a note.
    """
    paths: dict[str, Path] = {}
    elsewhere: dict[str, dict[str, Path]] = {}
    notes = []
    root = root.resolve()
    added = functools.cache(functools.partial(_added, root))
    waiting = sorted({name.partition(".")[0] for name in names})
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        own_files: list[tuple[str, Path]] = []
        for origin in (Path(os.path.abspath(path)) for path in _origins(name)):
            # A link in the notebook's folder counts as part of that folder, wherever it points.
            inside = origin if origin.is_relative_to(root) else origin.resolve()
            if _local(inside, root) or added(origin.parent):
                own_files += _below(origin)
        new = dict(own_files)
        if all(path.is_relative_to(root) for path in new.values()):
            paths |= new
        elif (size := sum(_sizes(new).values())) > LIMIT:
            notes.append(_stays(name, size))
            continue
        else:
            elsewhere[name] = new
        tops = {name.partition(".")[0] for path in new.values() for name in _imports(path)}
        waiting += sorted(tops - seen)
        seen |= tops
    sizes = _sizes(paths)
    _refuse_too_much(sizes)
    left = LIMIT - sum(sizes.values())
    for size, name in sorted((sum(_sizes(files).values()), name) for name, files in elsewhere.items()):
        left -= size
        if left < 0:
            notes.append(_stays(name, size))
        else:
            paths |= elsewhere[name]
    return paths, notes


def _sizes(files: Mapping[str, Path]) -> dict[str, int]:
    sizes = {}
    for name, path in files.items():
        with suppress(FileNotFoundError):  # as in `read`
            sizes[name] = path.stat().st_size
    return sizes


def _stays(name: str, size: int) -> str:
    return f"{name} isn't taken along, as it is {words.size(size)}: ranks on a cluster need it installed"


def _added(root: Path, folder: Path) -> bool:
    """Whether a folder, outside ``root``, is on ``sys.path`` without an installation having put it there."""
    if folder not in {Path(os.path.abspath(entry)) for entry in sys.path if entry}:
        return False
    sites = [Path(base) for base in (*site.getsitepackages(), site.getusersitepackages())]
    installed = [root, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), *sites]
    real_folder = folder.resolve()
    # Its content is checked last: listing a folder of installed packages takes a millisecond.
    if any(map(real_folder.is_relative_to, installed)):
        return False
    if _INSTALLED.intersection(folder.parts) or any(folder.glob("*.dist-info")):
        return False
    for pth in (file for base in sites if base.is_dir() for file in base.glob("*.pth")):
        with suppress(OSError, ValueError):  # Python skips unreadable ones, too
            lines = pth.read_text(errors="replace").splitlines()
            named = ((pth.parent / line).resolve() for line in lines if not line.startswith("import"))
            if real_folder in named:
                return False
    return True


def files_of(name: str, project: str) -> Iterator[tuple[str, Path]]:
    """Yield a project's files of a top-level module, each with its path relative to ``sys.path``."""
    for origin in map(os.path.abspath, _origins(name)):
        if Path(os.path.realpath(origin)).is_relative_to(project):
            yield from _below(Path(origin))


def _below(origin: Path) -> Iterator[tuple[str, Path]]:
    if origin.is_file():
        yield origin.name, origin
    elif origin.is_dir():
        for parent, folders, files in walk(origin):
            # Only links to code are followed: data may be too big to copy.
            folders[:] = [
                folder.name
                for folder in (Path(parent, name) for name in folders)
                if not stays(folder) and (not folder.is_symlink() or any(folder.glob("*.py")))
            ]
            for file in sorted(files):
                path = Path(parent, file)
                litter = file in _LITTER or file.startswith(_LOCK) or file.endswith(_SKIPPED_FILES)
                if not litter and os.path.isfile(path):  # no broken link, and no pipe
                    yield path.relative_to(origin.parent).as_posix(), path


def _origins(name: str) -> list[str]:
    """Return where top-level module ``name`` lies: its file or folder, or a namespace's folders."""
    if name in _OURS or name in sys.builtin_module_names:
        return []
    spec = importable.find_spec(name)
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return list(spec.submodule_search_locations)
    return [spec.origin] if spec.has_location and spec.origin else []


def _local(origin: Path, root: Path) -> bool:
    if not origin.is_relative_to(root):
        return False
    parts = origin.relative_to(root).parts
    if any(part.startswith(".") for part in parts) or _INSTALLED.intersection(parts):
        return False
    prefixes = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    if any(p.is_relative_to(root) and origin.is_relative_to(p) for p in prefixes):
        return False
    # A folder needs no ``__init__.py``, so ``import env`` finds an environment beside the notebook.
    return not any(map(_is_environment, (root.joinpath(*parts[:n]) for n in range(1, len(parts) + 1))))


def stays(folder: Path) -> bool:
    """Whether a folder is left out of its tree: a hidden one, checkpoints, a Python environment."""
    return folder.name.startswith(".") or folder.name in _SKIPPED_FOLDERS or _is_environment(folder)


def walk(
    root: Path, refuse: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a tree as ``os.walk`` does, following links except those to a folder that contains them."""
    above: dict[str, tuple[str, ...]] = {str(root): (os.path.realpath(root),)}
    for folder, folders, files in os.walk(root, onerror=refuse, followlinks=True):
        own = above.pop(folder)
        inner = {name: os.path.join(folder, name) for name in folders}
        real = {name: os.path.realpath(path) for name, path in inner.items()}
        folders[:] = sorted(name for name in folders if real[name] not in own)
        above |= {inner[name]: (*own, real[name]) for name in folders}
        yield folder, folders, files


def _is_environment(folder: Path) -> bool:
    return folder.joinpath("pyvenv.cfg").exists() or folder.joinpath("conda-meta").exists()


def _imports(path: Path) -> list[str]:
    if path.suffix != ".py":
        return []
    try:
        tree = ast.parse(path.read_bytes())
    # A template or a test case, which can't be imported either, or a file that :func:`read` will refuse.
    except (OSError, SyntaxError, ValueError):
        return []
    nodes = [*ast.walk(tree)]
    module_names = [
        name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for name in imported(node)
    ]
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    if BY_TEXT.isdisjoint(getattr(func, "id", getattr(func, "attr", "")) for func in called):
        return module_names
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [*module_names, *filter(None, map(module_in, texts))]


def refuse_too_much(files: Iterable[LocalFile]) -> None:
    """Raise ``CaptureError`` above 32 MB."""
    _refuse_too_much({file.path: len(file.data) for file in files})


def _refuse_too_much(sizes: Mapping[str, int]) -> None:
    if (total := sum(sizes.values())) > LIMIT:
        biggest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        named = ", ".join(f"{name} ({words.size(sizes[name])})" for name in biggest)
        raise CaptureError(
            f"the local modules are {words.size(total)}, but at most {words.size(LIMIT)} can go along; the "
            f"biggest files are {named}: move data out of the packages"
        )


# The payload brings its own.
_BROUGHT = {"nbtorchjob", "cloudpickle"}
_LEAVE = ("SystemExit", "exit", "_exit")
_SHELL = ("IPython", "ipykernel")  # every notebook has variables of theirs


class Imports(FrozenDataclass):
    """The full names of the modules that something imports, surely or perhaps.

    ``texts`` are the texts of cells that run, ``code`` is the code of a function that is called: what these
    are sure to import is found only by :func:`needs`.
    """

    surely: frozenset[str] = frozenset()
    perhaps: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    code: CodeType | None = None

    @property
    def all(self) -> frozenset[str]:
        """Sure and possible imports."""
        return self.surely | self.perhaps


NO_IMPORTS = Imports()


def needs(imports: Imports, files: Iterable[LocalFile]) -> tuple[Need, ...]:
    """Return the distributions that ``imports``, and the ``files`` that travel, need; sorted by module."""
    local = {file.path: file.data for file in files}
    source: list[str] = []
    with suppress(OSError, SyntaxError, TypeError, IndexError):  # no source, or it doesn't parse on its own
        text = textwrap.dedent(inspect.getsource(imports.code)) if imports.code is not None else ""
        if isinstance(ast.parse(text).body[0], cells.Function):  # no lambda, whose line may do more
            source.append(text)
    texts = (*imports.texts, *source)
    all_imports = [imports, *(_of(ast.parse(text), runs=True) for text in texts)]
    surely = _reached([name for imported in all_imports for name in imported.surely], local, surely=True)
    every = _reached([name for imported in all_imports for name in imported.all], local, surely=False)
    by_module: dict[str, Need] = {}
    for module in every:
        if module.partition(".")[0] in _BROUGHT:
            continue  # looking them up in an editable installation would take 0.1 s
        match = interpreter.distribution(module)
        if match is not None and match[1].name not in _BROUGHT:
            name, owner = match
            sure = module in surely or (name in by_module and by_module[name].surely)
            by_module[name] = Need(name, owner.name, owner.version, sure, owner.project, owner.unindexed)
    return tuple(by_module[name] for name in sorted(by_module))


def of_notebook(namespace: Mapping[str, Any]) -> tuple[Need, ...]:
    """Return the distributions that a notebook's values come from: its code may need any of them."""
    homes = set()
    for name, value in [*namespace.items()]:
        if name.startswith("_"):
            continue
        if isinstance(value, ModuleType):
            home: Any = importable.name_of(value)
        else:
            home = getattr(value, "__module__", None) or type(value).__module__
        homes.add(home if isinstance(home, str) else "")
    modules = frozenset(home for home in homes if home.partition(".")[0] not in _SHELL)
    files: tuple[LocalFile, ...] = ()
    with suppress(NBTorchJobError, OSError):  # modules that are too big are refused when they are sent
        files = local_files(modules, working())
    return needs(Imports(perhaps=modules), files)


def _reached(modules: Iterable[str], local: Mapping[str, bytes], *, surely: bool) -> set[str]:
    """Return the modules that aren't local among ``modules`` and what the ``local`` ones import."""
    tops = {path.partition("/")[0].partition(".")[0] for path in local}
    reached: set[str] = set()
    waiting = [*modules]
    seen = set(waiting)
    while waiting:
        module = waiting.pop()
        if module.partition(".")[0] not in tops:
            reached.add(module)
            continue
        # Its own source, and the sources of its packages
        parts = module.split(".")
        places = ["/".join(parts[:many]) for many in range(1, len(parts) + 1)]
        for path in (f"{place}{end}" for place in places for end in ("/__init__.py", ".py")):
            if path not in local:
                continue
            with suppress(SyntaxError, ValueError):  # a template; importing it would fail anyway
                imports = _of(ast.parse(local[path]), PurePosixPath(path).parts[:-1])
                new = (imports.surely if surely else imports.all) - seen
                waiting += new
                seen |= new
    return reached


def _of(tree: ast.Module, package: Sequence[str] = (), *, runs: bool = False) -> Imports:
    """Return the imports of a module, or with ``runs`` of a cell, including the function that it calls."""
    entry = cells.entry(tree) if runs else None
    sure = [*_surely(tree.body), *(_surely(entry.body) if entry is not None else ())]
    every = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    surely, perhaps = (frozenset(_names(nodes, package)) for nodes in (sure, every))
    return Imports(surely, perhaps)


def _surely(body: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that every path through ``body`` executes, if nothing is raised before."""
    for stmt in body:
        if isinstance(stmt, ast.Import | ast.ImportFrom):
            yield stmt
        elif isinstance(stmt, ast.ClassDef):
            yield from _surely(stmt.body)
        elif not isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes = [*ast.walk(stmt)]
            named = {getattr(node, "id", getattr(node, "attr", "")) for node in nodes}
            if not named.isdisjoint(_LEAVE) or any(isinstance(node, ast.Return) for node in nodes):
                return


def _names(nodes: Iterable[ast.Import | ast.ImportFrom], package: Sequence[str]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            continue
        above = package[: len(package) + 1 - node.level] if node.level else ()
        base = ".".join((*above, *filter(None, [node.module])))
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)  # which may be modules
