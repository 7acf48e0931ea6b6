import json

import pytest

from nbtorchjob.backends.kubernetes.pod import lifecycle
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import events as ev


def pod(state=None, *, last=None, restarts=0, phase="Running", conditions=(), policy="Never", **more):
    container = {"name": "main", "state": state or {}, "lastState": last or {}, "restartCount": restarts}
    sidecar = {"name": "istio", "state": {"running": {"startedAt": "2026-01-01T00:00:09Z"}}}
    return {
        "metadata": {"uid": "u", "creationTimestamp": "1970-01-01T00:00:01Z", **more.pop("metadata", {})},
        "spec": {"containers": [{"name": "main"}], "restartPolicy": policy, "nodeName": "host"},
        "status": {
            "phase": phase,
            "conditions": list(conditions),
            "containerStatuses": [sidecar, container],
            **more,
        },
    }


def ended(code, reason="Error", *, message="", start=2, end=5):
    stamp = "1970-01-01T00:00:{:02}Z".format
    times = {"startedAt": stamp(start) if start else None, "finishedAt": stamp(end) if end else None}
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, **times}}


def condition(kind, state="True", reason="", message="", at=3):
    time = f"1970-01-01T00:00:{at:02}Z"
    return {"type": kind, "status": state, "reason": reason, "message": message, "lastTransitionTime": time}


def of(kind, obj):
    return [event for event in lifecycle.facts(obj, 4) if isinstance(event, kind)]


def test_a_pod_waits_from_its_creation_on():
    assert of(ev.Waiting, pod())[0] == ev.Waiting(1.0, "waiting for a host", 4, "u")


def test_a_running_container_is_a_started_node():
    running = pod({"running": {"startedAt": "1970-01-01T00:00:02Z"}})

    assert of(ev.NodeStarted, running) == [ev.NodeStarted(2.0, 4, "host", 0, "u", 0)]


@pytest.mark.parametrize(
    ("code", "signal"), [(0, None), (1, None), (128, None), (137, 9), (143, 15), (200, None), (255, None)]
)
def test_a_code_above_128_is_a_signal_unless_our_runtime_gave_it(code, signal):
    (exited,) = of(ev.NodeExited, pod(ended(code)))

    assert (exited.code, exited.signal, exited.time) == (code, signal, 5.0)


def test_the_run_before_a_restart_in_place_is_told_too():
    twice = pod({"running": {"startedAt": "1970-01-01T00:00:07Z"}}, last=ended(1), restarts=1)

    assert [event.run for event in of(ev.NodeStarted, twice)] == [0, 1]
    assert [(event.run, event.code) for event in of(ev.NodeExited, twice)] == [(0, 1)]


@pytest.mark.parametrize(
    ("policy", "code", "again"), [("Never", 1, 0), ("OnFailure", 0, 0), ("OnFailure", 1, 1)]
)
def test_a_container_that_has_just_ended_waits_if_the_kubelet_starts_it_again(policy, code, again):
    waits = of(ev.Waiting, pod(ended(code), policy=policy))

    assert len([wait for wait in waits if wait.stage is ev.Stage.RESTARTING]) == again


def test_the_wait_between_two_runs_names_what_the_last_died_of():
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    between = of(ev.Waiting, pod(waiting, last=ended(137, "OOMKilled"), restarts=2))[-1]

    assert (between.reason, between.time) == ("OOMKilled", 5.0)
    assert "exit code 137" in between.text


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        ({"limits": {"memory": "512Mi"}}, "its limit was 512Mi"),
        ({"limits": {"cpu": "1"}}, "it has no limit"),
        ({}, "it has no limit"),
    ],
)
def test_who_ran_out_of_memory_says_what_its_limit_was(resources, text):
    killed = pod(ended(137, "OOMKilled"))
    killed["spec"]["containers"] = [{"name": "main", "resources": resources}]

    assert [event.text for event in of(ev.NodeExited, killed)] == [text]


def test_a_limit_of_the_whole_pod_counts_as_well():
    killed = pod(ended(137, "OOMKilled"))
    killed["spec"]["resources"] = {"limits": {"memory": "2Gi"}}

    assert [event.text for event in of(ev.NodeExited, killed)] == ["its limit was 2Gi"]


