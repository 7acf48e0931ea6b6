"""A job that is cancelled while nobody follows it has ended for whoever attaches then."""

from nbtorchjob import folders
from nbtorchjob.state import Phase
from tests.kubernetes.mortal import Kernel
from tests.kubernetes.stage import until
from tests.patience import LIMIT


def test_a_job_whose_pods_went_while_nobody_looked_was_cancelled(stage):
    job = stage.submit("begin(); wait('never')", kind="pytorchjob")
    with Kernel(stage, job) as kernel:
        kept = folders.state_dir()
        until(lambda: any("NodeStarted" in each.read_text() for each in kept.rglob("facts.jsonl")))
        kernel.kill()
    job.cancel()
    until(lambda: not stage.pods())

    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED
