"""The files of a release besides the package: they agree with pyproject.toml."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(name):
    return yaml.safe_load((ROOT / name).read_text())


def test_a_citation_names_the_version_and_date_of_the_changelog():
    citation = read("CITATION.cff")
    newest = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert newest is not None
    assert (citation["version"], citation["date-released"]) == newest.groups()
    assert citation["license"] == PROJECT["license"]


def test_the_conda_recipe_requires_what_the_package_does():
    recipe = read("conda/recipe.yaml")
    run = [Requirement(text) for text in recipe["requirements"]["run"] if not text.startswith("python ")]
    dependencies = [Requirement(text) for text in PROJECT["dependencies"]]

    assert {(r.name, str(r.specifier)) for r in run} == {(r.name, str(r.specifier)) for r in dependencies}
    assert recipe["context"]["version"] == PROJECT["version"]
    assert f">={recipe['context']['python_min']}" == PROJECT["requires-python"]
    assert recipe["about"]["summary"] == PROJECT["description"]
    (entry,) = recipe["build"]["python"]["entry_points"]
    assert dict([entry.split(" = ")]) == PROJECT["scripts"]


@pytest.mark.parametrize("platform", ["linux-64", "osx-arm64"])
def test_the_conda_recipe_is_one_as_rattler_build_reads_it(platform):
    config = RenderConfig(platform=PlatformConfig(target_platform=platform))
    (variant,) = Stage0Recipe.from_file(str(ROOT / "conda" / "recipe.yaml")).render(VariantConfig(), config)

    package = variant.recipe.package
    assert (package.name, str(package.version)) == (PROJECT["name"], PROJECT["version"])
    assert variant.recipe.build.noarch == "python"


@pytest.mark.parametrize("name", ["bug.yml", "idea.yml"])
def test_an_issue_form_has_a_label_for_each_field(name):
    form = read(f".github/ISSUE_TEMPLATE/{name}")

    assert form["name"]
    assert form["description"]
    assert all(field["attributes"]["label"] and field["id"] for field in form["body"])


def test_dependabot_looks_where_there_are_dependencies():
    for entry in read(".github/dependabot.yml")["updates"]:
        manifests = {"pip": "pyproject.toml", "npm": "package.json", "github-actions": ".github/workflows"}
        folder = ROOT / entry["directory"].lstrip("/")

        assert (folder / manifests[entry["package-ecosystem"]]).exists()


def test_the_hooks_before_a_commit_are_the_lint_of_the_makefile():
    hooks = [hook["entry"] for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert lint is not None
    for line in lint[1].splitlines():
        tool, verb = line.strip().replace("$(BIN)/", "").split()[:2]
        assert any(entry.startswith(f".venv/bin/{tool} {verb}") for entry in hooks)
