"""A rank that stops in the debugger, on this machine: pdb there, and other ranks' collectives meanwhile."""

import re

import pytest

from nbtorchjob import AskError, Elastic, JobEndedError, JobFailedError, JobSpec, capture, submission
from nbtorchjob.runtime import torch_versions
from nbtorchjob.state import Phase
from tests.backends.kubernetes.stage import until
from tests.backends.local.real import seen
from tests.patience import LIMIT

# Without a record of gloo's operations, no message can name the operation.
MISSED = torch_versions.missed(torch_versions.installed())
RECORDED = not any(line.startswith("gloo records no operations") for line in MISSED)
CALL = "all_reduce #1" if RECORDED else "operation"
MEETS = """
import datetime, os, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
rank, t = dist.get_rank(), torch.ones(1)
"""
# The debugger's modules take longer to import than the other rank's timeout.
SLOW = """
import sys, time
class Slow:
    def find_spec(self, name, *_):
        if name == "IPython.core.debugger":
            time.sleep(3)
sys.meta_path.insert(0, Slow())
"""
HIDDEN = "import sys\nsys.modules['IPython.core.debugger'] = None\n"
STEPS = """
def step(x):
    y = x + 1
    if rank == 1:
        breakpoint()
    z = y * 2
    return z
z = step(rank)
"""
# When this is over, the other rank's last look at the stopped ranks was longer ago than its timeout.
LATE = """
time.sleep(rank * 0.8)
dist.all_reduce(t)
z, t.item()
"""


def submit(cell, ranks=2, **asked):
    return submission.submit(capture.from_cell(cell, {}), JobSpec(Elastic(nproc_per_node=ranks), **asked))


def stopped(job, many=1):
    """Wait until ``many`` ranks are stopped; return them."""
    state = seen(job, lambda state: len(state.stopped) == many or state.phase.terminal)
    assert not state.phase.terminal, job.exception()
    return [stop.rank for stop in state.stopped]


def typed(session, *lines):
    """Type each line at a prompt; return the outputs in between, without colours."""
    rest, outputs = list(lines), [""]
    while (record := session.hear(LIMIT)) is not None:
        if "trouble" in record:
            raise AskError(record["trouble"])
        outputs[-1] += re.sub(r"\x1b\[[0-9;]*m", "", record.get("out", ""))
        if "prompt" in record and not rest:
            break
        if "prompt" in record:
            session.say(rest.pop(0))
            outputs.append("")
        elif "left" in record or ("goes" in record and not rest):
            break
    return outputs


@pytest.mark.torch
def test_pdb_on_a_rank_whose_peer_waits_longer_than_its_own_time_out():
    job = submit(MEETS + SLOW + STEPS + LATE)
    assert stopped(job) == [1]

    with job.debugger() as session:
        first, output, _ = typed(session, "p y, rank", "up")
        assert "z = y * 2" in first
        assert output == "(2, 1)\n"
        assert "rank" in session.complete("p ran", 2, 5)
        with (
            pytest.raises(AskError, match=r"^somebody has been debugging rank 1 since \d\d:\d\d$"),
            job.debugger(1) as second,
        ):
            typed(second)
    # The other rank logs that it waits on once its own timeout is over.
    until(lambda: f"rank 1 is stopped in the debugger: the time-out of {CALL}, 2 s, is put" in job.logs(0))
    assert "rank 1, stopped in the debugger:" in str(job.stacks())
    with job.debugger(by="me") as session:
        assert "z = y * 2" in typed(session, "n", "z = 10", "time.sleep(1.5)", "c")[0]

    assert job.result(LIMIT) == (2, 2.0)
    assert job.state.goes_on[1].how == "continues"
    with pytest.raises(JobEndedError, match="there is no rank to look at any more"), job.debugger():
        pass


ONE_STOPS = """
x = []
for step in range(3):
    dist.breakpoint(1, skip=1)
    x.append(step)
x, dist.get_rank()
"""


