"""Indexed Jobs on a cluster that places all pods of a job at once or none (Kubernetes 1.36 with gates)."""

import pytest

from nbtorchjob.backends.kubernetes.doctor import server
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.machine import loop
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import RunPolicy
from nbtorchjob.state import Phase
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.stage import until, waits, working
from tests.patience import LIMIT

GANG = "waiting until all 2 pods fit at once (gang): no host has enough nvidia.com/gpu free"


@pytest.fixture(scope="module")
def cluster(crds):
    """Yield a cluster with these gates."""
    with Emulator(kinds=["indexedjob"], gates=["EnableWorkloadWithJob"]) as emulator:
        yield emulator


def hosts(stage):
    """Return for each pod whether it has a host."""
    return [bool(pod["spec"].get("nodeName")) for pod in stage.pods()]


def test_a_job_says_that_it_waits_until_all_its_pods_fit(stage):
    stage.cluster.hold("^together-1-")
    job = stage.submit("begin(2); wait('end'); value(1)", name="together", launch=Elastic(2))
    job.subscribe(lambda state: None)

    until(lambda: GANG in waits(job))
    assert hosts(stage) == [False, False]
    assert job.state.phase is Phase.PENDING
    stage.cluster.release("^together-1-")
    working(job)
    assert "gang" not in waits(job)
    stage.sign("end")
    assert job.result(LIMIT) == 1


def test_what_doesnt_fit_in_time_is_given_back(stage):
    stage.cluster.hold("^late-1-")
    policy = RunPolicy(start_within="1s")
    job = stage.submit("begin(2); wait('end')", name="late", launch=Elastic(2, run_policy=policy))

    assert job.wait(LIMIT)
    assert job.state.failure.reason.line == f"was held back for 1 s, and ended: {GANG}"


def test_without_permission_to_read_groups_each_pod_says_what_it_waits_for(stage):
    stage.cluster.hold("^blind-1-")
    stage.become()
    job = stage.submit("begin(2); value(1)", name="blind", launch=Elastic(2))
    job.subscribe(lambda state: None)

    until(lambda: "no host has enough nvidia.com/gpu free" in waits(job))
    assert "gang" not in waits(job)
    stage.cluster.release("^blind-1-")
    assert job.result(LIMIT) == 1


def test_the_doctor_says_who_places_nodes_at_once(stage):
    def said(nnodes):
        async def look():
            return await server.gang_findings(
                await session(None), KINDS["indexedjob"], stage.spec(Elastic(nnodes))
            )

        return [finding.text for finding in loop.run(look())]

    (text,) = said(2)
    assert text.endswith("all nodes are placed at once, or none")
    assert said(1) == []
