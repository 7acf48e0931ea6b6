"""A failed job resumes from its checkpoint, by sidebar and card, and TensorBoard shows it."""

import pytest

from tests.browser.test_commands import has_cells

TRAIN = """%%torchjob --name halted
from nbtorchjob import artifacts_dir, checkpoint_dir, report
from torch.utils.tensorboard import SummaryWriter
last = checkpoint_dir() / "last.txt"
begins = int(last.read_text()) if last.exists() else 0
with SummaryWriter(artifacts_dir() / "runs") as writer:
    for step in range(begins, 6):
        writer.add_scalar("loss", 1 / (step + 1), step)
        report(step=step, loss=1 / (step + 1))
        last.write_text(str(step + 1))
        if begins == 0 and step == 3:
            raise RuntimeError("the disk is full")
f"began at step {begins}"
"""


@pytest.fixture
def halted(lab):
    """Yield a notebook in which the second cell's job has failed after its fourth step."""
    notebook = lab.open("resuming", ["%load_ext nbtorchjob", TRAIN, "%torchjob attach halted-2"])
    notebook.run(0)
    notebook.run(1)
    notebook.output(1).locator(".nbt-state").get_by_text("Failed").wait_for()
    yield notebook
    notebook.page.close()


def test_a_failed_job_goes_on_from_its_checkpoint_and_is_shown_in_tensorboard(halted):
    halted.sidebar.job("halted", "Failed")
    halted.sidebar.choose("halted", "Resume From Checkpoint")
    halted.page.get_by_text("halted runs again as halted-2").first.wait_for()
    halted.sidebar.job("halted-2", "Succeeded")
    halted.run(2)
    halted.output(2).get_by_text("began at step 4").first.wait_for()

    halted.output(1).get_by_role("button", name="Resume from checkpoint").click()
    halted.page.get_by_text("halted runs again as halted-3").first.wait_for()
    halted.sidebar.job("halted-3", "Succeeded")

    halted.sidebar.choose("halted-3", "Open in TensorBoard")
    has_cells(halted, 4)
    assert halted.source(2) == "%torchjob tensorboard halted-3"
    board = halted.output(2).frame_locator("iframe")
    board.get_by_text("loss").first.wait_for()