@pytest.mark.torch
def test_torchs_breakpoint_stops_one_rank_and_the_others_wait_for_it():
    job = submit(MEETS + ONE_STOPS)
    assert stopped(job) == [1]

    with job.debugger() as session:
        first, output, notice = typed(session, "p x, step", "dist.breakpoint(1)")
        assert ("x.append(step)" in first, output) == (True, "([0], 1)\n")
        assert "breakpoint() is ignored in code typed here" in notice
    until(lambda: "barrier" in str(job.stacks()))
    assert stopped(job) == [1]
    with job.debugger() as session:
        assert typed(session, "c", "p x", "c")[2] == "[0, 1]\n"

    assert job.result(LIMIT) == ([0, 1, 2], 0)
    assert job.state.goes_on[1].how == "continues"
    job = submit(MEETS + ONE_STOPS, debug_wait=0)
    assert job.result(LIMIT) == ([0, 1, 2], 0)
    assert not job.state.stops


@pytest.mark.torch
def test_a_time_out_that_is_over_ends_the_job_where_nobody_is_stopped():
    waits = "import time\nif rank == 1:\n    time.sleep(1000)\n    breakpoint()\ndist.all_reduce(t)"
    job = submit(MEETS + waits)

    with pytest.raises(JobFailedError) as failed:
        job.result(LIMIT)
    assert f"Timed out waiting 2000ms for {CALL} to complete" in failed.value.error.message
    assert failed.value.error.frames[0].lineno == 10
    if RECORDED:
        assert "rank 1 never entered all_reduce #1" in str(failed.value)


@pytest.mark.torch
def test_a_rank_goes_on_where_nobody_comes():
    job = submit("breakpoint()\n1", debug_wait=0.5)

    assert job.result(LIMIT) == 1
    assert [end.how for end in job.state.goes_on.values()] == ["nobody", "nobody"]
    assert "rank 0 was stopped for 0.5 s, and nobody attached: it continues" in str(job.state.notices)
    job = submit("breakpoint()\n1", debug_wait=0)
    assert job.result(LIMIT) == 1
    assert not job.state.stops


CALLED = """
def loss_of(batch):
    loss = batch * 2
    breakpoint()
    return loss
def half(x):
    return x / 0
loss_of(1)
"""


@pytest.mark.torch
@pytest.mark.parametrize("hidden", ["", HIDDEN], ids=["ipython", "pdb"])
def test_what_is_typed_may_stop_and_fail_and_step(hidden):
    job = submit(hidden + CALLED, 1)
    stopped(job)

    nested = ["debug loss_of(7)", "c", "p batch", "n", "c", "p batch, loss"]
    with job.debugger() as session:
        _, passed, _, failed, *outputs = typed(session, "loss_of(5)", "debug half(3)", "c", *nested, "c")

    assert "breakpoint() is ignored" in passed
    assert passed.endswith("10\n")
    assert "*** ZeroDivisionError: division by zero" in failed
    entering, inner, batch, _, left, outer, _ = outputs
    assert ("ENTERING" in entering, "return loss" in inner, "LEAVING" in left) == (True, True, True)
    assert (batch, outer) == ("7\n", "(1, 2)\n")
    assert job.result(LIMIT) == 2


@pytest.mark.torch
def test_what_takes_most_room_is_said_in_pieces():
    job = submit("s = '\U0001f600' * 60_000\nbreakpoint()", 1)
    stopped(job)

    with job.debugger() as session:
        _, printed, prompt, length, _ = typed(session, "p s", "print(s, end='')", "p len(s)", "c")
    assert (len(printed), len(prompt), length) == (60_003, 60_000, "60000\n")
    assert job.result(LIMIT) is None


THREAD = """
import os, threading, time
def work(x):
    breakpoint()
    done.append(x)
    print("done")
done = []
thread = threading.Thread(target=work, args=(7,))
thread.start()
while not os.path.exists("%s"):
    time.sleep(0.01)
thread.is_alive()
"""


@pytest.mark.torch
def test_a_thread_that_is_stopped_as_the_code_returns_can_be_looked_at(tmp_path):
    job = submit(THREAD % (tmp_path / "go"), 1)
    stopped(job)
    (tmp_path / "go").touch()
    seen(job, lambda state: state.values)

    with job.debugger() as session:
        assert typed(session, "p x", "c")[1] == "7\n"
    assert job.result(LIMIT) is True
    assert "done" in job.logs(0)


