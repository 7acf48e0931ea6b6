"""``nbtorchjob run``, ``attach``, ``result`` and ``logs``, with real jobs on this machine."""

import io
import os
import signal
import zipfile
from pathlib import Path

import pytest

import nbtorchjob
from nbtorchjob import api
from nbtorchjob.backends.local import directory
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import Phase
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

pytestmark = pytest.mark.torch

TWO = ("--nproc-per-node", "2")
SOON = "from nbtorchjob.ui.card import view; view.CANCEL_WITHIN_S = 0.1"
LATE = "from nbtorchjob.ui.card import view; view.CANCEL_WITHIN_S = 60"


def jobs():
    return {path.name for path in directory.jobs_dir().iterdir()}


def test_the_log_of_rank_0_and_the_value_are_the_output(command):
    done = command("run", "train.py:train", *TWO, "--name", "plain", "--", "0.1", "--tag", "3", "--fast")

    assert done.code == 0
    assert done.out == "rank 0 step 0\nrank 0 step 1\n{'loss': 1.0, 'tag': '3', 'fast': True}\n"
    assert "torchjob plain succeeded in " in done.err.splitlines()[-1]


def test_options_may_stand_in_front_of_the_script(command):
    done = command("run", "--quiet", "--env", "A=b", "train.py:train", "--", "1")

    assert (done.out, done.err) == ("{'loss': 10, 'tag': '', 'fast': False}\n", "")


def test_a_value_of_none_writes_nothing(command):
    assert command("run", "--quiet", "train.py:chatter", "--", "1").out == ""


def test_json_leaves_the_output_to_the_value(command):
    done = command("run", "train.py:train", "--json", "--", "1")

    assert done.data["value"] == {"loss": 10, "tag": "", "fast": False}
    assert done.data["job"]["phase"] == "SUCCEEDED"
    assert "rank 0 step 0\nrank 0 step 1\n" in done.err


def test_json_has_arrays_as_lists_and_no_infinity(command):
    assert command("run", "train.py:array", "--json").data["value"] == {"mean": [1.0, 2.0], "worst": None}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("looped", "{'deep': [{...}]}\n", {"deep": ["{'deep': [{'deep': list of 1}]}"]}),
        ("huge", "[1, <int whose repr raises ValueError>, 2.5]\n", [1, None, 2.5]),
        ("mute", "<Mute whose repr raises RuntimeError>\n", "<Mute whose repr raises RuntimeError>"),
    ],
)
def test_a_value_that_can_not_be_shown_is_told_of_in_a_line(command, name, text, value):
    done = command("run", "--quiet", f"train.py:{name}")

    assert (done.code, done.out) == (0, text)
    assert command("result", "--json").data["value"] == value


def test_what_a_script_prints_while_it_is_loaded_is_no_part_of_the_answer(command):
    Path("loud.py").write_text(
        "import os\nimport subprocess\nprint('python')\nos.write(1, b'descriptor\\n')\n"
        "subprocess.run(['echo', 'process'])\ndef f():\n    return 3\n"
    )
    done = command("run", "--json", "loud.py:f")

    assert done.data["value"] == 3
    assert {"python", "descriptor", "process"} <= {*done.err.split()}
    assert command("run", "--quiet", "loud.py:f").out == "3\n"


def test_the_script_is_main_but_what_is_for_running_it_is_not_run(command):
    assert (
        command("run", "--all-ranks", *TWO, "train.py:here").out == "[('0', '__main__'), ('1', '__main__')]\n"
    )


def test_its_classes_come_home(command):
    assert command("run", "train.py:best").out == "Result(loss=0.5)\n"
    assert command("result").out == "Result(loss=0.5)\n"
    assert command("result", "--json").data["value"] == "Result(loss=0.5)"


def test_a_failed_job_is_an_exit_code_and_the_script_s_own_lines(command):
    done = command("run", "train.py:half", "--", "3")

    assert done.code == 1
    assert "rank 0: ZeroDivisionError: division by zero" in done.err
    assert "train.py, line 23, in half\n" in done.err
    assert "---> 23     return x / 0\n" in done.err
    assert "nbtorchjob/" not in done.err


