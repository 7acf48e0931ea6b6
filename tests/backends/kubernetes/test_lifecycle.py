"""Facts about a job, read from its pods, their events and its pod groups."""

import json

import pytest

from nbtorchjob.backends.kubernetes import lifecycle
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import failure
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts.events import Stage, Waiting
from nbtorchjob.state.failure import Cause


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


@pytest.mark.parametrize("reason", ["Evicted", "DeadlineExceeded"])
def test_a_pods_reason_tells_more_than_that_the_kubelet_lost_sight_of_its_container(reason):
    unseen = ended(137, "ContainerStatusUnknown", start=0, end=0)
    (exited,) = of(ev.NodeExited, pod(unseen, phase="Failed", reason=reason, message="why"))

    assert (exited.code, exited.reason, exited.text) == (None, reason, "why")


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


@pytest.mark.parametrize(
    ("more", "reason", "text"),
    [
        ({"reason": "Evicted", "message": "too much disk."}, "Evicted", "too much disk."),
        ({"reason": "DeadlineExceeded", "message": "too long"}, "DeadlineExceeded", "too long"),
        ({"conditions": [condition("DisruptionTarget", reason="PreemptionByScheduler")]}, "", ""),
        (
            {"metadata": {"deletionTimestamp": "1970-01-01T00:00:34Z", "deletionGracePeriodSeconds": 30}},
            "",
            "",
        ),
    ],
)
def test_an_init_container_that_was_killed_with_its_pod_isnt_to_blame(more, reason, text):
    init, waiting = [{"name": "wait", "state": ended(137)}], {"waiting": {"reason": "PodInitializing"}}

    (exited,) = of(ev.NodeExited, pod(waiting, phase="Failed", initContainerStatuses=init, **more))

    assert (exited.code, exited.reason, exited.text) == (None, reason, text)


def test_an_init_container_that_failed_before_its_pod_was_deleted_is_to_blame():
    init, waiting = [{"name": "wait", "state": ended(5)}], {"waiting": {"reason": "PodInitializing"}}
    deleted = {"deletionTimestamp": "1970-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30}

    (exited,) = of(ev.NodeExited, pod(waiting, phase="Failed", initContainerStatuses=init, metadata=deleted))

    assert exited.code == 5


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
    (disruption,) = of(ev.NodeDisrupted, pod(conditions=[target], metadata=deleted))
    assert disruption == ev.NodeDisrupted(3.0, 4, "u", "PreemptionByScheduler", "for another")


def test_facts_in_a_termination_message_are_read_and_the_rest_is_text():
    fact = {"event": "RankFailed", "time": 4.0, "node": 4, "rank": 1, "restart": 0, "round": 7}
    error = Error("ValueError", "boom", time=4.0)
    message = "{}\n{}\n".format(json.dumps({**fact, "error": error.to_json()}), "plain words")
    obj = pod(ended(1, message=message))

    assert of(ev.RankFailed, obj) == [ev.RankFailed(4.0, 4, 1, 0, 7, error)]
    assert of(ev.NodeExited, obj)[0].text == "plain words"


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
    assert lifecycle.gone_fact(pod(), 4, 9.0) == ev.NodeGone(9.0, 4, "u")


def event(reason, message="", *, kind="Pod", name="p-0", **times):
    times = times or {"lastTimestamp": "1970-01-01T00:00:05Z"}
    about = {"kind": kind, "name": name, "uid": "u"}
    return {"involvedObject": about, "reason": reason, "message": message, **times}


def read(*args, of="indexedjob", **kwargs):
    """Read an event about a job of that kind."""
    return lifecycle.waiting_facts(event(*args, **kwargs), {"p-0": 0}.get, complaints=KINDS[of].complaints)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate, "
            "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
            "no host has enough nvidia.com/gpu free",
        ),
        (
            "0/4 nodes are available: 1 Insufficient memory, 2 Insufficient cpu, "
            "1 node(s) had untolerated taint {a: b}.",
            "no host has enough cpu and memory free; a host has a taint that the job doesn't tolerate",
        ),
        (
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
            "no host matches the node selector",
        ),
        ("no nodes available to schedule pods", "the cluster has no hosts"),
        ("0/0 nodes are unavailable", "the cluster has no hosts"),
        ("something new", "something new"),
    ],
)
def test_why_no_host_fits_is_told_in_plain_words(message, text):
    assert lifecycle.placing(message) == text
    assert read("FailedScheduling", message)[0].text == text


