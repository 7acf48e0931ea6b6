"""The command's verbs, its messages for lines that it doesn't understand, and its exit codes."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import tty
from pathlib import Path

import pytest

import nbtorchjob
from nbtorchjob import Elastic, Job, JobSpec, api
from nbtorchjob.commands.table import VERBS
from nbtorchjob.errors import ClusterError, UnreachableError
from nbtorchjob.frontends.cli import output
from nbtorchjob.frontends.cli.commands import CELLS_ONLY, COMMANDS
from nbtorchjob.machine import folders
from nbtorchjob.spec import options
from tests.backends.local.acted import Acted
from tests.patience import LIMIT
from tests.pools import end_pool
from tests.text.test_text import Screen


@pytest.fixture(scope="module")
def pair(state_dir):
    """Yield two jobs that have ended, the newest ones as long as no test starts others."""
    pair = [
        nbtorchjob.submit(int, "6", spec=JobSpec(Elastic(nproc_per_node=ranks), name=name))
        for name, ranks in (("one-of-two", 2), ("two-of-two", 1))
    ]
    assert [job.result(LIMIT) for job in pair] == [6, 6]
    yield pair
    for job in pair:
        job.delete()


@pytest.fixture
def apart(tmp_path, monkeypatch):
    """Set a state folder of the test's own, with no job in it; end its pool afterwards."""
    monkeypatch.setenv(folders.STATE, str(tmp_path / "state"))
    yield
    end_pool()


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Write a profile for a cluster that doesn't exist."""
    config = {
        "current-context": "far",
        "contexts": [{"name": "far", "context": {"cluster": "far", "user": "me"}}],
        "clusters": [{"name": "far", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "me", "user": {}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    Path("nbtorchjob.toml").write_text(
        "default = 'far'\n[profiles.far]\nbackend = 'kubernetes'\nnamespace = 'ml'\n"
    )


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("", 2, "  run [options] SCRIPT.py:FUNCTION"),
        ("lst", 2, "nbtorchjob lst: unknown command; did you mean list"),
        ("--nnodes 2", 2, "to run with options: nbtorchjob run SCRIPT.py:FUNCTION --nnodes …"),
        ("gc all", 2, "nbtorchjob gc takes no arguments, got 'all'"),
        ("list --josn", 2, "nbtorchjob list: unknown option --josn; available: --all"),
        ("logs --json", 2, "unknown option --json"),
        ("logs --rank one", 2, "--rank expects a whole number, got 'one'"),
        ("logs --tail -1 known", 2, "nbtorchjob: --tail: got -1, but it must be 0 or more lines"),
        ("map train.py:train -- 1", 2, "nbtorchjob map expects --each NAME=VALUES; nbtorchjob run runs one"),
        ("swap known none.py", 2, "nbtorchjob swap: none.py can't be read (No such file or directory)\n"),
        ("completion", 2, "nbtorchjob completion expects bash|zsh|fish, got ''"),
        ("status a b", 2, "nbtorchjob status takes one job, got 'a b'"),
        ("cancel", 2, "nbtorchjob cancel expects a job; nbtorchjob list lists them"),
        ("cancel known ''", 2, "nbtorchjob cancel expects a job, got ''; nbtorchjob list lists them"),
        ("status ''", 2, "nbtorchjob status expects a job, got ''"),
        ("export any", 2, "nbtorchjob export expects NAME FOLDER, got 'any'"),
        ("completion csh", 2, "unknown shell 'csh'; available: bash, zsh, fish"),
        ("doctor --nnodes 3:2", 2, "--nnodes: got '3:2'"),
        ("run train.py:train --gpu 1 -- 1", 2, "nbtorchjob: --gpu can't be given on the local backend"),
        ("run train.py:train --backoff-limit 1 -- 1", 2, "nbtorchjob: --backoff-limit can't be given on"),
        ("status nowhere", 3, "nbtorchjob: there is no job named 'nowhere'"),
        ("attach nowhere", 3, "nbtorchjob: there is no job named 'nowhere'"),
        ("run", 2, "name one function, got ''"),
        ("run train.py:train train.py:half", 2, "name one function, got 'train.py:train train.py:half'"),
        ("run nowhere.py:train", 2, "there is no script"),
        ("run train:train", 2, "there is no script"),
        ("run train.py", 2, "its functions are: train.py:train, train.py:half, "),
        ("run train.py:tarin", 2, "train.py has no function 'tarin'; its functions are: train, half, "),
        ("run train.py:SCALE", 2, "train.py has no function 'SCALE'"),
        ("run train.py:train", 2, "missing a required argument: 'lr'"),
        ("run train.py:train --nods 2 -- 1", 2, "did you mean --nnodes"),
        (
            "run train.py:train --lr 3",
            2,
            "arguments after --: nbtorchjob run train.py:train -- --lr 3",
        ),
        ("run --nproc 2 train.py:train", 2, "unknown option --nproc; did you mean --nproc-per-node?\n"),
        (
            "run --nnodes 2 train.py:train 0.1",
            2,
            "own arguments after --: nbtorchjob run --nnodes 2 train.py:train -- 0.1",
        ),
        ("run train.py:train 0.1", 2, "own arguments after --: nbtorchjob run train.py:train -- 0.1"),
        ("run train.py:train -m x", 2, "-m can't be given here: the job runs the cell or the named function"),
        ("run train.py:train --arg lr=1", 2, "--arg is for notebook cells"),
        ("run train.py:train -o x -- 1", 2, "--out is for notebook cells"),
        ("run train.py:train --dry-run --json -- 1", 2, "--json and --dry-run are mutually exclusive"),
        (
            "end known",
            2,
            "end: got 'known', but it must be a lab or a pool; nbtorchjob cancel known ends a job",
        ),
        ("promote known", 2, "promote: got 'known', but it must be a lab, started with --keep NAME; this is"),
        ("note known ''", 2, "nbtorchjob note known expects a text; --clear removes the note"),
        ("pool warm --dry_run --json", 2, "nbtorchjob: --json and --dry-run are mutually exclusive"),
        ("promote known --json --dry-run", 2, "nbtorchjob: --json and --dry-run are mutually exclusive"),
        ("map train.py:train --each lr=1,2 -- --lr 4", 2, "nbtorchjob: lr is given twice, by --each and by"),
        ("run train.py:train -p nowhere -- 1", 2, "unknown profile nowhere"),
        ("run train.py:train --profile=nowhere", 2, "unknown profile nowhere; available: none"),
        ("run train.py:train -p nowhere", 2, "unknown profile nowhere; available: none (searched: "),
    ],
)
@pytest.mark.usefixtures("apart")
def test_what_is_not_understood_is_told_in_a_line(command, line, code, words):
    Acted("known").end()
    done = command(*shlex.split(line))

    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert "%torchjob" not in done.err
    assert done.err.count("\n") == 1 or not line


@pytest.mark.usefixtures("apart")
class TestWhatAUserWroteStays:
    """Only our own hints are reworded for the terminal."""

    TYPED = "%torchjob delete me, %%torchjob"

    def test_in_an_error(self, command):
        done = command("gc", self.TYPED)

        assert done.err == f"nbtorchjob gc takes no arguments, got {self.TYPED!r}\n"

    @pytest.mark.parametrize("verb", ["status", "describe"])
    def test_in_an_answer(self, command, verb):
        job = Acted("wordy")
        job.begin()
        job.fail(0, message=self.TYPED)
        job.end()

        text = command(verb, "wordy").out

        assert self.TYPED in text
        assert "%torchjob" not in text.replace(self.TYPED, "")

    def test_while_hints_name_the_command_s_verbs(self, command):
        Acted("kept").end()

        assert "kept until nbtorchjob delete kept or nbtorchjob gc --yes" in command("describe", "kept").out


def names():
    return {state.info.name for state in api.jobs()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", "SyntaxError"),
        ("import nowhere\n", "ModuleNotFoundError: No module named 'nowhere'"),
        ("1 / 0\n", "line 1, in <module>\n    1 / 0\n"),
        ("raise SystemExit(3)\n", "exited (3) while loading"),
        ("import threading\nt = threading.Thread()\ndef f():\n    return t\n", "f → t is a thread"),
    ],
)
def test_a_script_that_can_not_be_taken_along_is_told_of(command, text, words):
    Path("broken.py").write_text(text)
    before = names()
    done = command("run", "broken.py:f")

    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "frontends/cli/script.py" not in done.err
    assert names() == before


