"""``%%torchjob`` and ``%torchjob`` in a real IPython shell, with real jobs on this machine."""

import os
import re
import sys
import traceback
from pathlib import Path

import IPython
import pytest

import nbtorchjob
from nbtorchjob import (
    CaptureError,
    Elastic,
    JobFailedError,
    JobNotFoundError,
    NameTakenError,
    ResultError,
    SubmitError,
    api,
)
from nbtorchjob.backends.local import directory
from nbtorchjob.commands import front, swapping, table
from nbtorchjob.commands.front import Answer
from nbtorchjob.errors import CellSyntaxError
from nbtorchjob.job import Job
from nbtorchjob.machine import folders, interrupts
from nbtorchjob.spec import options
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import Phase
from nbtorchjob.ui.card import view
from tests.backends.local.acted import Acted
from tests.frontends.notebook.conftest import Notebook
from tests.patience import LIMIT
from tests.pools import end_pool
from tests.text.test_text import Screen

pytestmark = pytest.mark.torch

TWO = "--nproc-per-node 2"


def jobs():
    return {path.name for path in directory.jobs_dir().iterdir()}


@pytest.fixture
def nothing_new():
    """Check that a test leaves no job behind."""
    before = jobs()
    yield
    assert jobs() == before


def test_the_value_of_the_cell_is_the_value_of_its_last_expression(notebook):
    notebook.run("scale = 10")
    value = notebook.value("%%torchjob\nx = scale + 1\nx * 2")

    assert value == 22
    assert notebook["Out"][notebook.count] == 22
    assert notebook.out.endswith(f"Out[{notebook.count}]: 22\n")


def test_names_that_the_cell_sets_stay_on_the_ranks(notebook):
    notebook.run("x = 1")
    notebook.value("%%torchjob\nx = 2\ny = 3\nimport json")

    assert notebook["x"] == 1
    assert not {"y", "json"} & set(notebook.shell.user_ns)


def test_the_value_can_be_stored_by_name_and_is_not_echoed_then(notebook):
    assert notebook.value("%%torchjob -o loss\n0.5") is None

    assert notebook["loss"] == notebook["Out"][notebook.count] == notebook["_"] == 0.5
    assert "Out[" not in notebook.out


def test_what_a_cell_without_a_value_sets_is_told_twice(notebook):
    notebook.value("%%torchjob -o \N{MICRO SIGN}\nfor_ranks = 3")

    assert "Note: μ will be None, because the cell's last line" in notebook.out
    assert "Value:" not in notebook.out
    assert notebook.value("\N{MICRO SIGN}") is None
    refused = str(notebook.error("%%torchjob\nfor_ranks", CaptureError))
    assert "was set by an earlier %%torchjob cell, but only on its ranks" in refused


def test_what_differs_on_ranks_is_told_once(notebook):
    notebook.run("import functools\n@functools.cache\ndef f(x): return x\nf(1)")
    notebook.value("%%torchjob --dry-run\nf(1)")
    assert "# differs on ranks:\n#   f: its cache stays here" in notebook.out
    notebook.value("%%torchjob\nf(1)")
    assert "Note: f: its cache stays here" in notebook.out
    notebook.value("%%torchjob\nf(1)")
    assert "Note:" not in notebook.out


def test_a_job_that_fails_leaves_the_variable_as_it_was(notebook):
    notebook.run("loss = 1")
    notebook.error("%%torchjob -o loss\n1/0", JobFailedError)

    assert notebook["loss"] == 1


@pytest.mark.skipif(IPython.version_info < (8, 3), reason="since then magics can be silenced")
@pytest.mark.parametrize("cell", ["1 + 1;", "1 + 1;  # and a comment\n"])
def test_a_semicolon_silences_the_value(notebook, cell):
    assert notebook.value(f"%%torchjob\n{cell}") is None
    assert notebook.count not in notebook["Out"]


def test_a_function_takes_its_arguments_from_the_line_and_the_notebook(notebook):
    notebook.run("scale = 10")

    cell = "def f(n, scale, offset=1):\n    return n * scale + offset"
    assert notebook.value(f"%%torchjob --arg n=4\n{cell}") == 41


SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("epochs", type=int)
parser.add_argument("--lr", type=float)
vars(parser.parse_args())"""


def test_a_script_in_a_cell_takes_its_arguments_from_the_line(notebook):
    notebook.run("lr = 0.1")

    assert notebook.value(f"%%torchjob -- 3 --lr {{lr}}{SCRIPT}") == {"epochs": 3, "lr": 0.1}
    drawn = notebook.error(f"%%torchjob -- --lr 0.1{SCRIPT}", JobFailedError)
    assert "SystemExit: usage: cell [-h] [--lr LR] epochs" in drawn
    assert "cell: error: the following arguments are required: epochs" in drawn
    assert "no data" in notebook.error("%%torchjob\nimport sys\nsys.exit('no data')", JobFailedError)


def test_a_cell_that_ipython_does_not_count_has_no_number(shell):
    """``ipython some.ipynb`` doesn't count its cells."""
    shell.run_cell("%load_ext nbtorchjob", silent=True)
    result = shell.run_cell("%%torchjob\n1/0", silent=True)

    assert isinstance(result.error_in_exec, JobFailedError)
    assert "\nCell, line 2\n" in str(result.error_in_exec)


def test_an_exception_of_a_rank_can_be_caught_by_its_type(notebook):
    notebook.run("class Diverged(ArithmeticError): pass\ndef train(): raise Diverged('nan')")
    notebook.run("import nbtorchjob\njob = nbtorchjob.submit(train)")
    assert notebook.value(
        "try: job.result()\nexcept Diverged as exc: caught = exc\ntype(caught).__name__"
    ) == ("JobFailedError")
    assert isinstance(notebook["caught"], JobFailedError)
    notebook.error("%%torchjob\ntrain()", ArithmeticError)


def test_options_may_hold_the_notebooks_values(notebook):
    notebook.run("ranks = 2")

    assert notebook.value("%%torchjob --nproc-per-node {ranks}\nimport os\nos.environ['WORLD_SIZE']") == "2"


def test_every_ranks_value_comes_as_a_list(notebook):
    assert notebook.value(f"%%torchjob {TWO} --all-ranks\nimport os\nint(os.environ['RANK'])") == [0, 1]


def test_a_call_runs_with_options_or_without(notebook):
    notebook.run("def f(x, lr=0.1):\n    return x, lr\nx = 3")

    assert notebook.value("%torchjob run f(x, lr=0.5)") == (3, 0.5)
    assert notebook.value(f"%torchjob run {TWO} --all-ranks --env 'A=b c' f(x)") == [(3, 0.1)] * 2
    assert notebook.value("%torchjob run -o y f(-1)") is None
    assert notebook["y"] == (-1, 0.1)


def test_a_call_is_python_to_the_letter(notebook):
    notebook.run("n = 3\ndef f(*args):\n    return args")

    assert notebook.value("%torchjob run f({n}, '$n', '{n}')") == ({3}, "$n", "{n}")
    assert notebook.value("%torchjob run --name call-{n} f()") == ()
    assert "call-3" in jobs()


@pytest.mark.parametrize("line", ["f", "", "--nnodes 2", "--arg n=1 f(1)", "--swap train f(1)", "[f][0](1)"])
@pytest.mark.usefixtures("nothing_new")
def test_run_wants_one_call(notebook, line):
    notebook.run("def f(n):\n    return n")

    assert notebook.refusal(f"%torchjob run {line}").startswith("%torchjob run")


@pytest.mark.parametrize("tail", ["-o q", "-q", "--name=x", "if n else 2"])
@pytest.mark.usefixtures("nothing_new")
def test_a_call_with_something_behind_it_is_told_where_options_stand(notebook, tail):
    notebook.run("def f(n):\n    return n\nn = q = 1")

    message = notebook.error(f"%torchjob run f(1) {tail}", CaptureError)

    assert "write one call, as in train(model, lr=0.1), with any options before it" in message


def test_a_line_of_many_options_without_a_call_is_refused_at_once(notebook):
    line = "--ttl-seconds-after-finished 3 --active-deadline-seconds 60 " * 20

    assert "expected one call" in notebook.refusal(f"%torchjob run {line} train")


def test_a_failing_rank_raises_with_the_cells_own_lines(notebook):
    notebook.run("def half(x):\n    return x / 0\n")
    defined = notebook.count
    drawn = notebook.error(f"%%torchjob {TWO}\nx = 1\nhalf(x)", JobFailedError)

    assert re.search(r"rank [01]: ZeroDivisionError: division by zero", drawn)
    assert f"Cell In[{notebook.count}], line 3\n" in drawn
    assert "----> 3 half(x)" in drawn
    assert f"Cell In[{defined}], line 2, in half\n" in drawn
    assert "----> 2     return x / 0" in drawn
    assert "nbtorchjob/" not in drawn


def test_a_function_of_a_cell_comes_home_with_its_source(notebook):
    notebook.value("%%torchjob -o half\ndef half(x):\n    return x / 0\nhalf")

    assert notebook.value("import inspect\ninspect.getsource(half)") == "def half(x):\n    return x / 0\n"
    assert "----> 3     return x / 0" in notebook.error("half(1)", ZeroDivisionError)
    assert "----> 3     return x / 0" in notebook.error("%%torchjob\nhalf(1)", JobFailedError)


def test_a_failed_job_is_drawn_even_where_it_was_quick(notebook):
    notebook.error("%%torchjob --quiet --name quick-end\n1/0", JobFailedError)
    notebook.run("%torchjob status quick-end")

    assert notebook.out.startswith("torchjob quick-end failed")


def test_quiet_draws_nothing(notebook):
    notebook.value("%%torchjob --quiet\nprint('on the rank');")

    assert (notebook.out, notebook.err) == ("", "")


def test_a_detached_cell_gives_the_job(notebook):
    job = notebook.value("%%torchjob -d\n6 * 7")

    assert isinstance(job, Job)
    assert job.result(LIMIT) == 42
    assert f"torchjob {job.name}" in notebook.out


def test_a_detached_job_can_be_stored_and_awaited(notebook):
    assert notebook.value("%%torchjob -d -o job\n6 * 7") is None
    name = notebook["job"].name
    assert notebook.out == f"Not waiting for {name}: %torchjob attach {name} follows it.\n"

    assert notebook.value("await job") == 42


@pytest.mark.usefixtures("nothing_new")
def test_a_dry_run_prints_what_would_be_sent(notebook):
    notebook.run("data = [0] * 10")
    assert notebook.value("%%torchjob --dry-run --nnodes 1:2\nlen(data)") is None

    assert "1 to 2 node(s) × 1 rank(s)" in notebook.out
    assert re.search(r"^#   data +list +\d+ B$", notebook.out, re.MULTILINE)


def test_a_rehearsal_runs_on_two_ranks_here_first_and_leaves_nothing(notebook):
    before = jobs()

    assert notebook.value("%%torchjob --rehearse\nimport os\nint(os.environ['WORLD_SIZE'])") == 1

    (name,) = jobs() - before
    assert nbtorchjob.attach(name).info.nproc_per_node == 1


def test_a_rehearsal_shows_what_both_ranks_printed_and_points_to_no_job_that_is_gone(notebook):
    text = "import os\nfor n in range(14): print('rank', os.environ['RANK'], 'line', n)"

    notebook.run(f"%%torchjob --rehearse\n{text}")

    shown = notebook.out.partition("rank 1 printed ")[2]
    assert shown.startswith("14 lines, last 12 lines:\n  rank 1 line 2\n")
    assert "  rank 1 line 13\n" in shown
    assert "--rank 1" not in notebook.out


def test_a_rehearsal_that_fails_sends_nothing(notebook):
    before = jobs()

    assert "ZeroDivisionError" in notebook.error("%%torchjob --rehearse\n1 / 0", JobFailedError)

    (name,) = jobs() - before
    assert nbtorchjob.attach(name).info.nproc_per_node == 2