def test_json_tells_of_a_failed_job_too(command):
    done = command("run", "train.py:half", "--json", "--", "3")

    assert done.code == 1
    assert done.data["job"]["failure"] == "rank 0: ZeroDivisionError: division by zero"
    assert "ZeroDivisionError" in done.data["error"]


def test_json_tells_of_a_failed_job_s_result_and_rehearsal(command):
    rehearsed = command("run", "--rehearse", "train.py:half", "--json", "--", "3")
    answer = command("result", "--json")

    assert (rehearsed.code, answer.code) == (1, 1)
    assert rehearsed.data["job"]["phase"] == "FAILED"
    assert "ZeroDivisionError" in rehearsed.data["error"]
    assert {**answer.data["job"], "elapsed": 0} == {**rehearsed.data["job"], "elapsed": 0}


def test_no_byte_of_a_long_log_is_lost(command):
    done = command("run", "train.py:chatter", "--", "100000")

    assert done.out == "".join(f"line {n}\n" for n in range(100_000))


def test_a_detached_job_is_a_name_that_others_take(command, folder):
    stop = folder / "stop"
    name = command("run", "-d", "train.py:wait", "--", str(stop)).out.strip()

    unready = command("result", name)
    assert unready.code == 2
    assert f"wait for it with nbtorchjob attach {name}" in unready.err
    stop.touch()
    assert command("attach", name).out == "begun\nended\n7\n"
    assert command("attach", "--quiet", name).out == "7\n"
    assert command("result", name, "--json").data["value"] == 7
    assert command("logs", "-f", name).out == command("logs", name).out == "begun\nended\n"


def test_an_exit_code_tells_whether_what_was_asked_for_is_there(command):
    command("run", "--quiet", "--name", "gone", "train.py:train", "--", "1")

    stacks = command("stacks", "gone")
    assert "has ended" in stacks.out
    assert stacks.code == command("stacks", "gone", "--json").code == 0
    assert command("get", "gone", "artifacts/nope").code == 1


def test_an_ended_job_is_run_once_more(command):
    command("run", "--quiet", "--name", "again", "train.py:train", "--", "1")
    value = "{'loss': 10, 'tag': '', 'fast': False}\n"

    assert command("retry", "again").out == f"rank 0 step 0\nrank 0 step 1\n{value}"
    assert command("retry", "--quiet").out == value
    job = command("retry", "-d", "--json", "again").data["job"]
    assert job["name"] == "again-4"
    assert command("attach", "--quiet", "again-4").out == value


def test_a_job_that_runs_is_not_run_once_more(command, folder):
    name = command("run", "-d", "train.py:wait", "--", str(folder / "stop")).out.strip()
    refused = command("retry", name)
    (folder / "stop").touch()

    assert (refused.code, refused.out) == (4, "")
    assert f"{name} hasn't ended: cancel it first, nbtorchjob cancel {name}" in refused.err
    assert command("attach", "--quiet", name).out == "7\n"


def test_a_detached_job_is_a_record_with_json(command):
    job = command("run", "-d", "train.py:best", "--json").data["job"]

    assert (job["id"], job["phase"]) == (f"local:{job['name']}", "SUBMITTED")
    assert nbtorchjob.attach(job["name"]).result(LIMIT).loss == 0.5


def test_a_log_is_a_rank_s_or_its_end(command):
    command("run", *TWO, "train.py:train", "--", "1")

    assert command("logs", "--rank", "1").out == "rank 1 step 0\nrank 1 step 1\n"
    assert command("logs", "--rank=1", "--tail", "1").out == "rank 1 step 1\n"
    assert command("logs", "--tail", "1", "-f").code == 2
    assert command("logs", "--stdout").out == "rank 0 step 0\nrank 0 step 1\n"
    assert command("logs", "--stderr", "--all-ranks").out == command("logs", "--stderr", "-f").out == ""
    assert command("logs", "--stderr", "--stdout").code == 2
    refused = command("logs", "--rank", "7")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("nbtorchjob: --rank: got 7, but it must be 0 to 1: ")
    assert command("logs", "-f", "--rank", "7").err == refused.err


