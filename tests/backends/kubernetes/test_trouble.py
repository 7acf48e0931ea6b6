"""Trouble that a running job meets, and the messages about it."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from nbtorchjob import api
from nbtorchjob.backends import backend_of
from nbtorchjob.backends.kubernetes.api import connection
from nbtorchjob.backends.kubernetes.control import follow
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.submit import submitter
from nbtorchjob.errors import JobCancelledError, ResultError
from nbtorchjob.machine import folders, loop, processes
from nbtorchjob.spec.config import Elastic
from nbtorchjob.state import JobState, Phase
from nbtorchjob.state.facts.events import LogChunk
from nbtorchjob.state.failure import Cause
from nbtorchjob.ui.card import render
from tests.backends.kubernetes.mortal import elsewhere
from tests.backends.kubernetes.stage import IMAGE, running, until, waits
from tests.patience import LIMIT

TALK = """
begin()
for count in range(400):
    if count % 100 == 50:
        wait(f"after-{count}")
    log(f"line {count}\\n")
value("told")
"""
TALKED = "".join(f"line {count}\n" for count in range(400))
LOGS = r"/log$"


def card(job):
    return render.text(job.state, 0.0)


@pytest.mark.parametrize("fault", ["log", "watches", "everything"])
def test_a_log_is_whole_whatever_was_cut(stage, fault):
    cut = {"log": LOGS, "watches": r"/(pods|jobs|events)$", "everything": ""}[fault]
    job = stage.submit(TALK)
    for count in range(50, 400, 100):
        until(lambda n=count: f"line {n - 1}\n" in job.logs(0))
        until(lambda: stage.cluster.cut(cut) or job.done())
        stage.sign(f"after-{count}")

    assert job.result(LIMIT) == "told"
    assert job.logs(0) == TALKED


def test_the_log_of_a_pod_that_has_ended_is_followed_to_its_end_however_slowly(stage, monkeypatch, tmp_path):
    monkeypatch.setattr(follow, "_FAILURE_GRACE_S", 0.5)
    line = "x" * 1023 + "\n"
    job = stage.submit(f"begin()\nfor _ in range(20): log({line!r} * 128)\nfail()")
    job.wait(LIMIT)
    info = elsewhere(stage, job, monkeypatch, tmp_path).info

    async def heard():
        events = backend_of("kubernetes", info.address).follow(info.address, since={})
        return [event async for event in events if isinstance(event, LogChunk)]

    with stage.cluster.slow_logs(0.2):
        chunks = loop.run(heard())
    assert b"".join(chunk.data for chunk in chunks) == line.encode() * 128 * 20


def test_a_host_that_the_cluster_adds_and_a_slow_pull_are_reported(stage):
    stage.cluster.hold("^slow-")
    stage.cluster.hold_pulls(IMAGE)
    job = stage.submit("begin(); value(1)", name="slow")
    try:
        until(lambda: "no host has enough nvidia.com/gpu free" in waits(job))
        scaling = "pod triggered scale-up: [{pool 1->2 (max: 9)}]"
        stage.tell(stage.pods()[0], "TriggeredScaleUp", scaling, type="Normal")
        until(lambda: "the cluster is adding a host for it" in waits(job))
        stage.cluster.release("^slow-")
        until(lambda: f'pulling image "{IMAGE}"' in waits(job))
    finally:
        stage.cluster.finish_pulls(IMAGE)
    assert job.result(LIMIT) == 1


def test_watches_that_expire_are_begun_anew(stage):
    job = stage.submit("begin(); wait('go'); value(1)")
    running(job)
    for plural in ("pods", "jobs", "events"):
        stage.cluster.expire_watches(plural)
    stage.sign("go")

    assert job.result(LIMIT) == 1


@pytest.mark.parametrize("code", [429, 500, 503])
def test_an_api_that_fails_now_and_then_is_asked_again(stage, code):
    for method, path in (("POST", "/secrets$"), ("POST", "/jobs$"), ("GET", "/pods$"), ("GET", "/log$")):
        stage.cluster.trouble(code, path, method=method)
    job = stage.submit("begin(); log('here'); value(1)")

    assert job.result(LIMIT) == 1
    assert job.logs(0) == "here"


def test_a_server_that_restarts_is_found_again(stage):
    job = stage.submit(TALK)
    until(lambda: "line 49\n" in job.logs(0))
    stage.cluster.stop_server()
    for count in range(50, 400, 100):
        stage.sign(f"after-{count}")
    stage.cluster.start_server()

    assert job.result(LIMIT) == "told"
    assert job.logs(0) == TALKED


def test_an_evicted_pod_is_replaced_and_the_job_goes_on(stage):
    part = "begin()\nif LIFE == 0: wait('never')\nvalue(LIFE)"
    job = stage.submit(part)
    running(job)
    stage.cluster.evict(stage.namespace, stage.pod())

    assert job.result(LIMIT) == 1
    assert job.state.phase is Phase.SUCCEEDED


def test_an_eviction_that_ends_a_job_is_the_clusters_fault(stage):
    job = stage.submit("begin()\nwait('never')", kind="volcano")
    running(job)
    stage.cluster.evict(stage.namespace, stage.pod())

    job.wait(LIMIT)
    assert job.state.failure.reason.cause is Cause.INFRA
    assert "evicted, as when a host is drained" in card(job)
    assert "--preemptions" in card(job)


def test_too_much_memory_is_the_codes_fault_and_says_what_to_raise(stage):
    job = stage.submit("begin()\nwait('never')")
    running(job)
    stage.cluster.oom_kill(stage.namespace, stage.pod())

    job.wait(LIMIT)
    assert job.state.phase is Phase.FAILED
    assert job.state.failure.reason.cause is Cause.USER
    assert "used up the memory of its host (OOMKilled)" in card(job)
    assert "--memory" in card(job)


def test_a_host_that_runs_short_is_named(stage):
    job = stage.submit("begin()\nwait('never')")
    running(job)
    why = ("Evicted", "The node was low on resource: memory.")
    stage.cluster.fail_pods(stage.namespace, stage.pod(), why=why)

    job.wait(LIMIT)
    assert job.state.failure.reason.cause is Cause.INFRA
    assert "low on resource: memory" in card(job)


def test_what_a_rotated_log_lost_is_said(stage, tmp_path, monkeypatch):
    job = stage.submit("begin(); log('before\\n'); wait('go'); log('after\\n'); value(1)")
    running(job)
    until(lambda: 0 in job.state.logs)
    stage.cluster.rotate_log(stage.namespace, stage.pod(), "main")
    stage.sign("go")
    assert job.result(LIMIT) == 1
    assert job.logs(0) == "before\nafter\n"

    monkeypatch.setenv(folders.STATE, str(tmp_path / "another-machine"))
    monkeypatch.setenv("NBTORCHJOB_BACKEND", "kubernetes")
    monkeypatch.setenv("NBTORCHJOB_NAMESPACE", stage.namespace)
    lost = f"[{len('before') + 1} bytes are gone: the container's log was rotated]\n"
    assert api.attach(job.name).logs(0) == f"{lost}after\n"


def test_logs_that_a_process_may_not_open_are_said_and_read_once_others_have_ended(stage, monkeypatch):
    monkeypatch.setattr(connection, "_APART", 1)
    monkeypatch.setattr(processes, "most_open_files", lambda: 2)
    job = stage.submit(
        "begin(2); log(f'of {NODE}\\n'); NODE or wait('go'); log('end\\n'); value(NODE)", launch=Elastic(2)
    )
    until(lambda: "this process may have only 2 files open: raise that limit (ulimit -n)" in card(job))
    stage.sign("go")

    assert job.result(LIMIT) == 0
    assert [job.logs(rank) for rank in (0, 1)] == ["of 0\nend\n", "of 1\nend\n"]


def test_a_job_that_somebody_deletes_was_cancelled(stage):
    job = stage.submit("begin(); log('begun'); wait('never')")
    until(lambda: job.logs(0) == "begun")
    states: list[JobState] = []
    job.subscribe(states.append)
    until(lambda: states and states[-1].phase is Phase.RUNNING)  # ``job.state`` may be a mere look at the job
    path = f"/apis/batch/v1/namespaces/{stage.namespace}/jobs/{job.name}"
    stage.cluster.request("DELETE", f"{path}?propagationPolicy=Background")

    with pytest.raises(JobCancelledError, match="was deleted"):
        job.result(LIMIT)
    until(lambda: not stage.left())


def test_a_job_that_somebody_suspends_waits_and_goes_on(stage):
    part = "begin()\nif LIFE == 0: wait('never')\nvalue(LIFE)"
    job = stage.submit(part)
    running(job)
    path = f"/apis/batch/v1/namespaces/{stage.namespace}/jobs/{job.name}"
    stage.cluster.request("PATCH", path, {"spec": {"suspend": True}})
    until(lambda: job.state.suspended)
    assert "suspended" in card(job)
    until(lambda: not stage.pods())
    stage.cluster.request("PATCH", path, {"spec": {"suspend": False}})

    assert job.result(LIMIT) == 1


def test_a_forged_result_is_refused_before_anything_is_unpickled(stage, tmp_path):
    trap = tmp_path / "sprung"
    pickled = pickle.dumps(Trap(trap))
    job = stage.submit(f"begin()\nvalue(object(), key=b'x' * 32, dump=lambda *_: {pickled!r})")

    with pytest.raises(ResultError, match="can't be trusted"):
        job.result(LIMIT)
    assert not trap.exists()


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_damaged_result_is_refused(stage):
    job = stage.submit("begin()\nvalue(1, spoil=lambda data: data[:-1] + bytes([data[-1] ^ 1]))")
    with pytest.raises(ResultError, match="can't be trusted"):
        job.result(LIMIT)


def test_a_result_that_came_in_part_is_refused(stage):
    job = stage.submit("begin()\nvalue(1, spoil=lambda data: data[:-9])")
    with pytest.raises(ResultError, match="it isn't in its pod's log"):
        job.result(LIMIT)


KERNEL = """
import json, sys
from nbtorchjob import api, capture, submission
from nbtorchjob.spec.jobspec import JobSpec
submission.submit(capture.from_cell("1", {}), JobSpec.from_json(json.loads(sys.argv[1])))
"""


@pytest.fixture
def orphan(stage):
    """Return the name of a Secret left by a kernel that was killed before it created the job."""
    stage.cluster.trouble(503, f"{stage.namespace}/jobs$", method="POST", times=3)  # a second of retries
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL, json.dumps(stage.spec().to_json())])
    until(lambda: len(stage.left()) == 2)  # the Secret, and the payload that it owns
    kernel.kill()
    kernel.wait()
    [name] = [name for name in stage.left() if name.endswith("-claim")]
    return name


def age(monkeypatch):
    """Make every Secret count as old enough to have lost its kernel, even one with a time in the future."""
    monkeypatch.setattr(submitter, "HALF_MADE_S", -60.0)


def test_what_a_killed_kernel_left_is_listed_after_a_minute_and_cleared(stage, orphan, monkeypatch):
    job = stage.submit()
    assert f"{job.name}-claim" != orphan  # a kernel may be about to create its job
    assert [left for _, left in api.leftovers() if left.state is None] == []
    age(monkeypatch)
    ((backend, left),) = [(backend, left) for backend, left in api.leftovers() if left.state is None]
    assert (left.name, left.description) == (orphan, f"Secret without a job in {stage.namespace}")
    backend.clear(left)
    assert orphan not in stage.left()


def test_what_a_killed_kernel_left_long_ago_is_replaced_by_the_same_cell(stage, orphan):
    # In a new kernel, like the killed one: what other tests changed in this process would make another call.
    aged = f"from {submitter.__name__.rpartition('.')[0]} import submitter; submitter.HALF_MADE_S = -60.0"
    again = [sys.executable, "-c", f"{aged}\n{KERNEL}", json.dumps(stage.spec().to_json())]
    subprocess.run(again, check=True, timeout=LIMIT)
    [job] = api.jobs()
    assert f"{job.name}-claim" == orphan


@pytest.mark.parametrize("copy", [b"", b"half"])
def test_a_damaged_copy_of_a_value_is_read_again(stage, copy):
    job = stage.submit("begin()\nvalue(1)")
    assert job.result(LIMIT) == 1
    (folder,) = Scope("", stage.namespace).folders(job.name)
    (path,) = folder.glob("value-*")
    path.write_bytes(copy)

    assert api.attach(job.name).result(LIMIT) == 1