def test_a_profile_gives_the_defaults(notebook, tmp_path):
    (tmp_path / "notebook" / "nbtorchjob.toml").write_text(
        'default = "one"\n[profiles.one]\nenv = {WHO = "one"}\n'
        '[profiles.pair]\nnproc-per-node = 2\nenv = {WHO = "pair"}\n'
    )
    cell = "import os\nos.environ['WHO'], int(os.environ['WORLD_SIZE'])"

    assert notebook.value(f"%%torchjob\n{cell}") == ("one", 1)
    assert notebook.value(f"%%torchjob -p pair\n{cell}") == ("pair", 2)
    assert notebook.value(f"%%torchjob -p pair --nproc-per-node 1\n{cell}") == ("pair", 1)
    assert "pair" in notebook.refusal(f"%%torchjob -p pear\n{cell}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%%torchjob --nnodes 3:2\n1", "--nnodes: got '3:2'"),
        ("%%torchjob --nnodes 0\n1", "--nnodes: got '0'"),
        ("%%torchjob --nnodes a\n1", "--nnodes: got 'a'"),
        ("%%torchjob --nods 2\n1", "did you mean --nnodes"),
        ("%%torchjob 2\n1", "unexpected argument '2': options start with"),
        ("%%torchjob --name\n1", "--name expects a value"),
        ("%%torchjob --name 'x\n1", "closed quotes"),
        ("%%torchjob --name 3\n1", "--name: got '3'"),
        ("%%torchjob -o 1x\n1", "--out: got '1x'"),
        ("%%torchjob --backoff-limit 1\n1", "--backoff-limit can't be given "),
        ("%%torchjob --arg x\n1", "--arg: got 'x', but it must be NAME=VALUE"),
        ("%torchjob lst", "%torchjob lst: unknown command; did you mean list"),
        ("%torchjob rm x", "unknown command; did you mean delete?"),
        ("%torchjob --nnodes 2", "expected a verb first; to run with options: %%torchjob --nnodes …"),
        ("%torchjob help nothing", "unknown command"),
        ("%torchjob gc all", "takes no arguments"),
        ("%torchjob status", "this session has submitted no job"),
        ("%torchjob cancel", "%torchjob cancel expects a job"),
        ("%torchjob delete", "%torchjob delete expects a job"),
        ("%torchjob logs --rnk 1", "unknown option --rnk; available: --rank, "),
        ("%torchjob logs --rank", "--rank expects a whole number"),
        ("%torchjob logs --rank one", "--rank expects a whole number"),
        ("%torchjob logs a b", "takes one job"),
        ('%torchjob logs "a', "closed quotes"),
        ("%torchjob cancel 'a", "closed quotes"),
    ],
)
@pytest.mark.usefixtures("nothing_new")
def test_what_is_not_understood_is_told_in_one_line(notebook, line, words):
    assert words in notebook.refusal(line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%torchjob --help", "%torchjob logs [NAME]"),
        ("%torchjob help", "--nproc-per-node N"),
        ("%torchjob help logs", "%torchjob logs [NAME] [options]\n\n  print a rank's log"),
        ("%torchjob logs -h", "%torchjob logs [NAME] [options]\n\n  print a rank's log"),
        ("%torchjob run --nnodes 2 --help", "%torchjob run [options] f(x, lr=0.1)\n"),
        ("%torchjob run --help train()", "%torchjob run [options] f(x, lr=0.1)\n"),
        ("%%torchjob --nnodes 2 -h\n1", "The cell wasn't run.\n"),
    ],
)
@pytest.mark.usefixtures("nothing_new")
def test_help_comes_by_the_words_that_other_tools_have_for_it(notebook, line, words):
    assert notebook.value(line) is None

    assert words in notebook.out


def test_a_list_comes_by_other_tools_words_too(notebook, monkeypatch, tmp_path):
    end_pool()  # a pool that is still starting would be in that folder, and stay
    monkeypatch.setenv(folders.STATE, str(tmp_path / "state"))

    for line in ("%torchjob ls", "%torchjob ps"):
        notebook.value(line)
        assert notebook.out == "No jobs.\n"


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%%torchjob\n# nothing\n", "the cell is empty"),
        ("%%torchjob\nthread", "can't take 'thread' along: it is a thread"),
        ("%%torchjob\nundefined_name", "'undefined_name'"),
        ("%%torchjob\n!ls", "IPython's"),
        ("%%torchjob --arg x=1\nthread = 1", "--arg x: this cell isn't a function"),
        ("%%torchjob\ndef f(n):\n    return n", "f() needs 'n'"),
        ("%%torchjob --arg m=1\ndef f(n=1):\n    return n", "f() has no parameter 'm'"),
        ("%torchjob run len(thread)", "can't take 'args[0]' along"),
    ],
)
@pytest.mark.usefixtures("nothing_new")
def test_what_can_not_travel_is_told_in_one_line(notebook, cell, words):
    notebook.run("import threading\nthread = threading.Thread()")
    drawn = notebook.error(cell, CaptureError)

    assert words in drawn
    assert drawn.count("\n") == 1