def test_the_lines_of_all_ranks_come_by_time_and_are_searched(command):
    command("run", *TWO, "train.py:train", "--", "1")

    lines = {f"[rank{rank}]: rank {rank} step {step}" for rank in (0, 1) for step in (0, 1)}
    for follow in ((), ("-f",)):
        stamped = command("logs", "--all-ranks", "--timestamps", *follow).out.splitlines()
        assert {line.partition(" ")[2] for line in stamped} == lines
    times = [
        line.partition(" ")[0] for line in command("logs", "--all-ranks", "--timestamps").out.splitlines()
    ]
    assert times == sorted(times)
    assert command("logs", "--grep", "step [1-9]", "--since", "1h").out == "rank 0 step 1\n"
    assert command("logs", "--until", "1h").out == ""
    assert command("logs", "--grep", "(").code == command("logs", "--since", "soon").code == 2
    assert command("logs", "--all-ranks", "--rank", "1").code == 2
    for follow in ((), ("-f",)):
        assert set(command("logs", "--node", "0", *follow).out.splitlines()) == lines
    assert command("logs", "--node", "1").err.startswith("nbtorchjob: --node: got 1, but it must be 0: ")


def test_all_ranks_logs_are_written_to_an_archive(command, tmp_path):
    command("run", *TWO, "--name", "zipped", "train.py:train", "--", "1")
    archive = tmp_path / "logs.zip"

    assert command("logs", "--zip", str(archive), "--timestamps").out.startswith(f"{archive}: ")
    with zipfile.ZipFile(archive) as file:
        lines = file.read("zipped/rank-1.log").decode().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["rank 1 step 0", "rank 1 step 1"]
    assert "can't be written (File exists)" in command("logs", "--zip", str(archive)).err
    assert command("logs", "--zip", "x.zip", "--rank", "1").code == 2


def test_an_output_that_takes_nothing_is_told_of_in_a_line(process):
    with open("/dev/full", "w") as full:
        running = process("run", "--name", "full", "train.py:train", "--", "1", stdout=full)
        _, err = running.communicate()

    assert running.returncode == 4
    assert "Output closed; full continues: nbtorchjob attach full follows it\n" in err
    assert err.endswith(
        "nbtorchjob: the output can't be written (No space left on device): redirect it elsewhere\n"
    )
    assert nbtorchjob.attach("full").result(LIMIT)["loss"] == 10


def test_a_log_can_be_followed_while_it_grows(command, process, folder):
    stop = folder / "stop"
    name = command("run", "-d", "train.py:wait", "--", str(stop)).out.strip()
    following = process("logs", "-f", name)

    assert following.stdout.readline() == "begun\n"
    stop.touch()
    assert following.communicate() == ("ended\n", "")
    assert following.returncode == 0


def test_a_dry_run_sends_nothing(command):
    before = jobs()
    done = command("run", "--dry-run", "--nnodes", "1:2", "train.py:train", "--", "1")

    assert "1 to 2 node(s) × 1 rank(s)" in done.out
    assert "SCALE" in done.out
    assert jobs() == before


def test_a_rehearsal_that_fails_sends_nothing(command):
    before = jobs()

    assert command("run", "--rehearse", "train.py:half", "--", "1").code == 1
    (name,) = jobs() - before
    assert nbtorchjob.attach(name).info.nproc_per_node == 2


def test_a_rehearsal_has_the_variables_of_the_job(command):
    Path("needs.py").write_text(
        "import os\ndef needs():\n    return os.environ['MODE'], len(os.environ['HF_TOKEN'])\n"
    )
    variables = ("--env", "MODE=fast", "--env", "HF_TOKEN=secret")

    done = command("run", "--rehearse", "--quiet", *variables, "needs.py:needs")

    assert (done.code, done.out) == (0, "('fast', 6)\n"), done.err


def test_a_rehearsal_keeps_what_the_call_runs_with_and_leaves_out_where_and_how_often(command):
    before = jobs()
    kept = ("--env", "MODE=fast", "--start-method", "fork", "--no-locals", "--carry-settings")
    left_out = ("--name", "real", "--nnodes", "3", "--retries", "2", "--hold", "--memory", "1Gi")

    assert command("run", "--rehearse", *kept, *left_out, "train.py:half", "--", "1").code == 1

    (name,) = jobs() - before
    assert nbtorchjob.attach(name).info.jobspec == JobSpec(
        Elastic(nproc_per_node=2, start_method="fork"),
        env={"MODE": "fast"},
        no_locals=True,
        carry_settings=True,
    )