@pytest.mark.torch
def test_each_stop_where_nobody_comes_is_told():
    job = submit("for step in range(3):\n    breakpoint()\nstep", 1, debug_wait=0.5)

    assert job.result(LIMIT) == 2
    assert job.logs(0).count("rank 0 was stopped for 0.5 s, and nobody attached: it continues") == 3
    assert job.state.goes_on[0].how == "nobody"


@pytest.mark.torch
def test_a_breakpoint_that_nobody_saw_coming_is_passed_over():
    job = submit("import builtins\nbuiltins.breakpoint()\n1", 1)

    assert job.result(LIMIT) == 1
    assert "<torchjob cell>:3: UserWarning: breakpoint() is ignored: the ranks of this" in job.logs(0)


@pytest.mark.torch
def test_a_rank_that_fails_is_held_until_it_is_released():
    job = submit(
        "import os\nrank = os.environ['RANK']\ndef divides(x):\n    return x / 0\ndivides(3)", hold=True
    )
    assert stopped(job, 2) == [0, 1]
    assert job.state.phase is Phase.RUNNING
    assert [error.error.type for error in job.state.errors] == ["ZeroDivisionError"] * 2

    with pytest.raises(AskError, match=r"^which rank of \S+ ranks 0-1 are stopped: "), job.debugger():
        pass
    with job.debugger(1) as session:
        first, output, *_ = typed(session, "p x", "up", "p rank", "q")
        assert ("return x / 0" in first, output) == (True, "3\n")
    assert stopped(job, 2) == [0, 1]
    assert job.release() == [0, 1]

    assert job.exception(LIMIT).error.type == "ZeroDivisionError"
    assert {end.how for end in job.state.goes_on.values()} == {"released"}


@pytest.mark.torch
def test_what_cannot_be_looked_at():
    job = submit(MEETS + "import time\nif rank:\n    breakpoint()\ntime.sleep(1000)")
    stopped(job)

    with pytest.raises(AskError, match=r"rank 0 of \S+ isn't stopped; rank 1 is"), job.debugger(0):
        pass
    with pytest.raises(ValueError, match="0 to 1"), job.debugger(9):
        pass
    with pytest.raises(AskError, match="is held where it failed; rank 1 at a breakpoint"):
        job.release()
    job.cancel()
    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED


@pytest.mark.torch
def test_a_rank_whose_program_silenced_stderr_tells_its_log_where_it_stops():
    job = submit("import sys\nsys.stderr = None\nbreakpoint()\n1", debug_wait=0.5)

    assert job.result(LIMIT) == 1
    assert "stops at <torchjob cell>" in job.logs(0)


@pytest.mark.torch
def test_pdb_ends_with_the_users_code_and_needs_no_ipython():
    job = submit(HIDDEN + "x = 5\nbreakpoint()\nx")
    stopped(job, 2)

    for rank in (0, 1):
        with job.debugger(rank) as session:
            outputs = typed(session, "interact", "x + 1", "1/0", "quit()", "p x, 'of pdb'", "n", "n")
        assert ("6\n" in outputs[2], outputs[5]) == (True, "(5, 'of pdb')\n")
        assert "ZeroDivisionError" in outputs[3]
        assert "ZeroDivisionError" not in job.logs(rank)
    assert job.result(LIMIT) == 5
    assert "stops at <torchjob cell>:6" in job.logs(0)
    assert "runtime" not in job.logs(0)


@pytest.mark.torch
@pytest.mark.parametrize("begins", ["", HIDDEN], ids=["ipython", "pdb"])
def test_what_the_debugger_prints_is_for_its_user_alone(begins):
    loops = "def f(x):\n    return x + 1\nbreakpoint()\nfor step in range(3): print(f(step))\nstep"
    job = submit(begins + loops, 1)
    stopped(job)

    with job.debugger(0) as session:
        outputs = typed(session, "pinfo f", "b f", "c", "clear 1", "c")
    assert begins or "Signature" in outputs[1]
    assert job.result(LIMIT) == 2
    assert not re.search("skipped|Signature", job.logs(0))