@pytest.mark.usefixtures("nothing_new")
def test_an_empty_cell_is_a_usage_error(notebook):
    assert "the cell body is empty" in notebook.refusal("%%torchjob\n")


@pytest.mark.usefixtures("nothing_new")
def test_a_syntax_error_is_told_with_its_line(notebook):
    drawn = notebook.error("%%torchjob\nx = 1\ndef f(:\n    pass", CellSyntaxError)

    assert drawn.startswith(f"  Cell In[{notebook.count}], line 3\n    def f(:\n          ^\nSyntaxError: ")


def test_a_named_cell_can_be_run_again(notebook):
    notebook.value("%%torchjob --name only-one\n1")

    assert notebook.value("%%torchjob --name only-one\n1") == 1
    assert "Note: a job named only-one has already ended; this run is named only-one-2" in notebook.out


def test_a_named_cell_that_runs_is_attached_to_and_another_one_refused(notebook):
    waits = "import threading\nthreading.Event().wait()"
    notebook.run(f"%%torchjob --name busy-one -d -o one\n{waits}")
    notebook.run(f"%%torchjob --name busy-one -d -o two\n{waits}")

    assert "Note: busy-one already runs this cell: attached to it" in notebook.out
    drawn = notebook.error("%%torchjob --name busy-one\n2", NameTakenError)
    assert drawn.startswith("NameTakenError: busy-one is still running, with other code, data or options: ")
    notebook["one"].delete()


@pytest.mark.usefixtures("nothing_new")
@pytest.mark.parametrize("cell", ["%%torchjob\nstops", "%torchjob run print(stops)", "submit(print, stops)"])
def test_an_interrupt_before_there_is_a_job_says_so(notebook, cell):
    notebook.run(
        "import signal\nfrom nbtorchjob import submit\nclass Stops:\n"
        "    def __reduce__(self): signal.raise_signal(signal.SIGINT)\nstops = Stops()"
    )

    assert notebook.error(cell, interrupts.Interrupted) == "Interrupted: nothing was submitted.\n"


@pytest.mark.parametrize("cell", ["%%torchjob\n1 / 0", "def mine(): return attach('nowhere')\nmine()"])
def test_a_debugger_begins_among_the_users_frames(notebook, cell):
    notebook.run("from nbtorchjob import attach")
    assert notebook.run(cell).error_in_exec is not None

    *_, (frame, _) = traceback.walk_tb(sys.last_traceback)
    assert frame.f_globals is notebook.shell.user_ns


def test_a_value_that_can_not_come_home_says_what_it_was(notebook):
    drawn = notebook.error("%%torchjob\nimport threading\nthreading.Thread()", ResultError)

    assert "threading.Thread, which can't be pickled" in drawn


def test_the_table_names_every_job(notebook):
    notebook.value("%%torchjob --name in-the-table\n1")
    notebook.run("%torchjob list")

    assert re.search(r"^in-the-table +succeeded .* cell$", notebook.out, re.MULTILINE)


def test_without_a_name_the_newest_job_is_meant(notebook):
    notebook.value("%%torchjob --name older-job\nprint('older')\n1")
    notebook.value("%%torchjob --name newer-job\nprint('newer')\n2")

    notebook.run("%torchjob status")
    assert notebook.out.startswith("torchjob newer-job succeeded")
    notebook.run("%torchjob logs")
    assert notebook.out == "newer\n"
    notebook.run("%torchjob logs older-job")
    assert notebook.out == "older\n"
    assert notebook.value("%torchjob result") == notebook.value("%torchjob attach") == 2
    assert notebook.value("%torchjob attach older-job") == notebook.value("%torchjob result") == 1