@pytest.mark.parametrize(
    "text",
    [
        "if __name__ == '__main__':\n    1 / 0\n",
        "if '__main__' == __name__ and True:\n    1 / 0\n",
        "if False:\n    pass\nelif __name__ == '__main__':\n    1 / 0\n",
        "try:\n    if (__name__ == '__main__'):\n        1 / 0\nfinally:\n    pass\n",
        "if __name__ != '__main__':\n    pass\nelse:\n    1 / 0\n",
    ],
)
def test_what_is_only_for_running_a_script_is_not_run(command, text):
    Path("guarded.py").write_text(f"{text}def f():\n    return __name__ == '__main__'\n")

    assert command("run", "--dry-run", "guarded.py:f").code == 0


def test_an_interrupt_while_the_command_is_imported_is_quiet(process):
    sends = "name == 'nbtorchjob.commands.verbs' and signal.raise_signal(signal.SIGINT)"
    finder = f"lambda name, *_: ({sends}) or None"
    first = f"type('Finder', (), {{'find_spec': staticmethod({finder})}})"
    done = process("list", before=f"import signal; sys.meta_path.insert(0, {first})")

    assert (done.communicate(), done.returncode) == (("", ""), 130)


@pytest.mark.parametrize("streams", [">/dev/full", ">/dev/full 2>&1"])
def test_a_full_disk_is_an_exit_code(script, streams):
    line = f"{sys.executable} -m nbtorchjob --help {streams}"
    done = subprocess.run(["bash", "-c", line], check=False, timeout=LIMIT, capture_output=True, text=True)

    assert done.returncode == 4
    assert done.stderr.count("\n") == (streams == ">/dev/full")