def test_a_profile_gives_the_defaults(command):
    with open("nbtorchjob.toml", "w") as file:
        file.write("[profiles.pair]\nnproc-per-node = 2\nall-ranks = true\n")

    assert command("run", "-p", "pair", "--quiet", "train.py:here").out.count("__main__") == 2


def test_an_interrupt_lets_go_of_the_job(process, folder):
    stop = folder / "stop"
    running = process("run", "--name", "let-go", "train.py:wait", "--", str(stop), before=SOON)
    assert running.stdout.readline() == "begun\n"
    running.send_signal(signal.SIGINT)
    _, err = running.communicate()

    assert running.returncode == 130
    assert "Stopped waiting; let-go keeps running." in err
    assert err.endswith("Detached from let-go: nbtorchjob attach let-go\n")
    stop.touch()
    assert nbtorchjob.attach("let-go").result(LIMIT) == 7


def test_a_second_interrupt_cancels_the_job(process, folder):
    running = process("run", "--name", "cancelled", "train.py:wait", "--", str(folder / "stop"), before=LATE)
    assert running.stdout.readline() == "begun\n"
    running.send_signal(signal.SIGINT)
    while "Stopped waiting" not in running.stderr.readline():
        pass
    running.send_signal(signal.SIGINT)
    _, err = running.communicate()

    assert running.returncode == 1
    assert err.endswith("cancelled cancelled\n")
    assert api.snapshot("cancelled").phase is Phase.CANCELLED


def test_a_reader_that_goes_leaves_the_job_to_itself(process):
    running = process("run", "--name", "unread", "train.py:chatter", "--", "100000")
    assert running.stdout.readline() == "line 0\n"
    running.stdout.close()

    assert running.stderr.read().endswith(
        "Output closed; unread continues: nbtorchjob attach unread follows it\n"
    )
    assert running.wait(LIMIT) == 141
    assert nbtorchjob.attach("unread").result(LIMIT) is None


@pytest.mark.parametrize(
    ("words", "code", "out"),
    [
        (("run", "train.py:train", "--", "1"), 0, "rank 0 step 0\nrank 0 step 1\n{'loss': 10, "),
        (("run", "--json", "train.py:train", "--", "1"), 0, '{"job": '),
        (("status", "nowhere"), 3, ""),
    ],
)
def test_what_nobody_reads_on_stderr_keeps_no_answer_back(process, words, code, out):
    read, write = os.pipe()
    os.close(read)
    running = process(*words, stderr=write)
    os.close(write)

    answer, _ = running.communicate()
    assert running.returncode == code
    assert answer.startswith(out)


def test_pdb_on_a_rank_of_a_script(command, monkeypatch):
    command("run", "-d", "--name", "stops", "train.py:stops", "--", "3")
    until(lambda: api.attach("stops").state.stopped)
    monkeypatch.setattr("sys.stdin", io.StringIO("p number\nq\n"))
    left = command("debug", "stops", "--rank", "0")
    assert "3\n" in left.out
    assert (
        left.err
        == "Left the debugger: rank 0 stays stopped: nbtorchjob debug stops --rank 0 returns to it.\n"
    )
    listed, *_ = [line for line in command("list").out.splitlines() if line.startswith("stops ")]
    assert "debugging" in listed

    monkeypatch.setattr("sys.stdin", io.StringIO("number = 5\nc\n"))
    assert command("debug").err == "rank 0 has returned.\n"
    assert command("attach", "--quiet", "stops").out == "10\n"
    assert (again := command("debug", "stops")).code == 4
    assert again.err == "nbtorchjob: stops has ended: there is no rank to look at any more\n"


def test_what_has_no_effect_on_a_pool_is_said(command):
    cluster = ("--backend", "kubernetes", "--image", "torch:1")
    done = command(
        "pool", "warm", *cluster, "--max-restarts", "2", "--active-deadline-seconds", "60", "--dry-run"
    )

    assert "--max-restarts has no effect on a pool" in done.err
    assert "a deadline doesn't end a pool" in done.err
