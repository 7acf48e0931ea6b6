"""Folders of installed distributions, as pip leaves them, without pip."""

import json
import py_compile
from pathlib import Path


def install(site: Path, name: str, version: str, *modules: str, **extra: object) -> Path:
    """Put a distribution with modules (``a.py``, ``a/b.py``) into ``site``; return its metadata's folder.

    Each module holds its ``version``, if Python can read the module at all.
    """
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    for module in modules:
        (site / module).parent.mkdir(parents=True, exist_ok=True)
        path = site / module
        path.write_text(f"version = {version!r}\n")
        if path.suffix == ".pyc":
            py_compile.compile(str(path), str(path), doraise=True)
    (info / "RECORD").write_text("".join(f"{file},sha256=x,0\n" for file in modules))
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    if extra:
        (info / "direct_url.json").write_text(json.dumps(extra))
    return info
