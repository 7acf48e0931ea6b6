"""Pdb on a rank in a pod, while its peer in another pod waits longer than its own timeout.

With NBTORCHJOB_TEST_DEBUGGING=all, in pods of every kind.
"""

import os
import re

import pytest

from nbtorchjob import AskError, Elastic
from nbtorchjob.backends.kubernetes.kinds import KINDS
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

pytestmark = pytest.mark.torch

# Kinds differ only in the container of their pods.
SOME = [*KINDS] if os.environ.get("NBTORCHJOB_TEST_DEBUGGING") == "all" else ["indexedjob"]

CELL = """
import datetime, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
rank, t = dist.get_rank(), torch.ones(1)
def step(x):
    if x == 1:
        breakpoint()
    return x * 2
z = step(rank)
dist.all_reduce(t)
if rank == 1:
    1 / 0
dist.all_reduce(t)
"""


def typed(session, *lines):
    """Type lines, one at each prompt; return all output."""
    rest, output = list(lines), ""
    while (record := session.hear(LIMIT)) is not None:
        if "trouble" in record:
            raise AskError(record["trouble"])
        output += re.sub(r"\x1b\[[0-9;]*m", "", record.get("out", ""))
        if "prompt" in record and rest:
            session.say(rest.pop(0))
        elif not rest and ({"prompt", "left", "goes"} & record.keys()):
            break
    return output


@pytest.mark.parametrize("kind", SOME)
def test_pdb_in_a_pod_while_the_other_waits_on(stage, kind):
    options = {"image": "localhost/torch:1", "cpu": "100m", "kind": kind}
    job = stage.submit(cell=CELL, launch=Elastic(nnodes=2), hold=True, **options)
    (stop,) = until(lambda: job.state.stopped)
    assert (stop.node, stop.rank, stop.function, stop.why) == (1, 1, "step", "breakpoint")

    with job.debugger(by="me") as session:
        assert "return x * 2" in typed(session, "p x")
        with pytest.raises(AskError, match=r"^me has been debugging rank 1 since"), job.debugger() as second:
            typed(second)
        assert stage.cluster.cut("/exec$")  # the second session's, too, if it has just left
        with pytest.raises(AskError, match="the connection to it was cut"):
            session.hear(LIMIT)
    until(lambda: "the time-out of all_reduce #1, 2 s, is put off" in job.logs(0))
    with job.debugger() as session:
        assert "return x * 2" in typed(session, "c")

    (failure,) = until(lambda: [stop for stop in job.state.stopped if stop.why == "failure"])
    assert (failure.rank, failure.lineno) == (1, 13)
    with job.debugger() as session:
        assert "1.0" in typed(session, "p z, t.item() / 2", "q")
    assert job.release() == [1]
    assert job.exception(LIMIT).error.type == "ZeroDivisionError"
