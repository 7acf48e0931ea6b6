"""A cluster job's progress in a list, which reads no logs of the cluster."""

import json
import time

from nbtorchjob import api
from nbtorchjob.backends.kubernetes.cache import JobCache, Pod
from nbtorchjob.backends.kubernetes.jobs.find import reported
from nbtorchjob.backends.kubernetes.podlog import Lines
from nbtorchjob.runtime.facts.samples import RankUse
from nbtorchjob.runtime.store import frames
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines
from nbtorchjob.ui.record import record
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

PART = """
def reported(*epochs):
    for seq in epochs:
        tell("Reported", rank=0, round=LIFE, seq=seq, metrics={"epoch": seq, "epochs": 10})

begin()
tell("Reported", rank=0, error=3)  # what a later version may write
reported(0, 1, 2)
wait("talk")
log("nothing but words\\n" * 50_000)
wait("report")
reported(3)
wait("end")
value(1)
"""


def done(job):
    """Return how many epochs a list shows as done, and the total; None if it doesn't know."""
    (snapshot,) = (state for state in api.jobs() if state.info.name == job.name)
    progress = record(snapshot, time.time())["progress"]
    return progress and (progress["done"], progress["total"])


def test_a_list_says_how_far_a_job_is_that_is_followed_here(stage):
    job = stage.submit(PART)
    assert done(job) is None

    job.subscribe(lambda state: None)
    until(lambda: done(job) == (3, 10))
    stage.sign("talk")
    until(lambda: 0 in job.state.logs and job.state.logs[0].pieces[-1].end == 900_000)
    assert done(job) == (3, 10)  # its reports lie further back than a look reads
    stage.sign("report")
    until(lambda: done(job) == (4, 10))
    stage.sign("end")
    job.result(LIMIT)
    assert done(job) is None


def test_what_a_node_uses_does_not_make_a_job_look_alive(tmp_path):
    cache, pod = JobCache(tmp_path / "job"), Pod(0, "ffff")
    assert cache.claim(JobInfo("train"))
    used = json.dumps(
        factlines.to_json(ev.Used(1.0, 0, 0, 0, 2.0, 1, 2, uses=(RankUse(0, 1.0, 2, 3, 1),) * 300))
    )
    looks = [(b"2026-01-01T00:00:09Z", line) for line in frames.fact(used.encode()).splitlines()]
    cache.add(pod, Lines.of([(b"2026-01-01T00:00:01Z", frames.log(0, 0, 0, b"one").rstrip()), *looks]))
    cache.release()
    begun = apply(JobState(JobInfo("train")), ev.NodeStarted(0.0, 0, "host", pod="ffff"))

    assert len(looks) > 1
    assert reported(begun, cache).wrote == 1767225601.0