def test_a_gang_that_doesnt_fit_is_called_one():
    assert "gang" in lifecycle.placing("pod group is not ready, 2 Pending, 2 minAvailable")
    (wait,) = read("Unschedulable", "0/0 tasks in gang unschedulable", kind="PodGroup", name="vj-1")
    assert (wait.node, wait.stage, failure.of_waiting(wait).cause) == (None, Stage.QUEUED, Cause.WAIT)


def by_volcano(*refusals):
    """Return the event's text for those refusals of pods, as Volcano 1.15 prints them (recorded)."""
    errors = (
        f"failed to create pod vj-node-{i}, err: &errors.StatusError{{ErrStatus:v1.Status{{"
        'TypeMeta:v1.TypeMeta{Kind:"", APIVersion:""}, ListMeta:v1.ListMeta{SelfLink:"", '
        'RemainingItemCount:(*int64)(nil)}, Status:"Failure", Message:' + json.dumps(refusal) + ", "
        'Reason:"Forbidden", Details:(*v1.StatusDetails)(0x311a8d6e1b00), Code:403}}'
        for i, refusal in enumerate(refusals)
    )
    return f"(combined from similar events): Error creating pods: [{' '.join(errors)}]"


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        (
            'pods "vj-node-0" is forbidden: exceeded quota: team, requested: pods=1, '
            "used: pods=1, limited: pods=1",
            "the quota team is used up: pods=1 of pods=1 used, pods=1 more requested",
        ),
        (
            'pods "vj-node-0" is forbidden: error looking up service account space/nosuch: '
            'serviceaccount "nosuch" not found',
            'the service account "nosuch" doesn\'t exist: choose an existing one with --service-account',
        ),
        (
            'pods "vj-node-0" is forbidden: no \\ allowed',
            'a pod can\'t be created: pods "vj-node-0" is forbidden: no \\ allowed',
        ),
    ],
)
def test_what_volcano_prints_as_go_values_is_told_in_the_apis_words(refusal, text):
    (wait,) = read("FailedCreate", by_volcano(refusal, refusal), of="volcano", kind="Job", name="vj")
    assert wait.text == text


def test_volcanos_reason_for_a_gang_is_told_in_plain_words():
    message = (
        "2/2 tasks in gang unschedulable: pod group is ready, 2 Pending, 2 minAvailable; "
        "Pending: 2 Unschedulable. Origin reason is vj-node-1: 0/1 nodes are unavailable: "
        "1 node(s) didn't match Pod's node affinity/selector."
    )
    (wait,) = read("Unschedulable", message, kind="PodGroup", name="vj-1")
    assert wait.text == (
        "waiting until all pods fit at once (gang): vj-node-1: no host matches the node selector"
    )


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        ("Failed", 'Failed to pull image "x": not there', Cause.CONFIG),
        ("Failed", 'Failed to pull image "x": 429 Too Many Requests', Cause.INFRA),
        ("Failed", 'Error: secret "absent" not found', Cause.CONFIG),
        ("Failed", "Error: couldn't find key env.TOKEN in Secret ns/absent", Cause.CONFIG),
        ("InspectFailed", "invalid reference format", Cause.CONFIG),
        ("FailedMount", 'secret "absent" not found', Cause.CONFIG),
        ("Pulling", 'Pulling image "x"', Cause.WAIT),
        ("TriggeredScaleUp", "pod triggered scale-up", Cause.WAIT),
    ],
)
def test_trouble_before_the_start_is_told_with_what_to_do(reason, message, cause):
    (wait,) = read(reason, message)
    diagnosis = failure.of_waiting(wait)

    assert (wait.node, wait.pod, wait.time) == (0, "u", 5.0)
    assert diagnosis.cause is cause
    assert bool(diagnosis.hint) == (cause is not Cause.WAIT)


def test_a_program_that_the_image_lacks_is_no_missing_secret():
    (wait,) = read("Failed", 'Error: exec: "python": executable file not found in $PATH')

    assert failure.of_waiting(wait).hint == "Is there a python in the image?"


def test_a_pull_that_is_tried_again_leaves_the_failure_of_the_first():
    assert read("Pulling", 'Pulling image "x"', count=2, lastTimestamp="1970-01-01T00:00:09Z") == []


def test_what_a_pod_asks_for_is_told_where_the_pod_is_known():
    pod = {"spec": {"containers": [{"resources": {"requests": {"cpu": "8"}}}, {"name": "istio"}]}}
    short = event("FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu.")
    facts = lifecycle.waiting_facts(short, {"p-0": 0}.get, {"p-0": pod}.get)

    assert [fact.text for fact in facts if isinstance(fact, Waiting)] == [
        "no host has enough cpu free (it asks for 8 cpu)"
    ]


