"""A job that is cancelled while nobody follows it has ended for whoever attaches later."""

import pytest

from nbtorchjob import api
from nbtorchjob.machine import folders
from nbtorchjob.state import Phase
from tests.backends.kubernetes.mortal import Kernel
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT


def test_a_job_whose_pods_went_while_nobody_looked_was_cancelled(stage):
    job = stage.submit("begin(); wait('never')", kind="pytorchjob")
    with Kernel(stage, job) as kernel:
        kept = folders.state_dir()
        until(lambda: any("NodeStarted" in path.read_text() for path in kept.rglob("facts.jsonl")))
        kernel.kill()
    job.cancel()
    until(lambda: not stage.pods())

    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob", "volcano", "indexedjob"])
def test_a_job_of_whose_pods_only_the_logs_are_known_was_cancelled(stage, kind):
    job = stage.submit("begin(); sign('begun'); wait('never')", kind=kind)
    until((stage.signs / "begun").exists)
    # Cancelling a job that nobody follows saves its logs, but records no more of its pods.
    job.cancel()
    until(lambda: not stage.pods())

    assert api.attach(job.name).state.phase is Phase.CANCELLED
    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED
