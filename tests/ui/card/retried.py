"""Jobs that were tried more than once: the facts of their attempts."""

from functools import reduce

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.errors import Error, Frame
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import Retry, RunPolicy
from nbtorchjob.state import US, JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev

POLICY = RunPolicy(active_deadline_seconds=600, ttl_seconds_after_finished=60)
CLUSTER = {"context": "", "namespace": "ml", "kind": "trainjob"}


def job(*facts, retry=None, policy=POLICY, **info):
    """Return a job of two nodes, submitted at 1000, that has two retries and three preemptions."""
    launch = Elastic(2, run_policy=policy)
    spec = JobSpec(launch, retry=retry or Retry(retries=2, preemptions=3)).to_json()
    fields = {
        "name": "swift-otter",
        "created": 1000.0,
        "nodes": (2, 2),
        "retry_owner": US,
        "spec": spec,
        **info,
    }
    if policy is not None:
        fields |= {"ttl_s": policy.ttl_seconds_after_finished, "deadline_s": policy.active_deadline_seconds}
    return reduce(apply, facts, JobState(JobInfo(**fields)))


def begun(number, at, log="epoch 0\n"):
    """Return an attempt of two nodes that starts at ``at``."""
    pod, round_ = f"attempt-{number}", number - 1
    return [
        *(ev.NodeStarted(at + 1, n, f"host-{number}{n}", 9, f"{pod}-{n}", attempt=number) for n in (0, 1)),
        *(ev.WorkersStarted(at + 2, n, 0, round_, (n,), 2) for n in (0, 1)),
        ev.LogChunk(0, round_, 0, log.encode()),
    ]


def recoverable(number, at, message="the disk is away", log="epoch 0\n"):
    """Return an attempt that a RecoverableError of rank 0 ended five seconds later."""
    pod, round_ = f"attempt-{number}", number - 1
    frames = (Frame("/home/me/train.py", 3, "train"),)
    error = Error("RecoverableError", message, frames, recoverable=True, time=at + 4)
    return [
        *begun(number, at, log),
        ev.RankFailed(at + 4, 0, 0, 0, round_, error),
        ev.NodeExited(at + 5, 0, exits.RECOVERABLE_ERROR, pod=f"{pod}-0"),
        ev.NodeExited(at + 5, 1, exits.INFRASTRUCTURE_ERROR, pod=f"{pod}-1"),
        ev.Verdict(at + 6, False, attempt=number),
    ]


def evicted(number, at):
    """Return an attempt in which node 1 was evicted four seconds later."""
    pod = f"attempt-{number}"
    return [
        *begun(number, at),
        ev.NodeDisrupted(at + 4, 1, f"{pod}-1", "EvictionByEvictionAPI"),
        ev.NodeExited(at + 5, 1, exits.CANCELLED, pod=f"{pod}-1"),
        ev.NodeExited(at + 5, 0, exits.INFRASTRUCTURE_ERROR, pod=f"{pod}-0"),
        ev.Verdict(at + 6, False, attempt=number),
    ]
