"""What a call's nodes install: by its options, and by a script block in its cell, notebook or script."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nbtorchjob.capture import modules
from nbtorchjob.capture.model import Call
from nbtorchjob.environment import interpreter, requirements, wheels
from nbtorchjob.environment.interpreter import Need
from nbtorchjob.environment.requirements import Installation, PackageRequest, names
from nbtorchjob.spec.jobspec import JobSpec

_CELL = "the cell's script block"
_MOST_BYTES = 64_000_000  # of a notebook that is searched for a block


def check(spec: JobSpec) -> None:
    """Raise ``SpecError`` for options that can't be understood, without building anything."""
    requirements.of_words(spec.package)
    for name in spec.requirements:
        list(requirements.of_file(name))


def pinned(needs: Iterable[Need], spec: JobSpec, text: str = "") -> frozenset[str]:
    """Return the normalised names of the distributions that nodes get as requested, whatever an image has.

    ``text`` is the cell's text.
    """
    request = requirements.of_words(spec.package)
    projects = {os.path.realpath(path) for path in request.paths}
    brought = {need.distribution for need in needs if request.like_here or need.project in projects}
    return (
        names(_lines(text, spec, request)) | {wheels.distribution(path) for path in request.paths} | brought
    )


def provided(call: Call, spec: JobSpec) -> Call:
    """Return a call with what its nodes install; projects that are installed in place travel as modules.

    Raises ``SpecError``, and ``SubmitError`` for a project that can't be built.
    """
    request = requirements.of_words(spec.package)
    packages = Installation(
        _lines(call.text, spec, request),
        tuple(map(wheels.wheel, request.paths)),
        installer=wheels.installer() if spec.cluster.storage and spec.remote else None,
    )
    if request.like_here and spec.remote:  # on this machine ranks have the kernel's packages anyway
        return _like_here(call, packages)
    return replace(call, packages=packages) if packages else call


def _like_here(call: Call, packages: Installation) -> Call:
    """Return a call whose nodes install ``packages``, and this kernel's versions of all else that it imports.

    A package that is from no index is installed from its origin, or travels as it is installed here: an index
    may have an unrelated package of its name. The modules of projects that are installed in place travel.
    """
    own = [need for need in call.needs if need.project]
    projects = {need.distribution for need in own}
    needed = {need.distribution for need in call.needs}.union(*map(requirements.required, projects))
    wanting = sorted(needed - projects - packages.names)
    every = [name for name in requirements.closure(wanting) if name not in packages.names]
    origins = interpreter.origins()
    places = {name: interpreter.reference(origins[name])[0] for name in every if name in origins}
    references = tuple(f"{name} @ {url}" for name, url in places.items() if url)
    copies = []
    for name in (name for name, url in places.items() if not url):
        # Installed in place it has no modules; those of ``projects`` travel, with their metadata alone.
        folder = "" if name in projects else interpreter.project(name)
        copies.append(wheels.wheel(Path(folder)) if folder else wheels.installed(name))
    lines = requirements.pins(name for name in wanting if name not in places)
    beneath = requirements.pins(name for name in every if name not in {*places, *wanting})
    exactly: tuple[str, ...] = ()
    if requirements.at_odds(every):
        lines, beneath, exactly = (), (), (*lines, *beneath)
    in_place = {
        name: path
        for need in own
        for name, path in modules.files_of(need.module.partition(".")[0], need.project)
    }
    files = modules.read(in_place, Path("/nowhere"))
    modules.refuse_too_much((*call.files, *files))
    present = {file.path for file in call.files}
    return replace(
        call,
        packages=replace(
            packages,
            requirements=(*packages.requirements, *lines, *references),
            wheels=(*packages.wheels, *copies),
            constraints=beneath,
            exactly=exactly,
        ),
        files=(*call.files, *(file for file in files if file.path not in present)),
    )


def _lines(text: str, spec: JobSpec, request: PackageRequest) -> tuple[str, ...]:
    """Return all requirements, each once."""
    of_files = (line for name in spec.requirements for line in requirements.of_file(name))
    blocks = (requirements.of_script(cell_text, where) for where, cell_text in _texts(text))
    of_block = next(filter(None, blocks), ())  # the cell's own, else the notebook's or script's
    return tuple(dict.fromkeys((*request.requirements, *of_files, *of_block)))


def of_cell(text: str) -> tuple[str, ...]:
    """Return the requirements in a cell's own block; raises ``SpecError``."""
    return requirements.of_script(text, _CELL)


def _texts(cell: str) -> Iterator[tuple[str, str]]:
    if cell:
        yield _CELL, cell
    notebook = os.environ.get("JPY_SESSION_NAME")  # as ``identity.origin_in`` has it
    if notebook:
        path, source = Path(notebook), ""  # the source of its first code cell, as saved
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            if path.suffix == ".ipynb" and path.stat().st_size < _MOST_BYTES:
                cells = json.loads(path.read_bytes())["cells"]
                first = next((cell["source"] for cell in cells if cell["cell_type"] == "code"), "")
                source = first if isinstance(first, str) else "".join(first)
        yield f"the script block of {path.name}", source
        return
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(script, str) and script.endswith(".py"):
        with suppress(OSError, UnicodeDecodeError):
            yield f"the script block of {Path(script).name}", Path(script).read_text(encoding="utf-8")
