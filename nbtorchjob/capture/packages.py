"""What a call's nodes are to install: by its options, and by a block in its cell, notebook or script.

Which distributions a call needs where it runs, and which of them it is sure to import there.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from nbtorchjob.capture import cells, modules
from nbtorchjob.capture.modules import LocalFile, local_files
from nbtorchjob.environment import here, lock, requirements, wheels
from nbtorchjob.environment.here import Need as Need
from nbtorchjob.environment.requirements import Asked, Wanted, names
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine.folders import working
from nbtorchjob.runtime.objects import importable
from nbtorchjob.spec.jobspec import JobSpec

if TYPE_CHECKING:
    from nbtorchjob.capture.call import Call
    from nbtorchjob.environment.here import Need

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
    surely = _reached([name for each in said for name in each.surely], local, surely=True)
    every = _reached([name for each in said for name in each.all], local, surely=False)
    found: dict[str, Need] = {}
    for module in every:
        if module.partition(".")[0] in _OURS:
            continue  # to look them up would take an editable installation 0.1 s
        known = here.distribution(module)
        if known is not None and known[1].name not in _OURS:
            name, owner = known
            sure = module in surely or (name in found and found[name].surely)
            found[name] = Need(name, owner.name, owner.version, sure, owner.project, owner.apart)
    return tuple(found[name] for name in sorted(found))


def of_notebook(namespace: Mapping[str, Any], root: Path | None = None) -> tuple[Need, ...]:
    """Return what the values of a notebook's variables are of: its code may need all of that."""
    homes = {_home(value) for name, value in [*namespace.items()] if not name.startswith("_")}
    found = frozenset(home for home in homes if home.partition(".")[0] not in _SHELL)
    files: tuple[LocalFile, ...] = ()
    with suppress(NBTorchJobError, OSError):  # what is too big is refused once it is to be sent
        files = local_files(found, root or working())
    return needs(Imports(perhaps=found), files)


def _home(value: Any) -> str:
    if isinstance(value, ModuleType):
        return importable.name_of(value)
    home = getattr(value, "__module__", None) or type(value).__module__
    return home if isinstance(home, str) else ""


def _reached(modules: Iterable[str], local: Mapping[str, bytes], *, surely: bool) -> set[str]:
    """Return what is imported: ``modules`` without those that are ``local``, and what these import."""
    tops = {path.partition("/")[0].partition(".")[0] for path in local}
    found: set[str] = set()
    waiting = [*modules]
    seen = set(waiting)
    while waiting:
        module = waiting.pop()
        if module.partition(".")[0] not in tops:
            found.add(module)
            continue
        for path in _files(module):
            if path in local:
                imports = _of_file(path, local[path])
                new = (imports.surely if surely else imports.all) - seen
                waiting += new
                seen |= new
    return found


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


_CELL = "the cell's script block"
_MOST_BYTES = 64_000_000  # of a notebook that is looked at for a block


def check(spec: JobSpec) -> None:
    """Raise ``SpecError`` for options that can't be understood, without building anything."""
    requirements.of_words(spec.package)
    for name in spec.requirements:
        list(requirements.of_file(name))


def pinned(needs: Iterable[Need], spec: JobSpec, text: str = "") -> frozenset[str]:
    """Return the normalised names of what nodes will have as it is asked for, whatever an image has.

    ``text`` is a cell's.
    """
    asked = requirements.of_words(spec.package)
    found = names(_lines(text, spec, asked)) | {wheels.distribution(path) for path in asked.paths}
    return found | {need.distribution for need in needs} if asked.like_here else found


def provided(call: Call, spec: JobSpec) -> Call:
    """Return a call with what its nodes are to install; what this kernel has in place travels as modules.

    Raises ``SpecError``, ``SubmitError`` for a project that can't be built.
    """
    asked = requirements.of_words(spec.package)
    wanted = Wanted(
        _lines(call.text, spec, asked),
        tuple(map(wheels.wheel, asked.paths)),
        installer=wheels.installer() if spec.cluster.storage and spec.remote else None,
    )
    if asked.like_here and spec.remote:  # which has what is here
        return _like_here(call, wanted)
    return replace(call, wanted=wanted) if wanted else call