def test_an_image_that_cant_be_pulled_is_named_with_why():
    lost = (
        'failed to pull and unpack image "reg/x:1": failed to resolve reference "reg/x:1": reg/x:1: not found'
    )
    (wait,) = read("Failed", f'Failed to pull image "reg/x:1": rpc error: code = NotFound: {lost}')

    assert wait.text == f"its image reg/x:1 can't be pulled, because its registry has no such image: {lost}"


def test_a_service_account_that_is_missing_is_the_jobs_fault():
    message = 'Error creating: pods "p-0" is forbidden: serviceaccount "no" not found'
    (wait,) = read("FailedCreate", message, kind="Job", name="p")

    assert failure.of_waiting(wait).cause is Cause.CONFIG


@pytest.mark.parametrize("reason", ["Scheduled", "Started", "Killing", "BackOff"])
def test_events_that_say_nothing_new_are_left_out(reason):
    assert read(reason, "whatever") == []


def test_a_failure_that_only_names_a_reason_is_left_out():
    assert read("Failed", "Error: ImagePullBackOff") == []


def test_events_of_pods_that_arent_ours_are_left_out():
    assert read("FailedScheduling", "no", name="other") == []


def test_a_quota_is_told_in_plain_words():
    quota = "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"
    message = f'Error creating: pods "p-1" is forbidden: {quota}'
    for reason, kind in (("FailedCreate", "Job"), ("FailedCreatePod", "PyTorchJob")):
        (wait,) = read(reason, message, kind=kind, name="p")
        assert wait.text == "the quota q is used up: pods=1 of pods=1 used, pods=1 more requested"
        assert wait.node is None


def test_a_pod_that_exists_already_is_no_trouble():
    message = 'Error creating: pods "p-0" already exists'
    assert read("FailedCreatePod", message, of="pytorchjob", kind="PyTorchJob") == []


def test_what_an_operator_cant_create_is_the_jobs_fault():
    for kind in KINDS.values():
        for reason in ("FailedCreateService", *kind.complaints.refusals):
            (wait,) = read(reason, "is invalid", of=kind.name, kind=kind.api.kind, name="tj")
            assert failure.of_waiting(wait).cause is Cause.CONFIG
            assert wait.text.endswith(": is invalid")


def test_what_a_runtime_refuses_is_told_with_why():
    message = "TrainJob resources reconciliation failed: no such container"
    (wait,) = read("TrainJobResourcesCreationFailed", message, of="trainjob", kind="TrainJob", name="tj")

    why = "its runtime and this job don't fit together"
    assert wait.text == f"its pods can't be requested: {why}: no such container"


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ({"lastTimestamp": "1970-01-01T00:00:05Z", "eventTime": None}, 5.0),
        ({"lastTimestamp": None, "eventTime": "1970-01-01T00:00:06.500000Z"}, 6.5),
        (
            {
                "eventTime": "1970-01-01T00:00:06.5Z",
                "series": {"lastObservedTime": "1970-01-01T00:00:09.25Z"},
            },
            9.25,
        ),
        ({"metadata": {"creationTimestamp": "1970-01-01T00:00:07Z"}}, 7.0),
    ],
)
def test_an_events_time_is_that_of_its_last_repetition(times, seconds):
    assert read("FailedMount", "no", **times)[0].time == seconds


AT_5 = "1970-01-01T00:00:05Z"


def group(kind, state, message="", policy=None):
    entry = {"type": kind, "status": state, "message": message, "lastTransitionTime": AT_5}
    spec = {"schedulingPolicy": policy or {"gang": {"minCount": 4}}}
    return {"spec": spec, "status": {"conditions": [entry]}}


@pytest.mark.parametrize("kind", ["PodGroupScheduled", "PodGroupInitiallyScheduled"])
def test_what_a_group_waits_for_is_told_and_that_it_waits_no_more(kind):
    (waits,) = lifecycle.group_facts(
        group(kind, "False", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    )

    assert waits == ev.group_waits(
        5.0, "waiting until all 4 pods fit at once (gang): no host has enough nvidia.com/gpu free"
    )
    assert lifecycle.group_facts(group(kind, "True")) == [ev.group_waits(5.0, "")]


def test_pods_that_are_placed_one_by_one_wait_for_nothing_together():
    assert lifecycle.group_facts(group("PodGroupInitiallyScheduled", "False", "no", {"basic": {}})) == []
    assert lifecycle.group_facts({"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}) == []


def test_a_pod_says_which_group_it_is_in():
    assert lifecycle.name({"spec": {"schedulingGroup": {"podGroupName": "train-1"}}}) == "train-1"
    assert lifecycle.name({"spec": {}}) == lifecycle.name({}) == ""