@pytest.mark.usefixtures("nowhere")
def test_a_cluster_that_can_not_be_reached_is_an_exit_code_of_its_own(command):
    done = command("status", "kubernetes:far/ml/any")

    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("nbtorchjob: the cluster at http://127.0.0.1:9 doesn't answer")
    assert done.err.count("\n") == 1


def test_names_of_the_same_text_keep_their_items_apart(capsys):
    output.data([{1: "a", "1": "b"}, {1: "a", "2": "b"}])

    assert json.loads(capsys.readouterr().out) == [{"1": "a", "'1'": "b"}, {"1": "a", "2": "b"}]


def test_what_to_ask_an_administrator_for_stands_below_the_error(capsys):
    output.error(ClusterError("you may not", grant="kind: Role\n"))

    assert capsys.readouterr().err == "nbtorchjob: you may not\nkind: Role\n"


@pytest.mark.usefixtures("apart", "nowhere")
def test_what_is_warned_of_stands_beside_the_answer(command):
    listed, status = command("list", "--json"), command("status")

    assert listed.data["jobs"] == []
    [note] = listed.data["notes"]
    assert "the cluster at http://127.0.0.1:9 doesn't answer" in note
    assert listed.err == f"Note: {note}\n"
    assert (status.code, status.err) == (3, f"Note: {note}\nnbtorchjob: there are no jobs yet\n")


