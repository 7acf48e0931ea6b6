"""Requirements are understood in pip's forms, and what else stands there is refused by name, in a line."""

import sys

import pytest

from nbtorchjob.environment import requirements
from nbtorchjob.errors import SpecError
from tests.environment.built import project, wheel


def test_words_are_requirements_projects_wheels_or_what_is_needed(folder):
    mylib = project(folder / "mylib", "mylib")
    made = wheel(folder, "mine")

    asked = requirements.of_words(
        ["peft==0.18", str(mylib), str(made), "like-here", "a @ https://host/a.whl"]
    )

    assert asked.requirements == ("peft==0.18", "a @ https://host/a.whl")
    assert asked.paths == (mylib, made)
    assert asked.like_here


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("peft=0.18", "a requirement such as einops>=0.8"),
        ("git+https://host/x", "a requirement such as einops>=0.8"),
        ("./nothing", "a project's folder, or a wheel (no such file)"),
        ("nothing.whl", "a project's folder, or a wheel (no such file)"),
        (".", "a project's folder, or a wheel (it has no pyproject.toml)"),
        ("a @ https://me:secret@host/a.whl", "without a password: nodes have their own"),
        ("a @ git+https://secret@host/a", "without a password: nodes have their own"),
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
    file.write_text(
        "# all\npeft==0.18  # for LoRA\n\neinops>=0.8; \\\n  python_version > '3'\nx @ https://h/x\n"
    )

    assert [*requirements.of_file(str(file))] == [
        "peft==0.18",
        "einops>=0.8;   python_version > '3'",
        "x @ https://h/x",
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
            "'--index-url', but it must be left out: nodes are told",
        ),
        ("--extra-index-url=https://me:secret@host", "nodes are told where packages come from"),
        ("--find-links /wheels", "nodes are told where packages come from"),
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


def test_a_file_that_is_not_there_is_named(folder):
    with pytest.raises(SpecError, match=r"nothing\.txt.*No such file"):
        list(requirements.of_file(str(folder / "nothing.txt")))


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
        ("# ]", '# ]\n# [tool.uv]\n# index-url = "https://host"', "nodes are told where packages come from"),
        ("import peft\n", f"import peft\n{BLOCK}", "there once"),
    ],
)
def test_a_block_that_is_wrong_is_refused(old, new, why):
    with pytest.raises(SpecError) as caught:
        requirements.of_script(BLOCK.replace(old, new, 1), "the cell")

    assert why in str(caught.value)
    assert str(caught.value).startswith("the cell")