def test_a_new_session_means_the_job_that_its_notebook_left_running(notebook, monkeypatch, tmp_path):
    wait = f"from pathlib import Path\nwhile not Path({str(tmp_path / 'gate')!r}).exists():\n    pass"
    monkeypatch.setenv("JPY_SESSION_NAME", "/other.ipynb")
    notebook.run(f"%%torchjob -d --name elsewhere\n{wait}")
    monkeypatch.setenv("JPY_SESSION_NAME", "/this.ipynb")
    notebook.run(f"%%torchjob -d --name left-first\n{wait}")
    notebook.run(f"%%torchjob -d --name left-last\n{wait}\n7")
    front.end()

    notebook.run("%torchjob attach -d")
    assert "left-last is this notebook's newest job; also running: left-first\n" in notebook.out
    (tmp_path / "gate").touch()
    assert notebook.value("%torchjob attach") == 7
    for name in ("elsewhere", "left-first"):
        notebook.value(f"%torchjob attach {name}")


def test_logs_give_a_rank_and_a_tail(notebook):
    notebook.value(f"%%torchjob {TWO}\nimport os\nfor n in range(3):\n    print(os.environ['RANK'], n)")

    notebook.run("%torchjob logs --rank 1 --tail 2")
    assert notebook.out == "1 1\n1 2\n"
    notebook.run("%torchjob logs --tail 0")
    assert notebook.out == ""
    assert "--tail: got -1" in notebook.refusal("%torchjob logs --tail -1")
    assert "--rank: got 2, but it must be 0 to 1: " in notebook.refusal("%torchjob logs --rank 2")


def test_all_that_is_known_of_a_job_is_described(notebook):
    notebook.value("%%torchjob --name described-job --retries 2 --ttl-seconds-after-finished 60\n1")
    notebook.run("%torchjob describe")

    assert notebook.out.startswith("torchjob described-job succeeded")
    assert re.search(r"^  --retries +2 +\w", notebook.out, re.MULTILINE)
    assert re.search("^  removed in (1 min|5)", notebook.out, re.MULTILINE)
    (folder,) = re.findall("^  logs and values in (.*) on this machine$", notebook.out, re.MULTILINE)
    assert (Path(folder) / "events.jsonl").exists()
    notebook.run("%torchjob describe described-job")
    assert notebook.out.startswith("torchjob described-job succeeded")


WAITS = "import os, time\nwhile not os.path.exists(stop):\n    time.sleep(0.01)\n7"


def test_a_job_can_be_attached_its_value_stored(notebook, folder):
    notebook.run(f"stop = {str(folder / 'stop')!r}")
    job = notebook.value(f"%%torchjob -d\n{WAITS}")

    assert f"{job.name} is " in notebook.refusal(f"%torchjob result {job.name}")
    assert notebook.value(f"%torchjob attach -d {job.name}").name == job.name
    (folder / "stop").touch()
    assert notebook.value(f"%torchjob attach {job.name} -o late") is None
    assert notebook["late"] == 7
    assert notebook.value(f"%torchjob result {job.name} --out later") is None
    assert notebook["later"] == 7


def test_an_ended_job_is_run_once_more_and_drawn_as_a_cell_is(notebook):
    job = notebook.value("%%torchjob -d --name once\nprint('said')\n41 + 1")
    assert job.result(LIMIT) == 42

    assert notebook.value("%torchjob retry") == 42
    assert f"Out[{notebook.count}]: 42" in notebook.out
    assert notebook.value("%torchjob retry once -o late") is None
    assert notebook["late"] == 42
    again = notebook.value("%torchjob retry once --detach")
    assert again.result(LIMIT) == 42
    notebook.run("%torchjob status")
    assert notebook.out.startswith("torchjob once-4 succeeded")


def test_a_job_that_runs_is_not_run_once_more(notebook, folder):
    notebook.run(f"stop = {str(folder / 'stop')!r}")
    job = notebook.value(f"%%torchjob -d\n{WAITS}")

    assert f"{job.name} hasn't ended: cancel it first" in notebook.error("%torchjob retry", SubmitError)
    (folder / "stop").touch()
    assert job.result(LIMIT) == 7


