"""Every code block of the README and the docs: run, or checked for its purpose."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

import nbtorchjob
from nbtorchjob.commands import verbs
from nbtorchjob.commands.table import JSON
from nbtorchjob.frontends.cli.commands import COMMANDS, EXITS, command
from nbtorchjob.frontends.cli.terminal import parted
from nbtorchjob.spec import options, profiles
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.toml import FILE, SITE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAPERS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/api/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHECKED = ("python", "toml", "bash", "yaml", "mermaid")  # the last by labextension/tests/diagrams.test.ts
# No cell of the docs may wait for a cluster that isn't there.
NOWHERE = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "none",
    "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
    "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "none", "user": {}}],
}


def blocks(paper, language):
    return [text for kind, text in BLOCK.findall(paper.read_text()) if kind == language]


# The page's cells need packages that not everybody has: tests/frameworks runs them.
ELSEWHERE = ("python", "frameworks.md")


OPTUNA = "import optuna"  # in cells that need optuna


def having(language):
    papers = [paper for paper in PAPERS if blocks(paper, language) and (language, paper.name) != ELSEWHERE]
    return pytest.mark.parametrize("paper", papers, ids=lambda paper: str(paper.relative_to(ROOT)))


@pytest.fixture
def shell(shell, tmp_path, monkeypatch):
    """Return a shell that reaches no cluster."""
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(NOWHERE))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return shell


def run(shell, cell):
    """Run a cell; of a cell for a cluster, only the part that needs no cluster."""
    line, _, body = cell.partition("\n")
    if line.startswith("%torchjob doctor"):
        verbs.parse(line.removeprefix("%torchjob doctor"))
    elif "--backend kubernetes" in line:
        shell.run_cell(f"{line} --dry-run\n{body or '1'}").raise_error()
    else:
        shell.run_cell(cell).raise_error()


def test_each_language_has_its_check():
    for paper in PAPERS:
        assert {kind for kind, _ in BLOCK.findall(paper.read_text())} <= set(CHECKED), paper.name


@pytest.mark.torch
@having("python")
def test_python_blocks_run_one_after_the_other(paper, shell):
    for cell in blocks(paper, "python"):
        if OPTUNA not in cell:
            run(shell, cell)
    # The values that the text beside the blocks states.
    values: dict[str, dict[str, object]] = {
        "README.md": {"total": 3.0},
        "docs/failures.md": {"reached": (2, 4), "went": (30, 2)},
        "docs/ranks.md": {"kind": "torch.float64"},
    }
    for name, value in values.get(str(paper.relative_to(ROOT)), {}).items():
        assert shell.user_ns[name] == value


@pytest.mark.torch
def test_the_loop_with_optuna_tries_what_it_says(shell):
    pytest.importorskip("optuna")
    cells = blocks(ROOT / "docs" / "runs.md", "python")
    begin = next(at for at, cell in enumerate(cells) if cell.startswith("import nbtorchjob"))

    for cell in cells[begin:]:
        run(shell, cell)

    study = shell.user_ns["study"]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 12
    assert study.best_value == min(trial.value for trial in study.trials)


@having("toml")
def test_toml_blocks_are_files_of_profiles(paper, monkeypatch):
    for text in blocks(paper, "toml"):
        document = tomllib.loads(text)
        Path(FILE).write_text(text)
        if document.keys() & {"defaults", "locked", "limits"}:
            os.rename(FILE, "site.toml")
            monkeypatch.setenv(SITE, str(Path("site.toml").absolute()))
        for name in document["profiles"]:
            profiles.load(name)


@having("yaml")
def test_yaml_blocks_are_objects_to_be_applied(paper):
    for text in blocks(paper, "yaml"):
        assert all(
            {"apiVersion", "kind", "metadata"} <= document.keys() for document in yaml.safe_load_all(text)
        )


@having("bash")
def test_commands_are_those_that_there_are(paper):
    typed = [line for text in blocks(paper, "bash") for line in text.splitlines()]
    for words in (shlex.split(SOURCED.sub(r"\1\2", line), comments=True) for line in typed):
        command = [word for word in words if not re.match(r"[A-Z_]+=", word)]
        CHECKS[Path(command[0]).name](command[1:])


def made(names):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(names) <= set(targets)


def installed(words):
    verb, requirement = words
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert verb == "install"
    assert requirement.startswith(".[")
    assert set(requirement[2:-1].split(",")) <= extras.keys()


def held(paths):
    assert all((ROOT / path).exists() for path in paths)


def understood(words):
    name, *rest = words
    verb, (ahead, _) = command(name), parted(rest)
    if verb.any_option:
        options.parse(shlex.join(options.split_words(ahead)[1]), JobSpec())
    else:
        verb.parse(ahead)


CHECKS = {"make": made, "pip": installed, "pytest": held, "nbtorchjob": understood}
# The ways in which a shell sources a command's output.
SOURCED = re.compile(r"source <\((.*?)\)|(.*) \| source\b")


def test_every_public_name_is_in_the_docs():
    text = (ROOT / "docs" / "python.md").read_text()

    assert [name for name in nbtorchjob.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_every_public_name_has_an_entry_with_an_example():
    entries: dict[str, str] = {}
    for page in ROOT.glob("docs/api/*.md"):
        examples = "\n".join(blocks(page, "python"))
        for name in re.findall(r"^\.\. auto\w+:: nbtorchjob\.(\w+)$", page.read_text(), re.MULTILINE):
            entries[name] = examples

    assert sorted(entries) == nbtorchjob.__all__
    assert [name for name, examples in entries.items() if not re.search(rf"\b{name}\b", examples)] == []


def test_every_page_is_in_the_navigation_of_the_site():
    listed = (ROOT / "docs" / "index.md").read_text().splitlines()
    pages = [f"../{page.stem}" for page in ROOT.glob("*.md")]
    pages += [str(page.relative_to(ROOT / "docs").with_suffix("")) for page in ROOT.glob("docs/**/*.md")]
    pages += [f"../notebooks/{page.stem}" for page in ROOT.glob("notebooks/*.ipynb")]

    assert sorted({*pages} - {*listed}) == ["index"]


def test_every_page_is_in_the_list_of_pages():
    listed = (ROOT / "docs" / "README.md").read_text()

    for page in sorted(ROOT.glob("docs/*.md")):
        assert page.name == "README.md" or f"]({page.name})" in listed


def test_every_verb_and_exit_code_of_the_command_is_in_the_docs():
    text = (ROOT / "docs" / "cli.md").read_text()
    words = [*COMMANDS, *map(str, EXITS)]

    assert [verb for verb in words if not re.search(rf"(`|nbtorchjob ){verb}\b", text)] == []


def test_every_verb_has_its_document_in_the_table_for_programs():
    text = (ROOT / "docs" / "cli.md").read_text().partition("## For programs")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (`.*?) \| (.*) \|$", text, re.MULTILINE))
    documents = {
        verb: document for verbs, document in rows.items() for verb in re.findall(r"`([a-z]+)", verbs)
    }

    assert documents.keys() == COMMANDS.keys()
    none = {verb for verb, document in documents.items() if document.startswith("none")}
    assert {verb for verb, command in COMMANDS.items() if JSON not in command.options} == none - {"debug"}


def test_every_command_of_jupyterlab_is_in_the_docs():
    source = ROOT / "labextension" / "src"
    code = "".join((source / name).read_text() for name in ("ids.ts", "commands/table.ts"))
    ids = re.findall(r"'(nbtorchjob:[\w-]+)'", code)
    text = (ROOT / "docs" / "jupyterlab.md").read_text()

    assert [name for name in ids if name != "nbtorchjob:plugin" and f"`{name}`" not in text] == []


PLACES = [ROOT / "ARCHITECTURE.md", *sorted(ROOT.glob("docs/how-*.md")), ROOT / "docs" / "decisions.md"]
A_PATH = re.compile(r"`([\w/]+(?:\.py|/))`")


@pytest.mark.parametrize("paper", [*PLACES, ROOT / "docs" / "glossary.md"], ids=lambda paper: paper.name)
def test_every_module_that_a_page_names_exists(paper):
    package = [
        *ROOT.glob("nbtorchjob/**/"),
        *ROOT.glob("nbtorchjob/**/*.py"),
        *ROOT.glob("labextension/*.py"),
        *ROOT.glob("docs/*.py"),
    ]
    top = [path for path in ROOT.iterdir() if path.is_dir()]
    paths = ["/" + path.as_posix() + "/" * path.is_dir() for path in [*package, *top, *ROOT.glob("docs/*/")]]
    named = A_PATH.findall(paper.read_text())

    assert named
    assert [path for path in named if not any(candidate.endswith("/" + path) for candidate in paths)] == []


def test_every_package_has_its_line_in_the_architecture():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    modules = {path.name + "/" * path.is_dir() for path in (ROOT / "nbtorchjob").iterdir()}
    entries = {name for name in modules if not name.startswith("_") and re.search(r"\.py$|/$", name)} - {
        "labextension/"
    }

    assert [name for name in sorted(entries) if f"`{name}`" not in text] == []


def test_the_architecture_is_read_in_one_sitting():
    assert len((ROOT / "ARCHITECTURE.md").read_text().split()) <= 1500


def test_the_glossary_is_short_and_defines_each_word_once():
    words = re.findall(r"^\| (.*?) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    defined = [word for word in words if word not in ("word", "---")]

    assert 0 < len(defined) <= 60
    assert len(set(defined)) == len(defined)


def test_the_readme_is_read_in_a_minute():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
