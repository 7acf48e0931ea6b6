"""Requirements are read in pip's forms, and anything else is refused by name, in a line."""

import importlib
import json
import sys
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement

from nbtorchjob.environment import interpreter, requirements
from nbtorchjob.environment.interpreter import environment
from nbtorchjob.errors import SpecError
from nbtorchjob.state import JobInfo, JobState
from nbtorchjob.state.facts.events import EnvironmentTold
from tests.environment.built import project, wheel
from tests.environment.installed import install


def test_words_are_requirements_projects_wheels_or_what_is_needed(folder):
    mylib = project(folder / "mylib", "mylib")
    wheel_path = wheel(folder, "mine")

    requests = requirements.of_words(
        ["peft==0.18", str(mylib), str(wheel_path), "like-here", "a @ https://host/a.whl"]
    )

    assert requests.requirements == ("peft==0.18", "a @ https://host/a.whl")
    assert requests.paths == (mylib, wheel_path)
    assert requests.like_here


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("peft=0.18", "a requirement such as einops>=0.8"),
        ("git+https://host/x", "a requirement such as einops>=0.8"),
        ("./nothing", "a project's folder, or a wheel (no such file)"),
        ("nothing.whl", "a project's folder, or a wheel (no such file)"),
        ("~nobody-here/x", "a project's folder, or a wheel (no such file)"),
        (".", "a project's folder, or a wheel (it has no pyproject.toml)"),
        ("a @ https://me:secret@host/a.whl", "without a password: nodes have their own"),
        ("a @ git+https://secret@host/a", "without a password: nodes have their own"),
        ("a @ https://me:secret@[host/a.whl", "a requirement such as einops>=0.8 ("),
        ("a @ file:///a.whl", "a path alone (--package PATH): it is sent"),
        ("a==${VERSION}", "without variables: nodes have others"),
    ],
)
def test_a_word_that_nobody_can_install_is_refused_in_a_line(word, why, folder, monkeypatch):
    monkeypatch.chdir(folder)

    with pytest.raises(SpecError) as caught:
        requirements.of_words([word])

    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_login_name_of_git_is_no_secret():
    assert requirements.of_words(["a @ git+ssh://git@host/a"]).requirements == ("a @ git+ssh://git@host/a",)


def test_a_file_has_a_requirement_a_line_and_comments(folder):
    file = folder / "requirements.txt"
    text = (
        "# all\npeft==0.18  # for LoRA\n\neinops>=0.8; \\\n  python_version > '3'\nx @ https://h/x\n"
        "# from C:\\wheels\\\nrich\ntoolz \\\n# curried\n"
    )
    file.write_text(text)
    pips_own = importlib.import_module("pip._internal.req.req_file").preprocess(text)

    lines = [*requirements.of_file(str(file))]
    assert lines == [line for _, line in pips_own]
    assert lines == [
        "peft==0.18",
        "einops>=0.8;   python_version > '3'",
        "x @ https://h/x",
        "rich",
        "toolz",
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-r other.txt", "line 2: got '-r', but it must be left out: name each file with --requirements"),
        ("--requirement=other.txt", "name each file with --requirements"),
        ("-c bounds.txt", "name each file with --requirements"),
        ("-e .", "use --package PATH"),
        ("./mylib", "use --package PATH"),
        (
            "--index-url https://me:secret@host/simple",
            "'--index-url', but it must be left out: nodes use",
        ),
        ("--extra-index-url=https://me:secret@host", "nodes use the package indexes"),
        ("--find-links /wheels", "nodes use the package indexes"),
        ("peft==0.18 --hash=sha256:abc", "nodes check no hashes"),
        ("--only-binary :all:", "without options"),
        ("peft==", "a requirement such as einops>=0.8"),
    ],
)
def test_a_line_of_a_file_that_is_more_than_a_requirement_is_refused_by_name(line, why, folder):
    file = folder / "requirements.txt"
    file.write_text(f"einops\n{line}\n")

    with pytest.raises(SpecError) as caught:
        list(requirements.of_file(str(file)))

    assert f"{file}, line 2: got " in str(caught.value)
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["nothing.txt", "~nobody-here/nothing.txt"])
def test_a_file_that_is_not_there_is_named(name, folder, monkeypatch):
    monkeypatch.chdir(folder)

    with pytest.raises(SpecError, match=rf"{name}.*No such file"):
        list(requirements.of_file(name))


BLOCK = """\
# /// script
# requires-python = ">=3.10"
# dependencies = [
#   "peft==0.18",  # for LoRA
#   "einops",
# ]
# ///
import peft
"""


