"""Why pods wait that Kubernetes places all at once."""

import pytest

from nbtorchjob.backends.kubernetes.pod import groups
from nbtorchjob.state import events as ev

AT_5 = "1970-01-01T00:00:05Z"


def group(kind, state, message="", policy=None):
    told = {"type": kind, "status": state, "message": message, "lastTransitionTime": AT_5}
    spec = {"schedulingPolicy": policy or {"gang": {"minCount": 4}}}
    return {"spec": spec, "status": {"conditions": [told]}}


@pytest.mark.parametrize("kind", ["PodGroupScheduled", "PodGroupInitiallyScheduled"])
def test_what_a_group_waits_for_is_told_and_that_it_waits_no_more(kind):
    (waits,) = groups.facts(group(kind, "False", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))

    assert waits == ev.group_waits(
        5.0, "waiting until all 4 pods fit at once (gang): no host has enough nvidia.com/gpu free"
    )
    assert groups.facts(group(kind, "True")) == [ev.group_waits(5.0, "")]


def test_pods_that_are_placed_one_by_one_wait_for_nothing_together():
    assert groups.facts(group("PodGroupInitiallyScheduled", "False", "no", {"basic": {}})) == []
    assert groups.facts({"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}) == []


def test_a_pod_says_which_group_it_is_in():
    assert groups.name({"spec": {"schedulingGroup": {"podGroupName": "train-1"}}}) == "train-1"
    assert groups.name({"spec": {}}) == groups.name({}) == ""
