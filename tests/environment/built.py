"""Wheels and projects of a few bytes, made by hand: nothing is fetched for them."""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path


def wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *requires: str,
    tag: str = "py3-none-any",
    modules: Sequence[str] = (),
) -> Path:
    """Write a minimal wheel: modules that hold its version, by default one module of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{re.sub('[-_.]+', '_', name)}-{version}"
    path = folder / f"{stem}-{tag}.whl"
    info = f"{stem}.dist-info"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    members = {
        **dict.fromkeys(modules or (f"{name}.py",), f"version = {version!r}\n"),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return path


_BACKEND = """
import sys, zipfile
def build_wheel(folder, *_, **__):
    {first}
    name = "{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as archive:
        archive.write("{name}.py")
        info = "{name}-{version}.dist-info/"
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(info + "RECORD", "")
    return name
"""


def project(folder: Path, name: str, version: str = "1.0", *, first: str = "pass") -> Path:
    """Write a project with its own build backend; ``first`` is the code that runs before the build."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\n'
    )
    (folder / "own.py").write_text(_BACKEND.format(name=name, version=version, first=first))
    (folder / f"{name}.py").write_text(f"version = {version!r}\n")
    return folder
