"""Cells on ranks that stay, with a real lab on this machine."""

import pytest

from nbtorchjob import CaptureError, JobEndedError, JobFailedError, NameTakenError, api
from nbtorchjob.errors import LackingError
from nbtorchjob.state import Phase
from tests.environment.installed import install
from tests.patience import LIMIT

pytestmark = pytest.mark.torch


@pytest.fixture
def lab(notebook):
    cell = "import os\nrank = int(os.environ['RANK'])\nx = 1"
    notebook.value(f"%%torchjob --keep lab --nproc-per-node 2\n{cell}")
    yield api.lab("lab")
    api.lab("lab").job.delete()


def test_a_cell_finds_what_those_before_it_left_and_a_failure_leaves_it(notebook, lab):
    notebook.run("batch = 3\ndef more(): return x + batch")

    assert notebook.value("%%torchjob --on lab\nx += batch\nmore()") == 7
    assert notebook.value("%%torchjob --on lab --all-ranks\nx, rank") == [(4, 0), (4, 1)]
    notebook.error("%%torchjob --on lab\nx = 9\n1 / 0", JobFailedError)
    assert "ZeroDivisionError" in notebook.out + notebook.err
    assert notebook.value("%torchjob run --on lab more()") == 12
    assert "x" not in notebook.shell.user_ns
    assert lab.run(notebook["more"]).result(LIMIT) == 12


def test_a_cell_on_some_ranks_sets_names_there_alone(notebook, lab):
    assert notebook.value("%%torchjob --on lab --rank 1\nonly = rank + 5\nprint('here')\nonly") == 6
    notebook.run("%torchjob logs lab#2 --rank 1")
    assert notebook.out == "here\n"

    refused = str(notebook.run("%%torchjob --on lab\nonly").error_in_exec)
    assert refused == "name 'only' (line 2) was set by cell 2 on rank 1 only: --rank 1"
    assert notebook.value("%%torchjob --on lab --rank 0-1\nrank") == 0


def test_what_both_have_is_the_ranks_which_is_said_once_and_can_be_chosen(notebook, lab):
    notebook.run("x = 'mine'")

    assert notebook.value("%%torchjob --on lab\nx") == 1
    assert "Note: the ranks of lab use their own x" in notebook.out
    assert notebook.value("%%torchjob --on lab\nx") == 1
    assert "Note:" not in notebook.out
    assert notebook.value("%%torchjob --on lab --push x\nx * 2") == "minemine"
    assert notebook.value("%%torchjob --on lab --pull rank\nx") == "mine"
    assert "Note:" not in notebook.out
    assert notebook["rank"] == 0


def test_what_was_run_becomes_a_job_of_its_own(notebook, lab):
    notebook.run("step = 10")
    notebook.value("%%torchjob --on lab --rank 1\nx += 5")
    notebook.value("%%torchjob --on lab\nx += step\nx")
    scaled = "import sys\ndef scaled(by=1):\n    return x * by, sys.argv[1:]"
    notebook.value(f"%%torchjob --on lab --arg by=2 -- --lr 0.1\n{scaled}")
    notebook.run("%%torchjob --on lab\n1 / 0")
    notebook.run("step = 100")  # the notebook's current value counts
    notebook.run("%torchjob promote lab --dry-run")
    assert "# cell 2, rank 1 only:\n#   x += 5" in notebook.out
    assert "# cell 4, --arg by=2 -- --lr 0.1:\n#   import sys" in notebook.out
    assert "1 / 0" not in notebook.out

    job = notebook.value("%torchjob promote lab --all-ranks")

    assert job.results(LIMIT) == [(202, ["--lr", "0.1"]), (212, ["--lr", "0.1"])]
    assert job.info.promoted == "lab"
    assert lab.state.phase is Phase.RUNNING