def test_a_job_can_be_cancelled_and_deleted(notebook, folder):
    notebook.run(f"stop = {str(folder / 'stop')!r}")
    first = notebook.value(f"%%torchjob -d\n{WAITS}")
    second = notebook.value(f"%%torchjob -d\n{WAITS}")

    notebook.run(f"%torchjob cancel {first.name} {second.name}")
    assert notebook.out == f"{first.name} cancelled\n{second.name} cancelled\n"
    assert "cancelled" in notebook.error("%torchjob attach", nbtorchjob.JobCancelledError)
    notebook.run(f"%torchjob delete {first.name} {second.name}")
    assert notebook.out == f"{first.name} deleted\n{second.name} deleted\n"
    assert not {first.name, second.name} & jobs()
    assert "submitted no job" in notebook.refusal("%torchjob status")
    assert "there is no job named" in notebook.error(f"%torchjob status {first.name}", JobNotFoundError)


def test_config_gives_the_options_of_a_job_or_of_this_session(notebook, monkeypatch):
    job = notebook.value(f"%%torchjob -d --name configured {TWO} --env A=b\n1")
    job.wait(LIMIT)

    notebook.run("%torchjob config configured")
    assert notebook.out == "%%torchjob --nproc-per-node 2 --name configured --env A=b\n"
    notebook.run("%torchjob config")
    assert notebook.out == "%%torchjob\n"
    monkeypatch.setenv("NBTORCHJOB_NNODES", "1:2")
    notebook.run("%torchjob config")
    assert notebook.out == "%%torchjob --nnodes 1:2\n"


def test_help_names_every_verb_and_option(notebook):
    notebook.run("%torchjob")
    shown = notebook.out
    help_of = notebook.shell.find_cell_magic("torchjob").__doc__

    for text in (shown, help_of):
        assert all(re.search(rf"(?<![\w-]){flag}(?![\w-])", text) for flag in options.flags())
        assert all(f"%torchjob {verb}" in text for verb in table.VERBS)


def test_the_completer_knows_the_magics_verbs(notebook):
    assert notebook.refusal("%torchjob xyzzy").endswith(f"available: {', '.join(table.VERBS)}")