def test_a_pod_that_fits_nowhere_says_what_it_asks_for():
    message = "0/2 nodes are available: 1 Insufficient cpu, 2 Insufficient nvidia.com/gpu."
    unplaced = condition("PodScheduled", "False", "Unschedulable", message)
    waits = pod(phase="Pending", conditions=[unplaced])
    waits["spec"]["containers"] = [
        {"name": "main", "resources": {"requests": {"cpu": "4", "nvidia.com/gpu": "8"}}},
        {"name": "istio", "resources": {"requests": {"cpu": "100m"}}},
    ]

    asks = "no host has enough cpu and nvidia.com/gpu free (it asks for 4 + 100m cpu and 8 nvidia.com/gpu)"
    placing = ev.Waiting(3.0, asks, 4, "u", "Unschedulable", ev.Stage.PLACING, since=3.0)
    assert of(ev.Waiting, waits)[1] == placing


def test_a_pods_reason_tells_more_than_its_containers():
    evicted = pod(ended(137), phase="Failed", reason="Evicted", message="too much disk. ")
    (exited,) = of(ev.NodeExited, evicted)

    assert (exited.reason, exited.text) == ("Evicted", "too much disk.")


def test_a_refused_pod_ended_without_ever_starting():
    refused = pod(phase="Failed", reason="OutOfcpu", message="no cpu", startTime="1970-01-01T00:00:03Z")
    (exited,) = of(ev.NodeExited, refused)

    assert (exited.time, exited.code, exited.reason) == (3.0, None, "OutOfcpu")
    assert not of(ev.NodeStarted, refused)


def test_a_container_that_couldnt_start_has_no_start():
    assert not of(ev.NodeStarted, pod(ended(128, "StartError", start=0)))


def test_an_init_container_that_failed_is_named():
    init = [{"name": "wait", "state": ended(5)}]
    waiting = {"waiting": {"reason": "PodInitializing"}}
    (exited,) = of(ev.NodeExited, pod(waiting, phase="Failed", initContainerStatuses=init))

    assert (exited.code, exited.text) == (5, "its init container wait exited with code 5")


def test_the_code_of_a_container_that_nobody_saw_isnt_taken_for_its_own():
    (exited,) = of(ev.NodeExited, pod(ended(137, "ContainerStatusUnknown", start=0, end=0)))

    assert (exited.code, exited.signal, exited.reason) == (None, None, "ContainerStatusUnknown")


def test_a_deletion_counts_from_when_it_was_asked_for():
    metadata = {"deletionTimestamp": "1970-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30}

    assert of(ev.NodeDisrupted, pod(metadata=metadata)) == [ev.NodeDisrupted(10.0, 4, "u", ev.DELETED)]


def test_a_disruption_counts_only_once_it_is_carried_out():
    target = condition("DisruptionTarget", reason="PreemptionByScheduler", message="for another")
    deleted = {"deletionTimestamp": "1970-01-01T00:00:04Z", "deletionGracePeriodSeconds": 0}

    assert not of(ev.NodeDisrupted, pod(conditions=[target]))
    (told,) = of(ev.NodeDisrupted, pod(conditions=[target], metadata=deleted))
    assert told == ev.NodeDisrupted(3.0, 4, "u", "PreemptionByScheduler", "for another")


def test_facts_in_a_termination_message_are_read_and_the_rest_is_text():
    fact = {"event": "RankFailed", "time": 4.0, "node": 4, "rank": 1, "restart": 0, "round": 7}
    error = Error("ValueError", "boom", time=4.0)
    message = "{}\n{}\n".format(json.dumps({**fact, "error": error.to_json()}), "plain words")
    told = pod(ended(1, message=message))

    assert of(ev.RankFailed, told) == [ev.RankFailed(4.0, 4, 1, 0, 7, error)]
    assert of(ev.NodeExited, told)[0].text == "plain words"


@pytest.mark.parametrize(
    "message",
    ['{"error":"boom"}', '{"event":"Closed","time":1}', '{"event":"RankFailed"}', "[1]", '{"event":'],
)
def test_a_termination_message_that_only_looks_like_a_fact_is_text(message):
    facts = lifecycle.facts(pod(ended(1, message=message)), 4)

    assert [event.text for event in facts if isinstance(event, ev.NodeExited)] == [message]
    assert {type(event) for event in facts} == {ev.Waiting, ev.NodeStarted, ev.NodeExited}


def test_our_container_is_found_among_others_by_name():
    both = pod(ended(3))
    both["spec"]["containers"] = [{"name": "other"}, {"name": "main"}]

    assert [e.code for e in lifecycle.facts(both, 0, "main") if isinstance(e, ev.NodeExited)] == [3]


def test_a_pod_that_is_gone_is_a_fact_of_its_own():
    assert lifecycle.gone(pod(), 4, 9.0) == ev.NodeGone(9.0, 4, "u")