def _lines(text: str, spec: JobSpec, asked: Asked) -> tuple[str, ...]:
    """Return all requirements, each once."""
    of_files = (line for name in spec.requirements for line in requirements.of_file(name))
    return tuple(dict.fromkeys((*asked.requirements, *of_files, *_of_block(text))))


def _of_block(cell: str) -> tuple[str, ...]:
    """Return what the nearest block asks for: the cell's own, else the notebook's or the script's."""
    for where, text in _texts(cell):
        if found := requirements.of_script(text, where):
            return found
    return ()


def of_cell(text: str) -> tuple[str, ...]:
    """Return what a cell's own block asks for; raises ``SpecError``."""
    return requirements.of_script(text, _CELL)


def _texts(cell: str) -> Iterator[tuple[str, str]]:
    if cell:
        yield _CELL, cell
    notebook = os.environ.get("JPY_SESSION_NAME")  # as ``origin`` has it
    if notebook:
        yield f"the script block of {Path(notebook).name}", _first_cell(Path(notebook))
        return
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(script, str) and script.endswith(".py"):
        with suppress(OSError, UnicodeDecodeError):
            yield f"the script block of {Path(script).name}", Path(script).read_text(encoding="utf-8")


def _first_cell(notebook: Path) -> str:
    """Return the text of a notebook's first cell of code, as it was saved; "" where there is none."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        if notebook.suffix == ".ipynb" and notebook.stat().st_size < _MOST_BYTES:
            cells = json.loads(notebook.read_bytes())["cells"]
            source = next((cell["source"] for cell in cells if cell["cell_type"] == "code"), "")
            return source if isinstance(source, str) else "".join(source)
    return ""


def _like_here(call: Call, wanted: Wanted) -> Call:
    """Return the call with what it needs in the versions here, but for what was asked for by name.

    What no index has is taken from where it is from, or travels as it is installed: somebody may have put
    another one of its name on an index.
    """
    own = [need for need in call.needs if need.project]
    given = wanted.names
    projects = {need.distribution for need in own}
    needed = {need.distribution for need in call.needs} | set(_of_projects(projects))
    wanting = sorted(needed - projects - given)
    every = [name for name in lock.closure(wanting) if name not in given]
    told = here.origins()
    places = {name: here.reference(told[name])[0] for name in every if name in told}
    apart = tuple(f"{name} @ {url}" for name, url in places.items() if url)
    copies = tuple(wheels.installed(name) for name, url in places.items() if not url)
    lines = lock.pins(name for name in wanting if name not in places)
    beneath = lock.pins(name for name in every if name not in {*places, *wanting})
    exactly: tuple[str, ...] = ()
    if lock.at_odds(every):
        lines, beneath, exactly = (), (), (*lines, *beneath)
    files = modules.read(dict(_in_place(own)), Path("/nowhere"))
    modules.refuse_too_much((*call.files, *files))
    return replace(
        call,
        wanted=replace(
            wanted,
            requirements=(*wanted.requirements, *lines, *apart),
            wheels=(*wanted.wheels, *copies),
            constraints=beneath,
            exactly=exactly,
        ),
        files=(*call.files, *(file for file in files if file.path not in {each.path for each in call.files})),
    )


def _of_projects(projects: Iterable[str]) -> Iterator[str]:
    """Yield what projects need that are installed in place, those that need each other left out."""
    for name in projects:
        yield from lock.required(name)


def _in_place(needs: Iterable[Need]) -> Iterator[tuple[str, Path]]:
    """Yield the files of modules that are installed in place: no index has them as they are here."""
    for need in needs:
        for name, path in modules.files_of(need.module.partition(".")[0]):
            if path.resolve().is_relative_to(need.project):
                yield name, path