def test_more_ranks_than_cores_are_warned_of(notebook, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # whatever this machine has
    notebook.value(f"%%torchjob {TWO}\n1")
    assert notebook.out.startswith("Note: nproc_per_node=2 is more than this machine's 1 cores")

    notebook.value(f"%%torchjob {TWO} --dry-run\n1")
    assert "note: nproc_per_node=2" in notebook.out


def test_what_the_cell_prints_can_be_captured(notebook, monkeypatch):
    monkeypatch.setitem(view.watch.__kwdefaults__, "quiet_s", 0)
    notebook.value("%%capture said\nget_ipython().run_cell_magic('torchjob', '', 'print(\"on the rank\")')")

    assert notebook.out == ""
    assert "\non the rank\ntorchjob " in notebook["said"].stdout


def registered(shell):
    kinds = shell.magics_manager.magics
    return {
        "magics": [kind for kind in ("line", "cell") if "torchjob" in kinds[kind]],
        "matchers": len(shell.Completer.custom_matchers),
        "formatted": Job in shell.display_formatter.mimebundle_formatter,
    }


def test_the_extension_comes_and_goes_without_a_trace(shell, capsys):
    baseline, notebook = registered(shell), Notebook(shell, capsys)
    notebook.run("%load_ext nbtorchjob")
    loaded = registered(shell)
    notebook.value("%%torchjob -d\n1").wait(LIMIT)

    nbtorchjob.load_ipython_extension(shell)
    assert registered(shell) == loaded
    notebook.run("%reload_ext nbtorchjob")
    assert registered(shell) == loaded
    notebook.run("%unload_ext nbtorchjob")
    assert registered(shell) == baseline
    nbtorchjob.unload_ipython_extension(shell)
    assert registered(shell) == baseline
    assert "not found" in notebook.refusal("%torchjob list")
    notebook.run("%load_ext nbtorchjob")
    assert registered(shell) == loaded
    assert notebook.value("%%torchjob\n1") == 1


def test_what_the_session_chose_goes_with_the_extension(notebook):
    front.use(JobSpec(Elastic(nproc_per_node=2)))
    notebook.value("%%torchjob -d\n1").wait(LIMIT)

    notebook.run("%unload_ext nbtorchjob")
    notebook.run("%load_ext nbtorchjob")

    notebook.run("%torchjob config")
    assert notebook.out == "%%torchjob\n"
    assert "this session has submitted no job" in notebook.refusal("%torchjob status")


def test_a_job_draws_itself(notebook):
    job = notebook.value("%%torchjob -d\n6 * 7")
    job.wait(LIMIT)
    bundle, _ = notebook.shell.display_formatter.format(job)

    assert job.state.phase is Phase.SUCCEEDED
    assert bundle["text/plain"].startswith(f"torchjob {job.name} succeeded")
    assert job.name in bundle["text/html"]


def test_what_a_terminal_shows_of_a_log_is_text(shell, monkeypatch):
    nbtorchjob.load_ipython_extension(shell)
    job = Acted()
    job.begin()
    job.log(b"\x1b[31mred \x1b]0;title\x07\n")
    monkeypatch.setattr(sys, "stdout", screen := Screen())  # Python's, which pytest has replaced

    shell.run_line_magic("torchjob", f"logs {job.name}")
    job.end()
    shell.run_line_magic("torchjob", f"attach {job.name} -d")
    terminal = view.Terminal()
    terminal.draw(api.snapshot(job.name))
    terminal.close(api.snapshot(job.name))

    log, *more = screen.getvalue().splitlines()
    assert log == "\x1b[31mred ^[]0;title^G"
    assert more[0].endswith("\x1b[31mred ^[]0;title^G")
    assert "\x1b]" not in screen.getvalue()


def test_cells_are_told_apart(notebook):
    notebook.run("scale = 1\ndef scaled(x):\n    return scale * x")
    notebook.run("%%torchjob --name first\nscaled(2)")
    notebook.run("scale = 3")
    notebook.run("%%torchjob --name second\nscaled(2) + 1")

    notebook.run("%torchjob diff first second")
    text = notebook.out
    notebook.run("%torchjob describe second")
    described = notebook.out
    notebook.run("%torchjob lock second")

    assert text.startswith("first and second differ in code and captured data; alike: options, packages")
    assert "  -scaled(2)\n  +scaled(2) + 1\n" in text
    assert re.search(r"^  scale +1 +3$", text, re.MULTILINE)
    assert re.search(r"^  value +2 +7$", text, re.MULTILINE)
    assert re.search(
        r"distributions, among them torch \S+, .*%torchjob lock second$", described, re.MULTILINE
    )
    assert notebook.out.startswith("# What local:second could import")
    for name in ("first", "second"):
        notebook.run(f"%torchjob delete {name}")


def test_the_braces_of_a_regular_expression_or_a_set_are_no_variables(notebook):
    notebook.value("%%torchjob\nprint('loss=123')\nprint('loss=12')")
    notebook.run(r"%torchjob logs --grep 'loss=\d{3}$'")
    assert notebook.out == "loss=123\n"

    cell = "def of(choices): return choices"
    assert notebook.value(f'%%torchjob --arg "choices={{1, 2}}"\n{cell}') == {1, 2}
    notebook.run("n = 3")
    assert notebook.value(f'%%torchjob --arg "choices={{n}}"\n{cell}') == 3
    assert notebook.value(f"%%torchjob --arg \"choices=[{{1, 2}}, '{{']\"\n{cell}") == [{1, 2}, "{"]


@pytest.mark.skipif(IPython.version_info < (8, 3), reason="since then magics can be silenced")
def test_a_semicolon_silences_the_value_of_a_line(notebook):
    notebook.run("def double(x): return 2 * x")

    assert notebook.value("%torchjob run double(1);") is None
    assert "Out[" not in notebook.out
    assert notebook.value("%torchjob result") == 2
    assert notebook.value("%torchjob result;") is None


@pytest.mark.parametrize(
    "line", ["--name My_Job -d", '--name "quoted-job"', "-d --name=Größe", "--name 'a b' -d -- --name mine"]
)
def test_a_new_job_is_offered_under_a_name_of_its_own(notebook, monkeypatch, line):
    offers = []

    def choice(job, edited, again):
        offers.append(again)
        return Answer("")

    monkeypatch.setattr(swapping, "choice", choice)
    spec, cell_options = options.parse(line, JobSpec())
    Acted(spec.name)

    notebook.error(f"%%torchjob {line}\n1", NameTakenError)

    ((new_spec, new_options),) = (options.parse(again, JobSpec()) for again in offers)
    assert new_spec.name == f"{spec.name}-2"
    assert new_options == cell_options