def test_a_profile_lies_between_the_labs_options_and_the_line(notebook, lab, tmp_path, monkeypatch):
    (tmp_path / "nbtorchjob.toml").write_text("[profiles.wide]\nnnodes = 3")
    monkeypatch.chdir(tmp_path)
    notebook.value("%%torchjob --on lab\nx")

    notebook.run("%torchjob promote lab -p wide --dry-run")
    assert "local: 3 node(s) × 2 rank(s)" in notebook.out
    notebook.run("%torchjob promote lab -p wide --nnodes 2 --dry-run")
    assert "local: 2 node(s) × 2 rank(s)" in notebook.out
    assert "unknown profile wider; did you mean wide?" in notebook.refusal("%torchjob promote lab -p wider")


@pytest.mark.parametrize("verb", ["promote", "pool"])
@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("--each lr=1,2", "--each applies"),
        ("--sample 3 --each lr=1,2", "--sample, --each apply"),
        ("--swap train", "--swap applies"),
        ("--keep other", "--keep applies"),
        ("--on other --rank 1", "--on, --rank apply"),
        ("-o x", "--out applies"),
    ],
)
def test_what_is_for_cells_alone_is_refused_as_it_was_typed(notebook, verb, words, refused):
    assert notebook.refusal(f"%torchjob {verb} lab {words}") == f"%torchjob {verb}: {refused} to cells only"


def test_lists_say_what_a_lab_does_and_its_end_returns_its_ranks(notebook, lab):
    notebook.run("%torchjob list")
    assert "running · idle" in notebook.out
    notebook.run("%torchjob attach lab")
    assert "%torchjob attach lab#1 shows its newest cell" in notebook.out
    notebook.run("%torchjob status lab")
    assert "1 cell so far" in notebook.out

    notebook.run("%torchjob end lab")

    assert lab.job.exception(LIMIT) is None
    assert isinstance(notebook.run("%%torchjob --on lab\n1").error_in_exec, JobEndedError)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--on lab --rank 9", "rank: got 9, but it must be 0 to 1: lab has 2 ranks"),
        ("--on lab --rank x", "rank: got 'x', but it must be a rank, or several: 0, 0,2 or 1-3"),
        (
            "--on lab --nnodes 2",
            "--nnodes can't be given with --on lab: the lab keeps the settings that it began with; "
            "give it with --keep",
        ),
        ("--on lab --push nope", "push: got 'nope', but it must be a variable of the notebook"),
    ],
)
def test_what_a_lab_cannot_take_is_refused_before_anything_is_sent(notebook, lab, line, reason):
    assert notebook.refusal(f"%%torchjob {line}\n1") == reason
    assert len(lab.state.turns) == 1


def test_what_a_lab_lacks_is_said_before_a_cell_is_sent(notebook, lab, tmp_path, monkeypatch):
    install(tmp_path, "left-pad", "1.0", "left_pad.py")
    monkeypatch.syspath_prepend(tmp_path)
    lacks = "lab lacks left-pad 1.0, which the call imports: restart it with --package left-pad==1.0,"

    refused = notebook.run("%%torchjob --on lab\nimport left_pad").error_in_exec
    assert str(refused) == f"{lacks} or use an image that has it"
    assert isinstance(refused, LackingError)
    assert notebook.value("%%torchjob --on lab\nif x > 9:\n    import left_pad\nx") == 1
    assert "Note: lab lacks left-pad 1.0" in notebook.out
    block = "# /// script\n# dependencies = ['torch', 'left-pad']\n# ///\n1"
    refused = notebook.run(f"%%torchjob --on lab\n{block}").error_in_exec
    assert "script block: restart it with --package left-pad" in str(refused)
    assert len(lab.state.turns) == 2

    # No fact records the packages that a cell has installed.
    folder = "folder = next(path for path in sys.path if path.endswith('/files'))"
    write = "os.makedirs(folder, exist_ok=True)\nopen(f'{folder}/left_pad.py', 'w').close()"
    notebook.value(f"%%torchjob --on lab --rank 0\nimport sys\n{folder}\n{write}")
    assert notebook.value("%%torchjob --on lab\nimport left_pad\nleft_pad.__name__") == "left_pad"


def test_a_name_that_is_there_is_no_other_labs(notebook, lab):
    notebook.error("%%torchjob --keep lab\n1", NameTakenError)
    notebook.error("%%torchjob --on lab\nnowhere", CaptureError)

    assert len(lab.state.turns) == 1
