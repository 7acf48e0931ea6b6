"""Every recorded history of a job leads to the conclusion that a person drew."""

import pytest

from nbtorchjob.state import Phase, apply, conclusive, failure
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.failure import Cause
from nbtorchjob.state.text import facts
from tests.backends.kubernetes.conclusions import (
    ALL,
    CANCELLED,
    FAILED,
    GOES_ON,
    ORPHANED,
    PODS,
    REFUSED,
    STILL_RUNNING,
    SUCCEEDED,
    WAITING,
)
from tests.backends.kubernetes.recordings import LATER, ROOT, Recording, scenarios

SCENARIOS = scenarios()
pytestmark = pytest.mark.skipif(not SCENARIOS, reason=f"no recordings at {ROOT}")


def closed(state):
    return apply(state, ev.Closed(LATER + 1e6))


def conclusion(state):
    """Return what a person sees of a job that ended: phase, cause and line."""
    end = closed(state)
    return end.phase, end.failure and end.failure.reason.cause, end.failure and end.failure.reason.line


def test_every_recording_has_a_conclusion():
    named = [name for group in ALL for name in group]

    assert len(named) == len(set(named)) == 180
    assert set(named) == set(SCENARIOS)


@pytest.mark.parametrize("name", SUCCEEDED)
def test_a_job_that_went_well_succeeds(name):
    state = Recording(SCENARIOS[name]).state()

    assert conclusion(state) == (Phase.SUCCEEDED, None, None)
    assert conclusive(state)


@pytest.mark.parametrize("name", FAILED)
def test_a_job_that_failed_says_why(name):
    state = Recording(SCENARIOS[name]).state()
    phase, cause, line = conclusion(state)

    assert (phase, cause) == (Phase.FAILED, FAILED[name][0])
    assert FAILED[name][1] in line
    assert conclusive(state) == (name not in STILL_RUNNING)


@pytest.mark.parametrize("name", CANCELLED)
def test_a_job_that_was_deleted_while_it_ran_is_cancelled(name):
    assert conclusion(Recording(SCENARIOS[name]).state())[:2] == (Phase.CANCELLED, Cause.CANCELLED)


@pytest.mark.parametrize("name", WAITING)
def test_a_job_that_waits_says_why_and_ends_only_when_it_is_deleted(name):
    recording = Recording(SCENARIOS[name])
    state = recording.state(recording.until_deleted())
    causes = {failure.of_waiting(wait).cause for wait in state.waiting}

    assert (state.phase, conclusive(state)) == (Phase.PENDING, False)
    assert causes == {WAITING[name][0]}
    assert all(WAITING[name][1] in line for line in facts.waiting(state))
    assert conclusion(recording.state())[0] is Phase.CANCELLED


@pytest.mark.parametrize("name", GOES_ON)
def test_a_job_that_is_started_again_and_again_isnt_concluded(name):
    state = Recording(SCENARIOS[name]).state()
    _, cause, line = conclusion(state)

    assert (state.phase, conclusive(state)) == (Phase.PENDING, False)
    assert cause is GOES_ON[name][0]
    assert GOES_ON[name][1] in line


@pytest.mark.parametrize("name", ORPHANED)
def test_pods_that_outlive_their_job_are_still_followed(name):
    state = Recording(SCENARIOS[name]).state()

    assert state.removed is not None
    assert not conclusive(state)
    assert all(node.life.running for node in state.nodes.values())


@pytest.mark.parametrize("name", REFUSED)
def test_a_job_that_was_refused_leaves_nothing(name):
    recording = Recording(SCENARIOS[name])

    assert any(REFUSED[name] in message for message in recording.refused)
    assert not any(change["resource"] == recording.resource for change in recording.changes)


@pytest.mark.parametrize("name", PODS)
def test_a_bare_pod_says_how_it_ended(name):
    node = Recording(SCENARIOS[name]).state().nodes[0]
    cause, word = PODS[name]

    assert node.life.over
    assert node.ended_well() == (cause is None)
    assert cause is None or failure.of_end(node.life.exit).cause is cause
    assert word in node.life.exit.reason


@pytest.mark.parametrize("name", ["ptj-quota", "job-quota"])
def test_a_quota_that_refuses_a_pod_is_named_though_other_pods_run(name):
    assert any("quota q is used up" in line for line in Recording(SCENARIOS[name]).told())


def test_a_scheduling_gate_is_named():
    assert any("scheduling gate" in line for line in Recording(SCENARIOS["pod-schedulinggated"]).told())


def test_a_suspended_job_says_so_until_it_is_resumed():
    for name in (
        "ptj-suspend-resume-clean",
        "trainjob-suspend-resume",
        "job-suspend-resume",
        "vcjob-abort-resume",
    ):
        states = list(Recording(SCENARIOS[name]).read(Recording(SCENARIOS[name]).changes))

        assert any(facts.phase(state) == "SUSPENDED" for state in states), name
        assert not any(conclusive(state) for state in states if state.suspended), name
        assert not states[-1].suspended, name


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["ptj-", "trainjob-", "vcjob-", "job-", "pod-"])
def test_the_conclusion_doesnt_depend_on_how_the_watches_interleave(kind, seed):
    for name, path in SCENARIOS.items():
        recording = Recording(path)
        if name.startswith(kind) and name not in REFUSED:
            other = recording.state(recording.in_another_order(seed))

            assert conclusion(other) == conclusion(recording.state()), name
            assert conclusive(other) == conclusive(recording.state()), name
