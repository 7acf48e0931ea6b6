"""The signs that a host is about to end, and the nodes that learn of them."""

import pytest

from nbtorchjob.backends.kubernetes.control import selection
from tests.backends.kubernetes.stage import running, until
from tests.patience import LIMIT

SPOT = "aws-node-termination-handler/spot-itn"

# A node that records each notice, and from the second one on answers that its ranks leave.
PART = """
import tempfile
from nbtorchjob.runtime.ask import answering, questions
from nbtorchjob.runtime.facts import injected

def leave(asked):
    sign("told-%d" % len(list(SIGNS.glob("told-*"))))
    log(asked["why"] + chr(10))
    yield {"leaves": (SIGNS / "told-1").exists()}

folder = tempfile.mkdtemp(prefix="nbtorchjob-")
answering.serve(folder, questions.node_key(KEY, injected.run(), NODE), {"leave": leave})
begin()
wait("go")
value(1)
"""


@pytest.fixture
def stage(stage, monkeypatch):
    """Yield a stage that checks its host often; remove the host's taints in the end."""
    monkeypatch.setattr(selection, "EVERY_S", 0.2)
    yield stage
    stage.cluster.taint()


def looks(stage):
    return [path for method, path in stage.cluster.requests if path.startswith("/api/v1/nodes/")]


def told(stage):
    return len(list(stage.signs.glob("told-*")))


def host(*keys, **more):
    taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
    return {"metadata": {"name": "one", **more}, "spec": {"taints": taints}}


@pytest.mark.parametrize("key", selection.TAINTS)
def test_a_taint_says_that_a_host_is_about_to_end(key):
    assert selection.host_notice(host("nvidia.com/gpu", key)) == f"its host has the taint {key}"


def test_so_does_a_node_that_is_being_deleted():
    going = host("karpenter.sh/disrupted", deletionTimestamp="2026-01-01T00:00:00Z")
    assert selection.host_notice(going) == "its host is being deleted"


@pytest.mark.parametrize(
    "key",
    [
        "node.kubernetes.io/unschedulable",
        "karpenter.sh/disrupted",
        "DeletionCandidateOfClusterAutoscaler",
        "aws-node-termination-handler/rebalance-recommendation",
    ],
)
def test_nothing_is_said_by_a_cordon_or_a_mere_candidate(key):
    assert selection.host_notice(host(key)) == ""
    assert selection.host_notice({"metadata": {"name": "plain"}}) == ""


def test_a_node_is_told_until_it_leaves_and_then_no_more(stage):
    job = running(stage.submit(PART))
    stage.cluster.taint("node.kubernetes.io/unschedulable")
    count = len(looks(stage))
    until(lambda: len(looks(stage)) > count + 2)
    assert not told(stage)

    stage.cluster.taint(SPOT)
    until(lambda: told(stage) == 2)
    count = len(looks(stage))
    stage.sign("go")

    assert job.result(LIMIT) == 1
    assert (told(stage), len(looks(stage))) == (2, count)
    assert job.logs() == f"its host has the taint {SPOT}\n" * 2


def test_who_may_not_read_hosts_asks_once_and_nobody_is_told(stage):
    name = stage.become()
    job = running(stage.submit(PART))
    stage.cluster.taint(SPOT)

    def asked():
        return [attempt.verb for attempt in stage.cluster.attempts(name) if attempt.resource == "nodes"]

    until(asked)
    stage.sign("go")

    assert job.result(LIMIT) == 1
    assert (asked(), told(stage)) == (["get"], 0)