def test_a_block_at_the_top_says_what_a_cell_needs():
    assert requirements.of_script(f"\n{BLOCK}", "the cell") == ("peft==0.18", "einops")
    assert requirements.of_script("import peft\n# /// other\n# a = 1\n# ///\n", "the cell") == ()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (">=3.10", "<3", f"met by Python {sys.version_info[0]}.{sys.version_info[1]}"),
        (">=3.10", "new", "a version such as >=3.10"),
        ('"einops",', '"einops"; ', "TOML"),
        ('"einops",', '"einops=",', "a requirement such as"),
        ('"einops",', "3,", "a list of texts"),
        ("# ]", '# ]\n# [tool.uv]\n# index-url = "https://host"', "nodes use the package indexes"),
        ("import peft\n", f"import peft\n{BLOCK}", "given once"),
    ],
)
def test_a_block_that_is_wrong_is_refused(old, new, why):
    with pytest.raises(SpecError) as caught:
        requirements.of_script(BLOCK.replace(old, new, 1), "the cell")

    assert why in str(caught.value)
    assert str(caught.value).startswith("the cell")


def told(distributions, **more):
    return EnvironmentTold(1000.0, 0, "3.11.7", "x86_64 glibc 2.36", distributions, **more)


def parsed(text):
    """Return the lines that pip reads: each line but the comments has to be a requirement."""
    return [Requirement(line) for line in text.splitlines() if not line.startswith("#")]


def test_a_lock_has_a_head_and_pins_what_there_is():
    state = JobState(JobInfo("fox", created=0.0))

    text = requirements.lock_text(
        state, told({"b": "2.0.post1", "a": "1!1.0rc1"}, installed={"b": "2.1"}), ["notebook x"]
    )

    assert text.splitlines() == [
        "# What local:fox could import; it was submitted on 1970-01-01 00:00:00 UTC.",
        "# Python 3.11.7 on x86_64 glibc 2.36",
        "# notebook x",
        "a==1!1.0rc1",
        "b==2.1",
    ]


def test_a_build_is_pinned_to_its_version():
    assert requirements.lock_requirements(told({"torch": "2.13.0+cpu"})) == [
        "# torch==2.13.0+cpu, a build (+cpu) that may have an index of its own",
        "torch==2.13.0",
    ]


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (
            {"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "ab"}, "subdirectory": "p"},
            "x @ git+https://host/x.git@ab#subdirectory=p",
        ),
        (
            {"url": "https://me:geheim@host/x.whl", "archive_info": {"hash": f"sha256={'0' * 64}"}},
            f"x @ https://host/x.whl#sha256={'0' * 64}",
        ),
        (
            {"url": "ssh://git@host/x", "vcs_info": {"vcs": "git", "commit_id": "ab"}},
            "x @ git+ssh://git@host/x@ab",
        ),
        ({"url": "https://host/x.whl", "archive_info": {"hashes": {}}}, "x @ https://host/x.whl"),
        (
            {"url": "file:///home/me/my%20x", "dir_info": {"editable": True}},
            "# x==1.0: editable, from /home/me/my x",
        ),
        ({"url": "file:///tmp/x.whl", "archive_info": {}}, "# x==1.0: installed from /tmp/x.whl"),
        (
            {"url": "https://host/x\n--index-url evil"},
            "# x==1.0: installed from an unknown source",
        ),
        ({}, "# x==1.0: installed from an unknown source"),
        ([], "# x==1.0: installed from an unknown source"),
    ],
)
def test_what_no_index_has_is_a_direct_reference_or_a_comment(origin, line):
    (text,) = requirements.lock_requirements(told({"x": "1.0"}, origins={"x": json.dumps(origin)}))

    assert text == line
    assert len(parsed(text)) == (not text.startswith("#"))


def test_what_somebody_else_s_node_tells_installs_nothing_but_that():
    evil = {"x\n--index-url evil": "1", "y": "1\nevil", "-r evil": "1", "z": "1 --hash", "w": "", "ok": "1"}

    text = "\n".join(requirements.lock_requirements(told(evil)))

    assert [str(requirement) for requirement in parsed(text)] == ["ok==1"]


def test_all_that_this_interpreter_has_is_a_line_that_pip_reads(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "near", "1.0", "near.py", url="file:///home/me", dir_info={"editable": True})
    own = environment()

    text = "\n".join(requirements.lock_requirements(told(own.distributions, origins=interpreter.origins())))

    assert {requirement.name for requirement in parsed(text)} >= {"torch", "pytest"}
    assert "# near==1.0: editable, from /home/me" in text.splitlines()


def test_a_distribution_is_pinned_to_its_version_here():
    assert requirements.pins(["ipython", "nothing-of-that-name"]) == (f"ipython=={version('ipython')}",)


def test_what_belongs_to_torch_or_travels_anyway_is_left_out():
    assert requirements.pins(["torch", "triton", "nvidia-cudnn-cu13", "nbtorchjob", "cloudpickle"]) == ()


def test_a_closure_has_what_is_needed_directly_or_not():
    closure = requirements.closure(["ipython"])

    assert {"ipython", "jedi", "parso"} <= set(closure)  # jedi needs parso
    assert closure == sorted(closure)
    assert "nothing-of-that-name" in requirements.closure(["nothing-of-that-name"])
