"""The package as a whole: its exports, the cost of importing it, and whether its documents agree."""

import ast
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import nbtorchjob
from nbtorchjob import capture

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAPERS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/api/*.md")])
# Words that say nothing about what a variable holds: they are participles, pronouns and adverbs.
VAGUE = re.compile(
    "_*(apart|far|found|gone|heard|here|known|made|taken|theirs|them|there|those|told|tried|wanted|whose|"
    "written)_*"
).fullmatch
HEAVY = ("torch", "IPython", "ipywidgets", "kubernetes", "cloudpickle", "numpy")


def test_what_is_exported_is_there_and_what_is_there_is_exported():
    # In a fresh interpreter: importing a submodule makes it an attribute of its package.
    code = "import nbtorchjob; print(*(n for n in vars(nbtorchjob) if not n.startswith('_')))"
    names = {
        name
        for name in python(code).split()
        if not isinstance(getattr(nbtorchjob, name), types.ModuleType) and ours(getattr(nbtorchjob, name))
    }

    assert nbtorchjob.__all__ == sorted(nbtorchjob.__all__)
    assert names <= set(nbtorchjob.__all__)
    for package in (nbtorchjob, capture):  # both import most of their names late
        for name in package.__all__:
            assert getattr(package, name) is not None


def ours(value):
    return str(getattr(value, "__module__", "")).startswith("nbtorchjob")


def test_dir_lists_the_public_names_alone():
    code = "import nbtorchjob; print(*dir(nbtorchjob))"

    assert set(python(code).split()) == {*nbtorchjob.__all__, "__version__"}


def test_a_star_import_takes_every_name_also_where_there_is_no_torch():
    code = "import sys; sys.modules['torch'] = None; from nbtorchjob import *; print(*dir())"

    assert set(nbtorchjob.__all__) <= set(python(code).split())


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'sumbit'"):
        _ = nbtorchjob.sumbit  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("nbtorchjob", HEAVY),
        ("nbtorchjob.api", ("torch", "IPython", "ipywidgets", "kubernetes", "numpy")),
        ("nbtorchjob.frontends.notebook", ("torch", "ipywidgets", "kubernetes", "numpy")),
        ("nbtorchjob.frontends.cli.terminal", (*HEAVY, "asyncio", "email", "ssl", "subprocess")),
        ("nbtorchjob.job", ("torch", "IPython", "ipywidgets", "kubernetes", "asyncio", "ssl", "subprocess")),
        ("nbtorchjob.frontends.cli.tending", ("torch", "IPython", "kubernetes", "packaging", "ipywidgets")),
    ],
)
def test_importing_is_light(module, heavy):
    modules = python(f"import sys, {module}; print(*sys.modules)").split()

    assert not {name.partition(".")[0] for name in modules} & set(heavy)


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_no_folder_has_more_than_twelve_modules_side_by_side():
    folders = [path.parent for path in (ROOT / "nbtorchjob").rglob("*.py") if path.name != "__init__.py"]

    assert [folder.name for folder in {*folders} if folders.count(folder) > 12] == []


def test_names_say_what_they_hold():
    vague = []
    for file in sorted((ROOT / "nbtorchjob").rglob("*.py")):
        if VAGUE(file.stem):
            vague.append(str(file.relative_to(ROOT)))
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            name = None
            if isinstance(node, ast.Name | ast.Attribute):
                stored = isinstance(node.ctx, ast.Store)
                name = (node.id if isinstance(node, ast.Name) else node.attr) if stored else None
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ExceptHandler | ast.MatchAs):
                name = node.name
            elif isinstance(node, ast.ClassDef):
                name = node.name.lower()
            elif isinstance(node, ast.arg):
                name = node.arg
            if name is not None and VAGUE(name):
                vague.append(f"{file.relative_to(ROOT)}: {name}")

    assert vague == []


def test_the_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    package = json.loads((ROOT / "labextension/package.json").read_text())

    assert project["version"] == nbtorchjob.__version__ == heads[0] == package["version"]


@pytest.mark.parametrize("paper", PAPERS, ids=lambda p: p.name)
def test_relative_links_lead_somewhere(paper):
    links = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)|<img[^>]*src=\"([^\"]+)\"", paper.read_text())
    targets = [a or b for a, b in links if not re.match(r"[a-z]+:", a or b)]
    for target in targets:
        path, _, anchor = target.partition("#")
        file = paper.parent / path if path else paper
        # Not to a folder, for which the site has no page.
        assert file.is_file(), f"{paper.name} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{paper.name} links to {target}"


def anchors(file):
    """Return the anchors that GitHub makes of a page's headings."""
    heads = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.torch
def test_the_tests_that_the_benchmark_of_trust_counts_are_there():
    from tests.benchmarks.bench_trust import AREAS  # late: it imports torch

    for file in (file for files in AREAS.values() for file in files):
        path, _, function = file.partition("::")
        assert (ROOT / "tests" / path).exists(), path
        if function:
            assert f"def {function}(" in (ROOT / "tests" / path).read_text(), file
