"""The full description of one job.

``GOLDEN=write pytest tests/ui/card/test_describe.py`` writes ``golden/described.*`` anew: read the diff.
"""

import os
import re
from pathlib import Path

import pytest

from nbtorchjob.runtime.facts.errors import Error, Frame
from nbtorchjob.spec.policies import CleanPodPolicy, Retry, RunPolicy
from nbtorchjob.state import Phase
from nbtorchjob.state.facts import events as ev
from nbtorchjob.ui.card import describe
from tests.ui.card.retried import begun, evicted, job, recoverable

GOLDEN = Path(__file__).parent / "golden"
FOLDER = Path("/home/me/state")
ENFORCED = {
    "ttl_seconds_after_finished": "by us: whoever follows the job, or %torchjob gc",
    "active_deadline_seconds": "natively",
    "retries": "by us: the job's supervisor",
}
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"


pytestmark = pytest.mark.usefixtures("greenwich")


def described(state, now=1100.0):
    return describe.text(state, now, ENFORCED, FOLDER)


def part(text, title):
    """Return the lines below a title."""
    return text.partition(f"\n{title}:\n")[2].partition("\n\n")[0].split("\n")


def test_a_job_is_described_as_before():
    third = [*recoverable(1, 1000.0, log="epoch 0\nepoch 1\n"), *evicted(2, 1030.0), *begun(3, 1070.0)]
    state = job(*third, label="train()", ships="train, model (3.4 KiB)")
    text = f"{described(state)}\n"
    html = f"{describe.html(state, 1100.0, ENFORCED, FOLDER)}\n"
    files = GOLDEN / "described.txt", GOLDEN / "described.html"
    if os.environ.get("GOLDEN") == "write":
        for file, drawn in zip(files, (text, html), strict=True):
            file.write_text(drawn, encoding="utf-8")

    assert (text, html) == tuple(file.read_text(encoding="utf-8") for file in files)


def test_a_new_job_has_little_to_tell():
    state = job(policy=None, retry=None, spec={}, retry_owner="")

    assert re.findall("^(.*):$", described(state), re.MULTILINE) == ["Why it waits", "When", "Where"]


def test_why_it_waits_is_told():
    state = job(*evicted(1, 1000.0))

    (line,) = part(described(state, 1010.0), "Why it waits")
    assert line.startswith("  attempt 2 starts in 6.0 s: node 1 (host-11): evicted")


def test_a_failure_is_told_with_its_traceback_and_the_budget_it_used_up():
    state = job(*recoverable(1, 1000.0), ev.Closed(1007.0), retry=Retry(retries=0))

    lines = part(described(state), "Why it failed")
    assert lines[:3] == [
        "  rank 0: RecoverableError: the disk is away",
        "  File /home/me/train.py:3, in train",
        "  RecoverableError: the disk is away",
    ]
    assert lines[-1] == "  not retried: --retries is 0"


def test_the_variables_of_a_failure_are_told_in_full_the_innermost_frame_first():
    long = "x" * 400
    frames = [Frame("a.py", 3, "f", "g()", (("n", "1"), ("text", long))), Frame("a.py", 7, "g")]
    error = Error("ValueError", "no", (*frames, Frame("a.py", 9, "h", "", (("m", "\x1b2"),))), time=1000.0)
    failed = ev.RankFailed(1000.0, 0, 0, 0, 0, error)
    text = described(job(*begun(1, 990.0), failed, ev.Closed(1007.0), retry=Retry(retries=0)))

    titles = re.findall("^(Variables.*):$", text, re.MULTILINE)
    assert titles == ["Variables of File a.py:9, in h", "Variables of File a.py:3, in f"]
    assert part(text, titles[0]) == ["  variable  was", "  m          2"]
    assert f"  text      {long}" in part(text, titles[1])


def test_of_a_cancelled_job_nothing_is_told_as_a_failure():
    noise = [ev.RankExited(1001.0, 0, 0, 0, 1, 15), ev.NodeOutput(1001.0, 0, "", "PeersEnded: told to stop")]
    state = job(ev.CancelRequested(1000.5), *noise, ev.Closed(1002.0))

    assert state.phase is Phase.CANCELLED
    assert "PeersEnded" not in described(state)
    assert not {"Why it failed", "Failures so far"} & set(
        re.findall("^(.*):$", described(state), re.MULTILINE)
    )


def test_policies_are_told_with_who_sees_to_them():
    policy = RunPolicy(clean_pod_policy=CleanPodPolicy.ALL, ttl_seconds_after_finished=0)
    retry = Retry(retry_on=("OSError", "zmq.Again"), backoff=2.5, on_demand_last=True)

    rows = part(described(job(policy=policy, retry=retry)), "Run policy")
    assert [re.split(" {2,}", row.strip()) for row in rows] == [
        ["option", "value", "enforced by"],
        ["--clean-pod-policy", "All"],
        ["--ttl-seconds-after-finished", "0 seconds", ENFORCED["ttl_seconds_after_finished"]],
        ["--retries", "0", ENFORCED["retries"]],
        ["--preemptions", "unlimited"],
        ["--retry-backoff", "2.5 seconds"],
        ["--retry-on", "OSError, zmq.Again"],
        ["--on-demand-last", "on"],
    ]


def test_many_attempts_are_told_up_to_a_bound():
    history = [fact for n in range(1, 70) for fact in recoverable(n, 1000.0 * n, "x" * 9000, "y" * 9000)]
    state = job(*history, *begun(70, 70000.0), retry=Retry(retries=99), policy=None)
    html = describe.html(state, 71000.0, ENFORCED, FOLDER)

    assert part(described(state, 71000.0), "Attempts")[-1] == "  and 20 earlier ones"
    assert len(html.encode()) < 100_000
    assert html.count("Last lines of attempt") == 9  # the newest still runs


def test_hostile_text_stays_text():
    facts = recoverable(1, 1000.0, HOSTILE, f"{HOSTILE}\n")
    facts[0] = ev.NodeStarted(1001.0, 0, HOSTILE, 9, "attempt-1-0", attempt=1)
    state = job(*facts, *begun(2, 1030.0), name=HOSTILE, label=HOSTILE)

    assert "<script" not in describe.html(state, 1040.0, ENFORCED, FOLDER)
    for text in (described(state), describe.html(state, 1040.0, ENFORCED, FOLDER)):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", text)


def test_an_operator_that_keeps_the_budgets_knows_no_backoff_of_ours():
    state = job(retry=Retry(retries=1, backoff=2.5), retry_owner="Kubernetes")

    assert "--retries" in described(state)
    assert "--retry-backoff" not in described(state)