@pytest.mark.torch
@pytest.mark.usefixtures("pair")
class TestVerbs:
    """Verbs on jobs that have ended."""

    def test_a_list_has_a_line_for_each_job(self, command):
        assert re.search(r"^one-of-two +succeeded .* int\('6'\)$", command("list").out, re.MULTILINE)

    def test_a_list_as_json_has_their_records_oldest_first(self, command):
        listed = command("list", "--json").data["jobs"]

        assert [job["name"] for job in listed][-2:] == ["one-of-two", "two-of-two"]

    def test_the_status_is_the_newest_one_s_where_none_is_named(self, command):
        assert command("status").out.startswith("torchjob two-of-two succeeded")

    def test_a_job_is_named_by_its_name_or_its_id(self, command):
        status = command("status", "one-of-two", "--json").data

        assert status["nproc_per_node"] == 2
        assert command("status", status["id"], "--json").data["name"] == "one-of-two"
        assert command("status", "kubernetes:one-of-two").code == 3

    def test_completion_offers_the_newest_first(self, command):
        assert command("__complete", "status", "").out.split()[:2] == ["two-of-two", "one-of-two"]

    def test_a_description_is_text_or_json(self, command):
        answer = command("describe", "one-of-two", "--json").data

        assert command("describe", "one-of-two").out.startswith("torchjob one-of-two succeeded")
        assert (answer["spec"]["launch"]["nproc_per_node"], answer["history"][0]["number"]) == (2, 1)

    def test_its_config_is_the_line_that_would_run_it(self, command):
        assert command("config", "one-of-two").out == (
            "nbtorchjob run SCRIPT.py:FUNCTION --nproc-per-node 2 --name one-of-two\n"
        )

    def test_to_cancel_what_has_ended_changes_nothing(self, command):
        assert command("cancel", "one-of-two", "--json").data["phase"] == "SUCCEEDED"


@pytest.mark.usefixtures("apart")
def test_several_jobs_are_deleted_at_once(command):
    for name in ("first", "second"):
        Acted(name).end()

    assert command("delete", "first", "second").out == "first deleted\nsecond deleted\n"
    assert names() == set()


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_an_unknown_name_keeps_no_other_job_from_being_ended(command, verb):
    for name in ("first", "second"):
        Acted(name).end()

    done = command(verb, "first", "typo", "second", "oversight")

    assert [line.split()[0] for line in done.out.splitlines()] == ["first", "second"]
    errors = done.err.splitlines()
    assert [line.partition(";")[0] for line in errors] == [
        f"nbtorchjob: there is no job named {name!r}" for name in ("typo", "oversight")
    ]
    assert done.code == 1


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS.values() if verb.words == "NAME..."])
def test_a_verb_tries_all_of_its_names_and_reports_each_failure(command, verb):
    done = command(verb, "typo", "oversight")

    assert [line.partition(";")[0] for line in done.err.splitlines()] == [
        f"nbtorchjob: there is no job named {name!r}" for name in ("typo", "oversight")
    ]
    assert (done.out, done.code) == ("", 1)
    assert command(verb, "typo").code == 3  # alone, the error's own code


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_a_run_that_can_not_be_ended_keeps_no_other_run_from_being_ended(command, verb, monkeypatch):
    for number in (1, 2, 3):
        Acted(f"sweep-r{number}", group="sweep", number=number).end()
    act = getattr(Job, verb)

    def refused(job, **options):
        if job.name == "sweep-r2":
            raise ClusterError("the cluster is away")
        act(job, **options)

    monkeypatch.setattr(Job, verb, refused)
    done = command(verb, "sweep")

    assert [line.split()[0] for line in done.out.splitlines()] == ["sweep-r3", "sweep-r1"]
    assert (done.err, done.code) == ("nbtorchjob: sweep-r2: the cluster is away\n", 1)


@pytest.mark.usefixtures("apart")
def test_a_note_may_begin_with_a_dash(command):
    Acted("noted").end()

    assert command("note", "noted", "--json", "--", "-5", "%", "--json").data["note"] == "-5 % --json"
    assert command("note", "--clear", "--", "noted").out == "noted: no note, no tags\n"


@pytest.mark.usefixtures("apart")
def test_an_empty_list_is_a_document_too(command):
    Acted("bare").end()

    listed = command("artifacts", "bare", "--json")
    assert listed.data == {"artifacts": []}
    assert listed.err == "bare has no artifacts\n"
    assert command("files", "bare", "--json").data == {"files": [], "trouble": {}, "more": False}
    assert command("artifacts", "bare").out == command("files", "bare").out == ""


