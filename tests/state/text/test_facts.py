from functools import reduce

import pytest

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts.events import Stage
from nbtorchjob.state.text import facts

UNPLACED = "no host has enough cpu free"


def state(*events):
    return reduce(apply, events, JobState(JobInfo("job", "kubernetes", nodes=(2, 2))))


def waits(node, text=UNPLACED, reason="Unschedulable", stage=Stage.PLACING, pod=""):
    return ev.Waiting(1.0, text, node, pod or f"pod-{node}", reason, stage)


def test_nodes_that_wait_for_the_same_are_told_together():
    assert facts.waiting(state(waits(0), waits(1))) == [f"nodes 0-1: {UNPLACED}."]


def test_what_wont_end_by_itself_is_told_with_a_hint():
    stuck = waits(0, "its image can't be pulled: not found.", "ErrImagePull", Stage.STARTING)
    (line,) = facts.waiting(state(stuck))

    assert line.startswith("node 0: its image can't be pulled: not found. Check --image")


def test_what_holds_the_whole_job_up_is_told_first():
    quota = ev.Waiting(2.0, "the quota q is used up", None, "", "FailedCreate", Stage.PLACING)

    assert facts.waiting(state(waits(0), quota))[0] == "the job: the quota q is used up."


def test_many_reasons_are_told_up_to_a_bound():
    lines = facts.waiting(state(*(waits(node, f"reason {node} " * 100) for node in range(9))))

    assert lines[-1] == "and 5 more"
    assert all(len(line) <= 300 for line in lines)


def test_a_pod_that_is_created_again_says_what_the_last_died_of():
    dead = [ev.NodeStarted(0.5, 0, "host", pod="a"), ev.NodeExited(0.6, 0, 137, 9, "a", "OOMKilled")]
    (line,) = facts.waiting(state(*dead, waits(0, pod="b")))

    assert "its pod 2; the previous pod: used more memory than its limit" in line


def test_how_a_node_does():
    evicted = ev.NodeDisrupted(3.0, 0, "a", "EvictionByEvictionAPI")
    history = [waits(0, pod="a"), ev.NodeStarted(2.0, 0, "host", pod="a"), evicted, ev.NodeGone(5.0, 0, "a")]
    states = [state(*history[:n]) for n in (1, 2, 3, 4)]

    assert [facts.condition(state.nodes[0], state) for state in states] == [
        UNPLACED,
        "waiting for the other nodes",
        "evicted, as when a host is drained",
        "evicted, as when a host is drained",
    ]
    both = state(ev.NodeStarted(2.0, 0, "host", pod="a"), ev.NodeStarted(2.0, 1, "host", pod="b"))
    assert facts.condition(both.nodes[0], both) == "starting its ranks"
    installs = state(ev.NodeStarted(2.0, 0, "host", pod="a"), ev.Installing(3.0, 0))
    assert facts.condition(installs.nodes[0], installs) == "installing packages"
    error = Error("nbtorchjob.runtime.install.packages.InstallError", "pip couldn't install it", time=4.0)
    failed = state(
        ev.NodeStarted(2.0, 0, "host", pod="a"),
        ev.NodeFailed(4.0, 0, exits.CONFIG_ERROR, error, "a"),
        ev.NodeExited(4.1, 0, exits.CONFIG_ERROR, pod="a"),
    )
    assert facts.condition(failed.nodes[0], failed) == "its packages can't be installed"
    job_state = state(ev.NodeStarted(2.0, 0, "host", pod="a"), ev.NodeGone(5.0, 0, "a"))
    assert facts.condition(job_state.nodes[0], job_state) == "gone"


def test_the_middle_of_a_chain_of_causes_is_left_out():
    text = f"its image can't be pulled: {'failed to do so: ' * 20}no such host"
    (line,) = facts.waiting(state(waits(0, text, "ErrImagePull", Stage.STARTING)))

    assert line.startswith("node 0: its image can't be pulled")
    assert "no such host. Check --image" in line


def test_a_job_on_a_cluster_says_where():
    cluster = {"context": "", "namespace": "ml", "kind": "volcano"}

    assert facts.where(JobInfo("job", "kubernetes", cluster=cluster)) == "kubernetes: volcano in ml"
    lab = JobInfo("job", "kubernetes", cluster={**cluster, "context": "lab"})
    assert facts.where(lab) == "kubernetes: volcano in ml, context lab"
    assert facts.where(JobInfo("job")) == "local"


def test_a_wish_needs_no_heading_but_a_deletion_does():
    wish = state(ev.CancelRequested(1.0), ev.Removed(2.0), ev.Closed(3.0))
    removed = state(ev.Removed(2.0), ev.Closed(3.0))
    early = state(ev.CancelRequested(1.0, "loss > 2"), ev.CancelRequested(1.5), ev.Closed(3.0))

    assert (facts.phase(early), facts.heading(early.failure, early)) == (
        "STOPPED",
        "stopped early: loss > 2",
    )
    assert [facts.heading(state.failure, state) for state in (wish, removed)] == ["", "the job was deleted"]
    assert [facts.phase(state) for state in (wish, removed)] == ["CANCELLED", "DELETED"]


@pytest.mark.parametrize(
    ("message", "heading"),
    [
        ("CUDA out of memory. Tried to allocate 1.22 GiB. GPU 0 has", "1.22 GiB"),
        (
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes.",
            "4.1 kB",
        ),
        ("Unable to allocate 7.45 GiB for an array with shape (1000000000,)", "7.45 GiB"),
    ],
)
def test_an_allocator_s_error_is_headed_by_how_much_more_was_asked_for(message, heading):
    error = Error("torch.OutOfMemoryError", message, time=2.0)
    failed = state(ev.RankFailed(2.0, 0, 0, 0, 0, error), ev.NodeExited(2.5, 0, 1), ev.Closed(3.0))

    line = facts.heading(failed.failure, failed)
    assert line == f"rank 0: out of memory ({heading} more requested)"


def test_a_node_that_a_signal_ended_has_a_cause_though_nobody_cancelled_the_job():
    ended = state(ev.NodeExited(2.0, 0, exits.CANCELLED), ev.Closed(3.0))

    text = "Cause: infrastructure. It received SIGTERM, but the job was not cancelled."
    assert facts.cause(ended.failure, ended).startswith(text)


def test_a_budget_is_no_advice_where_nobody_was_left_to_spend_it():
    lost, evicted = state(ev.Lost(2.0, "its supervisor was killed")), ev.NodeDisrupted(1.0, 0, "a", "Evicted")
    assert facts.cause(lost.failure, lost) == "Cause: infrastructure."
    job_state = state(evicted, ev.NodeGone(2.0, 0, "a"), ev.Closed(3.0))
    assert "--preemptions N" in facts.cause(job_state.failure, job_state)


def test_a_suspended_job_says_so():
    assert facts.phase(state(ev.Suspended(1.0, True))) == "SUSPENDED"


def test_what_a_pod_wrote_is_shown_where_no_rank_tells_of_the_failure():
    wrote = [ev.NodeOutput(1.0, 0, "a", "no module torch"), ev.NodeOutput(1.0, 1, "b", "\x1b[31mfine")]
    ended = [ev.NodeExited(2.0, 0, 3, pod="a"), ev.Verdict(3.0, False), ev.Closed(4.0)]

    assert facts.output(state(*wrote, *ended)) == ["no module torch"]
    assert facts.output(state(*wrote)) == []