@pytest.mark.usefixtures("apart")
def test_what_is_left_over_is_listed_and_then_removed(command):
    Acted("left-over").end()
    listed, removed, after = command("gc"), command("gc", "--yes", "--json"), command("gc")

    assert "left-over" in listed.out
    assert listed.err == "Run nbtorchjob gc --yes to remove them permanently.\n"
    assert '"name": "left-over"' in removed.out
    assert '"removed": false' not in removed.out
    assert (after.out, after.err) == ("", "Nothing to remove.\n")


def test_a_doctor_who_finds_something_is_an_exit_code(command):
    answer = command("doctor", "--backend", "kubernetes", "--json")

    assert answer.code == 1
    assert not all(finding["good"] for finding in answer.data["findings"])


def test_help_names_every_verb_and_every_option(command):
    overview, run = command("--help").out, command("run", "--nnodes", "2", "--help").out

    assert all(f"\n  {name} " in overview for name in COMMANDS)
    assert max(map(len, overview.splitlines())) <= 120
    assert {*VERBS} < {*COMMANDS}
    hidden = {"-o", *(f"--{key}" for key in CELLS_ONLY)}
    for flag in options.flags():
        assert (re.search(rf"(?<![\w-]){flag}(?![\w-])", run) is None) == (flag in hidden)
    assert "--tail" in command("logs", "-h").out == command("help", "logs").out
    assert overview == command("help").out


def test_the_version_is_the_package_s(command):
    assert command("--version").out == f"{nbtorchjob.__version__}\n"


# Modules of others, ours that take long, and Python's that only these would import.
NOT_LISTED_WITH = (
    *("IPython", "ipywidgets", "torch", "numpy", "kubernetes", "jupyter_server", "cloudpickle"),
    *("nbtorchjob.job", "nbtorchjob.capture.call", "nbtorchjob.payload", "nbtorchjob.environment"),
    *("nbtorchjob.backends.kubernetes.backend", "nbtorchjob.backends.local.launch"),
    *("nbtorchjob.backends.local.follow", "nbtorchjob.runtime.facts.described"),
    *(
        "nbtorchjob.state.text.stacks",
        "nbtorchjob.text.colours",
        "nbtorchjob.ui.card",
        "nbtorchjob.ui.elements",
    ),
    *(
        "asyncio",
        "ctypes",
        "difflib",
        "html",
        "logging",
        "multiprocessing",
        "socket",
        "statistics",
        "zipfile",
    ),
)


@pytest.mark.usefixtures("apart")
def test_a_list_imports_only_what_it_needs(process):
    Acted("kept").end()
    process("list").communicate()
    expression = f"[name for name in {NOT_LISTED_WITH} if name in sys.modules]"
    at_exit = f"lambda: print({expression}, gc.isenabled(), gc.get_freeze_count() > 10_000)"
    done = process("list", before=f"import atexit, gc; atexit.register({at_exit})")

    # Garbage collection skips the imported objects, but not those created later.
    lines = done.communicate()[0].splitlines()
    assert lines[1].startswith("kept ")
    assert lines[-1] == "[] True True"


@pytest.mark.usefixtures("apart")
def test_a_locale_without_our_characters_crashes_nothing(process, monkeypatch):
    Acted("in-ascii").end()
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    done = process("list")
    out, err = done.communicate()

    assert (done.returncode, err) == (0, "")
    assert re.search("^in-ascii .* 1 [?] 1 ", out, re.MULTILINE)


def test_closed_streams_crash_nothing(script):
    line = f"{sys.executable} -m nbtorchjob list >&- 2>&-"

    assert subprocess.run(["bash", "-c", line], check=False, timeout=LIMIT).returncode == 0


HOSTILE = b"\x1b[31mred\x1b[0m \x1b]52;c;ZXZpbA==\x07\x1b[2J\xe2\x80\xae\n"


def test_a_log_reaches_files_as_it_is_and_a_terminal_as_text(command, process):
    job = Acted()
    job.begin()
    job.log(HOSTILE)
    job.end()

    controller, terminal = pty.openpty()
    tty.setraw(terminal)
    shown = process("logs", job.name, stdout=terminal, stderr=terminal, text=False)
    assert shown.wait(LIMIT) == 0
    assert os.read(controller, 4096) == b"\x1b[31mred\x1b[0m ^[]52;c;ZXZpbA==^G^[[2J<U+202E>\n"
    assert command("logs", job.name).out.encode() == HOSTILE
    for end in (controller, terminal):
        os.close(end)


@pytest.mark.parametrize(
    ("tail", "end"),
    [
        ("1", b"10%\r20%\xff"),
        ("2", b"caf\xe9\n10%\r20%\xff"),
        ("9", b"one\ncaf\xe9\n10%\r20%\xff"),
    ],
)
def test_the_end_of_a_log_reaches_files_as_it_is_too(process, tail, end):
    job = Acted()
    job.begin()
    for piece in (b"one\nca", b"f\xe9", b"\n10%\r", b"20%\xff"):
        job.log(piece)
    job.end()

    assert process("logs", job.name, "--tail", tail, text=False).communicate() == (end, b"")


def test_a_message_reaches_a_terminal_as_text(monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Screen())  # Python's, which pytest has replaced
    output.error(UnreachableError("the cluster says: \x1b]0;root@host\x07\x1b[2J"))

    assert "\x1b" not in screen.getvalue()
    assert "]0;root@host" in screen.getvalue()


def test_what_a_job_could_import_is_printed_for_pip(command, pair):
    lock = command("lock", "one-of-two")
    data = command("lock", "one-of-two", "--json").data
    described = command("describe", "one-of-two", "--json").data

    assert lock.out.startswith("# What local:one-of-two could import")
    assert f"# Python {'.'.join(map(str, sys.version_info[:3]))} on " in lock.out
    pins = [line for line in lock.out.splitlines() if not line.startswith("#")]
    assert pins == [line for line in data["requirements"] if not line.startswith("#")]
    assert any(line.startswith("torch==") for line in pins)
    assert described["environment"]["distributions"]["torch"]


def test_jobs_are_told_apart(command, pair):
    diff = command("diff", "one-of-two", "two-of-two")
    data = command("diff", "one-of-two", "two-of-two", "--json").data
    same = command("diff", "one-of-two", "one-of-two")

    assert diff.out.startswith("one-of-two and two-of-two differ in options; alike: captured data, packages")
    assert data["options"] == {"--nproc-per-node": ["2", "1"]}
    assert [result["value"] for result in data["results"]] == [6, 6]
    assert same.out.startswith(
        "one-of-two and itself are alike in options, captured data, packages and hosts"
    )
    assert (diff.code, same.code) == (0, 0)
    assert command("diff", "one-of-two").err == "nbtorchjob diff expects NAME OTHER, got 'one-of-two'\n"
    assert command("diff", "one-of-two", "gone").code == 3


@pytest.mark.torch
def test_map_runs_a_function_for_each_value(command, script):
    done = command(
        "map", "train.py:train", "--each", "lr={[1, 2]}", "--json", "--name", "mapped", "--", "--steps", "1"
    )

    runs = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 0, done.err
    pairs = [(run["given"]["lr"], run["value"]["loss"]) for run in runs]
    assert pairs == [(1, 10), (2, 20)]
    assert "2/2 mapped-r" in done.err


@pytest.mark.torch
def test_a_value_of_map_that_cannot_be_had_hides_no_other(command):
    Path("some.py").write_text("def some(x):\n    return (n for n in ()) if x == 1 else x\n")

    done = command("map", "some.py:some", "--each", "x=1,2", "--json", "--name", "some")
    again = command("attach", "some")

    lacking, good = (json.loads(line) for line in done.out.splitlines())
    assert "the value of some-r1 is a generator" in lacking["error"]
    assert (good["given"], good["value"]) == ({"x": 2}, 2)
    assert again.out == "2  2\n"
    assert lacking["error"] in again.err
    assert (done.code, again.code) == (1, 1)


@pytest.mark.torch
def test_map_gives_the_values_of_all_ranks(command):
    Path("whose.py").write_text("import os\ndef whose(x):\n    return x, os.environ['RANK']\n")

    done = command("map", "whose.py:whose", "--each", "x=7", "--all-ranks", "--nproc-per-node", "2", "--json")

    assert done.data["value"] == [[7, "0"], [7, "1"]], done.err
